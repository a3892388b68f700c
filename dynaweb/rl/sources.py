"""Rollout sources of RL: dreams, real pages or recorded episodes (offline), and which tasks the rollouts play."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from dynaweb.errors import ConfigError
from dynaweb.judges.reward import grading, judge_all, refuse_silent_judge
from dynaweb.pipeline.artifacts import refreshed_by
from dynaweb.rollout.curriculum import Curriculum
from dynaweb.rollout.episode import Rules
from dynaweb.rollout.group import RolloutSource
from dynaweb.stages.curriculum import read_tasks
from dynaweb.stages.demos import rl_tasks
from dynaweb.stages.explore import recorded_starts
from dynaweb.stages.world_model import (
    calibration_of,
    held_out_sites,
    modelled,
    page_rules,
    real_transitions,
    remembering,
)
from dynaweb.types import Task, Trajectory
from dynaweb.worldmodels.calibration import Trusted
from dynaweb.worldmodels.fidelity import transitions_of
from dynaweb.worldmodels.memory import Recalling
from dynaweb.worldmodels.site_memory import SiteMemory

if TYPE_CHECKING:
    from dynaweb.pipeline.artifacts import Artifacts, LoadedModel
    from dynaweb.pipeline.context import RunContext
    from dynaweb.protocols import Judge, WorldModel


JUDGED = "offline-judged.jsonl.gz"
"""The recorded rollouts with their verdicts, in the scratch folder of a stage."""


def dream_memory(ctx: RunContext, have: Artifacts) -> SiteMemory | None:
    """What dreams remember: the real pages of exploration and demonstrations; None where the recipe has no memory."""
    if not ctx.envs.dreams or ctx.recipe.dream.memory == "none" or have.explore is None:
        return None
    demos = have.demos.episodes() if have.demos is not None else []
    return SiteMemory(transitions_of([*have.explore.episodes(), *demos]))


def rollout_source(
    ctx: RunContext, have: Artifacts, model: LoadedModel | None, memory: SiteMemory | None = None
) -> RolloutSource:
    """The seam: dreams from recorded start pages by a world model's weights (None: the base), or the real pages.

    `memory` is that of dreams, which may grow meanwhile.
    """
    dream = ctx.recipe.dream
    if not ctx.envs.dreams:
        rules = Rules(dream.longest, source="real", invalid_ends=dream.invalid_ends)
        return RolloutSource(ctx.envs.source.environment, ctx.recipe.web.contexts, rules, grading(ctx.envs.source))
    if have.explore is None or have.world_model is None:
        raise ConfigError("dreams need explored start pages and a world model; run those stages first")
    explored = have.explore.episodes()
    starts = recorded_starts(have)
    world_model = ctx.models.world_model(
        model or ctx.models.base,
        temperature=dream.temperature,
        transitions=lambda: real_transitions(ctx, explored),
        held_out=held_out_sites(ctx, explored),
    )
    auto, decided = dream.horizon == "auto", page_rules(ctx, explored)
    trusted: WorldModel = Trusted(world_model, calibration_of(have.world_model)) if auto else world_model
    if memory is not None:
        trusted = remembering(ctx, trusted, memory)
    elif dream.recall:
        trusted = Recalling(trusted, modelled(explored, decided))
    make = ctx.envs.dream(trusted, starts, floor=dream.fidelity_floor if auto else 0.0, rules=decided)
    rules = Rules(dream.longest, source="dream", invalid_ends=dream.invalid_ends)
    return RolloutSource(make, ctx.recipe.rl.tasks * ctx.recipe.rl.n, rules)


def dreaming_model(ctx: RunContext, have: Artifacts) -> LoadedModel | None:
    """The world model's weights: those that the phase before refreshed, else the fitted ones.

    A copy of the base where it is to be refreshed, None where the base serves.
    """
    refreshed = refreshed_by(have.phase.before.folder) if have.phase.before is not None else None
    if refreshed is not None:
        return ctx.models.load(refreshed)
    fitted = have.world_model.model if have.world_model is not None else None
    if fitted is not None and fitted.is_dir():
        return ctx.models.load(fitted)
    return ctx.models.load() if ctx.envs.dreams and ctx.recipe.wm_fit.refresh_every else None


def curriculum_of(
    ctx: RunContext, have: Artifacts, demonstrated: Sequence[Task], playable: Collection[str] | None = None
) -> Curriculum:
    """The tasks of all updates; for dreams, only tasks whose start page was recorded.

    Real pages can be had only of demonstrated tasks that are `playable` by id (None: all are); a dream begins on the
    first page of any demonstration.
    """
    tasks = rl_tasks(ctx) if have.phase.tasks is None else read_tasks(have.phase.tasks)
    if have.explore is not None:
        starts = recorded_starts(have)
        tasks = [task for task in tasks if starts(task) is not None]
        demonstrated = [task for task in demonstrated if starts(task) is not None]
    elif playable is not None:
        demonstrated = [task for task in demonstrated if task.id in playable]
    if not tasks:
        raise ConfigError("no training task has a recorded start page; raise explore.episodes")
    return Curriculum(ctx.recipe.rl, tasks, demonstrated, ctx.seed("tasks", "rl"))


@dataclass
class OfflineRollouts:
    """Offline rollouts, in the place of a `GroupSampler`: each update gets the next ones, all once before any again.

    Rollouts of the same task form a group in each update. They are judged once: `judged` keeps the verdicts, since a
    run that goes on would ask another judge where the policy itself judges.
    """

    pool: Sequence[Trajectory]
    judge: Judge
    count: int
    seed: int
    judged: Path
    on_policy: ClassVar[bool] = False
    _judged: list[Trajectory] = field(default_factory=list)

    async def of_update(
        self, update: int, tasks: Sequence[Task], on_done: Callable[[Trajectory], None] | None = None, first: int = 0
    ) -> list[Trajectory]:
        """The rollouts of an update; `tasks` and `on_done` do not matter, since nothing is played."""
        # Imports torch, which nobody needs who only evaluates scripted or random play.
        from dynaweb.trainer.batching import draw

        if not self._judged:
            self._judged = await self._verdicts()
        chosen = [self._judged[i] for i in draw(len(self._judged), self.count, seed=self.seed, step=update)]
        return [replace(t, id=f"{update}/{first}/{k}", group=f"{update}/{t.task.id}") for k, t in enumerate(chosen)]

    async def _verdicts(self) -> list[Trajectory]:
        from dynaweb.data.store import TrajectoryStore

        if not self.judged.is_file():
            judged = await judge_all(self.judge, self.pool)
            refuse_silent_judge(judged, "the recorded rollouts")  # or no later run would ask again
            TrajectoryStore.write(self.judged, judged)
        return list(TrajectoryStore(self.judged))
