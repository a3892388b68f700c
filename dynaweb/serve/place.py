"""An environment outside of a run: its tasks, a place to play them, and the verdict on what was played."""

from __future__ import annotations

from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from dynaweb.errors import ConfigError
from dynaweb.loop.tasks import default_split
from dynaweb.loop.verdicts import judge_one
from dynaweb.loop.weights import world_model_weights
from dynaweb.loop.workspace import Workspace
from dynaweb.plugins import current
from dynaweb.runs import StageCache
from dynaweb.seeding import derive

if TYPE_CHECKING:
    from dynaweb.config import Recipe
    from dynaweb.protocols import Environment, Judge, TaskSource, WorldModel
    from dynaweb.types import Action, Judgement, Observation, StepResult, Task, Trajectory


class Place:
    """The environment of a recipe. It belongs to one event loop; close it when nobody plays any more.

    In dreams the first page of a task is taken from the real environment, everything after it from the world model:
    the weights in the folder `world_model`, or the base model as it is.
    """

    def __init__(self, recipe: Recipe, *, world_model: Path | None = None) -> None:
        """Raises `ConfigError` when there is no such folder, and for weights that would not be used."""
        if world_model is not None and not world_model.is_dir():
            raise ConfigError(f"there is no world model in {world_model}; name a folder of weights")
        self.recipe = recipe
        self._ws = Workspace(recipe, current(), StageCache())
        if world_model is not None and not self.dreams:
            raise ConfigError(
                f"env {recipe.env.name!r} shows real pages, and {world_model} is a world model; use the environment "
                "dream, or leave the world model out"
            )
        self._weights = world_model_weights(world_model)
        self._pages: dict[str, Observation] = {}

    @property
    def dreams(self) -> bool:
        """Whether pages are dreamed."""
        return self._ws.dreams

    def __str__(self) -> str:
        """What pages and verdicts are made of, a sentence for people."""
        tasks, _ = self._ws.task_settings
        if not self.dreams:
            return f"Real pages of {tasks}; the environment itself grades."
        judge, wm = self.recipe.reward.name, self.recipe.wm.name
        who = f"the weights in {self._weights}" if self._weights is not None else "the base model, which nobody fitted"
        return (
            f"A dream of {tasks}: the first page is real, world model {wm} imagines all others with {who}; judge "
            f"{judge} grades."
        )

    @property
    def source(self) -> TaskSource:
        """What brings the tasks."""
        return self._ws.source

    def tasks(self, split: str, count: int) -> list[Task]:
        """Tasks of a split ('': the one that the source means), drawn with the recipe's seed."""
        return self.source.tasks(split or default_split(self.source), count=count, seed=self.recipe.run.seed)

    def environment(self) -> Environment:
        """A new environment to play in."""
        if not self.dreams:
            return self.source.environment()
        dream = self._ws.dream_environment(self._world_model, lambda task: self._pages.get(task.id))()
        return _RealStart(dream, self.source, self._pages)

    async def verdict(self, environment: Environment, trajectory: Trajectory) -> Judgement:
        """The environment's own verdict on an episode that has just ended; in dreams the recipe's judge gives it."""
        if not self.dreams:
            return await self.source.evaluate(environment, trajectory)
        judgement = (await judge_one(self._judge, trajectory)).judgement
        assert judgement is not None  # `judge_one` always gives one
        return judgement

    async def close(self) -> None:
        """Close servers and browsers."""
        await self._ws.close()

    @cached_property
    def _world_model(self) -> WorldModel:
        model = self._ws.load(self._weights) if self._weights is not None else self._ws.base
        return self._ws.world_model(model, temperature=self.recipe.dream.temperature)

    @cached_property
    def _judge(self) -> Judge:
        return self._ws.judge(self._ws.base_engine, self._ws.format)


class _RealStart:
    """A dream whose first page is looked up in the real environment, once for each task."""

    def __init__(self, dream: Environment, source: TaskSource, pages: dict[str, Observation]) -> None:
        self._dream, self._source, self._pages = dream, source, pages

    async def reset(self, task: Task, seed: int) -> Observation:
        if task.id not in self._pages:
            real = self._source.environment()
            try:
                self._pages[task.id] = await real.reset(task, derive(seed, "start"))
            finally:
                with suppress(OSError):
                    await real.close()
        return await self._dream.reset(task, seed)

    async def step(self, action: Action) -> StepResult:
        return await self._dream.step(action)

    async def close(self) -> None:
        await self._dream.close()
