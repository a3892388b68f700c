"""Stage `drift`: how errors add up over the steps of a dream, on real episodes of held-out sites (see `drift`).

A stage of its own: what dreams are made with (temperature, end rules) may change without fitting the world model anew.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from dynaweb.errors import ConfigError
from dynaweb.loop.drift import chains, drift
from dynaweb.loop.fidelity import Graded
from dynaweb.loop.worldmodel import Material
from dynaweb.runs import write_json

if TYPE_CHECKING:
    from dynaweb.loop.workspace import Made, Workspace
    from dynaweb.runs import Stage

STEPS = "steps.json"
HORIZON = 8
"""Steps of an episode that are followed, at most. No setting: runs with dreams of other lengths share the stage."""


async def drift_stage(ws: Workspace, explored: Made, demos: Made, fitted: Made) -> Made | None:
    """The measures of each step of `wm_fit.open_loop` episodes at most, in `STEPS`; None where that is 0."""
    most = ws.recipe.wm_fit.open_loop
    if not most:
        return None

    async def body(stage: Stage) -> None:
        given = Material.of_episodes(ws, explored.episodes(), demos.episodes())
        model = ws.load(fitted.model) if fitted.model.is_dir() else ws.base
        dreaming = given.asked_of(ws, model, temperature=ws.recipe.dream.temperature)
        write_json(stage.folder / STEPS, await open_loop(ws, dreaming, given, horizon=HORIZON, most=most))

    key = ws.key("wm", "env", "dream.temperature", "wm_fit.open_loop", world_model=fitted.key, model=ws.model_key)
    return await ws.stage("drift", key, body, settings=ws.recipe.settings("run.seed", "dream.temperature"))


def drifted(made: Made | None) -> list[list[Graded]]:
    """What the stage left: for step 1, 2... the measures of every episode that is so long."""
    return [] if made is None else list(made.data(STEPS))


async def open_loop(ws: Workspace, world_model: Any, given: Material, *, horizon: int, most: int) -> list[list[Graded]]:
    """For step 1, 2... up to `horizon` the measures of all real episodes that are so long, `most` of them."""
    walks = [chain for chain in chains(given.walks, longest=horizon) if len(chain) > 1][:most]
    if not ws.dreams:
        raise ConfigError(f"env {ws.recipe.env.name!r} has no dreams to follow episodes in; use --env dream")

    def dreams(start_page: Any) -> Callable[[], Any]:
        return ws.dream_environment(world_model, start_page)

    return by_step(await drift(dreams, walks, seed=ws.seed("drift"), live=ws.lockstep.episode), horizon)


def by_step(found: Sequence[Sequence[Graded]], horizon: int) -> list[list[Graded]]:
    """The measures of step 1, 2... over all episodes that are so long."""
    steps = [[chain[at] for chain in found if len(chain) > at] for at in range(horizon)]
    return [step for step in steps if step]
