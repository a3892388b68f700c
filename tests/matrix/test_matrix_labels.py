"""What a matrix says of a cell is true of its recipe, and nothing in its file is ignored."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from dynaweb.errors import ConfigError
from dynaweb.matrix import plan_of, read_matrix


def matrix(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text(text, encoding="utf-8")
    return path


HEAD = '[matrix]\nbase = "smoke"\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            '[matrix.axes]\nwm = ["delta", "full-state"]\n"dream.horizon" = [1, 2]\n'
            '[[matrix.when]]\nif = {wm = "delta"}\nset = {"dream.horizon" = 4}\n',
            "dream.horizon is set twice, by axis 'dream.horizon'",
        ),
        (
            '[matrix.axes]\n"dream.horizon" = [1, 2]\n'
            'x = [{label = "a", "dream.horizon" = 3}, {label = "b", "dream.horizon" = 4}]\n',
            "dream.horizon is set twice, by axis 'dream.horizon'",
        ),
        ('[matrix.axes]\nwm = ["delta"]\n"wm.name" = ["full-state"]\n', "wm.name is set twice"),
        ('set = {"run.seed" = 7}\n[matrix.axes]\nwm = ["delta"]\n', "run.seed is set (7)"),
        (
            '[matrix.axes]\nx = [{label = "a", "run.seed" = 3}, {label = "b", "rl.updates" = 1}]\n',
            "run.seed is set (3)",
        ),
        ('[axes]\nwm = ["delta"]\n', "[axes] is beside [matrix]"),
        ("[foo]\n", "[foo] is beside [matrix]"),
        ('name = "other"\n', "matrix.name is no setting"),
    ],
)
def test_what_would_make_a_label_untrue_is_refused(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        plan_of(read_matrix(matrix(tmp_path, HEAD + text)))
    assert message in str(caught.value)


def test_the_same_value_twice_is_no_contradiction(tmp_path: Path) -> None:
    text = (
        '[matrix.axes]\nwm = ["delta", "full-state"]\n"rl.updates" = [1]\n'
        '[[matrix.when]]\nif = {wm = "delta"}\nset = {"rl.updates" = 1, "dream.horizon" = 2}\n'
    )
    plan = plan_of(read_matrix(matrix(tmp_path, HEAD + text)))
    assert {cell.labels[0][1]: cell.recipe.dream.horizon == 2 for cell in plan.cells} == {
        "delta": True,
        "full-state": False,
    }


@pytest.mark.parametrize(
    ("condition", "axis"),
    [('wm = "fullstate"', "'wm'"), ('"dream.horizon" = 2.0', "'dream.horizon'"), ('wm = "delta"', None)],
)
def test_a_condition_that_fits_nothing_is_told(
    condition: str, axis: str | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    text = f'[matrix.axes]\nwm = ["delta", "full-state"]\n"dream.horizon" = [1, 2]\n[[matrix.exclude]]\n{condition}\n'
    with caplog.at_level(logging.WARNING, logger="dynaweb"):
        plan_of(read_matrix(matrix(tmp_path, HEAD + text)))
    said = [record.getMessage() for record in caplog.records if "fits nothing" in record.getMessage()]
    assert [axis in line for line in said] == ([True] if axis else [])  # type: ignore[operator]


@pytest.mark.parametrize("exclude", ["", '[[matrix.exclude]]\n"rl.lr" = 99\n'])
def test_too_many_cells_are_refused_before_they_are_made(exclude: str, tmp_path: Path) -> None:
    """Ten to the twelfth: a list of them would not end."""
    names = ("rl.updates", "rl.tasks", "rl.n", "dream.horizon", "sft.steps", "sft.batch", "rl.lr", "eval.episodes")
    axes = "".join(f'"{name}" = {[*range(1, 33)]}\n' for name in names)
    with pytest.raises(ConfigError, match=r"cells \(1 seeds\), more than max_cells = 100"):
        plan_of(read_matrix(matrix(tmp_path, f"{HEAD}max_cells = 100\nseeds = [0]\n[matrix.axes]\n{axes}{exclude}")))


def test_recipes_of_an_axis_stand_beside_the_matrix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "short.toml").write_text('extends = "smoke"\n', encoding="utf-8")
    path = matrix(tmp_path / "sub", HEAD + '[matrix.axes]\nrecipe = ["short.toml", "smoke"]\n')
    monkeypatch.chdir(tmp_path)
    assert len(plan_of(read_matrix(path)).combinations()) in (1, 2)
