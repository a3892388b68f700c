"""What goes along with the updates of RL where a recipe asks for it: a replay buffer, audits, a critic that is handed
on.

All of it is checkpointed with the policy: files carry the number of updates that they belong to, and the trainer's own
file is the last to change, so that a kill at any point leads back to a whole set.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dynaweb.judges.alarm import alarm
from dynaweb.loop.auditing import MARKS, Auditor, RewardHacking
from dynaweb.loop.replay import BUFFER, ReplayBuffer, keep_of, read_buffer

if TYPE_CHECKING:
    from dynaweb.backends.critic import Critic
    from dynaweb.loop.lessons import Lesson, Teacher
    from dynaweb.loop.workspace import Made, Workspace
    from dynaweb.protocols import Judge
    from dynaweb.types import Trajectory

CRITIC = "critic"


@dataclass(frozen=True, slots=True)
class Phase:
    """One of several RL stages in a row: its number from 1, the stage before it, and the stage that made its tasks."""

    number: int = 1
    before: Made | None = None
    tasks: Made | None = None

    def keys(self) -> dict[str, str]:
        """Cache keys of what it starts from."""
        parts = {"before": self.before, "tasks": self.tasks}
        return {f"phase {name}": made.key for name, made in parts.items() if made is not None}


FIRST_PHASE = Phase()


class Beside:
    """The companions of one RL stage; only one that `replays` has a buffer, as the recipe says."""

    def __init__(self, ws: Workspace, phase: Phase, judge: Judge, name: str, *, replays: bool) -> None:
        self.replay: ReplayBuffer | None = None
        if replays and ws.recipe.replay.capacity:
            earlier = read_buffer(phase.before.folder / BUFFER) if phase.before is not None else []
            self.replay = ReplayBuffer(ws.recipe.replay, ws.seed("replay", phase.number), earlier)
        self.auditor = Auditor(ws, judge, name) if ws.recipe.audit.every else None
        self._alarm = ""

    def lesson(self, teacher: Teacher, update: int, rollouts: Sequence[Trajectory]) -> Lesson:
        """What an update learns from: its rollouts, and remembered steps where there is a buffer."""
        if self.replay is None:
            return teacher.lesson(rollouts)
        replayed = self.replay.drawn(update, [t for t in rollouts if t.reward is not None])
        keep = keep_of(self.replay, teacher.trainer, rollouts, replayed)
        lesson = teacher.lesson([*rollouts, *replayed], keep=keep)
        fresh = len(keep) - sum(len([s for s in t.steps if s.response_ids]) for t in replayed)
        metrics = {
            "replay_buffer": float(self.replay.steps),
            "replay_drawn": float(len(keep) - fresh),
            "replay_kept": float(sum(keep[fresh:])),
        }
        self.replay.add(rollouts)
        credit = replace(lesson.credit, metrics={**lesson.credit.metrics, **metrics})
        return replace(lesson, credit=credit, advantages=lesson.advantages[: len(rollouts)])

    async def after(self, update: int, played: Callable[[], list[Trajectory]], rewards: Sequence[float]) -> None:
        """Audit, where it is time; `played` reads the rollouts of the update."""
        if self.auditor is not None and self.auditor.due(update):
            self._alarm = await self.auditor.after(update, played(), rewards)

    def refuse_alarm(self, checkpoint: Callable[[], None]) -> None:
        """Raise `RewardHacking` when the last audit was alarming and the recipe says that this ends the run."""
        if self._alarm and self.auditor is not None and self.auditor.settings.stop:
            checkpoint()
            raise RewardHacking(
                f"{self._alarm}. The run ends here because audit.stop is set; the weights of this moment are a "
                "checkpoint, from which the same command with audit.stop=false goes on"
            )

    def load(self, folder: Path, done: int) -> None:
        """Go on after `done` updates, with the alarm that an audit of the last one gave."""
        if self.replay is not None:
            self.replay.load(folder, done)
        if self.auditor is not None:
            self.auditor.load(folder, done)
            marks = self.auditor.marks
            self._alarm = alarm(marks, self.auditor.settings) if marks and marks[-1].update == done else ""

    def save(self, folder: Path, done: int) -> None:
        """Write a checkpoint for `done` updates."""
        if self.replay is not None:
            self.replay.save(folder, done)
        if self.auditor is not None:
            self.auditor.save(folder)

    def tidy(self, folder: Path, kept: Set[int]) -> None:
        """Remove what no checkpoint of the trainer leads to; `kept` are their numbers of updates."""
        if self.replay is not None:
            self.replay.tidy(folder, kept)

    def finish(self, folder: Path, critic: Critic | None, steps: int) -> None:
        """Leave buffer, audits and critic in a stage's folder."""
        if self.replay is not None:
            self.replay.write(folder / BUFFER)
        if self.auditor is not None:
            self.auditor.save(folder)
        if critic is not None:
            (folder / CRITIC).mkdir(exist_ok=True)
            critic.save(folder / CRITIC, steps)


def critic_left(made: Made | None) -> Path | None:
    """The folder of the critic that a phase left; None where it left none."""
    return made.folder / CRITIC if made is not None and (made.folder / CRITIC).is_dir() else None


def parts_of(phase: Phase, policy: Made) -> dict[str, Any]:
    """Which checkpoint plays which part in a phase, by folder."""
    before = phase.before
    critic = critic_left(before)
    buffer = before.folder / BUFFER if before is not None and (before.folder / BUFFER).is_file() else None
    return {
        "phase": phase.number,
        "policy starts from": str(policy.model),
        "reference": str(policy.model),
        "critic starts from": str(critic) if critic is not None else f"{policy.model} with a new head",
        "replay buffer starts from": str(buffer) if buffer is not None else "nothing",
        "tasks": str(phase.tasks.folder) if phase.tasks is not None else "the environment's training tasks",
    }


__all__ = ["BUFFER", "MARKS", "Beside", "Phase", "RewardHacking", "critic_left", "parts_of"]
