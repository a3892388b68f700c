"""What would make a recipe fit a machine that it does not fit: settings and other machines, each one tried out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

from dynaweb.config import resolve
from dynaweb.config.agreement import ROLES
from dynaweb.errors import DynawebError
from dynaweb.estimate.machine import ACCELERATORS, Machine, named
from dynaweb.estimate.placement import generating_gpus
from dynaweb.estimate.plan import estimate

if TYPE_CHECKING:
    from dynaweb.config import Recipe

MOST = 3
"""As many ways out as one message names."""
_LORA = {"sft.lora_rank": 32, "wm_fit.lora_rank": 32, "rl.lora_rank": 32}
_LEAN = {"model.dtype": "bfloat16", "model.checkpointing": True, "model.micro_tokens": 4096}
_SPREAD = {"backend.name": "deepspeed", "backend.stage": 3}
SETTINGS: tuple[Mapping[str, Any], ...] = (
    {"model.checkpointing": True},
    _LEAN,
    _LORA,
    _LEAN | _LORA,
    _SPREAD,
    _SPREAD | _LEAN,
    _SPREAD | {"backend.offload": True},
    _SPREAD | _LEAN | {"backend.offload": True},
)
"""Settings that take less memory, those that change least first."""


def remedies(recipe: Recipe, machine: Machine, ranks: int) -> tuple[str, ...]:
    """At most `MOST` ways to make a recipe fit, as settings of the command line or as machines to go to."""
    ways = []
    for new, processes in islice(fitting(recipe, machine, ranks), MOST - 1):
        nproc = f" --nproc {processes}" if processes > 1 else ""
        ways.append(" ".join(f"--set {path}={_word(value)}" for path, value in new.items()) + nproc)
    return (*ways, *_machines(recipe))[:MOST]


def fitting(recipe: Recipe, machine: Machine, ranks: int) -> Iterator[tuple[Mapping[str, Any], int]]:
    """Settings with which the recipe fits, each with its number of processes; none that holds another that fits."""
    known: list[Mapping[str, Any]] = []
    flat = recipe.flat()
    beside = _beside(recipe, machine)
    free = machine.devices if beside else max(1, machine.devices - generating_gpus(recipe))
    for settings in (beside, *SETTINGS) if beside else SETTINGS:
        spread = "backend.stage" in settings or (settings is beside and recipe.backend.name == "deepspeed")
        processes = free if spread else min(ranks, free)
        new = {path: value for path, value in {**settings, **beside}.items() if flat.get(path) != value}
        if not new or (spread and processes < 2) or any(other.items() <= new.items() for other in known):
            continue
        if _fits(recipe, new, machine, processes):
            known.append(new)
            yield new, processes


def _beside(recipe: Recipe, machine: Machine) -> Mapping[str, Any]:
    """Where replicas of vLLM would leave no GPU to the trainer, the settings that put vLLM beside it."""
    if machine.is_cpu or generating_gpus(recipe) < machine.devices:
        return {}
    return {f"{role}.engine.replicas": 0 for role in ROLES if recipe.engine_of(role).settings.get("replicas")}


def _machines(recipe: Recipe) -> Iterator[str]:
    """The smallest named machine that the recipe fits as it is."""
    sizes = sorted((kind.memory * count, count, name) for name, kind in ACCELERATORS.items() for count in (1, 2, 4, 8))
    for _, count, name in sizes:
        ranks = count - generating_gpus(recipe)
        if ranks > 0 and count <= ACCELERATORS[name].most and _fits(recipe, {}, named(f"{count}x{name}"), ranks):
            yield f"{count}x{name}{f' with --nproc {ranks}' if ranks > 1 else ''}"
            return


def _fits(recipe: Recipe, settings: Mapping[str, Any], machine: Machine, ranks: int) -> bool:
    try:
        plan = estimate(resolve(recipe, overrides=settings), machine, ranks=ranks)
    except DynawebError:  # of settings that do not go with the rest of the recipe
        return False
    return plan is not None and not plan.problems()


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
