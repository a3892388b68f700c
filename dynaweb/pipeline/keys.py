"""Cache keys of stages, derived: from the settings that act on what a stage does, and from what it is made from.

    key = stage_key(ctx, "sft", steps=30, demos=have.need("demos"))

Which settings act on what is declared at the settings (`dynaweb.config.keys`). Some of them stand for more than their
words: a model's path for the weights that lie there, an environment's name for its tasks. That is filled in here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dynaweb.config.keys import TASKS, Activity
from dynaweb.pipeline.artifacts import Artifact, StageKey
from dynaweb.pipeline.judge import judge_key
from dynaweb.pipeline.models import ROLES, engine_key

if TYPE_CHECKING:
    from dynaweb.pipeline.context import RunContext

VERSION = 12
"""Part of every stage key. Raise it when any stage of this package computes something else from the same settings and
artifacts: another default that is no setting, another order of random draws, a mended fault. Faster code with the same
bits, new settings and new stages need no other number. Plugins of other packages count by their source."""


def stage_key(ctx: RunContext, *does: Activity, **sources: Any) -> StageKey:
    """The key of a stage that does these things, made from artifacts and other plain data; None counts as absent."""
    recipe, settings = ctx.recipe, ctx.recipe.settings_for(*does)
    if "model" in settings:
        # A device counts by its word: with "auto" a run may go on where there is another one.
        settings["model"] |= {"path": ctx.models.base_key}
    if isinstance(source := settings.get("data", {}).get("demos"), str):
        from dynaweb.data.demonstrations import source_key

        settings["data"] |= {"demos": source_key(source)}
    if recipe.backend.name == "torch":  # others compute the same but for rounding, which a cached result must not mix
        settings.pop("backend", None)
    if not recipe.observation.pictures:  # the other settings act on pictures alone
        settings.pop("observation", None)
    policy = settings.get("policy", {})
    asks_policy = policy.pop("engine", None) is not None
    asked = [role for role in ROLES if (asks_policy if role == "policy" else role in settings)]
    settings |= engine_key(recipe, ctx.plugins, *asked)
    if "reward" in settings and (judge := judge_key(ctx)):
        settings["judge"] = judge
    if set(does) & set(TASKS):
        settings["tasks"] = ctx.envs.task_key
    if "eval" in settings:
        rest = {name: value for name, value in settings["eval"].items() if name not in ("env", "env_settings")}
        settings["eval"] = {**rest, "tasks": ctx.envs.eval_key}
    keys = {
        name: str(value.key) if isinstance(value, Artifact) else value
        for name, value in sources.items()
        if value is not None
    }
    return StageKey.of({"version": VERSION, "does": sorted(does), **settings, "made from": keys})
