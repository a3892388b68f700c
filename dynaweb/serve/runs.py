"""The runs and matrices below a folder, and what the list of them tells of each."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dynaweb.config.files import MALFORMED, RESTORE, read_json
from dynaweb.errors import CheckpointError
from dynaweb.masking import masked, printable
from dynaweb.matrix.plan import PLAN
from dynaweb.report.data import ReportData
from dynaweb.report.gather import gather
from dynaweb.report.listing import ListedRun, ListedStatus
from dynaweb.report.table import cost_totals, made_words, real_steps
from dynaweb.runs.checksums import STATUS
from dynaweb.runs.folder import COMMAND, RUN, STATES
from dynaweb.runs.jsonl import read_jsonl
from dynaweb.runs.lock import is_locked

DEPTH = 4
"""Folders within folders that are looked through."""
MATRIX = "matrix"


def is_run(folder: Path) -> bool:
    """Whether a run was begun in the folder."""
    return (folder / STATUS).exists()


def is_matrix(folder: Path) -> bool:
    """Whether the folder is that of a matrix."""
    return (folder / PLAN).exists()


def runs_below(root: Path) -> dict[str, Path]:
    """The runs and matrices below a folder, cells of matrices too, by their path there, with `/`; '' is itself one.

    Hidden folders, and folders inside a run, are passed over.
    """
    runs: dict[str, Path] = {}
    waiting = [(root, "", DEPTH)]
    while waiting:
        folder, path, depth = waiting.pop()
        if is_run(folder):
            runs[path] = folder
            continue
        below = folder
        if is_matrix(folder):
            runs[path] = folder
            below, depth = folder / "cells", 1
        if depth:
            waiting += [(each, each.relative_to(root).as_posix(), depth - 1) for each in _folders(below)]
    return dict(sorted(runs.items()))


def _folders(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            # A link may lead back to where it is.
            return [folder / one.name for one in entries if one.is_dir(follow_symlinks=False) and one.name[0] != "."]
    except OSError:
        return []


def listed(path: str, folder: Path, matrix: str = "") -> ListedRun:
    """What the list tells of a run or a matrix; one that cannot be read is `damaged`, and says why."""
    if is_matrix(folder):
        return _matrix(path, folder)
    kind = _text(folder, COMMAND, "command") or RUN
    try:
        data = gather(folder, episodes=False)
        started, doing = _began(folder)
        status, detail = _stands(folder, data, doing)
        success, control = data.main or (data.arms[-1] if data.arms else None), data.reference
        return ListedRun(
            path,
            kind,
            status,
            detail,
            recipe=_text(folder, "recipe.json", "name"),
            made=_cell_labels(folder) if matrix else made_words(data),
            seed=data.seed,
            started=started,
            success=success.success if success is not None else None,
            arm=success.label if success is not None else "",
            gain=data.against_reference(success) if success is not None else None,
            control=control.label if control is not None else "",
            steps=real_steps(data) if data.stages else None,
            seconds=cost_totals(data).get("seconds"),
            matrix=matrix,
        )
    except (CheckpointError, OSError, *MALFORMED) as error:
        # One run that nobody foresaw must not end the list of the others.
        return ListedRun(path, kind, "damaged", printable(masked(str(error))), matrix=matrix)


def _cell_labels(folder: Path) -> str:
    """What distinguishes a cell from others of its matrix, such as `opt=gspo, dream.horizon=3`."""
    from dynaweb.config.labels import labels_text
    from dynaweb.matrix import MatrixFolder

    record = MatrixFolder(folder.parent.parent).plan_records().get(folder.name, {})
    try:
        return labels_text(tuple((str(axis), str(value)) for axis, value in record.get("labels", ())))
    except MALFORMED:
        return ""


def in_short(path: str, folder: Path, matrix: str = "") -> ListedRun:
    """The row of a run that is still to be read: what its smallest files tell."""
    kind = MATRIX if is_matrix(folder) else _text(folder, COMMAND, "command") or RUN
    status = _text(folder, STATUS, "status")
    known: ListedStatus = status if status in STATES else "interrupted"
    if known == "running" and not is_locked(folder / ".lock"):
        known = "interrupted"
    return ListedRun(path, kind, known, recipe=_text(folder, "recipe.json", "name"), matrix=matrix, whole=False)


def _stands(folder: Path, data: ReportData, doing: str) -> tuple[ListedStatus, str]:
    """Status and its detail. Who was killed could not write how it ended: its lock tells."""
    document = read_json(folder / STATUS, dict, finite=True)
    detail = printable(masked(str(document.get("error", ""))))
    if data.status == "running":
        return ("running", doing) if is_locked(folder / ".lock") else ("interrupted", doing)
    if data.status == "interrupted":
        return "interrupted", detail or doing
    return ("failed" if data.status == "failed" else "done"), detail


def _began(folder: Path) -> tuple[str, str]:
    """When a run began, and what it did last, such as `rl, update 12`."""
    started = doing = ""
    for row in read_jsonl(folder / "metrics.jsonl"):
        match row.get("event"):
            case "run_start":
                started = started or str(row.get("time.at", ""))
            case "update":
                doing = f"{row.get('stage')}, update {row.get('index', 0) + 1}"
            case "stage":
                doing = f"after {row.get('name')}"
            case "rollout":
                doing = f"{row.get('phase')}, playing"
    return started, printable(masked(doing))


def _matrix(path: str, folder: Path) -> ListedRun:
    """A matrix: how many of its cells are done, and how the others stand."""
    from dynaweb.matrix import MatrixFolder

    matrix = MatrixFolder(folder)
    try:
        cells = matrix.plan_records()
        if not cells:
            raise CheckpointError(f"{folder / PLAN} is damaged; {RESTORE}")
        plan = matrix.read_plan()
        states = Counter(status.state for status in map(matrix.status, plan.cells))
        seconds = sum(status.seconds or 0.0 for status in map(matrix.status, plan.cells))
    except (CheckpointError, OSError, *MALFORMED) as error:
        return ListedRun(path, MATRIX, "damaged", printable(masked(str(error))))
    others = [f"{n} {state}" for state, n in states.items() if state != "done"]
    detail = ", ".join([f"{states['done']} of {states.total()} cells done", *others])
    status: ListedStatus = "interrupted"
    if states["running"] or is_locked(folder / ".lock"):
        status = "running"
    elif states["failed"]:
        status = "failed"
    elif states["done"] == states.total():
        status = "done"
    made = " x ".join(plan.axes)
    seeds = [cell.seed for cell in plan.cells]
    base = Path(plan.matrix.base).stem
    started = _earliest(matrix.cell(id) for id in cells)
    return ListedRun(path, MATRIX, status, detail, base, made, min(seeds), started, seconds=seconds or None)


def _earliest(folders: Any) -> str:
    """When the first of some runs began."""
    moments = []
    for folder in folders:
        try:
            first = next(read_jsonl(folder / "metrics.jsonl"), {})
        except CheckpointError:
            continue
        moments.append(str(first.get("time.at", "")))
    return min(filter(None, moments), default="")


def _text(folder: Path, name: str, key: str) -> str:
    """A text of a small document; '' where there is none, or none that can be read."""
    try:
        document: Mapping[str, Any] = read_json(folder / name, dict)
    except CheckpointError:
        return ""
    return str(document.get(key, ""))
