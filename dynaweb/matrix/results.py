"""From the run folders of a matrix to the rows of its table: one row a combination, over all seeds that are done."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dynaweb.compare.comparing import Versus, versus
from dynaweb.compare.groups import Group
from dynaweb.compare.records import COSTS, MAIN, RunRecord, measure_key, read_run
from dynaweb.errors import CheckpointError, ConfigError, hint
from dynaweb.matrix.folder import CellStatus, MatrixFolder
from dynaweb.matrix.plan import Labels, Plan, labels_text
from dynaweb.runs.checksums import CHECKSUMS
from dynaweb.stats import Estimate, estimate_json

ARMS = (MAIN, "base", "sft", "sft-long", "filtered-bc", "dynaweb")
"""Arms that a run may have (`dynaweb.stages.arms`)."""


@dataclass(frozen=True, slots=True)
class TableRow:
    """One combination: its cells, and each measure with n and interval. `against` is the paired difference of the
    first measure to the first combination that has results (None for that one, and where nothing is done)."""

    labels: Labels
    cells: tuple[CellStatus, ...]
    estimates: Mapping[str, Estimate | None]
    against: Versus | None = None
    is_reference: bool = False

    @property
    def done(self) -> int:
        """Cells that are done."""
        return sum(cell.state == "done" for cell in self.cells)

    @property
    def label(self) -> str:
        """As in `wm=delta, dream.horizon=4`."""
        return labels_text(self.labels) or "the only combination"

    def plain(self) -> dict[str, Any]:
        """Plain data for programs."""
        measures = {name: estimate_json(one) if one is not None else None for name, one in self.estimates.items()}
        data: dict[str, Any] = {"settings": dict(self.labels), "measures": measures}
        data["cells"] = [{"id": cell.id, "seed": cell.seed, "state": cell.state} for cell in self.cells]
        return data | ({"against_first": self.against.plain()} if self.against is not None else {})


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
            "rows": [row.plain() for row in self.rows],
            "problems": dict(self.problems),
        }


def results(plan: Plan, folder: MatrixFolder, measures: Sequence[str] = ()) -> MatrixResults:
    """Read what is done. `measures` default to those of the matrix: `main`, an arm, one of the world model, or a cost.

    Raises `ConfigError` for a measure that no run has.
    """
    names = measures_of(plan, measures)
    statuses = [folder.status(cell) for cell in plan.cells]
    records, problems = _records(statuses, folder)
    rows: list[TableRow] = []
    reference: Group | None = None
    for labels in plan.combinations():
        cells = tuple(status for status in statuses if status.labels == labels)
        group = Group("", tuple(records[cell.id] for cell in cells if cell.id in records))
        against = None
        if reference is not None and group.runs and _is_arm(names[0], group):
            against = versus(reference, group, names[0], len(plan.combinations()) - 1)
        first = reference is None and bool(group.runs)
        reference = group if first else reference
        rows.append(TableRow(labels, cells, {name: _estimate(name, group) for name in names}, against, first))
    read = [record.data for record in records.values()]
    episodes = tuple(dict.fromkeys(data.episodes_are for data in read))
    versions = tuple(dict.fromkeys(data.versions["dynaweb"] for data in read if "dynaweb" in data.versions))
    return MatrixResults(plan, names, tuple(rows), tuple(statuses), problems, episodes, versions)


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
