"""Offline learning: updates draw from rollouts that were played once, instead of playing their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from dynaweb.judges.rollouts import graded_rollouts
from dynaweb.loop.replay import write_whole
from dynaweb.loop.verdicts import judge_all, refuse_silent_judge
from dynaweb.types import Task, Trajectory

if TYPE_CHECKING:
    from dynaweb.loop.workspace import Made, Workspace
    from dynaweb.protocols import Judge

JUDGED = "offline-judged.jsonl.gz"
"""The recorded rollouts with their verdicts, in the scratch folder of a stage."""


async def recorded(ws: Workspace, policy: Made) -> Made | None:
    """The rollouts that the run learns from offline; None where every update plays its own."""
    settings = ws.recipe.offline
    if not settings.episodes:
        return None
    return await graded_rollouts(ws, policy, split="train", count=settings.episodes, temperature=settings.temperature)


@dataclass
class OfflineRollouts:
    """In the place of `groups.Rollouts`: each update gets the next of the recorded rollouts, all once before any again.

    Rollouts of the same task form a group in each update. They are judged once: `judged` keeps the verdicts, since a
    run that goes on would ask another judge where the policy itself judges.
    """

    pool: Sequence[Trajectory]
    judge: Judge
    count: int
    seed: int
    judged: Path
    _judged: list[Trajectory] = field(default_factory=list)

    async def of_update(
        self, update: int, tasks: Sequence[Task], on_done: Callable[[Trajectory], None] | None = None, first: int = 0
    ) -> list[Trajectory]:
        """The rollouts of an update; `tasks` and `on_done` do not matter, since nothing is played."""
        # Imports torch, which nobody needs who only evaluates scripted or random play.
        from dynaweb.backends.batch import draw

        if not self._judged:
            self._judged = await self._verdicts()
        chosen = [self._judged[i] for i in draw(len(self._judged), self.count, seed=self.seed, step=update)]
        return [replace(t, id=f"{update}/{first}/{k}", group=f"{update}/{t.task.id}") for k, t in enumerate(chosen)]

    async def _verdicts(self) -> list[Trajectory]:
        from dynaweb.data.store import TrajectoryStore

        if not self.judged.is_file():
            found = await judge_all(self.judge, self.pool)
            refuse_silent_judge(found, "the recorded rollouts")  # or no later run would ask again
            write_whole(TrajectoryStore, self.judged, found)
        return list(TrajectoryStore(self.judged))
