"""The folder of a matrix against the plan that is asked for: what is done is not lost, and what is shown is its own."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from matrix_kit import plan
from typer.testing import CliRunner

from dynaweb import __version__
from dynaweb.cli.app import tree
from dynaweb.errors import ConfigError
from dynaweb.matrix import MatrixFolder, Plan, plan_of
from dynaweb.matrix.page import matrix_page
from dynaweb.matrix.recipes import comparison
from dynaweb.matrix.results import results
from dynaweb.matrix.runner import Runner
from dynaweb.matrix.table import matrix_table, matrix_text

WHERE = "held-out tasks, in env sites without a browser (driver static)"
FOLDER = Path("runs/matrix-smoke")


def finish(folder: MatrixFolder, id: str, *, where: str = WHERE, version: str = __version__) -> None:
    """Make the run of a cell that is done."""
    cell = folder.cell(id)
    cell.mkdir(parents=True, exist_ok=True)
    arm = {"name": "sft", "role": "main", "outcomes": [[1.0, 0.0, 1.0]]}
    files = {"summary.json": {"arms": [arm], "episodes_are": where}, "status.json": {"status": "done"}}
    files |= {"versions.json": {"dynaweb": version}, "seeds.json": {"run": 0}}
    for name, data in files.items():
        (cell / name).write_text(json.dumps(data), encoding="utf-8")
    (cell / "metrics.jsonl").touch()


def made(made: Plan, path: Path = FOLDER, *, done: Sequence[int] | None = None) -> MatrixFolder:
    """The folder of a matrix that was run; `done` are the places of the cells that are, by default all."""
    folder = MatrixFolder(path)
    with folder.lock():
        folder.write_plan(made)
    for at in range(len(made.cells)) if done is None else done:
        finish(folder, made.cells[at].id)
    return folder


def start(asked: Plan, folder: MatrixFolder) -> list[str]:
    """Run a plan whose cells do nothing, and so fail; returns how they stand."""
    return [one.state for one in Runner(asked, folder, command=lambda *_: ["true"]).run()]


def files(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != ".lock"}


@pytest.fixture(autouse=True)
def at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def cli(*arguments: str) -> Any:
    return CliRunner().invoke(tree(), ["matrix", *arguments])


FIRST = {"axes": ["wm=delta,full-state"], "seeds": (0, 1)}


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"axes": ["opt=grpo,ppo"]}, "4 done cells that this matrix lacks: wm=delta, seed 0; wm=full-state, seed 0; "),
        ({"axes": ["opt=grpo,ppo"]}, "wm=delta, seed 1 and 1 more"),
        ({"axes": ["wm=delta,full-state"]}, "2 done cells that this matrix lacks: wm=delta, seed 1; wm=full"),
        (
            {"axes": ["wm=delta"], "seeds": (0, 1, 2)},
            "2 done cells that this matrix lacks: wm=full-state, seed 0; wm=f",
        ),
        ({**FIRST, "sets": {"eval.episodes": 9}}, "differ (there -> here): eval.episodes: 6 -> 9\n"),
        (
            {**FIRST, "sets": {"env.task_settings.driver": "static"}},
            ': env.task_settings.driver: "chromium" -> "static"\n',
        ),
    ],
)
def test_a_plan_that_lacks_done_cells_is_refused_and_nothing_is_written(asked: dict[str, Any], says: str) -> None:
    folder = made(plan(**FIRST))
    folder.report.write_text("the report", encoding="utf-8")
    before = files(FOLDER)
    with pytest.raises(ConfigError) as caught:
        start(plan(**asked), folder)
    assert says in str(caught.value) and "another --out" in str(caught.value)
    assert files(FOLDER) == before
    # The other way out that it names.
    assert f"remove {folder.plan_file}" in str(caught.value)
    folder.plan_file.unlink()
    start(plan(**asked), folder)
    assert folder.read_plan().cells == plan(**asked).cells
    assert len(list((FOLDER / "cells").glob("*/summary.json"))) == 4


def test_the_command_line_refuses_it_too_also_for_whole_recipes() -> None:
    made(plan(**FIRST))
    done = cli("run", "smoke", "--axis", "opt=grpo,ppo")
    assert done.exit_code == 2 and "runs/matrix-smoke has 4 done cells that this matrix lacks" in done.stderr
    recipes, _ = comparison(["sft", "dynaweb"], seeds=(0,))
    made(plan_of(recipes), Path("runs/recipes"))
    done = CliRunner().invoke(tree(), ["compare", "--recipes", "sft,webrl", "--seeds", "0"])
    assert done.exit_code == 2 and "1 done cell that this matrix lacks: recipe=dynaweb, seed 0" in done.stderr


def test_a_plan_may_grow_and_drop_what_is_not_done() -> None:
    folder = made(plan(**FIRST), done=[0, 2])
    states = start(plan(axes=["wm=delta", "rl.updates=2,3"], seeds=(0, 1, 2)), folder)
    assert states.count("done") == 2 and len(states) == 6
    # A cell that failed is not done.
    assert start(plan(axes=["wm=delta"], seeds=(0, 1)), folder) == ["done", "done"]


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: "no JSON",
        lambda text: "[]",
        lambda text: '{"cells": 7}',
        lambda text: '{"cells": [7, {}, {"id": 3}, {"id": "nothing"}]}',
        lambda text: text.replace('"recipe"', '"recept"').replace('"labels"', '"label"'),
    ],
)
def test_a_damaged_plan_is_replaced_or_named_by_the_ids_that_are_left(damage: Callable[[str], str]) -> None:
    folder = made(plan(**FIRST))
    folder.plan_file.write_text(damage(folder.plan_file.read_text(encoding="utf-8")), encoding="utf-8")
    asked = plan(axes=["opt=grpo,ppo"])
    if not folder.plan_records().keys() & {cell.id for cell in plan(**FIRST).cells}:
        start(asked, folder)
        assert folder.read_plan() == asked
        return
    with pytest.raises(ConfigError, match=f"lacks: {plan(**FIRST).cells[0].id}; "):
        start(asked, folder)


def test_only_what_a_matrix_left_is_taken_over(tmp_path: Path) -> None:
    for name in ("logs", "cells/a", "report.html", "outcomes/a"):
        place = tmp_path / "other" / name
        place.mkdir(parents=True)
        assert MatrixFolder(tmp_path / "other").is_free == (name != "logs")
    (tmp_path / "other" / "notes.txt").touch()
    assert not MatrixFolder(tmp_path / "other").is_free
    assert not MatrixFolder(tmp_path / "other" / "notes.txt").is_free
    assert MatrixFolder(tmp_path / "nowhere").is_free


CHANGES = [
    ("--axis", "opt=grpo,ppo"),
    ("--seeds", "0,5"),
    ("--mode", "one-at-a-time"),
    ("--max-cells", "3"),
    ("--set", "eval.episodes=9"),
]


def test_status_and_table_without_options_show_what_was_run() -> None:
    ids = [cell.id for cell in plan(**FIRST).cells]
    folder = made(plan(**FIRST))
    for source in (("smoke",), ("smoke", "--out", str(FOLDER)), (str(FOLDER),), ("world-model", "--out", str(FOLDER))):
        done = cli("status", *source, "--json")
        assert [(one["id"], one["state"]) for one in json.loads(done.stdout)] == [(id, "done") for id in ids], source
        folder.report.unlink(missing_ok=True)
        done = cli("table", *source)
        assert "cells: 4 done" in done.stdout and "full-state" in folder.report.read_text(encoding="utf-8")
        assert f"report: {folder.report}" in done.stderr


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change[0])
def test_with_an_option_that_changes_the_plan_it_is_shown_and_the_report_stays(change: tuple[str, str]) -> None:
    folder = made(plan(**FIRST))
    folder.report.write_text("the report", encoding="utf-8")
    asked = json.loads(cli("show", "smoke", *change, "--json").stdout)["cells"]
    shown = json.loads(cli("status", "smoke", *change, "--json").stdout)
    assert [one["id"] for one in shown] == [one["id"] for one in asked]
    done = cli("table", "smoke", *change)
    assert done.exit_code == 0 and f"report: not written, since this table has other cells than {FOLDER}" in done.stderr
    assert folder.report.read_text(encoding="utf-8") == "the report"


def test_every_option_that_makes_the_plan_is_tried() -> None:
    import typer

    commands: Any = typer.main.get_command(tree())
    names = {option for one in commands.commands["matrix"].commands["show"].params for option in one.opts}
    assert names - {"source", "-p", "--json", "--debug"} == {option for option, _ in CHANGES}


def test_the_same_cells_by_options_write_the_report() -> None:
    folder = made(plan(**FIRST))
    done = cli("table", "smoke", "--seeds", "1,0", "--axis", "wm=full-state,delta")
    assert f"report: {folder.report}" in done.stderr and folder.report.exists()
    folder.report.unlink()
    folder.plan_file.write_text("no JSON", encoding="utf-8")
    done = cli("table", "smoke", "--seeds", "1")
    assert f"{folder.plan_file} is damaged" in done.stderr and not folder.report.exists()
    folder.plan_file.unlink()
    cli("table", "smoke", "--seeds", "1")
    assert folder.report.exists()


def test_a_folder_that_is_no_matrix_keeps_its_report(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    for name in ("report.html", "status.json"):
        (tmp_path / "run" / name).write_text("mine", encoding="utf-8")
    done = cli("table", "smoke", "--out", "run")
    assert "not written, since run holds something else than a matrix" in done.stderr
    assert (tmp_path / "run" / "report.html").read_text(encoding="utf-8") == "mine"


@pytest.mark.parametrize("command", ["show", "status", "table", "run"])
def test_the_folder_form_is_told_where_a_name_is_wrong(command: str) -> None:
    assert "named by its folder, such as runs/matrix-smoke" in cli(command, "matrix-smoke").stderr
    made(plan(**FIRST))
    made(plan(**FIRST), Path("runs/matrix-study"))
    for name, there in (("matrix-smoke", "runs/matrix-smoke"), ("study", "runs/matrix-study")):
        done = cli(command, name)
        assert done.exit_code == 2 and f"there is the folder of a matrix: give {there}" in done.stderr


@pytest.mark.parametrize("words", [("main,sft,seconds",), ("main", "sft", "seconds"), ("main, sft", "seconds")])
def test_measures_take_commas_and_may_be_repeated(words: tuple[str, ...]) -> None:
    made(plan(**FIRST))
    options = [option for word in words for option in ("--measure", word)]
    assert json.loads(cli("table", "smoke", *options, "--json").stdout)["measures"] == ["main", "sft", "seconds"]
    assert cli("run", "smoke", "--seeds", "0,1", "--axis", "wm=delta,full-state", *options).exit_code == 0


def test_a_wrong_measure_among_commas_is_named_alone() -> None:
    done = cli("run", "smoke", "--measure", "main,element_f2")
    assert done.exit_code == 2 and "no measure is called 'element_f2'" in done.stderr and "'main'" not in done.stderr


def test_the_note_fits_the_terminal_and_is_one_line_in_markdown(monkeypatch: pytest.MonkeyPatch) -> None:
    three = plan(axes=["rl.updates=1,2,3"])
    found = results(three, made(three))
    words = matrix_table(found).to("markdown").splitlines()[-1]
    for width in (40, 72, 88, 200, 999):
        note = matrix_text(found, width=width).partition("\n\n")[2].splitlines()
        assert max(map(len, note)) <= width and note[-1] == "cells: 3 done"
        assert " ".join(note[:-1]) == words
    for width in (50, 130):
        monkeypatch.setitem(os.environ, "COLUMNS", str(width))
        note = cli("table", "smoke").stdout.partition("\n\n")[2].splitlines()
        assert width - 20 < max(map(len, note)) <= width


def test_the_page_says_how_its_numbers_were_made() -> None:
    asked = plan(axes=["rl.updates=1,2"], sets={"env.task_settings.driver": "static", "rl.n": 3}, seeds=(0, 4))
    folder = made(asked)
    page = matrix_page(results(asked, folder), FOLDER)
    for words in (
        "the recipe smoke, changed by the settings of its row and by those below. Seeds: 0, 4.",
        "<tr><td><code>env.task_settings.driver</code></td><td><code>static</code></td></tr>",
        "<tr><td><code>rl.n</code></td><td><code>3</code></td></tr>",
        f"Episodes: {WHERE}.",
        f"Made by dynaweb {__version__}.</footer>",
    ):
        assert words in page, words
    finish(folder, asked.cells[1].id, where="held-out tasks in the real browser", version="0.0.9")
    page = matrix_page(results(asked, folder), FOLDER)
    assert f"Episodes differ between the cells: {WHERE}; held-out tasks in the real browser." in page
    assert f"Cells were run with {__version__}, 0.0.9." in page


def test_the_page_of_whole_recipes_has_what_is_set_for_each() -> None:
    asked = plan_of(comparison(["sft", "dynaweb"], sets=["eval.episodes=7"], seeds=(0,))[0])
    page = matrix_page(results(asked, MatrixFolder(FOLDER)), FOLDER)
    assert "Base of every cell: the recipe of its row, changed" in page
    assert "<td><code>7</code></td><td><code>recipe=dynaweb</code></td>" in page
    assert "Episodes" not in page
