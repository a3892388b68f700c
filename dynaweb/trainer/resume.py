"""Going on from checkpoints: the last whole one, and which weights were the best so far. Imports no torch."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dynaweb.trainer.torch_trainer import TorchTrainer

BEST = "best"
"""The folder of the best weights in a stage's."""


def resume(trainer: TorchTrainer, folder: Path) -> bool:
    """Load the last checkpoint in `folder` that is whole; damaged ones alone are an error, not a fresh start."""
    from dynaweb.trainer.checkpoint import steps

    if not steps(folder):
        return False
    trainer.load(folder)
    return True


def updates_kept(folder: Path, per_update: int) -> set[int]:
    """Numbers of whole updates, of so many optimizer steps each, that the checkpoints in `folder` hold."""
    from dynaweb.trainer.checkpoint import steps

    return {step // per_update for step in steps(folder)}


Marks = Sequence[tuple[int, float]]
"""(updates done, real success) of each validation, or another number that is better when it is higher."""


def best_of(marks: Marks, done: int) -> int | None:
    """After how many updates the best look up to `done` was, the earliest of equals; None without any that is a
    number."""
    seen = [mark for mark in marks if mark[0] <= done and math.isfinite(mark[1])]
    return max(seen, key=lambda mark: (mark[1], -mark[0]))[0] if seen else None


def prune_best(scratch: Path, marks: Marks, checkpoints: Iterable[int]) -> None:
    """Remove weights that are the best of no checkpoint (by its number of updates) that the run could go on from."""
    wanted = {best_folder(scratch, best) for done in checkpoints if (best := best_of(marks, done)) is not None}
    for path in scratch.glob(f"{BEST}-*"):
        if path not in wanted:
            shutil.rmtree(path, ignore_errors=True)


def best_folder(scratch: Path, done: int) -> Path:
    """The folder of the weights after so many updates."""
    return scratch / f"{BEST}-{done:08d}"
