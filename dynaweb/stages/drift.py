"""Open-loop drift: how errors add up over the steps of a dream, on real episodes of held-out sites.

A stage of its own: what dreams are made with (temperature, end rules) may change without fitting the world model anew.
`dynaweb.worldmodels.open_loop` has the measure itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dynaweb.errors import ConfigError
from dynaweb.pipeline.keys import stage_key
from dynaweb.runs import write_json
from dynaweb.stages.world_model import Material
from dynaweb.worldmodels import open_loop as loop
from dynaweb.worldmodels.memory import without_episode

if TYPE_CHECKING:
    from dynaweb.pipeline.artifacts import Artifact
    from dynaweb.pipeline.context import RunContext
    from dynaweb.protocols import Environment
    from dynaweb.runs import Stage
    from dynaweb.worldmodels.fidelity import Graded

STEPS = "steps.json"
HORIZON = 8
"""Steps of an episode that are followed, at most. No setting: runs with dreams of other lengths share the stage."""


async def drift(ctx: RunContext, explored: Artifact, demos: Artifact, fitted: Artifact) -> Artifact | None:
    """Stage `drift`: the measures of each step of `wm_fit.open_loop` episodes at most, in `STEPS`; None where that is
    0."""
    most = ctx.recipe.wm_fit.open_loop
    if not most:
        return None

    async def body(stage: Stage) -> None:
        material = Material.of_episodes(ctx, explored.episodes(), demos.episodes())
        model = ctx.models.load(fitted.model) if fitted.model.is_dir() else ctx.models.base
        dreaming = material.world_model(ctx, model, temperature=ctx.recipe.dream.temperature)
        write_json(stage.folder / STEPS, await open_loop(ctx, dreaming, material, horizon=HORIZON, most=most))

    key = stage_key(ctx, "drift", explore=explored, demos=demos, world_model=fitted)
    return await ctx.stage("drift", key, body)


def drift_by_step(artifact: Artifact | None) -> list[list[Graded]]:
    """What the stage left: for step 1, 2... the measures of every episode that is so long."""
    return [] if artifact is None else list(artifact.data(STEPS))


async def open_loop(
    ctx: RunContext, world_model: Any, material: Material, *, horizon: int, most: int
) -> list[list[Graded]]:
    """For step 1, 2... up to `horizon` the measures of all real episodes that are so long, `most` of them.

    Raises `ConfigError` for an environment without dreams.
    """
    walks = [chain for chain in loop.chains(material.walks, longest=horizon) if len(chain) > 1][:most]
    if not ctx.envs.dreams:
        raise ConfigError(f"env {ctx.recipe.env.name!r} has no dreams to follow episodes in; use --env dream")

    def dreams(chain: loop.Chain) -> Environment:
        world, start = without_episode(world_model, chain[0]), chain[0].observation
        return ctx.envs.dream(world, lambda task: start, rules=material.rules)()

    graded = await loop.drift(dreams, walks, seed=ctx.seed("drift"), live=ctx.models.lockstep.episode)
    return by_step(graded, horizon)


def by_step(graded: Sequence[Sequence[Graded]], horizon: int) -> list[list[Graded]]:
    """The measures of step 1, 2... over all episodes that are so long."""
    steps = [[chain[at] for chain in graded if len(chain) > at] for at in range(horizon)]
    return [step for step in steps if step]
