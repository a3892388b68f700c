"""What a matrix leaves on disk.

matrix.json          the plan: the matrix, and id, labels, seed and recipe of every cell
cells/<id>/          the run folder of a cell, as `dynaweb run` makes it
logs/<id>.log        what its process said
outcomes/<id>.json   how its last attempt ended: status, exit code, seconds, error
report.html          the table with its plots

A plan that takes the place of another reads the written one as plain data, so that a plugin that is gone, or a damaged
file, hinders no new plan; results that are done do not leave the table unnoticed (`check_keeps_done`).
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, Literal

from dynaweb.config.files import read_json, understood
from dynaweb.errors import CheckpointError, ConfigError
from dynaweb.matrix.plan import PLAN, cell_name

if TYPE_CHECKING:
    from dynaweb.config import Recipe
    from dynaweb.matrix.plan import Cell, Plan


log = logging.getLogger("dynaweb")

State = Literal["waiting", "running", "done", "failed", "interrupted"]
LISTED = 3
"""Cells, and settings, that a message names; it counts the others."""
LEFT = {".lock", "cells", "logs", "outcomes", "report.html"}
"""What a matrix leaves beside its plan."""


@dataclass(frozen=True, slots=True)
class CellStatus:
    """How one cell stands: `detail` is the error of a failed one.

    `seconds` is the time of all stages of a done one, cached or not, else of its last attempt; None before that.
    """

    id: str
    labels: tuple[tuple[str, str], ...]
    seed: int
    state: State
    folder: str
    seconds: float | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class MatrixFolder:
    """Paths and records of one matrix."""

    path: Path

    def cell(self, id: str) -> Path:
        """The run folder of a cell."""
        return self.path / "cells" / id

    def log(self, id: str) -> Path:
        """What the process of a cell said."""
        return self.path / "logs" / f"{id}.log"

    def outcome(self, id: str) -> Path:
        """How the last attempt of a cell ended."""
        return self.path / "outcomes" / f"{id}.json"

    @property
    def report(self) -> Path:
        """The HTML report."""
        return self.path / "report.html"

    @property
    def plan_file(self) -> Path:
        """The plan."""
        return self.path / PLAN

    @property
    def is_free(self) -> bool:
        """Whether a matrix may be written here: nothing is here, or a matrix, or what one left whose plan is gone."""
        if not self.path.exists():
            return True
        if not self.path.is_dir():
            return False
        names = {path.name for path in self.path.iterdir()}
        return PLAN in names or names <= {".lock"} or ("cells" in names and names <= LEFT)

    def write_plan(self, plan: Plan) -> None:
        """Write the plan, under `lock`, in the place of one that is there: cells have ids, so what is done stays done.

        Raises `ConfigError` when the folder cannot be written, and for settings that are secret.
        """
        from dynaweb.runs import write_json
        from dynaweb.runs.checksums import with_sum
        from dynaweb.runs.folder import saved

        if lost := sorted({path for cell in plan.cells for path in cell.recipe.secret}):
            raise ConfigError(
                f"{lost[0]} is a secret, and the plan from which cells are started holds none; write it as "
                f'{lost[0]} = "$NAME", NAME being an environment variable with it'
            )
        cells = [
            {"id": cell.id, "labels": list(cell.labels), "seed": cell.seed, "recipe": saved(cell.recipe)}
            for cell in plan.cells
        ]
        matrix = plan.matrix.model_dump(mode="json", by_alias=True)
        data = {"matrix": matrix, "axes": list(plan.axes), "merged": plan.merged, "cells": cells}
        try:
            write_json(self.plan_file, with_sum(data))
        except OSError as error:
            raise self._unwritable(error) from error

    def read_plan(self) -> Plan:
        """The plan that was written. Raises `CheckpointError` when there is none, or a damaged one."""
        from dynaweb.matrix.plan import Cell, Matrix, Plan

        data = self._plan()
        with understood(self.plan_file):
            cells = tuple(
                Cell(
                    one["id"], tuple((axis, label) for axis, label in one["labels"]), one["seed"], partial(_recipe, one)
                )
                for one in data["cells"]
            )
            return Plan(Matrix.model_validate(data["matrix"]), tuple(data["axes"]), cells, data["merged"])

    def plan_records(self) -> dict[str, dict[str, Any]]:
        """The cells of the plan that was written, as plain data by id; none where it is missing or damaged."""
        cells = (_json(self.plan_file) or {}).get("cells")
        records = [one for one in cells if isinstance(one, dict)] if isinstance(cells, list) else []
        return {one["id"]: one for one in records if isinstance(one.get("id"), str)}

    def recipe(self, id: str) -> Recipe:
        """The recipe of one cell. Raises `CheckpointError` when there is no such cell."""
        with understood(self.plan_file):
            for one in self._plan()["cells"]:
                if one["id"] == id:
                    return _recipe(one)
        raise CheckpointError(f"{self.plan_file} has no cell {id}; `dynaweb matrix status {self.path}` lists them")

    @contextmanager
    def prepared(self, id: str) -> Iterator[bool]:
        """Make a cell ready to be run, and keep other processes out of it; gives whether its run is to be resumed.

        Waits for one that is at work in it: a cell outlives a killed matrix while it saves its state, or while it
        still starts.
        """
        from dynaweb.runs.lock import locked

        with locked(self.log(id).with_suffix(".lock"), what=f"cell {id}", wait=True):
            yield self._prepare(id)

    def _prepare(self, id: str) -> bool:
        folder = self.cell(id)
        if all(_json(folder / name) is not None for name in ("recipe.json", "status.json")):
            return True
        if (folder / "recipe.json").exists() or not folder.is_dir():
            self._put_aside(folder)
        # Killed before there was anything to go on from.
        shutil.rmtree(folder, ignore_errors=True)
        return False

    def _put_aside(self, folder: Path) -> None:
        """Rename what stands in the place of a cell and cannot be gone on with, so that the cell can start anew."""
        if not folder.exists():
            return
        aside = next(path for at in count(1) if not (path := folder.with_name(f"{folder.name}.damaged-{at}")).exists())
        folder.rename(aside)
        log.warning("%s is damaged; it is %s now, and its cell starts anew", folder, aside.name)

    def status(self, cell: Cell) -> CellStatus:
        """How a cell stands, from what is on disk."""
        state, detail = self._state(cell.id)
        ended = self._ended(cell.id)
        if state == "failed":
            detail = detail or str(ended.get("error", ""))
        # Of a cell whose run was interrupted the last attempt tells little, and nothing where its runner was killed.
        seconds = _all_stages(self.cell(cell.id)) if state == "done" else None
        folder = str(self.cell(cell.id))
        return CellStatus(cell.id, cell.labels, cell.seed, state, folder, seconds or ended.get("seconds"), detail)

    def is_done(self, id: str) -> bool:
        """Whether the run of a cell ended well."""
        return self._state(id)[0] == "done"

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Keep a second runner out.

        Raises `ConfigError` when one is at work, and when the folder cannot be written or holds something else.
        """
        from dynaweb.runs.lock import holder, locked

        # Before there is a lock file: nothing is left in a folder that is somebody else's.
        if not self.is_free:
            raise ConfigError(f"{self.path} is not empty and not a matrix; choose another folder with --out")
        with ExitStack() as stack:
            try:
                taken = stack.enter_context(locked(self.path / ".lock", what=f"matrix {self.path}", wait=False))
            except OSError as error:
                raise self._unwritable(error) from error
            if not taken:
                other = holder(self.path / ".lock") or "?"
                raise ConfigError(f"process {other} runs the matrix {self.path}; wait for it, or choose another --out")
            yield

    def _ended(self, id: str) -> Mapping[str, Any]:
        """How the last attempt of a cell ended; empty where that is not known."""
        from dynaweb.runs.checksums import read_summed

        if not self.outcome(id).exists():
            return {}
        try:
            return read_summed(self.outcome(id), ("status", "exit", "seconds", "error"))
        except CheckpointError as error:
            log.warning("how the last attempt of cell %s ended is not known: %s", id, error)
            return {}

    def _state(self, id: str) -> tuple[State, str]:
        from dynaweb.runs.lock import locked

        folder = self.cell(id)
        status = _json(folder / "status.json")
        # A process that was killed could not say so in its run folder; its runner did.
        has_failed = self._ended(id).get("status") == "failed"
        if status is None:
            return ("failed" if has_failed else "waiting"), ""
        state = status.get("status")
        if state == "done" and (folder / "summary.json").exists():
            return "done", ""
        if state == "failed":
            return "failed", str(status.get("error", ""))
        ended: State = "failed" if has_failed else "interrupted"
        if not (folder / ".lock").exists():
            return ended, ""
        try:
            with locked(folder / ".lock", what=id, wait=False) as free:
                return (ended if free else "running"), ""
        except OSError:  # where nothing can be written, nothing runs
            return ended, ""

    def _unwritable(self, error: OSError) -> ConfigError:
        return ConfigError(f"{self.path} cannot be written: {error.strerror}; choose another --out")

    def _plan(self) -> Mapping[str, Any]:
        from dynaweb.runs.checksums import read_summed

        if not (self.plan_file).exists():
            raise CheckpointError(f"{self.path} is no matrix folder: {PLAN} is missing; run the matrix first")
        return read_summed(self.plan_file, ("matrix", "axes", "merged", "cells"), advice="run the matrix again")


def _all_stages(folder: Path) -> float | None:
    """Seconds of all stages of a run; None where its record cannot be read."""
    from dynaweb.runs.checksums import check_records
    from dynaweb.runs.jsonl import read_jsonl

    try:
        check_records(folder)
        rows = [row for row in read_jsonl(folder / "metrics.jsonl") if row.get("event") == "stage"]
        return sum(float(row["time.seconds"]) for row in rows)
    except (CheckpointError, KeyError, TypeError, ValueError):
        return None


def _recipe(cell: Mapping[str, Any]) -> Recipe:
    from dynaweb.config import restore

    with understood(Path(PLAN)):
        return restore(cell["recipe"])


def _json(path: Path) -> dict[str, Any] | None:
    """A document as far as there is one: cells are made while others look."""
    try:
        return read_json(path, dict)
    except CheckpointError:
        return None


def check_keeps_done(folder: MatrixFolder, plan: Plan) -> None:
    """Raise `ConfigError` when the plan lacks cells of the folder's plan that are done; call it under the lock."""
    wanted = {cell.id for cell in plan.cells}
    lost = [one for id, one in folder.plan_records().items() if id not in wanted and folder.is_done(id)]
    if not lost:
        return
    names = _some([_name(one) for one in lost], "; ")
    cells = "1 done cell" if len(lost) == 1 else f"{len(lost)} done cells"
    raise ConfigError(
        f"{folder.path} has {cells} that this matrix lacks: {names}{_why(lost, plan)}\n"
        f"Give another --out, or remove {quote(str(folder.plan_file))} to give up their place in the table "
        "(their runs stay in cells/)."
    )


def why_not_reported(folder: MatrixFolder, plan: Plan) -> str:
    """Why the folder's report.html is not to show this plan; empty when it may."""
    if not folder.is_free:
        return f"{folder.path} holds something else than a matrix; name the folder of the matrix with --out"
    if not folder.plan_file.exists():
        return ""
    there, wanted = folder.plan_records().keys(), {cell.id for cell in plan.cells}
    if there == wanted:
        return ""
    if not there:
        return f"{folder.plan_file} is damaged; `dynaweb matrix run` writes it anew"
    return (
        f"this table has other cells than {folder.plan_file} ({len(wanted - there)} more, {len(there - wanted)} of its "
        f"{len(there)} missing); leave out the options that change the matrix, or run this one with an --out of its own"
    )


def _name(one: Mapping[str, Any]) -> str:
    """The settings and the seed of a cell, as `Cell` has them; its id where the record is damaged."""
    try:
        return cell_name(one["labels"], one["seed"])
    except (LookupError, TypeError, ValueError):
        return str(one["id"])


def _why(lost: list[dict[str, Any]], plan: Plan) -> str:
    """What differs where the plan has cells of the same names."""
    same: dict[str, Cell] = {str(cell): cell for cell in plan.cells}
    for one in lost:
        if (cell := same.get(_name(one))) is not None and (changed := _changed(one, cell)):
            return f"\nCells of the same names differ (there -> here): {_some(changed, '; ')}"
    return ""


def _changed(one: Mapping[str, Any], cell: Cell) -> list[str]:
    from dynaweb.config.recipe import differences
    from dynaweb.runs.folder import NO_RESULT, recipe_flat, saved

    try:
        both = recipe_flat(one["recipe"]), recipe_flat(saved(cell.recipe))
    except (LookupError, TypeError, ValueError, AttributeError):
        return []
    # An empty table on one side: what the other has in it is told by itself.
    old, new = ({path: value for path, value in flat.items() if value != {}} for flat in both)
    return [line for line in differences(old, new) if not line.startswith(NO_RESULT)]


def _some(texts: list[str], between: str) -> str:
    more = f" and {len(texts) - LISTED} more" if len(texts) > LISTED else ""
    return between.join(texts[:LISTED]) + more
