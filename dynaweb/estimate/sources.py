"""What a run would learn from, looked at before it starts: its tasks, and the demonstrations of its recipe.

Nothing is played and nothing is loaded but the files that settings name.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from dynaweb.errors import CheckpointError, ConfigError, DynawebError, MissingError, PluginError
from dynaweb.pipeline.context import RunContext
from dynaweb.plugin.registry import current
from dynaweb.protocols import Catalogue
from dynaweb.runs import StageCache
from dynaweb.stages.demos import demonstrations_of, has_expert, learns

if TYPE_CHECKING:
    from dynaweb.config import Recipe
    from dynaweb.protocols import TaskSource
    from dynaweb.types import Task

DEMOS = (
    "import yours (`dynaweb data import`) or make some (`dynaweb collect --by server:MODEL` or `--by human`), and name "
    "the file, as in: --set data.demos=mine.jsonl.gz"
)
"""What to do where there are no demonstrations."""


@dataclass(frozen=True, slots=True)
class Sources:
    """Counts of tasks by split, of those that are skipped by reason, and of demonstrations.

    `matched` are the demonstrations that are of a task of the environment; the others are imitated, and dreamed of from
    their first pages.
    """

    tasks: Mapping[str, int] = field(default_factory=dict)
    skipped: Mapping[str, int] = field(default_factory=dict)
    demos: str = ""
    episodes: int = 0
    steps: int = 0
    matched: int = 0
    matched_tasks: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)
    unsure: Mapping[str, int] = field(default_factory=dict)
    """How many look like demonstrations of a task of the environment, but may not be, by reason."""

    def plain(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)

    def __str__(self) -> str:
        """Lines for people; '' where there is nothing to say."""
        lines = []
        if self.tasks:
            counts = ", ".join(f"{number} of split {split}" for split, number in self.tasks.items())
            lines.append(f"Tasks: {counts}{_listed('; skipped: ', self.skipped)}")
        if self.demos:
            lines.append(
                f"Demonstrations, of {self.demos}: {self.episodes} usable trajectories with {self.steps} steps, "
                f"{self.matched} of them of {self.matched_tasks} of the environment's own tasks"
                f"{_listed('; left out: ', self.dropped)}"
            )
            lines += [f"  {number} of them {reason}: they count as no task's" for reason, number in self.unsure.items()]
        return "\n".join(lines)


def _listed(lead: str, counts: Mapping[str, int]) -> str:
    parts = ", ".join(f"{number} x {reason}" for reason, number in counts.items())
    return f"{lead}{parts}" if parts else ""


def sources_of(recipe: Recipe) -> tuple[Sources, list[DynawebError]]:
    """What a run of the recipe would learn from and be evaluated on, and why it could not.

    Environments with scripted experts make their tasks themselves: they are only asked for some where demonstrations
    have to be compared with them.
    """
    ctx = RunContext(recipe, current(), StageCache())
    problems: list[DynawebError] = []
    values: dict[str, Any] = {}
    try:
        listed = not _has_experts(ctx)
        for part in [_tasks, _demonstrations] if listed else [_demonstrations]:
            try:
                values |= part(ctx)
            except (CheckpointError, ConfigError, MissingError, PluginError) as error:
                if str(error) not in map(str, problems):
                    problems.append(error)
        return Sources(**values), problems
    finally:
        asyncio.run(ctx.close())


def _has_experts(ctx: RunContext) -> bool:
    name, _ = ctx.envs.task_settings
    return "expert" in ctx.plugins.find("env", name).spec.capabilities


def _tasks(ctx: RunContext) -> dict[str, Any]:
    """Tasks of the splits that the run would draw from, of an environment that lists them."""
    counts, skipped = dict[str, int](), dict[str, int]()

    def look(source: TaskSource, split: str) -> None:
        if isinstance(source, Catalogue):
            counts[split] = len(source.catalogue(split))
            for reason, number in source.skipped(split).items():
                skipped[reason] = skipped.get(reason, 0) + number

    if learns(ctx):
        look(ctx.envs.source, "train")
    look(ctx.envs.eval_source, ctx.recipe.eval.split)
    return {"tasks": counts, "skipped": skipped}


def _demonstrations(ctx: RunContext) -> dict[str, Any]:
    """The demonstrations of a run that learns from some. Raises where it could not have any."""
    demos = ctx.recipe.data.demos
    if not learns(ctx):
        return {}
    if isinstance(demos, str):
        batch, same = demonstrations_of(ctx, demos)
        return {
            "demos": demos,
            "episodes": len(batch.episodes),
            "steps": sum(len(one.steps) for one in batch.episodes),
            "matched": sum(one.task.id in same for one in batch.episodes),
            "matched_tasks": len(same),
            "dropped": dict(batch.dropped),
            "unsure": dict(batch.unsure),
        }
    if not _has_experts(ctx):
        _check_experts(ctx, ctx.envs.source)
    return {}


def _check_experts(ctx: RunContext, source: TaskSource) -> None:
    """Raise `MissingError` where demonstrations are to come from scripted experts, and the environment has none."""
    tasks: list[Task] = []
    for split in ("train", ctx.recipe.eval.split):
        with suppress(ConfigError, MissingError):  # said by `_tasks`
            tasks = tasks or source.tasks(split, count=1, seed=ctx.recipe.run.seed)
    if tasks and not has_expert(source, tasks[0]):
        name, _ = ctx.envs.task_settings
        raise MissingError(f"env {name!r} has no scripted experts, and this recipe learns from demonstrations: {DEMOS}")
