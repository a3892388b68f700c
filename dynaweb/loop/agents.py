"""How a policy acts at evaluation, as the recipe's section `agent` says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from dynaweb.loop.engines import engine_key
from dynaweb.loop.lookahead import LookaheadPolicy
from dynaweb.loop.players import ModelPolicy
from dynaweb.loop.worldmodel import real_transitions

if TYPE_CHECKING:
    from dynaweb.loop.players import PlayerFor
    from dynaweb.loop.workspace import Made, Workspace
    from dynaweb.protocols import Environment
    from dynaweb.types import Observation


def looks_ahead(ws: Workspace) -> bool:
    """Whether the recipe's agent looks ahead."""
    return ws.recipe.agent.kind == "lookahead"


def lookahead_key(ws: Workspace, world_model: str) -> str:
    """What the decisions of a look-ahead agent depend on besides the policy's weights."""
    from dynaweb.judges.making import judge_key

    engines = engine_key(ws, "reward", "wm")
    return ws.recipe.key("agent", "reward", "wm", world_model=world_model, **engines, **judge_key(ws))


def lookahead(
    ws: Workspace, weights: Path | None, world_model: Path | None, explored: Made | None
) -> Callable[[], PlayerFor]:
    """What makes the look-ahead player of a policy's weights (None: the base model) and a world model's (None: the
    base).

    `explored` gives real transitions to world models that are shown examples.
    """

    def make() -> PlayerFor:
        agent, recipe = ws.recipe.agent, ws.recipe
        model = ws.load(weights)
        engine = ws.engine(model)
        dreamer = ws.load(world_model) if world_model is not None else ws.base
        world = ws.world_model(
            dreamer,
            temperature=agent.world_temperature,
            transitions=lambda: real_transitions(ws, explored.episodes()) if explored is not None else [],
        )

        def dream(page: Observation) -> Environment:
            return ws.dream_environment(world, lambda task: page)()

        limit = recipe.rl.max_new_tokens
        proposer = ModelPolicy(engine, model.format, temperature=agent.temperature, max_new_tokens=limit)
        goes_on = ModelPolicy(engine, model.format, temperature=0.0, max_new_tokens=limit)
        player = LookaheadPolicy(proposer, goes_on, dream, ws.judge(engine, model.format), agent)
        return lambda task: player

    return make
