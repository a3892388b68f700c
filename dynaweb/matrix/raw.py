"""Raw results of a matrix or of runs: read from their folders to be written to a file, and made a table again.

    write_results(Path("results/judges.jsonl.gz"), collect([Path("runs/matrix-judges")], "judges"))
    table = results_of(read_results(Path("results/judges.jsonl.gz")))

`dynaweb.compare.raw` says what stands in the file.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dynaweb.compare.groups import grouped
from dynaweb.compare.raw import RawResults, RawRun, read_raw_run
from dynaweb.compare.records import read_run
from dynaweb.config.files import understood
from dynaweb.errors import ConfigError
from dynaweb.matrix.folder import CellStatus, MatrixFolder
from dynaweb.matrix.plan import PLAN, Cell, Matrix, Plan

if TYPE_CHECKING:
    from dynaweb.config import Recipe


def collect(sources: Sequence[Path], name: str, *, title: str = "", command: str = "") -> RawResults:
    """The runs below one folder of a matrix, or those of run folders, as raw results.

    Cells that are not done are left out. Raises `ConfigError` for a mixture, and for a matrix without a done cell;
    `CheckpointError` for what is no finished run, or a damaged one.
    """
    matrices = [path for path in sources if (path / PLAN).is_file()]
    if not sources or (matrices and len(sources) > 1):
        raise ConfigError("give the folder of one matrix, or run folders; several matrices are several files")
    if matrices:
        return _of_matrix(MatrixFolder(matrices[0]), name, title, command)
    groups = grouped([read_run(path) for path in sources])
    runs = []
    for group in groups:
        for run in group.runs:
            # Without a difference the seed alone tells them apart.
            id = re.sub(r"[^\w.=+-]+", "_", "-".join([*(value for _, value in group.labels), str(run.seed)]))
            runs.append(read_raw_run(run.folder, id=id, labels=group.labels))
    axes = tuple(dict.fromkeys(axis for run in runs for axis, _ in run.labels))
    return RawResults(name, tuple(runs), axes, title, command or "dynaweb run")


def _of_matrix(folder: MatrixFolder, name: str, title: str, command: str) -> RawResults:
    plan = folder.read_plan()
    done = [cell for cell in plan.cells if folder.is_done(cell.id)]
    if not done:
        raise ConfigError(f"{folder.path} has no cell that is done; run it first: dynaweb matrix run {folder.path}")
    runs = tuple(read_raw_run(folder.cell(cell.id), id=cell.id, labels=cell.labels) for cell in done)
    matrix = plan.matrix.model_dump(mode="json", by_alias=True)
    return RawResults(name, runs, plan.axes, title or plan.matrix.description, command, matrix)


def plan_of_raw(raw: RawResults) -> Plan:
    """The plan whose cells the runs are, in their order. Raises `CheckpointError` for a matrix that is none."""
    with understood(Path(raw.name)):
        matrix = Matrix.model_validate(raw.matrix) if raw.matrix else _matrix(raw)
    matrix = matrix.model_copy(update={"name": raw.name, "description": raw.title or matrix.description})
    cells = tuple(Cell(run.id, run.labels, run.seed, partial(_recipe, run)) for run in raw.runs)
    return Plan(matrix, raw.axes, cells)


def _matrix(raw: RawResults) -> Matrix:
    seeds = tuple(dict.fromkeys(run.seed for run in raw.runs))
    values: dict[str, list[Any]] = {axis: [] for axis in raw.axes}
    for run in raw.runs:
        for axis, value in run.labels:
            values[axis] += [value] * (value not in values[axis])
    return Matrix(name=raw.name, description=raw.title, seeds=seeds, axes=values)


def _recipe(run: RawRun) -> Recipe:
    from dynaweb.config import restore

    try:
        return restore(run.recipe)
    except (ConfigError, LookupError) as error:
        raise ConfigError(f"run {run.id} cannot be done again with this version of dynaweb: {error}") from error


def statuses_of(raw: RawResults) -> list[CellStatus]:
    """Every run as a cell that is done."""
    return [CellStatus(run.id, run.labels, run.seed, "done", str(run.record.folder), _seconds(run)) for run in raw.runs]


def _seconds(run: RawRun) -> float | None:
    return run.record.cost("seconds")
