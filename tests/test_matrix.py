"""Matrices: the grammar, validation before the first start, processes that fail or are killed, and the table."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from core_kit import Cli
from hypothesis import given
from hypothesis import strategies as st

from dynaweb import plugins
from dynaweb.config import resolve
from dynaweb.errors import ConfigError, MissingError
from dynaweb.loop import stages
from dynaweb.matrix import Matrix, MatrixFolder, Plan, plan_of, read_matrix, shipped_matrices
from dynaweb.matrix.cells import cell_id
from dynaweb.matrix.grammar import parse_axis
from dynaweb.matrix.page import matrix_page
from dynaweb.matrix.results import ARMS, measures_of, results
from dynaweb.matrix.runner import Progress, Runner
from dynaweb.matrix.table import matrix_markdown, matrix_text

GRAMMAR = """
[matrix]
base = "smoke"
seeds = [3, 4]
set = { "eval.episodes" = 5 }

[matrix.axes]
wm = ["delta", "full-state"]
anchor = [{ label = "none", "rl.bc_weight" = 0.0 }, { label = "some", "rl.bc_weight" = 0.1, "rl.bc_batch" = 3 }]

[[matrix.zip]]
"rl.tasks" = [2, 4]
"rl.n" = [8, 4]

[[matrix.when]]
if = { wm = "full-state", anchor = ["some"] }
set = { "wm_fit.steps" = 9 }

[[matrix.exclude]]
wm = "full-state"
"rl.tasks" = [4, 99]
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "study.toml"
    path.write_text(GRAMMAR, encoding="utf-8")
    return path


def plan(source: str | Path = "smoke", **more: Any) -> Plan:
    return plan_of(read_matrix(source, **more), plugins=plugins.load(warn=False))


def test_a_grid_with_zip_when_and_exclude(file: Path) -> None:
    made = plan(file)
    assert made.axes == ("wm", "anchor", "rl.tasks", "rl.n")
    # (2 world models x 2 anchors x 2 zipped pairs - 2 excluded) x 2 seeds.
    assert len(made.cells) == 12
    assert [cell.seed for cell in made.cells] == [3] * 6 + [4] * 6
    for cell in made.cells:
        labels = dict(cell.labels)
        assert (labels["rl.tasks"], labels["rl.n"]) in {("2", "8"), ("4", "4")}
        assert (labels["wm"], labels["rl.tasks"]) != ("full-state", "4")
        assert (cell.recipe.rl.tasks, cell.recipe.rl.n) == (int(labels["rl.tasks"]), int(labels["rl.n"]))
        assert (cell.recipe.wm.name, cell.recipe.run.seed, cell.recipe.eval.episodes) == (labels["wm"], cell.seed, 5)
        both = (labels["wm"], labels["anchor"]) == ("full-state", "some")
        assert cell.recipe.wm_fit.steps == (9 if both else 2)
        assert cell.recipe.rl.bc_batch == (3 if labels["anchor"] == "some" else 2)


def test_settings_may_be_nested_tables_and_flags_everywhere(file: Path) -> None:
    text = file.read_text().replace('set = { "wm_fit.steps" = 9 }', "set = { wm_fit = { steps = 9 }, model = 'tiny' }")
    text = text.replace('set = { "eval.episodes" = 5 }', "set = { eval = { episodes = 5 }, agent = 'direct' }")
    file.write_text(text.replace('label = "some", "rl.bc_weight" = 0.1', 'label = "some", rl = { bc_weight = 0.1 }'))
    for cell in plan(file).cells:
        both = dict(cell.labels)["anchor"] == "some" and cell.recipe.wm.name == "full-state"
        assert (cell.recipe.wm_fit.steps, cell.recipe.eval.episodes) == (9 if both else 2, 5)
        assert cell.recipe.rl.bc_weight == (0.1 if dict(cell.labels)["anchor"] == "some" else 0.0)


def test_one_axis_at_a_time(file: Path) -> None:
    made = plan(file, mode="one-at-a-time", seeds=(0,))
    combos = ["/".join(value for _, value in cell.labels) for cell in made.cells]
    assert combos == ["delta/none/2/8", "full-state/none/2/8", "delta/some/2/8", "delta/none/4/4"]


def test_equal_runs_are_one_cell_and_ids_follow_the_recipe(file: Path) -> None:
    made = plan("smoke", axes=["rl.updates=2,3"], seeds=(0, 1))
    assert len({cell.id for cell in made.cells}) == 4
    # 2 is what the recipe says anyway: the id is that of the plain recipe, whatever matrix asks for it.
    assert made.cells[0].id == cell_id(resolve("smoke", seed=0)) == plan("smoke").cells[0].id
    assert cell_id(resolve("smoke", overrides={"web.workers": 3})) == made.cells[0].id
    when = Matrix.model_validate(
        {
            "base": "smoke",
            "axes": {"rl.updates": [2, 3]},
            "when": [{"if": {"rl.updates": 3}, "set": {"rl.updates": 2}}],
        }
    )
    merged = plan_of(when)
    assert (len(merged.cells), merged.merged) == (1, 1)


@pytest.mark.parametrize("name", sorted(shipped_matrices()))
def test_shipped_matrices_are_valid(name: str) -> None:
    made = plan(name)
    assert made.matrix.description
    assert len(made.cells) == len(made.combinations()) * 3
    assert made.merged == 0


def test_the_papers_three_matrices() -> None:
    lengths = {cell.recipe.dream.horizon for cell in plan("dream-length").cells}
    assert lengths == set(range(1, 9))
    shares = sorted({cell.recipe.rl.expert_share for cell in plan("expert-share").cells})
    assert (shares[0], shares[-1]) == (0.0, 1.0) and {0.4, 0.5} <= set(shares)
    models = {(cell.recipe.wm.name, cell.recipe.wm_fit.steps > 0) for cell in plan("world-model").cells}
    assert models == {(name, trained) for name in ("delta", "full-state") for trained in (True, False)}
    offered = {name for name in plugins.current().names("opt")}
    assert {cell.recipe.opt.name for cell in plan("optimizers").cells} == offered


values = st.one_of(st.integers(-99, 99), st.booleans(), st.text("abc ,'=[]", max_size=5), st.lists(st.integers(0, 9)))


@given(st.lists(values, min_size=1, max_size=4))
def test_any_values_can_be_an_axis_on_the_command_line(wanted: list[Any]) -> None:
    text = ",".join(json.dumps(value) for value in wanted)
    assert parse_axis(f"a.b={text}") == ("a.b", wanted)


def test_bare_words_are_text_and_commas_in_brackets_do_not_separate() -> None:
    assert parse_axis("wm=delta,full-state") == ("wm", ["delta", "full-state"])
    assert parse_axis("controls.sft_steps=[1,2],[]") == ("controls.sft_steps", [[1, 2], []])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("wm=delta,detla", "wm=detla: --"),
        ("rl.updates=1,two", "rl.updates = 'two'"),
        ("rl.updats=1,2", "did you mean 'updates'"),
        ("seed=1,2", "seeds are no axis"),
        ("wm=delta,delta", "has a value twice"),
        ("wm=", "write it as NAME=VALUE,VALUE"),
        ("wm", "write it as NAME=VALUE,VALUE"),
        ("rl.n=two,three", "rl.n=three: "),
    ],
)
def test_nothing_starts_when_a_cell_is_not_valid(change: str, message: str) -> None:
    with pytest.raises((ConfigError, MissingError)) as caught:
        plan("smoke", axes=[change])
    assert message.replace("--", "overrides") in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("seeds = [3, 4]", "seeds = []", "matrix.seeds"),
        ("seeds", "sedes", "did you mean 'seeds'"),
        ('"rl.n" = [8, 4]', '"rl.n" = [8]', "different lengths"),
        ('if = { wm = "full-state"', 'if = { wn = "full-state"', "'wn', which is no axis; did you mean 'wm'"),
        ('"rl.n" = [8, 4]', '"rl.n" = [8, 4]\nwm = ["delta", "delta2"]', "axis 'wm' is there twice"),
        ('"eval.episodes" = 5', '"rl.tasks" = 5', "set for every cell and by axis 'rl.tasks' too"),
        ('label = "none", ', "", "a value that is a table needs a label"),
        ('base = "smoke"', 'base = "smoke"\nmax_cells = 5', "12 cells (2 seeds), more than max_cells = 5"),
        ('"rl.tasks" = [4, 99]', "", "has no cell"),
        ('base = "smoke"', 'base = "nothing.toml"', "nothing.toml does not exist"),
    ],
)
def test_mistakes_in_the_file_are_named(file: Path, old: str, new: str, message: str) -> None:
    text = file.read_text().replace(old, new, 1)
    if message == "has no cell":
        text = text.replace('[[matrix.exclude]]\nwm = "full-state"', '[[matrix.exclude]]\nwm = ["delta", "full-state"]')
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        plan(file)
    assert message in str(caught.value)


def test_what_is_no_matrix(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no matrix or recipe is called 'world-modle'; did you mean 'world-model'"):
        read_matrix("world-modle")
    recipe = tmp_path / "mine.toml"
    recipe.write_text('extends = "smoke"\n[rl]\nn = 4\n')
    (cell,) = plan(recipe).cells
    assert cell.recipe.rl.n == 4


FAKE = """
import json, sys, time
from pathlib import Path
folder, fails, gate = Path(sys.argv[1]), sys.argv[2] == "yes", Path(sys.argv[3])
print("working on", folder.name, flush=True)
folder.mkdir(parents=True, exist_ok=True)
(folder / "tries").open("a").write("x")
while not gate.exists():
    time.sleep(0.01)
if fails:
    sys.exit("error: out of luck")
seed = int(sys.argv[4])
arms = [{"name": n, "label": n, "role": r, "outcomes": [[float((at + seed + k) % 3 > 0) for at in range(30)]]}
        for k, (n, r) in enumerate((("sft", "sft"), ("dynaweb", "main")))]
for arm in arms:
    with (folder / "metrics.jsonl").open("a") as file:
        for at in range(30):
            row = {"event": "rollout", "phase": "eval " + arm["name"], "task": f"t{seed}-{at}"}
            file.write(json.dumps(row) + "\\n")
(folder / "recipe.json").write_text(json.dumps({"settings": {"run": {"seed": seed}}, "origins": {}}))
(folder / "seeds.json").write_text(json.dumps({"run": seed}))
(folder / "summary.json").write_text(json.dumps({"arms": arms, "probes": [{"element_f1": 0.5}, {"element_f1": 0.75}]}))
(folder / "status.json").write_text('{"status": "done"}')
"""


class Fakes:
    """Cells that are quick: what fails and what waits is decided here."""

    def __init__(self, plan: Plan, path: Path) -> None:
        self.plan, self.folder = plan, MatrixFolder(path)
        self.failing: set[str] = set()
        self.gate = path.parent / "gate"
        self.gate.touch()

    def command(self, folder: MatrixFolder, id: str) -> Sequence[str]:
        seed = next(cell.seed for cell in self.plan.cells if cell.id == id)
        fails = "yes" if id in self.failing else "no"
        return [sys.executable, "-c", FAKE, str(folder.cell(id)), fails, str(self.gate), str(seed)]

    def run(self, **options: Any) -> dict[str, str]:
        done = Runner(self.plan, self.folder, command=self.command, **options).run()
        return {progress.cell.id: progress.state for progress in done}

    def tries(self, id: str) -> int:
        path = self.folder.cell(id) / "tries"
        return len(path.read_text()) if path.exists() else 0


@pytest.fixture
def fakes(tmp_path: Path) -> Fakes:
    return Fakes(plan("smoke", axes=["rl.updates=1,2,3"], seeds=(0, 1)), tmp_path / "matrix")


def test_a_failed_cell_is_recorded_and_the_rest_go_on(fakes: Fakes) -> None:
    bad = fakes.plan.cells[1].id
    fakes.failing = {bad}
    seen: list[tuple[str, str]] = []
    states = fakes.run(jobs=2, changed=lambda progress: seen.append((progress.cell.id, progress.state)))
    assert {id for id, state in states.items() if state == "failed"} == {bad}
    assert list(states.values()).count("done") == 5
    status = fakes.folder.status(fakes.plan.cells[1])
    assert (status.state, status.detail) == ("failed", "error: out of luck")
    assert "working on" in fakes.folder.log(bad).read_text()
    assert (bad, "running") in seen and (bad, "failed") in seen
    # Again: only what is not done.
    fakes.failing = set()
    assert set(fakes.run().values()) == {"done"}
    assert {fakes.tries(cell.id) for cell in fakes.plan.cells if cell.id != bad} == {1}


def test_a_refused_second_run_leaves_the_plan_alone(fakes: Fakes) -> None:
    fakes.run()
    other = Fakes(plan("smoke", axes=["rl.updates=4,5"]), fakes.folder.path)
    with fakes.folder.lock(), pytest.raises(ConfigError, match="runs the matrix"):
        other.run()
    assert fakes.folder.read_plan() == fakes.plan


def test_folders_that_cannot_take_a_matrix(fakes: Fakes, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes").write_text("mine")
    for name, why in (("mine", "is not empty and not a matrix"), ("mine/notes/matrix", "cannot be written: Not a dir")):
        with pytest.raises(ConfigError, match=why):
            Runner(fakes.plan, MatrixFolder(tmp_path / name)).run()
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["notes"]


def test_a_killed_cell_has_failed_for_everybody_until_it_is_tried_again(fakes: Fakes) -> None:
    cell = fakes.plan.cells[0]
    folder = fakes.folder.cell(cell.id)

    def killed(matrix: MatrixFolder, id: str) -> Sequence[str]:
        if id != cell.id:
            return fakes.command(matrix, id)
        state = f'mkdir -p {folder}; echo \'{{"status": "running"}}\' > {folder}/status.json; echo too much >&2'
        return ["sh", "-c", f"{state}; kill -9 $$"]

    done = Runner(fakes.plan, fakes.folder, command=killed).run()
    assert (done[0].state, fakes.folder.status(cell).state) == ("failed", "failed")
    assert fakes.folder.status(cell).detail == "too much"
    assert "cells: 1 failed, 5 done" in matrix_text(results(fakes.plan, fakes.folder))
    # While it is tried again, how the last attempt ended says nothing.
    seen: set[bool] = set()
    fakes.run(changed=lambda progress: seen.add(fakes.folder.outcome(cell.id).exists() and progress.state == "running"))
    assert seen == {False}
    assert fakes.folder.status(cell).state == "done"


def test_fail_fast_leaves_the_rest_for_later(fakes: Fakes) -> None:
    fakes.failing = {fakes.plan.cells[1].id}
    states = list(fakes.run(fail_fast=True).values())
    assert states == ["done", "failed", "waiting", "waiting", "waiting", "waiting"]


def test_a_matrix_that_grows_keeps_what_is_done(fakes: Fakes, tmp_path: Path) -> None:
    fakes.run()
    more = Fakes(plan("smoke", axes=["rl.updates=2,4"], seeds=(0, 1, 2)), fakes.folder.path)
    assert set(more.run().values()) == {"done"}
    for cell in more.plan.cells:
        assert more.tries(cell.id) == 1
    assert more.folder.read_plan() == more.plan


def test_as_many_at_once_as_there_are_jobs(fakes: Fakes) -> None:
    fakes.gate.unlink()
    running: list[int] = []
    cells: list[Progress] = []

    def changed(progress: Progress) -> None:
        running.append(sum(cell.state == "running" for cell in cells))
        if running[-1] == 3 and progress.line.startswith("working"):
            fakes.gate.touch()

    assert set(fakes.run(jobs=3, changed=changed, progress=cells).values()) == {"done"}
    assert max(running) == 3


def test_the_table_has_n_mean_interval_and_paired_differences(fakes: Fakes) -> None:
    fakes.failing = {fakes.plan.cells[2].id, fakes.plan.cells[5].id}
    fakes.run()
    found = results(fakes.plan, fakes.folder, ["main", "sft", "element_f1"])
    first, second, third = found.rows
    assert first.is_reference and first.against is None
    assert (first.estimates["main"].n, second.estimates["main"].n) == (60, 60)  # type: ignore[union-attr]
    assert second.against is not None and second.against.paired is not None
    assert second.against.paired.difference.value == 0.0 and not second.against.shown
    assert second.against.paired.seeds == 2
    assert second.estimates["element_f1"].value == 0.625  # type: ignore[union-attr]
    assert third.done == 0 and third.estimates["main"] is None
    text = matrix_text(found)
    assert "66.7 [" in text and "0.625" in text and "0/2" in text
    assert text.count("out of luck") == 2 and "cells: 4 done, 2 failed" in text
    assert matrix_markdown(found).splitlines()[1].startswith("| --- | ---:")
    page = matrix_page(found, fakes.folder.path)
    assert page.count("<tr>") >= 3 + len(fakes.plan.cells)
    assert "out of luck" in page and "http://" not in page and "<script" not in page
    json.dumps(found.plain())


def test_every_arm_of_a_run_is_a_measure() -> None:
    source = Path(stages.__file__).read_text(encoding="utf-8")
    assert set(re.findall(r'ArmSpec\(\s*"([\w-]+)"', source)) == set(ARMS) - {"main"}
    found = plan("smoke")
    for name in (*ARMS, "element_f1", "Element F1", "Address"):
        assert measures_of(found, [name]) == (name,)


def test_text_of_a_matrix_stays_text(tmp_path: Path) -> None:
    bad = "</td><script>alert(1)</script>"
    file = tmp_path / "m.toml"
    values = f"[{{label = '{bad}', 'rl.n' = 2}}, {{label = 'b', 'rl.n' = 3}}]"
    file.write_text(f"[matrix]\nbase = 'smoke'\ndescription = '{bad}'\n[matrix.axes]\n'{bad}' = {values}\n")
    made = plan(file)
    text = matrix_page(results(made, MatrixFolder(tmp_path / "m")), tmp_path / "m")
    assert text.count("&lt;script&gt;alert(1)&lt;/script&gt;") >= 4
    assert "<script" not in text


def test_the_command_line(cli: Cli, tmp_path: Path, file: Path) -> None:
    done = cli("matrix", "show", "study.toml", "--seeds", "7")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0].split() == ["cell", "seed", "wm", "anchor", "rl.tasks", "rl.n"]
    assert "6 cells on smoke" in done.stdout
    shown = json.loads(cli("matrix", "show", "smoke", "--axis", "wm=delta,full-state", "--json").stdout)
    assert [cell["recipe"]["wm"]["name"] for cell in shown["cells"]] == ["delta", "full-state"]
    done = cli("matrix", "show", "smoke", "--axis", "wm=delta,detla")
    assert done.returncode == 3
    assert "none was started" in done.stderr and "did you mean 'delta'" in done.stderr
    assert cli("matrix", "show", "smoke", "--seeds", "1,x").returncode == 2
    done = cli("matrix", "run", "smoke", "--measure", "element_f2")
    assert done.returncode == 2
    assert "no measure is called 'element_f2'; did you mean 'element_f1'" in done.stderr
    assert "world-model" in cli("matrix", "list").stdout
    states = json.loads(cli("matrix", "status", "study.toml", "--json").stdout)
    assert {state["state"] for state in states} == {"waiting"}
    assert not (tmp_path / "runs").exists()


TINY = (
    "env.task_settings.driver=static data.demos=2 sft.steps=1 sft.batch=2 explore.episodes=2 explore.steps=1 "
    "wm_fit.batch=2 dream.horizon=1 rl.updates=1 rl.tasks=1 rl.n=2 rl.bc_batch=2 eval.episodes=2 "
    "eval.steps=1 controls.sft_steps=[] model.threads=1 wm.max_new_tokens=8 wm.retries=0 web.contexts=4"
)


def test_a_killed_matrix_goes_on_and_repeats_nothing(tmp_path: Path) -> None:
    """`world-model` of real cells: kill -9 the matrix while the second one runs."""
    command = [sys.executable, "-m", "dynaweb", "matrix", "run", "smoke", "--axis", "wm_fit.steps=0,1", "--out", "m"]
    command += [word for setting in TINY.split() for word in ("--set", setting)]
    folders: list[Path] = []
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as first:
        assert first.stderr is not None
        for line in first.stderr:
            if line.startswith("[1/2]") and "running" in line:
                folders = _wait_for_second(tmp_path / "m" / "cells")
                break
        os.kill(first.pid, signal.SIGKILL)
    assert len(folders) == 2, line
    _wait_until_free(folders)
    ended = {
        folder.name: (folder / "status.json").stat().st_mtime_ns for folder in folders if _status(folder) == "done"
    }
    assert len(ended) == 1
    status = subprocess.run([*command[:4], "status", "m"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert sorted(line.split()[1] for line in status.stdout.splitlines()[1:]) == ["done", "interrupted"]
    again = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stderr
    assert "done after" in again.stderr and again.stderr.count("running") == 1
    for name, time_ns in ended.items():
        assert (tmp_path / "m" / "cells" / name / "status.json").stat().st_mtime_ns == time_ns
    assert "cells: 2 done" in again.stdout
    rows = [line for line in again.stdout.splitlines() if line.startswith(("0 ", "1 "))]
    assert len(rows) == 2 and all("[" in row and " 2 " in row for row in rows)
    assert (tmp_path / "m" / "report.html").stat().st_size > 5000


def _status(folder: Path) -> str:
    path = folder / "status.json"
    return str(json.loads(path.read_text())["status"]) if path.exists() else ""


def _wait_for_second(cells: Path) -> list[Path]:
    for _ in range(600):
        found = [path for path in cells.iterdir() if (path / "status.json").exists()]
        if len(found) == 2:
            return found
        time.sleep(0.05)
    raise AssertionError("the second cell did not start")


def _wait_until_free(folders: list[Path]) -> None:
    from dynaweb.runs.lock import locked

    for folder in folders:
        for _ in range(600):
            with locked(folder / ".lock", what="", wait=False) as free:
                if free:
                    break
            time.sleep(0.05)
        else:
            raise AssertionError(f"a cell of a killed matrix goes on in {folder}")
