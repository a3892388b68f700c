"""An environment outside of a run: its tasks, environments to play them in, and the verdict on what was played."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from dynaweb.errors import ConfigError
from dynaweb.judges.reward import judge_one
from dynaweb.pipeline.context import RunContext
from dynaweb.pipeline.judge import make_judge
from dynaweb.pipeline.models import world_model_weights
from dynaweb.plugin.registry import current
from dynaweb.rollout.tasks import default_split
from dynaweb.runs import StageCache
from dynaweb.runs.seeding import derive

if TYPE_CHECKING:
    from dynaweb.config import Recipe
    from dynaweb.protocols import Environment, Judge, TaskSource, WorldModel
    from dynaweb.types import Action, Judgement, Observation, StepResult, Task, Trajectory

T = TypeVar("T")


class ServedEnvironment:
    """The environment of a recipe. It belongs to one event loop; close it when nobody plays any more.

    In dreams the first page of a task is taken from the real environment, everything after it from the world model:
    the weights in the folder `world_model`, or the base model as it is.
    """

    def __init__(self, recipe: Recipe, *, world_model: Path | None = None) -> None:
        """Raises `ConfigError` when there is no such folder, and for weights that would not be used."""
        if world_model is not None and not world_model.is_dir():
            raise ConfigError(f"there is no world model in {world_model}; name a folder of weights")
        self.recipe = recipe
        self._ctx = RunContext(recipe, current(), StageCache())
        if world_model is not None and not self.dreams:
            raise ConfigError(
                f"env {recipe.env.name!r} shows real pages, and {world_model} is a world model; use the environment "
                "dream, or leave the world model out"
            )
        self._weights = world_model_weights(world_model)
        self._pages: dict[str, Observation] = {}
        self._begun = False

    @property
    def dreams(self) -> bool:
        """Whether pages are dreamed."""
        return self._ctx.envs.dreams

    def __str__(self) -> str:
        """What pages and verdicts are made of, a sentence for people."""
        tasks, _ = self._ctx.envs.task_settings
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
        return self._ctx.envs.source

    def tasks(self, split: str, count: int) -> list[Task]:
        """Tasks of a split ('': the one that the source means), drawn with the recipe's seed."""
        return self.source.tasks(split or default_split(self.source), count=count, seed=self.recipe.run.seed)

    def environment(self) -> Environment:
        """A new environment to play in."""
        if not self.dreams:
            return self.source.environment()
        dream = self._ctx.envs.dream(self._world_model, lambda task: self._pages.get(task.id))()
        return _RealStart(dream, self.source, self._pages, self._start)

    async def verdict(self, environment: Environment, trajectory: Trajectory) -> Judgement:
        """The environment's own verdict on an episode that has just ended; in dreams the recipe's judge gives it."""
        if not self.dreams:
            return await self.source.evaluate(environment, trajectory)
        judgement = (await judge_one(self._judge, trajectory)).judgement
        assert judgement is not None  # `judge_one` always gives one
        return judgement

    async def close(self) -> None:
        """Close servers and browsers."""
        await self._ctx.close()

    async def _start(self) -> None:
        """Start what world model and judge take long to start, side by side, with the first episode."""
        if not self._begun:
            self._begun = True
            _ = self._world_model, self._judge
            await self._ctx.models.start()

    @cached_property
    def _world_model(self) -> WorldModel:
        model = self._ctx.models.load(self._weights) if self._weights is not None else self._ctx.models.base
        # Nothing is fitted or measured here, so no site is held out.
        return self._ctx.models.world_model(model, temperature=self.recipe.dream.temperature, held_out=frozenset())

    @cached_property
    def _judge(self) -> Judge:
        return make_judge(self._ctx, self._ctx.models.base_engine, self._ctx.models.format)


class _RealStart:
    """A dream whose first page is looked up in the real environment, once for each task."""

    def __init__(
        self,
        dream: Environment,
        source: TaskSource,
        pages: dict[str, Observation],
        start: Callable[[], Awaitable[None]],
    ) -> None:
        self._dream, self._source, self._pages, self._start = dream, source, pages, start

    async def reset(self, task: Task, seed: int) -> Observation:
        await self._start()
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


class LoopThread:
    """An event loop in a thread of its own, for callers that are not asynchronous or run a loop already.

    Runs coroutines, all in the same loop; browsers belong to the loop that started them.
    """

    def __init__(self, name: str = "dynaweb-serve") -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    @property
    def closed(self) -> bool:
        """Whether it has ended."""
        return self._loop.is_closed()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of a coroutine, or what it raised. Ctrl-C cancels it."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except KeyboardInterrupt:
            future.cancel()
            raise

    def close(self) -> None:
        """End loop and thread; calling it twice is allowed."""
        if self.closed:
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
