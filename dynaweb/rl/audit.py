"""Audits while a policy learns: rollouts of the last update are repeated on real pages, where the environment can
judge.

A dream's actions are done again in the task environment, each on the element of the same role and name; where the real
page has no such element, or refuses the action, the repetition fails, as the policy would. Rollouts that were real
already are taken as they are. The judge is asked about the real episodes too, so that its mistakes can be told from
those of the world model. What the marks of all audits say together is `dynaweb.judges.alarm`'s business.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Sequence, Set
from pathlib import Path
from typing import TYPE_CHECKING

from dynaweb import events
from dynaweb.errors import TrainingError
from dynaweb.judges.alarm import Mark, alarm
from dynaweb.judges.audit import confusion
from dynaweb.judges.reward import SUCCESS, grading, judge_all, success_of
from dynaweb.pipeline.episodes import play_in_batches
from dynaweb.rollout.agents import Decision
from dynaweb.rollout.episode import Episode, Rules
from dynaweb.runs import write_json
from dynaweb.runs.names import AUDIT
from dynaweb.stats import nanmean
from dynaweb.types import Action, Observation, Task, Trajectory
from dynaweb.worldmodels.open_loop import on_page

if TYPE_CHECKING:
    from dynaweb.pipeline.context import RunContext
    from dynaweb.protocols import Judge

MARKS = "audits.json"


class RewardHacking(TrainingError):
    """An alarm ended the run, as `audit.stop` says."""


class Auditor:
    """The audits of one RL stage."""

    def __init__(self, ctx: RunContext, judge: Judge, name: str) -> None:
        self.ctx, self.judge, self.name = ctx, judge, name
        self.settings = ctx.recipe.audit
        self.marks: list[Mark] = []
        self._alarm = ""

    def due(self, update: int) -> bool:
        """Whether an audit follows this update (counted from 0)."""
        return (update + 1) % self.settings.every == 0

    async def after(self, update: int, rollouts: Sequence[Trajectory], rewards: Sequence[float]) -> None:
        """Audit the rollouts of an update; `rewards` are the mean rewards of all updates so far."""
        chosen = self._chosen(update, rollouts)
        real = await self._real(update, chosen)
        judged = await judge_all(self.judge, real)
        graded = [value for one in judged if (value := success_of(one)) is not None]
        errors = confusion("all", judged)
        mark = Mark(
            update + 1,
            nanmean(rewards[-self.settings.every :]),
            sum(value >= SUCCESS for value in graded),
            len(graded),
            errors.false_positive,
            errors.false_positive + errors.true_negative,
        )
        self.marks.append(mark)
        self._alarm = alarm(self.marks, self.settings)
        self._tell(update, mark, judged, self._alarm)

    def refuse_alarm(self, checkpoint: Callable[[], None]) -> None:
        """Raise `RewardHacking` when the last audit was alarming and the recipe says that this ends the run."""
        if self._alarm and self.settings.stop:
            checkpoint()
            raise RewardHacking(
                f"{self._alarm}. The run ends here because audit.stop is set; the weights of this moment are a "
                "checkpoint, from which the same command with audit.stop=false goes on"
            )

    def load(self, folder: Path, updates: int) -> None:
        """Read the marks of the first `updates`, with the alarm that an audit of the last one gave."""
        path = folder / MARKS
        rows = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
        self.marks = [Mark(**row) for row in rows if row["update"] <= updates]
        last = bool(self.marks) and self.marks[-1].update == updates
        self._alarm = alarm(self.marks, self.settings) if last else ""

    def save(self, folder: Path, updates: int) -> None:
        """Write all marks."""
        write_json(folder / MARKS, [mark.data() for mark in self.marks])

    def prune(self, folder: Path, checkpoints: Set[int]) -> None:
        """There is one file only."""

    def finish(self, folder: Path, updates: int) -> None:
        """Leave the marks in a stage's folder."""
        self.save(folder, updates)

    def _tell(self, update: int, mark: Mark, judged: Sequence[Trajectory], why: str) -> None:
        for trajectory in judged:
            self.ctx.tell(events.Rollout(AUDIT, trajectory, update))
        metrics = {
            "judge_reward": mark.reward,
            "real_success": mark.success,
            "graded": float(mark.graded),
            "judge_false_positive": mark.accepted / mark.failed if mark.failed else math.nan,
            "judge_failed_n": float(mark.failed),
            "alarm": float(bool(why)),
        }
        self.ctx.tell(events.Update(AUDIT, update, metrics))
        if why:
            self.ctx.tell(events.Failure(where=f"{AUDIT} update {update}", error=why))

    def _chosen(self, update: int, rollouts: Sequence[Trajectory]) -> list[Trajectory]:
        """A sample of the graded rollouts that the policy itself played."""
        pool = [t for t in rollouts if t.source != "expert" and t.reward is not None and t.steps]
        random.Random(self.ctx.seed("audit", update)).shuffle(pool)
        return pool[: self.settings.episodes]

    async def _real(self, update: int, chosen: Sequence[Trajectory]) -> list[Trajectory]:
        if not self.ctx.envs.dreams or not chosen:
            return list(chosen)
        queues: dict[str, list[Trajectory]] = {}
        for trajectory in chosen:
            queues.setdefault(trajectory.task.id, []).append(trajectory)
        episodes = [
            Episode(f"{AUDIT}/{update}/{i}", t.task, self.ctx.seed("audit", update, i)) for i, t in enumerate(chosen)
        ]
        longest = max(len(t.steps) for t in chosen)
        return await play_in_batches(
            self.ctx,
            None,
            episodes,
            self.ctx.envs.source.environment,
            # Rollouts of one task take turns: which episode repeats which of them does not matter.
            lambda task: Repeated(queues[task.id].pop()),
            rules=Rules(longest, source="real", invalid_ends=True),
            phase=f"audit after update {update}",
            finish=grading(self.ctx.envs.source),
        )


class Repeated:
    """A player that does what a recorded episode did, on whatever page it meets."""

    deterministic = True

    def __init__(self, recorded: Trajectory) -> None:
        self.recorded = recorded
        self._steps = [step for step in recorded.steps if step.action is not None]

    async def act(self, task: Task, observation: Observation, history: Sequence[Action], *, seed: int) -> Decision:
        """The recorded action on this page; none where its element is not there, or the record is at its end."""
        info = {"player": "repeated", "repeats": self.recorded.id}
        if len(history) >= len(self._steps):
            return Decision(None, error="the recorded episode did not go on", info=info)
        step = self._steps[len(history)]
        action = step.action
        assert action is not None  # `_steps` has those only
        action_here = on_page(action, step.observation, observation)
        if action_here is None:
            return Decision(None, error=f"the real page has no {action.target_role} {action.target_name!r}", info=info)
        return Decision(action_here, info=info)
