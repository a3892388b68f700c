"""How many processes share the work of a run where nobody says so."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from dynaweb.estimate.machine import has_gpu
from dynaweb.estimate.shapes import shape_of

if TYPE_CHECKING:
    from dynaweb.config.recipe import Recipe

PROCESSES = 2
"""On a CPU with a small model. A second process is worth far more than a second thread there: the operations are too
small for two threads, and the batches are not too small for two processes. No more than two, so that a seed gives the
same on most machines."""
MAX_PARAMETERS = 30_000_000
"""Of a small model: its copy in a second process costs next to no memory."""
MIN_UPDATES = 50
"""Gradient steps of all stages together from which on starting a second process is worth it."""


def processes(recipe: Recipe) -> int:
    """`PROCESSES` where a small model does much work on more than one core and no GPU, else 1."""
    return PROCESSES if _long(recipe) and _in_process(recipe) and _small(recipe) and _on_cores(recipe) else 1


def cores() -> int:
    """Those that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _long(recipe: Recipe) -> bool:
    updates = recipe.sft.steps + recipe.wm_fit.steps + recipe.rl.updates + sum(recipe.controls.sft_steps)
    return updates >= MIN_UPDATES


def _in_process(recipe: Recipe) -> bool:
    """Whether torch in this process does the work; who sets its threads has decided how many cores it gets."""
    engines = {recipe.engine_of(role).name for role in ("policy", "wm", "reward")}
    return recipe.backend.name == "torch" and engines == {"transformers"} and recipe.model.threads == 0


def _small(recipe: Recipe) -> bool:
    shape = shape_of(recipe.model.path)
    return shape is not None and shape.parameters <= MAX_PARAMETERS


def _on_cores(recipe: Recipe) -> bool:
    return cores() >= PROCESSES and (recipe.model.device == "cpu" or not has_gpu())
