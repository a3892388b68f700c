"""What the result of reinforcement learning depends on: the cache key of the stage `rl`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from dynaweb.pipeline.judge import refreshes_judge
from dynaweb.pipeline.keys import stage_key
from dynaweb.stages.demos import pool_key, practice_key

if TYPE_CHECKING:
    from dynaweb.config.keys import Activity
    from dynaweb.pipeline.artifacts import Artifacts, StageKey
    from dynaweb.pipeline.context import RunContext

Mode = Literal["policy", "filtered-bc"]


def stage_of(mode: Mode) -> str:
    """The name of the stage."""
    return "rl" if mode == "policy" else mode


def rl_key(ctx: RunContext, have: Artifacts, mode: Mode, *, done: int | None = None) -> StageKey:
    """The cache key of the stage; `done` is the number of updates when the time budget ended it early."""
    recipe, dreams = ctx.recipe, ctx.envs.dreams
    does: list[Activity] = ["rl", "dreams" if dreams else "real-rollouts"]
    does += ["policy-gradient"] if mode == "policy" else []
    does += ["replay"] if mode == "policy" and recipe.replay.capacity else []
    does += ["run-ahead"] if recipe.rl.max_staleness else []
    does += ["audit"] if recipe.audit.every else []
    does += ["refresh"] if dreams and recipe.wm_fit.refresh_every else []
    does += ["judge-refresh"] if refreshes_judge(ctx) else []
    does += ["validation"] if recipe.rl.validate_every else []
    order = "at once" if plays_at_once(ctx) else None
    return stage_key(ctx, *does, done=done, order=order, **pool_key(ctx), **practice_key(ctx), **have.keys())


def plays_at_once(ctx: RunContext) -> bool:
    """Whether the engine's settings say that rollouts are played while the trainer works (`dynaweb.rl.ahead`).

    How old they are when they are learned from depends on it.
    """
    if not ctx.recipe.rl.max_staleness:
        return False
    choice = ctx.recipe.engine_of("policy")
    config = ctx.plugins.find("engine", choice.name).spec.config.model_validate(choice.settings)
    return bool(getattr(config, "detaches", False))
