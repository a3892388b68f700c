"""What the page of a comparison shows, read from the folders of its runs."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from pathlib import Path

from dynaweb.compare.comparing import ArmRow, Comparison, versus_of
from dynaweb.compare.groups import Group, differing, grouped
from dynaweb.compare.records import COSTS, MAIN, RunRecord, read_run
from dynaweb.errors import CheckpointError
from dynaweb.masking import masked, printable
from dynaweb.report.comparison import Compared, ComparedGroup, ComparedRun, comparison_page
from dynaweb.report.data import measure_words
from dynaweb.report.gather import gather
from dynaweb.report.html import Linked
from dynaweb.report.sections import cost_text
from dynaweb.runs.folder import NO_RESULT
from dynaweb.stats import PairedDifference

ALL_ARMS = 12
"""With more groups than this only the arms that runs are about are compared: pairs grow with the square."""


def compared_page(runs: Mapping[str, Path], linked: Linked) -> str:
    """The comparison of runs by their path in the site."""
    return comparison_page(compared(runs), linked=linked)


def compared(runs: Mapping[str, Path]) -> Compared:
    """Groups of runs with their success, differences and curves. One that is not evaluated yet has curves only."""
    records: list[RunRecord] = []
    problems: dict[str, str] = {}
    for path, folder in runs.items():
        try:
            records.append(_record(folder))
        except (CheckpointError, OSError) as error:
            problems[path] = printable(masked(str(error)))
    paths = {folder: path for path, folder in runs.items()}
    groups = _groups(records)
    # Arms of SFT of different lengths have one name and are not one arm.
    rows = Comparison(tuple(groups)).rows_by_arm()
    arms = _arms(groups, rows)
    rows[MAIN] = [row for group in groups if (row := ArmRow(group, MAIN, "")).played]
    return Compared(
        tuple(
            _group(group, label, arms, rows, paths) for group, label in zip(groups, _labels(groups, paths), strict=True)
        ),
        arms,
        {arm: _pairs(groups, rows[arm]) for arm in arms} if len(groups) > 1 else {},
        max(1, len(groups) - 1),
        {path: values for path, values in differing(groups).items() if not path.startswith(NO_RESULT)},
        problems,
    )


def _groups(records: list[RunRecord]) -> list[Group]:
    """Runs that differ in their seed only are one group. A run of the same settings and seed as another is a group of
    its own: whoever chose both wants to see both."""
    # Of such copies the last one counts: one that was evaluated, where there is one.
    groups = grouped(sorted(records, key=lambda record: bool(record.data.arms)))
    alone = [
        Group(group.label if group.labels else copy.folder.name, (copy,), labels=group.labels)
        for group in groups
        for copy in group.copies
    ]
    order = {id(record): at for at, record in enumerate(records)}
    return sorted([*groups, *alone], key=lambda group: min(order[id(run)] for run in group.runs))


def _record(folder: Path) -> RunRecord:
    """A run with what it has so far."""
    try:
        return read_run(folder)
    except CheckpointError:
        data = gather(folder, episodes=False)
        if data.arms:  # it was read, and what it says of its arms is damaged
            raise
        return RunRecord(folder, data.seed, {item.path: item.value for item in data.settings}, data, {})


def _arms(groups: list[Group], rows: Mapping[str, list[ArmRow]]) -> dict[str, str]:
    """Labels of the arms to compare by name: what the runs are about, then those that several groups have."""
    evaluated = [group for group in groups if group.arms()]
    if not evaluated:
        return {}
    mains = dict.fromkeys(one.label for group in evaluated if (one := group.runs[0].arm(MAIN)) is not None)
    label = next(iter(mains)) if len(mains) == 1 else "the main arm"
    if len(groups) == 1:
        return {arm: of_arm[0].label for arm, of_arm in rows.items()}
    if len(groups) > ALL_ARMS:
        return {MAIN: label}
    main = {one.name for group in evaluated if (one := group.runs[0].arm(MAIN)) is not None}
    shared = {arm: of_arm for arm, of_arm in rows.items() if of_arm[0].arm not in main and len(of_arm) > 1}
    return {MAIN: label} | {arm: of_arm[0].label for arm, of_arm in shared.items()}


def _labels(groups: list[Group], paths: Mapping[Path, str]) -> list[str]:
    """What groups are called, as in every other comparison; by their folders too where two are called the same."""
    labels = [group.label for group in groups]
    return [
        label if labels.count(label) == 1 else f"{label} ({paths[group.runs[0].folder]})"
        for label, group in zip(labels, groups, strict=True)
    ]


def _group(
    group: Group, label: str, arms: Mapping[str, str], rows: Mapping[str, list[ArmRow]], paths: Mapping[Path, str]
) -> ComparedGroup:
    runs = tuple(
        ComparedRun(paths[run.folder], run.seed, run.data.status, run.data.curves, bool(run.data.arms))
        for run in sorted(group.runs, key=lambda run: run.seed)
    )
    success = {arm: row.success for arm in arms for row in rows[arm] if row.group is group}
    costs = {
        "Time" if name == "seconds" else measure_words(name): cost_text(name, cost.value)
        for name in COSTS
        if (cost := group.cost(name)) and cost.value is not None
    }
    return ComparedGroup(label, runs, success, costs)


def _pairs(groups: list[Group], rows: list[ArmRow]) -> dict[tuple[int, int], tuple[PairedDifference, bool] | None]:
    """The difference of every two groups that have the arm, by their numbers."""
    pairs: dict[tuple[int, int], tuple[PairedDifference, bool] | None] = {}
    at = {id(group): number for number, group in enumerate(groups)}
    for one, other in combinations(rows, 2):
        against = versus_of(one.played, other.played, len(groups) - 1)
        numbers = at[id(one.group)], at[id(other.group)]
        pairs[numbers] = (against.paired, against.is_significant) if against.paired is not None else None
    return pairs
