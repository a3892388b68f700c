"""The policy of the best validation, kept beside the last one.

The results of a run are those of the last policy; the best one is there for whoever wants it. Which it was follows from
the history of validations, so that a run that goes on from an earlier checkpoint forgets what came after it.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dynaweb.loop.files import link
from dynaweb.runs import write_json

if TYPE_CHECKING:
    from dynaweb.loop.made import LoadedModel, Made
    from dynaweb.loop.workspace import Workspace

BEST = "best"
"""The folder of its weights in a stage's."""
MARK = "best.json"
"""Which update it was, and its success there."""

Marks = Sequence[tuple[int, float]]
"""(updates done, real success) of each validation."""


def best_of(marks: Marks, done: int) -> int | None:
    """After how many updates the best validation up to `done` was, the earliest of equals; None without any."""
    seen = [mark for mark in marks if mark[0] <= done]
    return max(seen, key=lambda mark: (mark[1], -mark[0]))[0] if seen else None


def keep_if_best(scratch: Path, marks: Marks, model: LoadedModel) -> None:
    """Write the weights when the last validation is the best so far. Older ones stay until `tidy`."""
    done = marks[-1][0]
    if best_of(marks, done) == done:
        model.write(_place(scratch, done))


def tidy(scratch: Path, marks: Marks, checkpoints: Iterable[int]) -> None:
    """Remove weights that are the best of no checkpoint (by its number of updates) that the run could go on from."""
    wanted = {_place(scratch, best) for done in checkpoints if (best := best_of(marks, done)) is not None}
    for path in scratch.glob(f"{BEST}-*"):
        if path not in wanted:
            shutil.rmtree(path, ignore_errors=True)


def finish(scratch: Path, marks: Marks, done: int, folder: Path) -> None:
    """Put the best weights after `done` updates into the stage's folder; nothing without validations."""
    best = best_of(marks, done)
    if best is None:
        return
    place = _place(scratch, best)
    for file in (path for path in place.rglob("*") if path.is_file()):
        link(file, folder / BEST / file.relative_to(place))
    write_json(folder / MARK, {"updates": best, "success": dict(marks)[best]})


def show(ws: Workspace, made: Made, name: str) -> None:
    """Put a stage's best weights into the run folder too, as `NAME-best`."""
    for file in (made.folder / BEST).glob("*/*"):
        if ws.folder is not None:
            link(file, ws.folder.checkpoints / f"{name}-{BEST}" / file.name)


def _place(scratch: Path, done: int) -> Path:
    return scratch / f"{BEST}-{done:06d}"
