"""The seam between dreams and real pages: where the rollouts of RL happen, and on which tasks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dynaweb.errors import ConfigError
from dynaweb.loop.demos import rl_tasks
from dynaweb.loop.groups import Place, tasks_of_rl
from dynaweb.loop.rollout import Rules
from dynaweb.loop.tasks import StartPages
from dynaweb.loop.verdicts import grading
from dynaweb.types import Task

if TYPE_CHECKING:
    from dynaweb.loop.rl import Ingredients
    from dynaweb.loop.workspace import LoadedModel, Workspace


def place_of(ws: Workspace, given: Ingredients) -> Place:
    """The seam: dreams from recorded start pages, or the task environment itself."""
    dream = ws.recipe.dream
    if not ws.dreams:
        rules = Rules(dream.horizon, source="real", invalid_ends=dream.invalid_ends)
        return Place(ws.source.environment, ws.recipe.web.contexts, rules, grading(ws.source))
    if given.explored is None or given.world_model is None:
        raise ConfigError("dreams need explored start pages and a world model; run those stages first")
    weights = given.world_model.model
    model: LoadedModel = ws.load(weights) if weights.is_dir() else ws.base
    starts = StartPages([*given.explored.episodes(), *given.demos.episodes()])
    make = ws.dream_environment(ws.world_model(model, temperature=dream.temperature), starts)
    rules = Rules(dream.horizon, source="dream", invalid_ends=dream.invalid_ends)
    return Place(make, ws.recipe.rl.tasks * ws.recipe.rl.n, rules)


def tasks_of(
    ws: Workspace, given: Ingredients, demonstrated: Sequence[Task], *, spare: int | None = None
) -> list[Task]:
    """A task for each place of each update; for dreams, only tasks whose start page was recorded.

    With `spare`, others in their place: enough for so many further rounds of each update.
    """
    if spare == 0:
        return []
    tasks = rl_tasks(ws)
    if given.explored is not None:
        starts = StartPages([*given.explored.episodes(), *given.demos.episodes()])
        tasks = [task for task in tasks if starts(task) is not None]
        demonstrated = [task for task in demonstrated if starts(task) is not None]
    if not tasks:
        raise ConfigError("no training task has a recorded start page; raise explore.episodes")
    rl = ws.recipe.rl
    if spare is None:
        return tasks_of_rl(tasks, demonstrated, rl, seed=ws.seed("tasks", "rl"))
    more = rl.model_copy(update={"updates": rl.updates * spare})
    return tasks_of_rl(tasks, demonstrated, more, seed=ws.seed("tasks", "rl", "spare"))
