"""Settings that are valid alone and cannot work together: said before anything is made, not after the first stages."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from dynaweb.errors import ConfigError
from dynaweb.judges.making import TRAINABLE, parts, weights_of
from dynaweb.loop.agents import looks_ahead
from dynaweb.loop.proposing import chosen_generator

if TYPE_CHECKING:
    from dynaweb.credit import Wants
    from dynaweb.loop.workspace import Workspace
    from dynaweb.protocols import PolicyOptimizer


def check_together(ws: Workspace) -> None:
    """Raise `ConfigError` (or `MissingError`, for a judge that is not installed) when parts of the recipe clash."""
    recipe = ws.recipe
    if looks_ahead(ws):
        check_lookahead(ws)
    if recipe.offline.episodes and ws.dreams:
        raise ConfigError(
            f"offline.episodes records real episodes, and env {recipe.env.name!r} dreams; use --env sites, or set "
            "offline.episodes = 0"
        )
    if recipe.offline.episodes and recipe.phases.count > 1:
        raise ConfigError(
            "recorded episodes are of the environment's own tasks; set offline.episodes = 0, or phases.count = 1"
        )
    if recipe.phases.count > 1 and recipe.rl.updates:
        chosen_generator(ws, recipe.phases)
    if recipe.replay.capacity and recipe.rl.updates:
        check_replay(ws, optimizer_wants(ws))
    check_judge(ws)


def check_lookahead(ws: Workspace) -> None:
    """Raise `ConfigError` where there is no world model to look ahead in."""
    if not ws.dreams:
        raise ConfigError(
            f"agent.kind = lookahead imagines with a world model, and env {ws.recipe.env.name!r} has none; use "
            "--env dream"
        )


def check_judge(ws: Workspace) -> None:
    """Raise where a part of the judge does not exist, or its settings or weights are not what they should be."""
    for name, config in parts(ws, ws.recipe.reward.name, ws.recipe.reward.config):
        able = TRAINABLE in ws.plugins.find("reward", name).spec.capabilities
        if able and str(getattr(config, "weights", "")):
            weights_of(ws, config)


def check_replay(ws: Workspace, wants: Wants) -> None:
    """Raise `ConfigError` for a replay buffer whose steps the optimizer could not value one by one."""
    if wants.critic is None:
        raise ConfigError(
            f"replay.capacity asks for a replay buffer, and opt {ws.recipe.opt.name!r} compares the rollouts of a task "
            "with each other; use --opt webrl, awr or digirl, or set replay.capacity = 0"
        )


def optimizer_wants(ws: Workspace) -> Wants:
    """What the recipe's optimizer needs."""
    from dynaweb.credit import wants

    return wants(make_optimizer(ws))


def make_optimizer(ws: Workspace) -> PolicyOptimizer:
    """The recipe's optimizer."""
    from dynaweb.protocols import PluginContext

    choice = ws.recipe.opt
    context = PluginContext(seed=ws.seed("optimizer"))
    return cast("PolicyOptimizer", ws.plugins.create("opt", choice.name, choice.config, context))
