"""Figures: files of the asked width with embedded fonts, the same every time; effects are balanced."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from core_kit import Cli
from raw_kit import raw_matrix

from dynaweb.compare.figures import Style, check
from dynaweb.compare.groups import Group
from dynaweb.compare.learning import _curve
from dynaweb.compare.raw import RawResults, write_results
from dynaweb.compare.records import RunRecord
from dynaweb.errors import ConfigError
from dynaweb.matrix.effects import factors, interactions
from dynaweb.matrix.figures import kinds, write_figures
from dynaweb.matrix.results import results_of
from dynaweb.report.data import Curve, ReportData
from dynaweb.stats import contrast

TWO = raw_matrix(
    {"opt": ["a", "b"], "wm": ["x", "y"]},
    lambda values: 0.4 + 0.2 * (values["opt"] == "b") + 0.2 * (values["opt"] == "b" and values["wm"] == "y"),
)
LENGTHS = raw_matrix({"dream.horizon": [1, 2, 4]}, lambda values: 0.5 + 0.05 * values["dream.horizon"])


def test_marginal_effects_are_taken_over_all_levels_of_the_others() -> None:
    by_axis = {one.axis: one for one in factors(results_of(TWO), "main")}
    assert {axis: [level.value for level in one.levels] for axis, one in by_axis.items()} == {
        "opt": ["a", "b"], "wm": ["x", "y"],
    }  # fmt: skip
    table = {row.labels: row.group.success("main").value or 0 for row in results_of(TWO).rows}
    for number, axis in enumerate(("opt", "wm")):
        for level in by_axis[axis].levels:
            shares = [share for labels, share in table.items() if labels[number][1] == level.value]
            assert level.success.value == pytest.approx(sum(shares) / 2) and level.success.n == 360
    assert by_axis["opt"].levels[0].against_first is None
    against = by_axis["opt"].levels[1].against_first
    assert against is not None and against.paired is not None and against.paired.difference.n == 360


def test_levels_that_lack_a_combination_are_compared_on_what_all_have() -> None:
    holed = RawResults(TWO.name, TWO.runs[:-1], TWO.axes, matrix=TWO.matrix)  # seed 2 lacks b, y
    (opt, wm) = factors(results_of(holed), "main")
    assert [level.success.n for level in (*opt.levels, *wm.levels)] == [240] * 4
    one = RawResults(TWO.name, tuple(run for run in TWO.runs if run.labels != (("opt", "b"), ("wm", "y"))), TWO.axes)
    (opt, wm) = factors(results_of(one), "main")
    assert (opt.contexts, wm.contexts) == (1, 1)
    assert interactions(results_of(one), "main") == []


def test_an_interaction_is_a_difference_of_differences() -> None:
    (one,) = interactions(results_of(TWO), "main")
    a, b, c, d = (one.cells[cell].value or 0 for cell in (("a", "x"), ("a", "y"), ("b", "x"), ("b", "y")))
    assert one.contrast is not None and one.contrast.value == pytest.approx(d - c - b + a)
    assert one.contrast.low is not None and one.contrast.low > 0 and one.contrast.n == 180


def test_contrasts_that_are_all_the_same_are_no_certainty() -> None:
    assert contrast([[1.0, 1.0], [1.0]]).low is None and contrast([[]]).value is None


def test_there_are_the_figures_that_the_axes_give() -> None:
    assert kinds(results_of(TWO))[:3] == ["main", "effects", "interactions"]
    assert kinds(results_of(LENGTHS)) == [
        "main", "by-dream.horizon", "real-steps", "tokens", "learning", "learning-steps", "learning-tokens",
    ]  # fmt: skip


def test_only_what_can_be_drawn_is_offered(tmp_path: Path) -> None:
    holed = RawResults("made", tuple(run for run in TWO.runs if run.id[:3] != "b-y"), TWO.axes, matrix=TWO.matrix)
    assert kinds(results_of(holed))[:2] == ["main", "effects"] and "interactions" not in kinds(results_of(holed))
    f1 = results_of(TWO, ["element_f1"])
    assert not {"effects", "interactions"} & {*kinds(f1, "element_f1")}
    for results, measure in ((results_of(holed), ""), (f1, "element_f1")):
        assert write_figures(results, tmp_path, measure=measure, formats=["svg"])
    many = results_of(raw_matrix({"rl.n": [1, 2, 3], "opt": list("abcdefghi")}, lambda values: 0.5, seeds=(0,), n=5))
    assert "by-rl.n" not in kinds(many)
    with pytest.raises(ConfigError, match="would have 9 lines"):
        write_figures(many, tmp_path, names=["by-rl.n"], formats=["svg"])


def test_a_learning_curve_is_averaged_by_update_and_says_its_window() -> None:
    def line(*runs: dict[int, float]) -> tuple[list[tuple[float, float | None]], int]:
        records = []
        for at, rewards in enumerate(runs):
            curve = Curve("rl", "reward", tuple(rewards.items()))
            records.append(RunRecord(Path("made"), at, {}, ReportData(title="made", curves=(curve,)), {}))
        series, window = _curve("a", Group("a", tuple(records)), ())
        return [(x, one.value) for x, one in series.points], window

    assert line({1: 0.0, 2: 0.5, 3: 1.0}, {1: 0.0, 3: 1.0}) == ([(1, 0.0), (3, 1.0)], 1)
    for count, wanted in ((16, 1), (20, 1), (21, 5)):
        points, window = line({at + 1: 0.5 for at in range(count)})
        assert (window, len(points)) == (wanted, count - wanted + 1)


def test_every_figure_is_written_in_every_format(tmp_path: Path) -> None:
    for raw, names in ((TWO, ["effects", "interactions"]), (LENGTHS, kinds(results_of(LENGTHS)))):
        style, folder = Style("85mm", "serif:7"), tmp_path / raw.runs[0].id
        paths = write_figures(results_of(raw), folder, names=names, style=style)
        assert len(paths) == 3 * len(names)
        for path in paths:
            data = path.read_bytes()
            assert data.startswith({".pdf": b"%PDF", ".svg": b"<?xml", ".png": b"\x89PNG"}[path.suffix])
            if path.suffix == ".pdf":
                assert b"/FontFile2" in data and b"/Type3" not in data, "fonts are embedded as TrueType"
            if path.suffix == ".png":
                assert int.from_bytes(data[16:20], "big") == pytest.approx(85 / 25.4 * 300, abs=1)
            assert "." not in path.stem, "LaTeX takes a dot for the ending"


def test_the_same_results_give_the_same_files(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_figures(results_of(TWO), tmp_path / name, names=["effects"])
    files = sorted((tmp_path / "one").iterdir())
    assert len(files) == 3
    for path in files:
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes(), path.name


@pytest.mark.parametrize(
    ("style", "why"),
    [
        (Style("85"), "write a number with its unit"),
        (Style("-3in"), "write a number with its unit"),
        (Style("3mm"), "between 40mm and 400mm"),
        (Style("9m"), "write a number with its unit"),
        (Style(font="serif:900"), "4 to 24 points"),
        (Style(font="serif:x"), "4 to 24 points"),
        (Style(font="Comic Nothing"), "no font of that name is installed"),
    ],
)
def test_what_is_no_width_or_font_is_refused(style: Style, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        check(style, ())


def test_the_command_draws_what_is_named(cli: Cli, tmp_path: Path) -> None:
    write_results(path := tmp_path / "made.jsonl.gz", LENGTHS)
    out = tmp_path / "figures"
    done = cli("matrix", "figure", str(path), "--kind", "main,by-dream.horizon", "--to", "svg", "--out", str(out))
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(out / "made-main.svg"), str(out / "made-by-dream-horizon.svg")]
    done = cli("matrix", "figure", str(path), "--kind", "effects", "--out", str(out))
    assert (
        done.returncode == 2 and "these results have no figure 'effects'" in done.stderr and "learning" in done.stderr
    )
    done = cli("matrix", "figure", str(path), "--to", "gif", "--out", str(out))
    assert done.returncode == 2 and "no figure is written so" in done.stderr


def test_without_matplotlib_one_line_says_what_to_install(tmp_path: Path) -> None:
    write_results(path := tmp_path / "made.jsonl.gz", LENGTHS)
    code = (
        "import sys; sys.modules['matplotlib'] = None; from dynaweb.cli import main; "
        f"main(['matrix', 'figure', {str(path)!r}, '--out', {str(tmp_path / 'figures')!r}])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    wanted = "error: figures need matplotlib; install it with: pip install 'dynaweb[plots]'\n"
    assert (done.returncode, done.stderr, done.stdout) == (3, wanted, "")
    assert not (tmp_path / "figures").exists()
