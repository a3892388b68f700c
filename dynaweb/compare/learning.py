"""Learning curves of groups of runs, and the figures of a comparison.

main            every arm of every group: success, and the difference to the reference
learning        reward of the rollouts by update; `learning-steps`, `learning-tokens`: by what had been spent till then
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
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
    curves = [_curve(called, group, spent) for called, group in groups]
    drawn = [(line, window) for line, window in curves if line.points]
    panel = Panel(label, tuple(line for line, _ in drawn), legend=legend)
    words = _learning_words({window for _, window in drawn})
    return lines_figure(style, [panel], words, scale=1.0, what="runs")


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


def _learning(run: RunRecord, spent: Sequence[str]) -> dict[int, tuple[float, float]]:
    """By update, counted from 1 over all stages: the update or what had been spent by then, and the reward.

    Updates without a reward are left out, yet count and cost; none where what was spent is not known.
    """
    curves = [one for one in run.data.curves if one.stage.startswith("rl")]
    points: dict[int, tuple[float, float]] = {}
    total, before = 0.0, 0
    for stage in dict.fromkeys(one.stage for one in curves if one.metric == "reward"):
        metrics = {one.metric: {int(at): value for at, value in one.points} for one in curves if one.stage == stage}
        rewards, costs = metrics["reward"], [metrics.get(name, {}) for name in spent]
        if any(at not in cost for at in rewards for cost in costs):
            return {}
        updates = sorted({*rewards, *(at for cost in costs for at in cost)})
        for at in updates:
            total += sum(cost.get(at) or 0.0 for cost in costs)
            reward = rewards.get(at)
            if reward is not None:
                points[before + at] = (total if spent else float(before + at), reward)
        before += max(updates, default=0)
    return points


def _curve(label: str, group: Group, spent: Sequence[str]) -> tuple[Series, int]:
    """Mean over the runs of a group, update by update, with Student's interval; and of how many updates each is one.

    An update stands there when every run has a reward in it, or in one of the updates that its point is the mean of.
    """
    runs = [points for run in group.runs if (points := _learning(run, spent))]
    count = min((max(points) for points in runs), default=0)
    window = SMOOTH if count > 4 * SMOOTH else 1
    means = []
    for at in range(window, count + 1):
        each = [[points[one] for one in range(at - window + 1, at + 1) if one in points] for points in runs]
        if all(each):
            x = float(at) if not spent else sum(known[-1][0] for known in each) / len(each)
            means.append((x, _reward([fmean(reward for _, reward in known) for known in each])))
    return Series(label, tuple(means), is_curve=True), window


def _reward(values: Sequence[float]) -> Estimate:
    """The mean over runs; that of rewards in [0, 1], as judges give them, has an interval within."""
    bare = mean(values)
    return SCORE.cut(bare) if all(0 <= value <= 1 for value in values) else bare


def _learning_words(windows: set[int]) -> str:
    if windows <= {1}:
        return "Reward of the rollouts"
    which = f" in lines of more than {4 * SMOOTH}" if 1 in windows else ""
    return f"Reward of the rollouts,\nmean of {SMOOTH} updates{which}"
