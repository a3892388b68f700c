"""The seam between dreams and real pages: where the rollouts of RL happen, and on which tasks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dynaweb.errors import ConfigError
from dynaweb.loop.curriculum import Schedule
from dynaweb.loop.demos import rl_tasks
from dynaweb.loop.evolving import read_tasks
from dynaweb.loop.groups import Place
from dynaweb.loop.openings import recorded_starts
from dynaweb.loop.refresh import refreshed_by
from dynaweb.loop.rollout import Rules
from dynaweb.loop.verdicts import grading
from dynaweb.loop.worldmodel import calibration_of, held_out_sites, modelled, real_transitions
from dynaweb.types import Task
from dynaweb.worldmodels.confidence import Trusted
from dynaweb.worldmodels.recall import Recalling

if TYPE_CHECKING:
    from dynaweb.loop.ingredients import Ingredients
    from dynaweb.loop.workspace import LoadedModel, Workspace
    from dynaweb.protocols import WorldModel


def place_of(ws: Workspace, given: Ingredients, model: LoadedModel | None) -> Place:
    """The seam: dreams from recorded start pages by a world model's weights (None: the base), or the real pages."""
    dream = ws.recipe.dream
    if not ws.dreams:
        rules = Rules(dream.longest, source="real", invalid_ends=dream.invalid_ends)
        return Place(ws.source.environment, ws.recipe.web.contexts, rules, grading(ws.source))
    if given.explored is None or given.world_model is None:
        raise ConfigError("dreams need explored start pages and a world model; run those stages first")
    explored = given.explored.episodes()
    starts = recorded_starts(given)
    world_model = ws.world_model(
        model or ws.base,
        temperature=dream.temperature,
        transitions=lambda: real_transitions(ws, explored),
        held_out=held_out_sites(ws, explored),
    )
    auto = dream.horizon == "auto"
    trusted: WorldModel = Trusted(world_model, calibration_of(given.world_model)) if auto else world_model
    if dream.recall:
        trusted = Recalling(trusted, modelled(explored))
    make = ws.dream_environment(trusted, starts, floor=dream.fidelity_floor if auto else 0.0)
    rules = Rules(dream.longest, source="dream", invalid_ends=dream.invalid_ends)
    return Place(make, ws.recipe.rl.tasks * ws.recipe.rl.n, rules)


def dreamer_of(ws: Workspace, given: Ingredients) -> LoadedModel | None:
    """The world model's weights: those that the phase before refreshed, else the fitted ones.

    A copy of the base where it is to be refreshed, None where the base serves.
    """
    refreshed = refreshed_by(given.phase.before.folder) if given.phase.before is not None else None
    if refreshed is not None:
        return ws.load(refreshed)
    fitted = given.world_model.model if given.world_model is not None else None
    if fitted is not None and fitted.is_dir():
        return ws.load(fitted)
    return ws.load() if ws.dreams and ws.recipe.wm_fit.refresh_every else None


def schedule_of(ws: Workspace, given: Ingredients, demonstrated: Sequence[Task]) -> Schedule:
    """The tasks of all updates; for dreams, only tasks whose start page was recorded."""
    tasks = rl_tasks(ws) if given.phase.tasks is None else read_tasks(given.phase.tasks)
    if given.explored is not None:
        starts = recorded_starts(given)
        tasks = [task for task in tasks if starts(task) is not None]
        demonstrated = [task for task in demonstrated if starts(task) is not None]
    if not tasks:
        raise ConfigError("no training task has a recorded start page; raise explore.episodes")
    return Schedule(ws.recipe.rl, tasks, demonstrated, ws.seed("tasks", "rl"))
