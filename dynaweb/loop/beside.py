"""What goes along with the updates of RL where a recipe asks for it: a replay buffer, audits, a critic that is handed
on.

All of it is checkpointed with the policy: files carry the number of updates that they belong to, and the trainer's own
file is the last to change, so that a kill at any point leads back to a whole set.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
    """The companions of one RL stage."""

    def __init__(self, ws: Workspace, phase: Phase, judge: Judge, name: str) -> None:
        self.replay: ReplayBuffer | None = None
        if ws.recipe.replay.capacity:
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
        """Go on after `done` updates."""
        if self.replay is not None:
            self.replay.load(folder, done)
        if self.auditor is not None:
            self.auditor.load(folder, done)

    def save(self, folder: Path, done: int) -> None:
        """Write a checkpoint for `done` updates."""
        if self.replay is not None:
            self.replay.save(folder, done)
        if self.auditor is not None:
            self.auditor.save(folder)

    def tidy(self, folder: Path, done: int) -> None:
        """Remove what the trainer's checkpoint, now written, no longer leads to."""
        if self.replay is not None:
            self.replay.tidy(folder, done)

    def finish(self, folder: Path, critic: Critic | None, steps: int) -> None:
        """Leave buffer, audits and critic in a stage's folder."""
        if self.replay is not None:
            self.replay.write(folder / BUFFER)
        if self.auditor is not None:
            self.auditor.save(folder)
        if critic is not None:
            save_critic(critic, folder, steps)


def save_critic(critic: Critic, folder: Path, steps: int) -> None:
    """Write a critic beside the weights of a phase."""
    from dynaweb.backends import checkpoint

    place = folder / CRITIC
    place.mkdir(exist_ok=True)
    checkpoint.save(place, critic.stepper.tensors(), {"skipped": critic.stepper.skipped}, steps)


def load_critic(critic: Critic, made: Made | None) -> bool:
    """Go on with the critic that a phase left; False where it left none. Raises `CheckpointError` for a foreign one."""
    from dynaweb.backends import checkpoint

    if made is None or not (made.folder / CRITIC).is_dir():
        return False
    tensors, meta = checkpoint.load(made.folder / CRITIC)
    critic.stepper.load(tensors, int(meta["skipped"]))
    return True


def parts_of(phase: Phase, policy: Made) -> dict[str, Any]:
    """Which checkpoint plays which part in a phase, by folder."""
    before = phase.before
    critic = before.folder / CRITIC if before is not None and (before.folder / CRITIC).is_dir() else None
    buffer = before.folder / BUFFER if before is not None and (before.folder / BUFFER).is_file() else None
    return {
        "phase": phase.number,
        "policy starts from": str(policy.model),
        "reference": str(policy.model),
        "critic starts from": str(critic) if critic is not None else f"{policy.model} with a new head",
        "replay buffer starts from": str(buffer) if buffer is not None else "nothing",
        "tasks": str(phase.tasks.folder) if phase.tasks is not None else "the environment's training tasks",
    }


__all__ = ["BUFFER", "MARKS", "Beside", "Phase", "RewardHacking", "load_critic", "parts_of"]
