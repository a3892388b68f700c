"""Learning curves of groups of runs, and the figures of a comparison.

main            every arm of every group: success, and the difference to the reference
learning        reward of the rollouts by update; `learning-steps`, `learning-tokens`: by what had been spent till then
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

from dynaweb.compare.comparing import Comparison
from dynaweb.compare.figures import (
    FORMATS,
    FigureRow,
    Panel,
    Series,
    Style,
    check,
    drawing,
    lines_figure,
    rows_figure,
    save,
)
from dynaweb.compare.groups import Group
from dynaweb.compare.records import RunRecord
from dynaweb.compare.tables import Difference
from dynaweb.config.labels import labels_text
from dynaweb.stats import SCORE, Estimate, mean

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SMOOTH = 5
"""Updates of which a learning curve of many updates shows the mean."""
LEARNING = {
    "learning": ("Update", ()),
    "learning-steps": ("Steps of rollouts", ("steps",)),
    "learning-tokens": ("Tokens generated in rollouts", ("policy_tokens", "world_model_tokens")),
}
"""The learning curves: the label of x, and the numbers of an update that are added up for it."""


def learning_kinds(groups: Sequence[Group]) -> list[str]:
    """The learning curves that these runs have."""
    runs = [run for group in groups for run in group.runs]
    return [name for name, (_, spent) in LEARNING.items() if any(_learning(run, spent) for run in runs)]


def learning_figure(style: Style, name: str, groups: Sequence[tuple[str, Group]], legend: str = "") -> Figure:
    """A learning curve of `LEARNING`, a line for each group."""
    label, spent = LEARNING[name]
    lines = tuple(_curve(called, group, spent) for called, group in groups)
    panel = Panel(label, tuple(line for line in lines if line.points), legend=legend)
    return lines_figure(style, [panel], _learning_words(lines), scale=1.0, what="runs")


def write_comparison_figures(
    comparison: Comparison,
    folder: Path,
    *,
    against: str = "",
    style: Style | None = None,
    formats: Sequence[str] = FORMATS,
) -> list[Path]:
    """Draw the figures of a comparison into a folder, as `compare-KIND.FORMAT`; returns the files.

    Raises as `dynaweb.compare.figures.check`.
    """
    style = style or Style()
    check(style, formats)
    rows = []
    for row, one in zip(comparison.table_rows(), comparison.differences_of_rows(against), strict=True):
        names = comparison.names(row)
        arm = names.pop("arm")
        label = f"{labels_text(tuple(names.items()))}: {arm}" if names else arm
        paired = one.paired if one is not None else None
        difference = Difference(paired.difference if paired else None, bool(one and one.is_significant))
        rows.append(FigureRow(label, row.success, None if one is None else difference))
    groups = [(group.label, group) for group in comparison.groups]
    with drawing(style):
        paths = save(rows_figure(style, rows, "Success, %"), folder / "compare-main", formats)
        for name in learning_kinds(comparison.groups):
            legend = ", ".join(axis for axis, _ in comparison.groups[0].labels)
            paths += save(learning_figure(style, name, groups, legend), folder / f"compare-{name}", formats)
    return paths


def _learning(run: RunRecord, spent: Sequence[str]) -> list[tuple[float, float]]:
    """Reward of the rollouts over updates, or over what had been spent by then; none where that is not known."""
    curves = [one for one in run.data.curves if one.stage.startswith("rl")]
    points: list[tuple[float, float]] = []
    total = 0.0
    for stage in dict.fromkeys(one.stage for one in curves if one.metric == "reward"):
        metrics = {one.metric: [value for _, value in one.points] for one in curves if one.stage == stage}
        rewards = metrics["reward"]
        if any(len(metrics.get(name, ())) != len(rewards) for name in spent):
            return []
        numbers = [metrics[name] for name in spent] or [[1.0] * len(rewards)]
        xs = [total + x for x in accumulate(sum(value or 0.0 for value in each) for each in zip(*numbers, strict=True))]
        total = xs[-1] if xs else total
        points += [(x, reward) for x, reward in zip(xs, rewards, strict=True) if reward is not None]
    return points


def _curve(label: str, group: Group, spent: Sequence[str]) -> Series:
    """Mean over the runs of a group, update by update, with Student's interval."""
    runs = [points for run in group.runs if (points := _learning(run, spent))]
    count = min((len(points) for points in runs), default=0)
    window = SMOOTH if count > 4 * SMOOTH else 1
    smooth = [[(x, _tail(points, at, window)) for at, (x, _) in enumerate(points)] for points in runs]
    means = (
        (sum(one[at][0] for one in smooth) / len(smooth), _reward([one[at][1] for one in smooth]))
        for at in range(window - 1, count)
    )
    return Series(label, tuple(means), is_curve=True)


def _reward(values: Sequence[float]) -> Estimate:
    """The mean over runs; that of rewards in [0, 1], as judges give them, has an interval within."""
    bare = mean(values)
    return SCORE.cut(bare) if all(0 <= value <= 1 for value in values) else bare


def _tail(points: Sequence[tuple[float, float]], at: int, window: int) -> float:
    values = [value for _, value in points[max(0, at + 1 - window) : at + 1]]
    return sum(values) / len(values)


def _learning_words(lines: Sequence[Series]) -> str:
    smooth = any(line.points and line.points[0][0] > 1 for line in lines) and len(lines[0].points) > 3 * SMOOTH
    return "Reward of the rollouts" + (f",\nmean of {SMOOTH} updates" if smooth else "")
