"""The run context: what every stage of a run shares, besides the artifacts that it starts from."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from dynaweb import events
from dynaweb.config.files import read_json
from dynaweb.data.images import ImageStore, pictures_of
from dynaweb.data.store import SUFFIX, Store, open_store
from dynaweb.pipeline.artifacts import EPISODES, Artifact, StageKey, link
from dynaweb.pipeline.costs import Meter
from dynaweb.pipeline.environments import Environments
from dynaweb.pipeline.models import Models
from dynaweb.protocols import PluginContext
from dynaweb.runs import write_json
from dynaweb.runs.cache import IMAGES, PICTURES, SCRATCH
from dynaweb.runs.seeding import derive
from dynaweb.types import Image

if TYPE_CHECKING:
    from dynaweb.config import Recipe
    from dynaweb.plugin.registry import Plugins
    from dynaweb.protocols import PolicyOptimizer
    from dynaweb.runs import RunFolder, Stage, StageCache
    from dynaweb.types import Trajectory, Transition

Body = Callable[["Stage"], Awaitable[None]]
COST = "cost.json"


class RunContext:
    """Recipe, plugins, stage cache, run folder, models and environments of one run. Close it when the run is over.

    `folder` may be None for stages that run alone in a program.
    """

    def __init__(self, recipe: Recipe, plugins: Plugins, cache: StageCache, folder: RunFolder | None = None) -> None:
        self.recipe, self.plugins, self.cache, self.folder = recipe, plugins, cache, folder
        self.meter = Meter()
        """What the stage in progress costs."""
        self.demonstrated: set[str] | None = None
        """The ids of the environment's tasks in demonstrations that were read; None before they are."""
        self.deadline: float | None = None
        """When the time budget ends (`time.monotonic()`); None without one."""
        self.images = ImageStore(cache.root / IMAGES)
        """The pictures that the stages of all runs refer to."""
        tell = lambda engine: self.meter.engines.append(engine)  # noqa: E731
        self.models = Models(recipe, plugins, self.seed, tell, self.images)
        self.models.on_prompt = lambda prompt: self.meter.prompts.add(prompt)
        run = folder.path if folder is not None else None
        self.envs = Environments(recipe, plugins, self.seed, run, self.images)

        self._is_run = True

    def with_recipe(self, recipe: Recipe) -> RunContext:
        """A context for stages of another recipe in the same run: with its cache, folder, ranks, services and time.

        Closing it leaves ranks and services to the run.
        """
        other = RunContext(recipe, self.plugins, self.cache, self.folder)
        other.models.team, other.models.services = self.models.team, self.models.services
        other.deadline, other._is_run = self.deadline, False
        return other

    # Seeds

    def seed(self, *labels: str | int) -> int:
        """The sub-seed of one purpose."""
        return derive(self.recipe.run.seed, *labels)

    # Stages

    async def stage(self, name: str, key: StageKey, body: Body, *, resumable: bool = False) -> Artifact:
        """Run a stage, or find its artifact in the cache."""
        with self.cache.stage(name, key.text, settings=key.settings, resumable=resumable) as stage:
            if not stage.cached:
                earlier = stage.folder / SCRATCH / COST
                self.meter = Meter(earlier=json.loads(earlier.read_text()) if earlier.exists() else {})
                await self.models.release()
                await body(stage)
                if self.recipe.observation.pictures:
                    list_pictures(stage.folder)
                stage.commit(cost=self.meter.cost())
            return Artifact(key.text, stage.folder)

    def take_up_again(self, name: str, key: str, keep: Mapping[str, str]) -> None:
        """Make a finished stage one that an attempt has begun: see `StageCache.reopen`."""
        self.cache.reopen(name, key, keep=keep, cost=COST)

    def remember_cost(self, stage: Stage) -> None:
        """Write what the stage has cost so far beside its checkpoint."""
        write_json(stage.scratch / COST, self.meter.cost())

    def keep(self, artifact: Artifact, name: str, *, episodes_as: str = "") -> None:
        """Put a stage's episodes and weights into the run folder too, as links where the disk allows."""
        if self.folder is None:
            return
        self.images.share(listed_pictures(artifact.folder), self.folder.path / IMAGES)
        if (artifact.folder / EPISODES).exists():
            link(artifact.folder / EPISODES, self.folder.trajectories / f"{episodes_as or name}.jsonl.gz")
        if artifact.model.is_dir():
            for file in artifact.model.iterdir():
                link(file, self.folder.checkpoints / name / file.name)

    # Events and the time budget

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
            name, settings = self.envs.eval_settings if evaluation else self.envs.task_settings
            browser = self.envs.in_browser(name, settings)
            self.meter.count(len(trajectory.steps), browser=browser, evaluation=evaluation)

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
        if not self._is_run:
            await self.models.close()
            await self.envs.close()
            return
        # In this order: services (a vLLM that is just starting) end at once, and engines would wait for them.
        await self.models.close_services()
        await self.models.close()
        await self.envs.close()
        if self.models.team is not None:
            self.models.team.close()


def list_pictures(stage: Path) -> None:
    """Write down which pictures the records of a stage refer to: for run folders, and so that pruning keeps them."""
    images = {
        image
        for path in sorted(stage.glob(f"*{SUFFIX}"))
        if path.stat().st_size
        for record in _records(open_store(path))
        for image in pictures_of(record)
    }
    if images:
        write_json(stage / PICTURES, [[one.sha256, one.width, one.height] for one in sorted(images)])


def listed_pictures(stage: Path) -> list[Image]:
    """The pictures that `list_pictures` wrote down; none where there is no list."""
    path = stage / PICTURES
    return [Image(*one) for one in read_json(path, list)] if path.exists() else []


def _records(store: Store[Any]) -> Iterator[Trajectory | Transition]:
    yield from store


def make_optimizer(ctx: RunContext) -> PolicyOptimizer:
    """The recipe's optimizer."""
    choice = ctx.recipe.opt
    context = PluginContext(seed=ctx.seed("optimizer"))
    return cast("PolicyOptimizer", ctx.plugins.create("opt", choice.name, choice.config, context))


__all__ = ["COST", "RunContext", "make_optimizer"]
