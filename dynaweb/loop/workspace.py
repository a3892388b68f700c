"""What the stages of one run share: recipe, plugins, cache, task environment, models, engines, meter of costs."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence, Set
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from dynaweb import events
from dynaweb.config.code import code_of
from dynaweb.config.decisive import decisive
from dynaweb.errors import ConfigError
from dynaweb.loop.engines import ROLES, Engines, backend_key, engine_key
from dynaweb.loop.files import files_hash, link
from dynaweb.loop.made import EPISODES, MODEL, LoadedModel, Made
from dynaweb.loop.meter import Meter
from dynaweb.loop.tasks import draw
from dynaweb.loop.weights import check_size, read_tokenizer, tokenizer_of
from dynaweb.protocols import PluginContext
from dynaweb.returned import Answering
from dynaweb.runs import write_json
from dynaweb.runs.cache import SCRATCH
from dynaweb.seeding import derive

if TYPE_CHECKING:
    from dynaweb.backends.team import Team
    from dynaweb.config import Recipe
    from dynaweb.engines.scheduler import Lockstep
    from dynaweb.engines.transformers_engine import TransformersEngine
    from dynaweb.plugins import Plugins
    from dynaweb.policy.formats import PromptFormat
    from dynaweb.protocols import Environment, Judge, TaskSource, WorldModel
    from dynaweb.runs import RunFolder, Stage, StageCache
    from dynaweb.types import Task, Trajectory, Transition

log = logging.getLogger("dynaweb")

VERSION = 7
"""Part of every stage key: raise it when a stage computes something else from the same settings."""

Body = Callable[["Stage"], Awaitable[None]]
COST = "cost.json"


class Workspace:
    """Everything that stages need besides each other's folders. Close it when the run is over.

    `folder` may be None for stages that run alone in a program.
    """

    def __init__(self, recipe: Recipe, plugins: Plugins, cache: StageCache, folder: RunFolder | None = None) -> None:
        self.recipe, self.plugins, self.cache, self.folder = recipe, plugins, cache, folder
        self.meter = Meter()
        self.deadline: float | None = None
        self.fitted_judge: Path | None = None
        self._tasks: dict[tuple[int, str, int], list[Task]] = {}
        self.engines = Engines(self)
        self.team: Team | None = None
        """The other ranks, where a launcher started several."""

    # Seeds and keys

    def seed(self, *labels: str | int) -> int:
        """The sub-seed of one purpose."""
        return derive(self.recipe.run.seed, *labels)

    def key(self, *parts: str, **upstream: Any) -> str:
        """The cache key of a stage: these sections, the seed, the code's version, and what it is made from.

        The section of a role (`policy`, `wm`, `reward`) stands for its engine too, as far as results depend on it.
        """
        engines = engine_key(self, *(role for role in ROLES if role in parts))
        sections = [part for part in parts if part != "policy"]
        return self.recipe.key("run.seed", *sections, version=VERSION, **engines, **upstream)

    # Environments and plugins

    @property
    def dreams(self) -> bool:
        """Whether reinforcement learning happens in dreams; else it happens in the environment itself."""
        return "dreams" in self.plugins.find("env", self.recipe.env.name).spec.capabilities

    @cached_property
    def task_settings(self) -> tuple[str, Mapping[str, Any]]:
        """Name and settings of the environment plugin that provides tasks, experts, start pages and evaluation."""
        if not self.dreams:
            return self.recipe.env.name, self.recipe.env.config.model_dump()
        settings = self.recipe.env.config.model_dump()
        return str(settings.get("tasks", "sites")), dict(settings.get("task_settings", {}))

    @property
    def eval_settings(self) -> tuple[str, Mapping[str, Any]]:
        """The same for the evaluation: `eval.env` with `eval.env_settings`, or the task environment."""
        name, settings = self.recipe.eval.env, self.recipe.eval.env_settings
        return self.task_settings if not name or (name == self.task_settings[0] and not settings) else (name, settings)

    @property
    def task_key(self) -> dict[str, Any]:
        """What the tasks and pages of a run depend on, for cache keys."""
        return self._place_key(*self.task_settings)

    @property
    def eval_key(self) -> dict[str, Any]:
        """What the tasks and pages of the evaluation depend on."""
        return self._place_key(*self.eval_settings)

    def _place_key(self, name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "name": name,
            "settings": self.resolved(name, settings),
            "package": code_of(self.plugins.find("env", name)),
        }

    def resolved(self, name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Settings of an environment plugin that results depend on, as plain data with its defaults filled in."""
        from pydantic import ValidationError

        try:
            return decisive(self.plugins.find("env", name).spec.config.model_validate(settings))
        except ValidationError as error:
            raise ConfigError(f"settings of environment {name!r}: {error}") from error

    def in_browser(self, name: str, settings: Mapping[str, Any]) -> bool:
        """Whether an environment is a real browser: its plugin says so, or its setting `driver` names one."""
        driver = self.resolved(name, settings).get("driver")
        return driver == "chromium" or "browser" in self.plugins.find("env", name).spec.capabilities

    @cached_property
    def source(self) -> TaskSource:
        """The task environment."""
        name, settings = self.task_settings
        return cast("TaskSource", self.plugins.create("env", name, settings, self._web_context("source")))

    @cached_property
    def eval_source(self) -> TaskSource:
        """The environment of the evaluation: `eval.env`, or the task environment."""
        if self.eval_settings == self.task_settings:
            return self.source
        name, settings = self.eval_settings
        return cast("TaskSource", self.plugins.create("env", name, settings, self._web_context("eval")))

    def tasks(self, split: str, count: int, source: TaskSource | None = None) -> list[Task]:
        """The run's `count` tasks of a split, short enough for `data.max_best_steps`; the same in all stages."""
        place = source or self.source
        key = (id(place), split, count)
        if key not in self._tasks:
            longest = self.recipe.data.max_best_steps
            self._tasks[key] = draw(place, split, count=count, seed=self.seed("tasks", split), max_best_steps=longest)
        return self._tasks[key]

    def _web_context(self, purpose: str) -> PluginContext:
        services = {"web": self.recipe.web, "max_best_steps": self.recipe.data.max_best_steps}
        folder = self.folder.path if self.folder is not None else None
        return PluginContext(seed=self.seed("environment", purpose), folder=folder, services=services)

    def world_model(
        self,
        model: LoadedModel,
        *,
        temperature: float,
        transitions: Callable[[], Sequence[Transition]] = list,
        held_out: Set[str] = frozenset(),
    ) -> WorldModel:
        """The chosen world model on these weights; examples it shows are `transitions`, of no site in `held_out`."""
        context = PluginContext(
            engine=self.engine(model, "wm"),
            format=model.format,
            seed=self.seed("world-model"),
            services={
                "temperature": temperature,
                "model": model.model,
                "tokenizer": model.tokenizer,
                "transitions": transitions,
                "held_out": held_out,
                "count": self.meter.engines.append,
            },
        )
        return cast("WorldModel", self.plugins.create("wm", self.recipe.wm.name, self.recipe.wm.config, context))

    def judge(self, policy: TransformersEngine, policy_format: PromptFormat) -> Judge:
        """The chosen judge: on the frozen base model, on `policy`, or on weights that were fitted for it."""
        from dynaweb.judges.making import make_judge

        return make_judge(self, policy, policy_format)

    def dream_environment(
        self, world_model: WorldModel, start_page: Any, *, floor: float = 0.0
    ) -> Callable[[], Environment]:
        """What makes dreams of the chosen environment plugin; they end where expected fidelity falls below `floor`."""
        choice = self.recipe.env
        services = {
            "world_model": Answering(world_model),
            "start_page": start_page,
            "tasks": self.source,
            "web": self.recipe.web,
            "fidelity_floor": floor,
        }
        context = PluginContext(seed=self.seed("dream"), services=services)
        source = cast("TaskSource", self.plugins.create("env", choice.name, choice.config, context))
        return source.environment

    # Models

    @cached_property
    def lockstep(self) -> Lockstep:
        """What gathers the model calls of all episodes."""
        from dynaweb.engines.scheduler import Lockstep

        return Lockstep()

    def load(self, path: Path | None = None) -> LoadedModel:
        """A model of its own: the base weights, or those in a folder, with the tokenizer that the folder brings.

        Raises `CheckpointError` when the folder's tokenizer is not that of the base model and the base model judges.
        """
        import torch

        from dynaweb.policy.formats import format_for

        settings = self.recipe.model
        if settings.threads:
            torch.set_num_threads(settings.threads)
        base_judges = getattr(self.recipe.reward.config, "model", None) == "base"
        tokenizer = self.tokenizer if path is None else tokenizer_of(path, self.tokenizer, base_judges=base_judges)
        prompts = self.format if tokenizer is self.tokenizer else format_for(tokenizer, settings.format)
        model = self._make_model(str(path or settings.path))
        if path is not None:
            check_size(path, model, tokenizer)
        return LoadedModel(model, tokenizer, prompts)

    def _make_model(self, path: str) -> Any:
        from dynaweb.backends.models import load_model

        settings = self.recipe.model
        if self.team is None:
            return load_model(path, settings.dtype, settings.device)
        return self.team.make("dynaweb.backends.models:load_model", path, settings.dtype, settings.device)

    @cached_property
    def tokenizer(self) -> Any:
        """The tokenizer of the base model, shared by all weights of the run."""
        from dynaweb.backends.models import resolve

        return read_tokenizer(resolve(self.recipe.model.path))

    @cached_property
    def format(self) -> PromptFormat:
        """The prompt layer of the model."""
        from dynaweb.policy.formats import format_for

        return format_for(self.tokenizer, self.recipe.model.format)

    @cached_property
    def base(self) -> LoadedModel:
        """The base model, frozen: judge, and world model when that is not fitted."""
        return self.load()

    @cached_property
    def base_engine(self) -> TransformersEngine:
        """The judge's engine on the frozen base model."""
        return self.engine(self.base, "reward")

    @cached_property
    def base_key(self) -> str:
        """What identifies the base weights: a hash of the files in a folder, or the model's name."""
        from dynaweb.backends.models import resolve

        source = resolve(self.recipe.model.path)
        return files_hash(Path(source)) if Path(source).is_dir() else source

    @cached_property
    def model_key(self) -> dict[str, str]:
        """What the numbers of any model of the run depend on: base weights, prompt layer, precision, device."""
        from dynaweb.backends.models import pick_device

        settings = self.recipe.model
        device = str(pick_device(settings.device))
        return {"base": self.base_key, "format": settings.format, "dtype": settings.dtype, "device": device}

    @property
    def trained_key(self) -> dict[str, Any]:
        """What weights depend on that the run trains: the model, and the backend that trains them."""
        return {**self.model_key, **backend_key(self)}

    def engine(self, model: LoadedModel, role: str = "policy") -> TransformersEngine:
        """The engine of a role (`policy`, `wm`, `reward`) on a model."""
        return self.engines.of(model, role)

    # Stages

    async def stage(
        self, name: str, key: str, body: Body, *, settings: Mapping[str, Any] | None = None, resumable: bool = False
    ) -> Made:
        """Run a stage, or find it in the cache."""
        with self.cache.stage(name, key, settings=settings, resumable=resumable) as stage:
            if not stage.cached:
                await self._make(stage, body)
            return Made(key, stage.folder)

    async def _make(self, stage: Stage, body: Body) -> None:
        earlier = stage.folder / SCRATCH / COST
        self.meter = Meter(earlier=json.loads(earlier.read_text()) if earlier.exists() else {})
        # Engines hold on to models: each stage has its own, so that those of a finished stage are freed.
        await self.engines.close()
        for name in ("lockstep", "base_engine"):
            self.__dict__.pop(name, None)
        await body(stage)
        stage.commit(cost=self.meter.cost())

    def take_up_again(self, name: str, key: str, keep: Mapping[str, str]) -> None:
        """Make a finished stage one that an attempt has begun: see `StageCache.reopen`."""
        self.cache.reopen(name, key, keep=keep, cost=COST)

    def remember_cost(self, stage: Stage) -> None:
        """Write what the stage has cost so far beside its checkpoint."""
        write_json(stage.scratch / COST, self.meter.cost())

    def keep(self, made: Made, name: str, *, episodes_as: str = "") -> None:
        """Put a stage's episodes and weights into the run folder too, as links where the disk allows."""
        if self.folder is None:
            return
        if (made.folder / EPISODES).exists():
            link(made.folder / EPISODES, self.folder.trajectories / f"{episodes_as or name}.jsonl.gz")
        if made.model.is_dir():
            for file in made.model.iterdir():
                link(file, self.folder.checkpoints / name / file.name)

    # Telling and stopping

    def tell(self, event: object) -> None:
        """Notify the observers."""
        self.plugins.notify(event)

    def progress(self, job: str, total: int, unit: str = "it", *, done: int = 0) -> Callable[..., None]:
        """A counter that tells the observers of each finished unit, with any metrics; it starts at `done`."""

        def advance(**metrics: float) -> None:
            nonlocal done
            done += 1
            self.tell(events.Progress(job, done, total, unit, metrics))

        return advance

    def count_steps(self, trajectory: Trajectory, *, evaluation: bool = False) -> None:
        """Add a finished episode to the cost, unless it was dreamed."""
        if trajectory.source != "dream":
            place = self.eval_settings if evaluation else self.task_settings
            self.meter.count(len(trajectory.steps), browser=self.in_browser(*place), evaluation=evaluation)

    def on_episode(
        self, phase: str, total: int, *, done: int = 0, evaluation: bool = False
    ) -> Callable[[Trajectory], None]:
        """For `play_all(on_done=...)`: tells of progress and counts real steps."""
        advance = self.progress(phase, total, "episodes", done=done)

        def finished(trajectory: Trajectory) -> None:
            self.count_steps(trajectory, evaluation=evaluation)
            advance()

        return finished

    async def breathe(self) -> None:
        """Let a cancellation (Ctrl-C) through between two pieces of blocking work."""
        await asyncio.sleep(0)

    @property
    def out_of_time(self) -> bool:
        """Whether the time budget of the run is used up."""
        return self.deadline is not None and time.monotonic() >= self.deadline

    async def close(self) -> None:
        """Close what engines and task environments hold open (servers, browsers), and send other ranks home."""
        await self.engines.close()
        for name in ("source", "eval_source"):
            close = getattr(self.__dict__.get(name), "close", None)
            if close is not None:
                result = close()
                if asyncio.iscoroutine(result):
                    await result
        if self.team is not None:
            self.team.close()


__all__ = ["COST", "EPISODES", "MODEL", "VERSION", "LoadedModel", "Made", "Workspace"]
