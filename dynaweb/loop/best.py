"""The weights of the best look so far, kept beside the last ones, as of the policy of the best validation.

The results of a run are those of the last policy; the best one is there for whoever wants it. Which it was follows from
the history of validations, so that a run that goes on from an earlier checkpoint forgets what came after it.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dynaweb.loop.files import link
from dynaweb.loop.made import MODEL
from dynaweb.runs import write_json

if TYPE_CHECKING:
    from dynaweb.loop.made import LoadedModel, Made
    from dynaweb.loop.workspace import Workspace

BEST = "best"
"""The folder of its weights in a stage's."""
MARK = "best.json"
"""Which update it was, and its success there."""

Marks = Sequence[tuple[int, float]]
"""(updates done, real success) of each validation, or another number that is better when it is higher."""


def best_of(marks: Marks, done: int) -> int | None:
    """After how many updates the best look up to `done` was, the earliest of equals; None without any that is a
    number."""
    seen = [mark for mark in marks if mark[0] <= done and math.isfinite(mark[1])]
    return max(seen, key=lambda mark: (mark[1], -mark[0]))[0] if seen else None


def keep_if_best(scratch: Path, marks: Marks, model: LoadedModel) -> None:
    """Write the weights when the last validation is the best so far. Older ones stay until `tidy`."""
    done = marks[-1][0]
    if best_of(marks, done) == done:
        # What a killed attempt left half-written.
        shutil.rmtree(place_of(scratch, done), ignore_errors=True)
        model.write(place_of(scratch, done))


def tidy(scratch: Path, marks: Marks, checkpoints: Iterable[int]) -> None:
    """Remove weights that are the best of no checkpoint (by its number of updates) that the run could go on from."""
    wanted = {place_of(scratch, best) for done in checkpoints if (best := best_of(marks, done)) is not None}
    for path in scratch.glob(f"{BEST}-*"):
        if path not in wanted:
            shutil.rmtree(path, ignore_errors=True)


def finish(scratch: Path, marks: Marks, done: int, folder: Path) -> None:
    """Put the best weights after `done` updates into the stage's folder; nothing without validations."""
    best = best_of(marks, done)
    if best is None:
        return
    place = place_of(scratch, best) / MODEL
    for file in (path for path in place.rglob("*") if path.is_file()):
        link(file, folder / BEST / MODEL / file.relative_to(place))
    write_json(folder / MARK, {"updates": best, "success": dict(marks)[best]})


def show(ws: Workspace, made: Made, name: str) -> None:
    """Put a stage's best weights into the run folder too, as `NAME-best`."""
    for file in (made.folder / BEST / MODEL).glob("*"):
        if ws.folder is not None:
            link(file, ws.folder.checkpoints / f"{name}-{BEST}" / file.name)


def place_of(scratch: Path, done: int) -> Path:
    """The folder of the weights after so many updates."""
    return scratch / f"{BEST}-{done:08d}"
