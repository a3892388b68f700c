"""The environments of a run: where tasks and real pages come from, the tasks of each split, and dreams.

A run in dreams has two environments: the dream that the policy learns in, and the task environment behind it that
brings tasks, experts, start pages and verdicts. A run on real pages learns in the task environment itself.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from dynaweb.config.keys import code_of, decisive
from dynaweb.errors import ConfigError
from dynaweb.plugin.contracts import CheckedWorldModel
from dynaweb.protocols import DreamContext, EnvironmentContext
from dynaweb.rollout.tasks import draw
from dynaweb.worldmodels.dynamics import ALL_RULES, PageRules

if TYPE_CHECKING:
    from dynaweb.config import Recipe
    from dynaweb.plugin.registry import Plugins
    from dynaweb.protocols import Environment, Images, TaskSource, WorldModel
    from dynaweb.types import Observation, Task


class Environments:
    """Task sources and dream environments, made when they are first asked for."""

    def __init__(
        self,
        recipe: Recipe,
        plugins: Plugins,
        seed: Callable[..., int],
        folder: Path | None,
        images: Images | None = None,
    ) -> None:
        self._recipe, self._plugins, self._seed, self._folder = recipe, plugins, seed, folder
        self._images = images
        self._tasks: dict[tuple[int, str, int, int], list[Task]] = {}

    @property
    def dreams(self) -> bool:
        """Whether reinforcement learning happens in dreams; else it happens in the environment itself."""
        return "dreams" in self._plugins.find("env", self._recipe.env.name).spec.capabilities

    @cached_property
    def task_settings(self) -> tuple[str, Mapping[str, Any]]:
        """Name and settings of the environment plugin that provides tasks, experts, start pages and evaluation."""
        settings = self._recipe.env.config.model_dump()
        if not self.dreams:
            return self._recipe.env.name, settings
        return str(settings.get("tasks", "sites")), dict(settings.get("task_settings", {}))

    @property
    def eval_settings(self) -> tuple[str, Mapping[str, Any]]:
        """The same for the evaluation: `eval.env` with `eval.env_settings`, or the task environment."""
        name, settings = self._recipe.eval.env, self._recipe.eval.env_settings
        return self.task_settings if not name or (name == self.task_settings[0] and not settings) else (name, settings)

    @property
    def task_key(self) -> dict[str, Any]:
        """What the tasks and pages of a run depend on, for cache keys."""
        return self._key(*self.task_settings)

    @property
    def eval_key(self) -> dict[str, Any]:
        """What the tasks and pages of the evaluation depend on."""
        return self._key(*self.eval_settings)

    def _key(self, name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
        package = code_of(self._plugins.find("env", name))
        return {"name": name, "settings": self.resolved(name, settings), "package": package}

    def resolved(self, name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Settings of an environment plugin that results depend on, as plain data with its defaults filled in."""
        from pydantic import ValidationError

        try:
            return decisive(self._plugins.find("env", name).spec.config.model_validate(settings))
        except ValidationError as error:
            raise ConfigError(f"settings of environment {name!r}: {error}") from error

    def in_browser(self, name: str, settings: Mapping[str, Any]) -> bool:
        """Whether an environment is a real browser: its plugin says so, or its setting `driver` names one."""
        driver = self.resolved(name, settings).get("driver")
        return driver == "chromium" or "browser" in self._plugins.find("env", name).spec.capabilities

    @cached_property
    def source(self) -> TaskSource:
        """The task environment."""
        return self._source(*self.task_settings, "source")

    @cached_property
    def eval_source(self) -> TaskSource:
        """The environment of the evaluation: `eval.env`, or the task environment."""
        if self.eval_settings == self.task_settings:
            return self.source
        return self._source(*self.eval_settings, "eval")

    @property
    def browser_settings(self) -> tuple[str, Mapping[str, Any]] | None:
        """Of an evaluation without a browser (`driver` is "static"), the same in Chromium; None for any other."""
        name, settings = self.eval_settings
        if self.resolved(name, settings).get("driver") != "static":
            return None
        return name, {**settings, "driver": "chromium"}

    @property
    def browser_key(self) -> dict[str, Any] | None:
        """What tasks and pages of `browser_settings` depend on."""
        return self._key(*self.browser_settings) if self.browser_settings is not None else None

    @cached_property
    def browser_source(self) -> TaskSource:
        """The environment of `browser_settings`. Raises `ConfigError` where the evaluation needs no such thing."""
        if self.browser_settings is None:
            raise ConfigError('the evaluation has no driver "static", so there is nothing to play again in Chromium')
        return self._source(*self.browser_settings, "eval")

    def _source(self, name: str, settings: Mapping[str, Any], purpose: str) -> TaskSource:
        return cast("TaskSource", self._plugins.create("env", name, settings, self.context(purpose)))

    def context(self, purpose: str) -> EnvironmentContext:
        """What the plugin of a task environment is made with."""
        return EnvironmentContext(
            seed=self._seed("environment", purpose),
            folder=self._folder,
            web=self._recipe.web,
            max_best_steps=self._recipe.data.max_best_steps,
            observation=self._recipe.observation,
            images=self._images,
        )

    def tasks(
        self, split: str, count: int, source: TaskSource | None = None, *, enough: int | None = None
    ) -> list[Task]:
        """The run's `count` tasks of a split, short enough for `data.max_best_steps`; the same in all stages.

        Of a benchmark that has fewer, all; with a warning where these are less than `enough` (default: `count`).
        """
        origin = source or self.source
        enough = count if enough is None else enough
        key = (id(origin), split, count, enough)
        if key not in self._tasks:
            longest = self._recipe.data.max_best_steps
            seed = self._seed("tasks", split)
            self._tasks[key] = draw(origin, split, count=count, seed=seed, max_best_steps=longest, enough=enough)
        return self._tasks[key]

    def dream(
        self,
        world_model: WorldModel,
        start_page: Callable[[Task], Observation | None],
        *,
        floor: float = 0.0,
        rules: PageRules = ALL_RULES,
    ) -> Callable[[], Environment]:
        """What makes dreams of the chosen environment plugin; they end where expected fidelity falls below `floor`.

        What `rules` decide is never dreamed.
        """
        choice = self._recipe.env
        context = DreamContext(
            seed=self._seed("dream"),
            web=self._recipe.web,
            max_best_steps=self._recipe.data.max_best_steps,
            world_model=CheckedWorldModel(world_model),
            start_page=start_page,
            tasks=self.source,
            fidelity_floor=floor,
            in_page=rules.in_page,
            observation=self._recipe.observation,
            images=self._images,
        )
        source = cast("TaskSource", self._plugins.create("env", choice.name, choice.config, context))
        return source.environment

    async def close(self) -> None:
        """Close what task environments hold open, such as browsers."""
        for name in ("source", "eval_source", "browser_source"):
            close = getattr(self.__dict__.get(name), "close", None)
            if close is not None:
                result = close()
                if inspect.isawaitable(result):
                    await result
