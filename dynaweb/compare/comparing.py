"""The comparison itself, and its text.

With several comparisons one of them differs by chance more often than one time in twenty. So a difference is called one
only when the interval at the Bonferroni-corrected level leaves out 0; the interval that is printed is that of 95 %.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dynaweb.compare.groups import Group, common, differing, grouped
from dynaweb.compare.records import MAIN, read_run
from dynaweb.errors import ConfigError
from dynaweb.stats import (
    CONFIDENCE,
    Estimate,
    PairedDifference,
    difference_text,
    estimate_json,
    interval_text,
    p_text,
    paired_difference,
    text_table,
)

WIDTH = 100


@dataclass(frozen=True, slots=True)
class Versus:
    """One group against the first: the paired difference, None when they share no episode.

    It `is_significant` when its interval leaves out 0 at the level that is corrected for so many `comparisons`.
    """

    paired: PairedDifference | None
    is_significant: bool
    comparisons: int

    @property
    def text(self) -> str:
        """As in `+9.3 [+3.1, +15.2] *`."""
        if self.paired is None:
            return "no episode in common"
        return f"{difference_text(self.paired.difference)} {'*' if self.is_significant else ' '}"

    @property
    def n(self) -> str:
        """Episodes that both played, as text."""
        return str(self.paired.difference.n) if self.paired is not None else ""

    @property
    def p(self) -> str:
        """McNemar's p-value as text."""
        return p_text(self.paired.p) if self.paired is not None else ""

    def plain(self) -> dict[str, Any] | None:
        """Plain data."""
        if self.paired is None:
            return None
        data = estimate_json(self.paired.difference)
        test = {"gained": self.paired.gained, "lost": self.paired.lost, "p": self.paired.p, "seeds": self.paired.seeds}
        return data | test | {"shown": self.is_significant, "comparisons": self.comparisons}


@dataclass(frozen=True)
class Comparison:
    """Groups of runs beside each other; the first one is what the others are compared with."""

    groups: tuple[Group, ...]

    @property
    def differences(self) -> dict[str, list[Any]]:
        """Settings that differ, with the value in each group."""
        return differing(self.groups)

    @property
    def arms(self) -> dict[str, str]:
        """Name and label of the arms that every group has, the main one last."""
        names = set.intersection(*(set(group.arms()) for group in self.groups))
        return {name: label for name, label in self.groups[0].arms().items() if name in names}

    @property
    def measures(self) -> dict[str, list[Estimate | None]]:
        """Measures of the world model by label: the estimate of each group."""
        labels = [measure.label for measure in self.groups[0].runs[0].data.fidelity]
        return {label: [group.measure(label) for group in self.groups] for label in labels}

    def against_first(self, arm: str) -> list[Versus | None]:
        """Each group against the first (None for the first itself)."""
        return [None, *(versus(self.groups[0], group, arm, len(self.groups) - 1) for group in self.groups[1:])]

    def __str__(self) -> str:
        arms = [_arm(self, arm) for arm in self.arms] or [_nothing_in_common(self)]
        return "\n\n".join([_runs(self), _settings(self), *arms, _rest(self)])

    __repr__ = __str__

    def plain(self) -> dict[str, Any]:
        """Plain data for programs: rates and differences as fractions."""
        arms = {arm: _plain_arm(self, arm) for arm in self.arms}
        groups = [
            {
                "label": group.label,
                "runs": [str(run.folder) for run in group.runs],
                "copies": [str(run.folder) for run in group.copies],
                "seeds": _seeds(group),
            }
            for group in self.groups
        ]
        measures = {
            label: [None if one is None else estimate_json(one) for one in estimates]
            for label, estimates in self.measures.items()
        }
        return {"groups": groups, "differences": self.differences, "arms": arms, "world_model": measures}


def compare(folders: Sequence[Path]) -> Comparison:
    """Read and compare runs.

    Raises `ConfigError` for fewer than two and for one folder twice, `CheckpointError` for what is no finished run.
    """
    if len(folders) < 2:
        raise ConfigError("give at least two run folders to compare")
    paths = [folder.resolve() for folder in folders]
    twice = [folder for at, folder in enumerate(folders) if paths[at] in paths[:at]]
    if twice:
        raise ConfigError(f"{twice[0]} is given more than once; a run is compared with other runs")
    groups = grouped([read_run(folder) for folder in folders])
    return Comparison(tuple(groups))


def versus(first: Group, second: Group, arm: str = MAIN, comparisons: int = 1) -> Versus:
    """`second` minus `first` on the episodes that both played, paired by seed and episode."""
    one, other, seeds = common(first.by_seed(arm), second.by_seed(arm))
    if not seeds:
        return Versus(None, False, comparisons)
    paired = paired_difference(one, other)
    if comparisons <= 1:
        return Versus(paired, paired.is_significant, comparisons)
    strict = paired_difference(one, other, confidence=1 - (1 - CONFIDENCE) / comparisons)
    return Versus(paired, strict.is_significant, comparisons)


def _runs(comparison: Comparison) -> str:
    rows = []
    for at, group in enumerate(comparison.groups):
        where = ", ".join(str(run.folder) for run in group.runs)
        rows.append([f"{_letter(at)}  {group.label}", ", ".join(map(str, _seeds(group))), where])
    copies = [str(run.folder) for group in comparison.groups for run in group.copies]
    note = "\n\nleft out, since another run here has the same settings and seed: " + ", ".join(copies)
    return text_table(["group", "seeds", "folders"], rows, width=200) + (note if copies else "")


def _settings(comparison: Comparison) -> str:
    if len(comparison.groups) == 1 and len(comparison.groups[0].runs) == 1:
        return "one run: the others have the same settings and seed, so there is nothing to compare it with"
    if len(comparison.groups) == 1:
        return "one group: the runs differ in their seed only, so there is nothing to compare them with"
    differences = comparison.differences
    if not differences:
        return "no setting differs"
    heads = ["setting", *(_letter(at) for at in range(len(comparison.groups)))]
    return text_table(heads, [[path, *map(_short, values)] for path, values in differences.items()], width=200)


def _nothing_in_common(comparison: Comparison) -> str:
    """Why no arm is compared: what each group has."""
    arms = (f"{_letter(at)} has {', '.join(group.arms()) or 'none'}" for at, group in enumerate(comparison.groups))
    words = f"no arm is in all groups, so no success is compared: {'; '.join(arms)}"
    return textwrap.fill(words, WIDTH, break_on_hyphens=False)


def _arm(comparison: Comparison, arm: str) -> str:
    rows = []
    for at, (group, against) in enumerate(zip(comparison.groups, comparison.against_first(arm), strict=True)):
        success = group.success(arm)
        share = "-" if success.value is None else f"{100 * success.value:.1f} {interval_text(success)}"
        label = f"{_letter(at)}  {group.label}"
        cells = ["reference", "", ""] if against is None else [against.text, against.n, against.p]
        rows.append([label, share, str(success.n), *cells])
    head = [comparison.arms[arm], "success %  [95 %]", "n", "against A", "on", "p"]
    return text_table(head, rows, width=WIDTH)


def _rest(comparison: Comparison) -> str:
    rows = [[label, *map(_estimate, estimates)] for label, estimates in comparison.measures.items()]
    rows += _judge_rows(comparison)
    for name, label in (("seconds", "Seconds of all stages"), ("tokens_generated", "Tokens generated")):
        rows.append([label, *(_cost(group, name) for group in comparison.groups)])
    head = ["also", *(_letter(at) for at in range(len(comparison.groups)))]
    count = len(comparison.groups) - 1
    level = f", at the level corrected for {count} comparisons" if count > 1 else ""
    paired = "differences in points on the episodes that both played, as many as stand under `on`"
    note = f"{paired}; * interval without 0{level}; p: exact McNemar"
    return f"{text_table(head, rows, width=200)}\n\n{note}"


def _judge_rows(comparison: Comparison) -> list[list[str]]:
    arms = list(dict.fromkeys(arm for group in comparison.groups for run in group.runs for arm in run.judge))
    rows = []
    for arm in arms:
        for kind in ("false positives", "false negatives"):
            cells = [_estimate(group.judged(arm, kind)) for group in comparison.groups]
            rows.append([f"Judge on {comparison.arms.get(arm, arm)}, {kind}", *cells])
    return rows


def _estimate(estimate: Estimate | None) -> str:
    return "-" if estimate is None or estimate.value is None else str(estimate)


def _cost(group: Group, name: str) -> str:
    cost = group.cost(name)
    return "-" if cost is None or cost.value is None else f"{cost.value:,.0f}"


def _plain_arm(comparison: Comparison, arm: str) -> list[dict[str, Any]]:
    rows = []
    for group, against in zip(comparison.groups, comparison.against_first(arm), strict=True):
        row = {"group": group.label, "success": estimate_json(group.success(arm))}
        rows.append(row | ({"against_first": against.plain()} if against is not None else {}))
    return rows


def _seeds(group: Group) -> list[int]:
    return sorted({run.seed for run in group.runs})


def _letter(at: int) -> str:
    return chr(ord("A") + at) if at < 26 else f"A{at}"


def _short(value: Any) -> str:
    return "-" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
