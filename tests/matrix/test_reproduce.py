"""Published tables are made of raw results: they are those of the folders, and those of the documentation."""

from __future__ import annotations

from pathlib import Path

import pytest
from core_kit import Cli
from matrix_kit import Fakes, plan
from raw_kit import raw_matrix

from dynaweb.compare.raw import RawResults, files, read_results, write_results
from dynaweb.errors import ConfigError
from dynaweb.matrix.raw import collect
from dynaweb.matrix.reproduce import changes, filled, find, parse, plan_anew, tables
from dynaweb.matrix.results import results, results_of
from dynaweb.matrix.table import matrix_text

ROOT = Path(__file__).parents[2]
MADE = raw_matrix({"opt": ["a", "b"]}, lambda values: 0.5 + 0.2 * (values["opt"] == "b"), n=20)


def test_a_table_of_raw_results_is_that_of_the_folders(tmp_path: Path) -> None:
    fakes = Fakes(plan("smoke", axes=["rl.updates=1,2"], seeds=(0, 1)), tmp_path / "matrix")
    fakes.run(jobs=2)
    write_results(path := tmp_path / "smoke.jsonl.gz", collect([fakes.folder.path], "smoke"))
    measures = ("main", "sft", "element_f1", "real_steps")
    there, kept = results(fakes.plan, fakes.folder, measures), results_of(read_results(path), measures)
    assert matrix_text(there, full=True, pairwise=True) == matrix_text(kept, full=True, pairwise=True)
    fakes.folder.outcome(fakes.plan.cells[0].id).unlink()
    (fakes.folder.cell(fakes.plan.cells[0].id) / "status.json").write_text('{"status": "running"}')
    assert len(collect([fakes.folder.path], "smoke").runs) == 3, "a cell that is not done is no result"


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda path: path.name)
def test_every_marked_table_of_the_docs_is_what_the_raw_results_give(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert filled(text, ROOT / "results") == text, "python -m dynaweb reproduce --write docs/results.md"


@pytest.mark.parametrize("path", files(ROOT / "results").values(), ids=lambda path: path.name)
def test_the_results_of_the_repository_are_whole_and_can_be_done_again(path: Path) -> None:
    raw = read_results(path)
    assert raw.name == path.name.removesuffix(".jsonl.gz") and raw.title and raw.command
    again = plan_anew(raw)
    assert [(cell.labels, cell.seed) for cell in again.cells] == [(run.labels, run.seed) for run in raw.runs]
    recipes = str([run.recipe for run in raw.runs])
    assert "/home/" not in recipes and "/tmp/" not in recipes


def test_marks_are_filled_and_mistakes_in_them_are_said(tmp_path: Path) -> None:
    write_results(tmp_path / "made.jsonl.gz", MADE)
    page = "# A\n\n<!-- results: made --against opt=b -->\nold\n<!-- end of results -->\nafter\n"
    new = filled(page, tmp_path)
    assert "against opt=b" in new and "old" not in new and new.endswith("<!-- end of results -->\nafter\n")
    assert filled(new, tmp_path) == new and filled("# no mark\n", tmp_path) == "# no mark\n"
    for options, why in (
        ("made --agianst x", "did you mean '--against'"), ("nade", "no raw results are called"),
        ("made --measure", "has an option"), ("made 'x", "is not understood"), ("made --against opt=c", "is no row"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=why):
            filled(page.replace("made --against opt=b", options), tmp_path)
    with pytest.raises(ConfigError, match="lacks its"):
        filled("<!-- results: made -->\n", tmp_path)
    with pytest.raises(ConfigError, match="holds no raw results"):
        find("made", tmp_path / "none")


def test_results_without_a_matrix_are_a_table_of_arms() -> None:
    bare = RawResults("bare", MADE.runs, MADE.axes)
    (table,) = tables(bare)
    assert [column.head for column in table.columns][:3] == ["opt", "arm", "seeds"]
    (same,) = tables(MADE, parse("made --arms")[1])
    assert same.rows == table.rows


def test_what_came_out_otherwise_is_said() -> None:
    other = raw_matrix({"opt": ["a", "b"]}, lambda values: 0.5 + 0.3 * (values["opt"] == "b"), n=20)
    assert changes(MADE, MADE) == []
    renamed = raw_matrix({"wm": ["a", "b"]}, lambda values: 0.5, n=20)
    lines = changes(MADE, renamed)
    assert len(lines) == 12 and sum("not done anew" in line for line in lines) == 6
    lines = changes(MADE, other)
    assert lines and all(line.startswith("opt=b, seed ") and ", dynaweb: " in line for line in lines)


def test_the_command_writes_tables_and_figures(cli: Cli, tmp_path: Path) -> None:
    write_results(tmp_path / "results" / "made.jsonl.gz", MADE)
    (page := tmp_path / "page.md").write_text("<!-- results: made -->\n<!-- end of results -->\n")
    given = ("--results", str(tmp_path / "results"), "--out", str(tmp_path / "out"))
    done = cli("reproduce", *given, "--write", str(page))
    assert done.returncode == 0 and done.stdout.startswith("## made\n\n| opt | seeds |"), done.stderr
    names = {path.name for path in (tmp_path / "out" / "made").iterdir()}
    assert {"made.md", "made.tex", "made.csv", "made-main.pdf", "made-main.svg", "made-main.png"} <= names
    assert "| opt | seeds |" in page.read_text() and f"renewed: {page}" in done.stderr
    assert f"as it was: {page}" in cli("reproduce", *given, "--no-figures", "--write", str(page)).stderr
    done = cli("reproduce", "nade", *given)
    assert done.returncode == 2 and "did you mean 'made'" in done.stderr
