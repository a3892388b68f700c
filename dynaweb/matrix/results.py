"""From the run folders of a matrix to the rows of its table: one row a combination, over all seeds that are done."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

from dynaweb.compare.comparing import Versus, versus
from dynaweb.compare.groups import Group
from dynaweb.compare.raw import RawResults
from dynaweb.compare.records import COSTS, MAIN, RunRecord, measure_key, read_run
from dynaweb.compare.tables import find_row
from dynaweb.config.labels import Labels, labels_text
from dynaweb.errors import CheckpointError, ConfigError, hint
from dynaweb.matrix.folder import CellStatus, MatrixFolder
from dynaweb.matrix.plan import Plan
from dynaweb.runs.checksums import CHECKSUMS
from dynaweb.stats import Estimate, estimate_json

ARMS = (MAIN, "base", "sft", "sft-long", "filtered-bc", "dynaweb")
"""Arms that a run may have (`dynaweb.stages.arms`)."""


@dataclass(frozen=True, slots=True)
class TableRow:
    """One combination: its cells, and each measure with n and interval. `against` is the paired difference of the
    first measure to the reference, by default the first combination that has results (None for that one, and where
    nothing is done). `group` are the runs that are done."""

    labels: Labels
    cells: tuple[CellStatus, ...]
    estimates: Mapping[str, Estimate | None]
    against: Versus | None = None
    is_reference: bool = False
    group: Group = field(default=Group("", ()), repr=False)

    @property
    def done(self) -> int:
        """Cells that are done."""
        return sum(cell.state == "done" for cell in self.cells)

    @property
    def label(self) -> str:
        """As in `wm=delta, dream.horizon=4`."""
        return labels_text(self.labels) or "the only combination"

    def plain(self, against: str = "against_first") -> dict[str, Any]:
        """Plain data for programs; `against` is the key of the difference."""
        measures = {name: estimate_json(one) if one is not None else None for name, one in self.estimates.items()}
        data: dict[str, Any] = {"settings": dict(self.labels), "measures": measures}
        data["cells"] = [{"id": cell.id, "seed": cell.seed, "state": cell.state} for cell in self.cells]
        return data | ({against: self.against.plain()} if self.against is not None else {})


@dataclass(frozen=True, slots=True)
class Pair:
    """Two combinations, and how the second differs from the first on the episodes that both played."""

    first: TableRow
    second: TableRow
    versus: Versus

    def plain(self) -> dict[str, Any]:
        """Plain data for programs."""
        return {"first": dict(self.first.labels), "second": dict(self.second.labels), "difference": self.versus.plain()}


@dataclass(frozen=True, slots=True)
class MatrixResults:
    """The table of a matrix.

    `problems` are cells whose run could not be read, with the reason. `episodes_are` says in words what the episodes of
    the done cells are, and `versions` with which dynaweb they were run, each once.
    """

    plan: Plan
    measures: tuple[str, ...]
    rows: tuple[TableRow, ...]
    statuses: tuple[CellStatus, ...]
    problems: Mapping[str, str]
    episodes_are: tuple[str, ...] = ()
    versions: tuple[str, ...] = ()
    against: str = ""
    """The reference that was asked for; '' = the first combination with results."""

    @property
    def reference(self) -> TableRow | None:
        """The row that the others are compared with."""
        return next((row for row in self.rows if row.is_reference), None)

    @property
    def compared(self) -> str:
        """What differences are against, in the head of a table."""
        return self.against or "first"

    def pairs(self) -> list[Pair]:
        """Every two combinations with results, the level corrected for the number of all pairs."""
        done = [row for row in self.rows if row.group.runs and _is_arm(self.measures[0], row.group)]
        every = list(combinations(done, 2))
        return [
            Pair(first, second, versus(first.group, second.group, self.measures[0], len(every)))
            for first, second in every
        ]

    def counts(self) -> dict[str, int]:
        """Cells by state."""
        states = [status.state for status in self.statuses]
        return {state: states.count(state) for state in dict.fromkeys(states)}

    def plain(self) -> dict[str, Any]:
        """Plain data for programs."""
        return {
            "name": self.plan.matrix.name,
            "axes": list(self.plan.axes),
            "measures": list(self.measures),
            "counts": self.counts(),
            "episodes_are": list(self.episodes_are),
            "rows": [row.plain("against" if self.against else "against_first") for row in self.rows],
            "problems": dict(self.problems),
        } | ({"against": dict(self.reference.labels)} if self.against and self.reference is not None else {})


def results(plan: Plan, folder: MatrixFolder, measures: Sequence[str] = (), *, against: str = "") -> MatrixResults:
    """Read what is done. `measures` default to those of the matrix: `main`, an arm, one of the world model, or a cost.

    `against` names the combination that the others are compared with, by settings that only it has, such as
    `wm=delta`. Raises `ConfigError` for a measure that no run has, and for a combination that is none.
    """
    names = measures_of(plan, measures)
    statuses = [folder.status(cell) for cell in plan.cells]
    records, problems = _records(statuses, folder)
    return _results(plan, names, statuses, records, problems, against)


def results_of(raw: RawResults, measures: Sequence[str] = (), *, against: str = "") -> MatrixResults:
    """The same of a file of raw results."""
    from dynaweb.matrix.raw import plan_of_raw, statuses_of

    plan = plan_of_raw(raw)
    names = measures_of(plan, measures)
    return _results(plan, names, statuses_of(raw), {run.id: run.record for run in raw.runs}, {}, against)


def _results(
    plan: Plan,
    names: tuple[str, ...],
    statuses: Sequence[CellStatus],
    records: Mapping[str, RunRecord],
    problems: Mapping[str, str],
    against: str,
) -> MatrixResults:
    every = plan.combinations()
    cells = [tuple(status for status in statuses if status.labels == labels) for labels in every]
    groups = [
        Group(labels_text(labels), tuple(records[cell.id] for cell in of_row if cell.id in records), labels=labels)
        for labels, of_row in zip(every, cells, strict=True)
    ]
    chosen = next((at for at, group in enumerate(groups) if group.runs), None)
    if against:
        chosen = find_row(against, [dict(labels) for labels in every])
        if not groups[chosen].runs:
            raise ConfigError(f"--against {against}: none of its cells is done, so nothing can be compared with it")
        against = labels_text(every[chosen])
    rows = [
        TableRow(
            group.labels,
            of_row,
            {name: _estimate(name, group) for name in names},
            _against(groups, chosen, at, names[0]),
            at == chosen,
            group,
        )
        for at, (group, of_row) in enumerate(zip(groups, cells, strict=True))
    ]
    read = [record.data for record in records.values()]
    episodes = tuple(dict.fromkeys(data.episodes_are for data in read))
    versions = tuple(dict.fromkeys(data.versions["dynaweb"] for data in read if "dynaweb" in data.versions))
    return MatrixResults(plan, names, tuple(rows), tuple(statuses), problems, episodes, versions, against)


def _against(groups: Sequence[Group], chosen: int | None, at: int, name: str) -> Versus | None:
    if chosen is None or at == chosen or not groups[at].runs or not _is_arm(name, groups[at]):
        return None
    return versus(groups[chosen], groups[at], name, len(groups) - 1)


def measures_of(plan: Plan, measures: Iterable[str] = ()) -> tuple[str, ...]:
    """The columns of the table, by default those of the matrix. Raises `ConfigError` for what is no measure."""
    from dynaweb.worldmodels.fidelity import MEANINGS

    names = tuple(measures) or plan.matrix.measures
    known = {*ARMS, *COSTS, *map(measure_key, MEANINGS)}
    wrong = [name for name in names if name not in known and measure_key(name) not in known]
    if wrong:
        every = [*ARMS, *COSTS, *MEANINGS]
        listed = "\n".join(f"no measure is called {name!r}; {hint(name, every)}" for name in wrong)
        raise ConfigError(listed)
    return names


def _records(statuses: Sequence[CellStatus], folder: MatrixFolder) -> tuple[dict[str, RunRecord], dict[str, str]]:
    records: dict[str, RunRecord] = {}
    problems: dict[str, str] = {}
    for status in statuses:
        cell = folder.cell(status.id)
        # A run that has ended well is done, or its status is damaged.
        if status.state == "done" or (cell / CHECKSUMS).exists():
            try:
                record = read_run(cell)
            except CheckpointError as error:
                problems[status.id] = str(error)
            else:
                records |= {status.id: record} if status.state == "done" else {}
    return records, problems


def _is_arm(name: str, group: Group) -> bool:
    return name == MAIN or any(run.arm(name) is not None for run in group.runs)


def _estimate(name: str, group: Group) -> Estimate | None:
    if not group.runs:
        return None
    if name in COSTS:
        return group.cost(name)
    return group.success(name) if _is_arm(name, group) else group.measure(name)
