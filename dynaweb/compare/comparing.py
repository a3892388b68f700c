"""The comparison itself, and its text.

With several comparisons one of them differs by chance more often than one time in twenty. So a difference is called one
only when the interval at the Bonferroni-corrected level leaves out 0; the interval that is printed is that of 95 %.
One statement stands beside a difference, that of its interval: McNemar's p, which takes the episodes of all seeds as
independent and may say otherwise, is shown on request and by its name.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from dynaweb.compare.groups import Group, common, differing, grouped
from dynaweb.compare.raw import RawResults
from dynaweb.compare.records import MAIN, Episodes, RunRecord, read_run
from dynaweb.compare.tables import MCNEMAR, Cell, Column, Difference, Table, find_row, level_words, p_words
from dynaweb.config.labels import Labels, labels_text
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


@dataclass(frozen=True, slots=True)
class ArmRow:
    """An arm of a group in a table. `called` is the label that its runs have for it, '' where all of them count."""

    group: Group
    arm: str
    label: str
    called: str = ""

    @property
    def played(self) -> dict[int, Episodes]:
        """Outcomes by seed and episode."""
        return self.group.by_seed(self.arm, self.called)

    @property
    def success(self) -> Estimate:
        """Success over all seeds and episodes."""
        return self.group.success(self.arm, self.called)


@dataclass(frozen=True, slots=True)
class ArmPair:
    """Two rows, and how the second differs from the first on the episodes that both played."""

    first: ArmRow
    second: ArmRow
    versus: Versus


@dataclass(frozen=True)
class Comparison:
    """Groups of runs beside each other; the first one is what the others are compared with.

    Arms of SFT have the same name whatever their length is; they are one only where they are called the same.
    """

    groups: tuple[Group, ...]

    @property
    def differences(self) -> dict[str, list[Any]]:
        """Settings that differ, with the value in each group."""
        return differing(self.groups)

    @property
    def arms(self) -> dict[str, str]:
        """Name and label of the arms that every group has, the main one last; `NAME: LABEL` for one of several SFT."""
        return {key: rows[0].label for key, rows in self.rows_by_arm().items() if len(rows) == len(self.groups)}

    def rows(self, arm: str = "") -> list[ArmRow]:
        """The arm in each group that has it, by its name in `arms`; without a name, every arm of every group."""
        by_arm = self.rows_by_arm()
        return by_arm[arm] if arm else [row for rows in by_arm.values() for row in rows]

    def rows_by_arm(self) -> dict[str, list[ArmRow]]:
        """Every arm by its name in `arms`, also those that not all groups have: its row in each group that has it."""
        names = dict.fromkeys(name for group in self.groups for name in group.arms())
        rows: dict[str, list[ArmRow]] = {}
        for name in names:
            arms = [arm for group in self.groups for run in group.runs if (arm := run.arm(name)) is not None]
            labels = list(dict.fromkeys(arm.label for arm in arms))
            split = len(labels) > 1 and all(arm.role == "sft" for arm in arms)
            for called in labels if split else [""]:
                key = f"{name}: {called}" if split else name
                of_arm = [ArmRow(group, name, called or _label_of(group, name), called) for group in self.groups]
                rows[key] = [row for row in of_arm if row.played]
        return {key: of_arm for key, of_arm in rows.items() if of_arm}

    @property
    def measures(self) -> dict[str, list[Estimate | None]]:
        """Measures of the world model by label: the estimate of each group."""
        labels = [measure.label for measure in self.groups[0].runs[0].data.fidelity]
        return {label: [group.measure(label) for group in self.groups] for label in labels}

    def against_first(self, arm: str) -> list[Versus | None]:
        """Each group that has the arm against the first of them (None for the first itself)."""
        first, *others = self.rows(arm)
        return [None, *(versus_of(first.played, row.played, len(others)) for row in others)]

    def table_rows(self) -> list[ArmRow]:
        """The rows of the table for papers: every arm of every group.

        Of one group whose seeds have SFT of different lengths, that arm of all seeds stands there too, by all lengths.
        """
        return self.rows() if len(self.groups) > 1 else self._rows_and_joined()

    def _rows_and_joined(self) -> list[ArmRow]:
        """The rows, and after those of an SFT of several lengths one of all its lengths, in each group."""
        joined = list[ArmRow]()
        for name in dict.fromkeys(row.arm for row in self.rows()):
            of_arm = [row for row in self.rows() if row.arm == name]
            joined += of_arm
            for group in self.groups:
                lengths = [row for row in of_arm if row.group is group]
                if len(lengths) > 1:
                    label = f"{' or '.join(row.label for row in lengths)}, each seed's own"
                    joined.append(ArmRow(group, name, label))
        return joined

    def reference(self, against: str = "") -> ArmRow | None:
        """The row that the others are compared with; None: each with the first group's row of its own arm.

        Of one group it is by default the best arm of SFT that all seeds have. `against` may also be an SFT of all its
        lengths, as in `wm=delta, arm=SFT, 60 updates or SFT, 120 updates, each seed's own`. Raises `ConfigError` for no
        row.
        """
        rows = self.table_rows()
        if against:
            every = self._rows_and_joined()
            return every[find_row(against, [self.names(row) for row in every])]
        if len(self.groups) > 1:
            return None
        runs = self.groups[0].runs
        sft = [row for row in rows if (arm := runs[0].arm(row.arm)) is not None and arm.role == "sft"]
        whole = [row for row in sft if len(row.played) == len(runs) and row.success.value is not None]
        return max(whole, key=lambda row: row.success.value or 0.0, default=rows[0] if rows else None)

    def names(self, row: ArmRow) -> dict[str, str]:
        """What tells a row from the others: the settings of its group, and its arm."""
        group = dict(row.group.labels) or ({"group": row.group.label} if len(self.groups) > 1 else {})
        return {**group, "arm": row.label}

    def differences_of_rows(self, against: str = "") -> list[Versus | None]:
        """The difference of each row of `table_rows` to its reference; None for the reference itself."""
        rows, reference = self.table_rows(), self.reference(against)
        if reference is not None:
            played = reference.played
            return [None if row == reference else versus_of(played, row.played, len(rows) - 1) for row in rows]
        by_arm = self.rows_by_arm()
        return [one for arm in by_arm for one in self.against_first(arm)]

    def pairs(self) -> list[ArmPair]:
        """Every two groups in each arm, or in one group every two arms, corrected for the number of all pairs."""
        if len(self.groups) == 1:
            pairs = list(combinations(self.table_rows(), 2))
        else:
            pairs = [pair for rows in self.rows_by_arm().values() for pair in combinations(rows, 2)]
        return [ArmPair(one, other, versus_of(one.played, other.played, len(pairs))) for one, other in pairs]

    def __str__(self) -> str:
        return self.text()

    def text(self, *, full: bool = False) -> str:
        """As a terminal shows it; with `full` McNemar's p stands beside each difference."""
        arms = [_arm(self, arm, full) for arm in self.arms] or [_nothing_in_common(self)]
        if len(self.groups) == 1:
            arms = [comparison_table(self, full=full).to("text")]
        return "\n\n".join([_runs(self), _settings(self), *arms, *_elsewhere(self), _rest(self, full)])

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


def compare_raw(raw: RawResults) -> Comparison:
    """The same of a file of raw results, whose groups are called as it says."""
    groups: dict[Labels, list[RunRecord]] = {}
    for run in raw.runs:
        groups.setdefault(run.labels, []).append(run.record)
    return Comparison(
        tuple(Group(labels_text(labels) or raw.name, tuple(runs), labels=labels) for labels, runs in groups.items())
    )


def versus(first: Group, second: Group, arm: str = MAIN, comparisons: int = 1) -> Versus:
    """`second` minus `first` on the episodes that both played, paired by seed and episode."""
    return versus_of(first.by_seed(arm), second.by_seed(arm), comparisons)


def versus_of(first: Mapping[int, Episodes], second: Mapping[int, Episodes], comparisons: int = 1) -> Versus:
    """The same of outcomes by seed and episode."""
    one, other, seeds = common(first, second)
    if not seeds:
        return Versus(None, False, comparisons)
    paired = paired_difference(one, other)
    if comparisons <= 1:
        return Versus(paired, paired.is_significant, comparisons)
    strict = paired_difference(one, other, confidence=1 - (1 - CONFIDENCE) / comparisons)
    return Versus(paired, strict.is_significant, comparisons)


def difference_cells(is_reference: bool, against: Versus | None, full: bool) -> list[Cell]:
    """The cells of a difference in a table: the difference, and with `full` McNemar's p."""
    if is_reference:
        return ["reference", *([None] if full else [])]
    if against is None or against.paired is None:
        return ["-" if against is None else against.text, *([None] if full else [])]
    return [Difference(against.paired.difference, against.is_significant), *([against.paired.p] if full else [])]


def comparison_table(comparison: Comparison, *, against: str = "", full: bool = False) -> Table:
    """The table for papers: a row for every arm of every group, with its difference to `Comparison.reference`."""
    rows, reference = comparison.table_rows(), comparison.reference(against)
    names = [comparison.names(row) for row in rows]
    axes = list(dict.fromkeys(axis for name in names for axis in name))
    head = "against the first, same arm" if reference is None else f"against {_called(comparison, reference)}"
    columns = [
        *map(Column, axes),
        Column("seeds", "count"),
        Column("Success %", "estimate", 100, ".1f"),
        Column("n", "count"),
    ]
    columns += [Column(head, "difference"), Column("on", "count"), *([Column(MCNEMAR, "p")] if full else [])]
    cells: list[tuple[Cell, ...]] = []
    for row, name, one in zip(rows, names, comparison.differences_of_rows(against), strict=True):
        success, on = row.success, None if one is None or one.paired is None else one.paired.difference.n
        difference = difference_cells(one is None, one, full)
        texts = [name.get(axis, "-") for axis in axes]
        cells.append((*texts, str(len(row.played)), success, success.n, difference[0], on, *difference[1:]))
    count = max((one.comparisons for one in comparison.differences_of_rows(against) if one is not None), default=1)
    note = f"{NOTE}{level_words(count)}{p_words(full)}."
    return Table(_title(comparison), tuple(columns), tuple(cells), (note,), "runs")


def pairs_table(comparison: Comparison, *, full: bool = False) -> Table:
    """The table of `Comparison.pairs`."""
    pairs = comparison.pairs()
    columns = [Column("first"), Column("second"), Column("second minus first", "difference"), Column("on", "count")]
    cells: list[tuple[Cell, ...]] = []
    for pair in pairs:
        difference = difference_cells(False, pair.versus, full)
        on = 0 if pair.versus.paired is None else pair.versus.paired.difference.n
        both = _called(comparison, pair.first), _called(comparison, pair.second)
        cells.append((*both, difference[0], on, *difference[1:]))
    note = f"Differences in points on the episodes that both played{level_words(len(pairs))}{p_words(full)}."
    p = [Column(MCNEMAR, "p")] if full else []
    return Table(f"{_title(comparison)}: every two", (*columns, *p), tuple(cells), (note,), "runs-pairs")


NOTE = (
    "Success in percent with its 95 % interval and n episodes; differences in points on the episodes that both played, "
    "as many as stand under `on`"
)


def _title(comparison: Comparison) -> str:
    return "Runs compared" if len(comparison.groups) > 1 else f"Success of {comparison.groups[0].label}"


def _called(comparison: Comparison, row: ArmRow) -> str:
    names = comparison.names(row)
    arm = names.pop("arm")
    return f"{labels_text(tuple(names.items()))}, {arm}" if names else arm


def _label_of(group: Group, name: str) -> str:
    return next((arm.label for run in group.runs if (arm := run.arm(name)) is not None), name)


def _elsewhere(comparison: Comparison) -> list[str]:
    """Arms that only some groups have, so that they are compared with nothing of their own."""
    whole = {row.label for arm in comparison.arms for row in comparison.rows(arm)}
    rows = [row for row in comparison.rows() if row.label not in whole]
    if not rows or not comparison.arms:
        return []
    words = [
        f"{row.label} in {_letter(comparison.groups.index(row.group))} (seeds {', '.join(map(str, row.played))}): "
        f"{100 * (row.success.value or 0):.1f} {interval_text(row.success)}, n = {row.success.n}"
        for row in rows
        if row.success.value is not None
    ]
    return [textwrap.fill(f"not in all groups, success %: {'; '.join(words)}", WIDTH, break_on_hyphens=False)]


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
        return "one group: the runs differ in their seed only, so its arms are compared"
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


def _arm(comparison: Comparison, arm: str, full: bool) -> str:
    rows = []
    for at, (row, against) in enumerate(zip(comparison.rows(arm), comparison.against_first(arm), strict=True)):
        success = row.success
        share = "-" if success.value is None else f"{100 * success.value:.1f} {interval_text(success)}"
        label = f"{_letter(at)}  {row.group.label}"
        cells = ["reference", "", ""] if against is None else [against.text, against.n, against.p]
        rows.append([label, share, str(success.n), *cells][: 6 if full else 5])
    head = [comparison.arms[arm], "success %  [95 %]", "n", "against A", "on", MCNEMAR][: 6 if full else 5]
    return text_table(head, rows, width=WIDTH)


def _rest(comparison: Comparison, full: bool) -> str:
    rows = [[label, *map(_estimate, estimates)] for label, estimates in comparison.measures.items()]
    rows += _judge_rows(comparison)
    for name, label in (("seconds", "Seconds of all stages"), ("tokens_generated", "Tokens generated")):
        rows.append([label, *(_cost(group, name) for group in comparison.groups)])
    head = ["also", *(_letter(at) for at in range(len(comparison.groups)))]
    count = len(comparison.groups) - 1
    if not count:
        return text_table(head, rows, width=200)
    paired = "differences in points on the episodes that both played, as many as stand under `on`"
    return f"{text_table(head, rows, width=200)}\n\n{paired}{level_words(count)}{p_words(full)}"


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
    for one, against in zip(comparison.rows(arm), comparison.against_first(arm), strict=True):
        row = {"group": one.group.label, "success": estimate_json(one.success)}
        rows.append(row | ({"against_first": against.plain()} if against is not None else {}))
    return rows


def _seeds(group: Group) -> list[int]:
    return sorted({run.seed for run in group.runs})


def _letter(at: int) -> str:
    return chr(ord("A") + at) if at < 26 else f"A{at}"


def _short(value: Any) -> str:
    return "-" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
