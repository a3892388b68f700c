"""WebRL's replay buffer (arXiv 2411.02337, section 2.2): past successes, of which neither known nor foreign steps
return.

Remembered are whole episodes that succeeded, the newest of each task, so that a step can be valued beside the one after
it. An update draws episodes from the buffer and learns again from those of their steps whose perplexity under the
policy of the moment lies in the band (by default 1 / 0.95 to 1 / 0.5). What failed is never replayed.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence, Set
from pathlib import Path
from typing import TYPE_CHECKING

from dynaweb.errors import CheckpointError
from dynaweb.judges.reward import SUCCESS
from dynaweb.pipeline.artifacts import BUFFER
from dynaweb.rl.rows import step_rows
from dynaweb.runs.seeding import derive
from dynaweb.types import Trajectory

if TYPE_CHECKING:
    from dynaweb.config.sections import Replay
    from dynaweb.pipeline.artifacts import Phase
    from dynaweb.pipeline.context import RunContext
    from dynaweb.protocols import TokenRow
    from dynaweb.trainer.torch_trainer import TorchTrainer

GROUP = "replay/"
"""How the groups of replayed episodes begin."""


class ReplayBuffer:
    """The remembered episodes, oldest first."""

    def __init__(self, settings: Replay, seed: int, episodes: Sequence[Trajectory] = ()) -> None:
        self.settings, self.seed = settings, seed
        self.episodes: list[Trajectory] = list(episodes)

    @classmethod
    def of(cls, ctx: RunContext, phase: Phase) -> ReplayBuffer | None:
        """The buffer that a recipe asks for, with what the phase before remembers; None where it asks for none."""
        if not ctx.recipe.replay.capacity:
            return None
        earlier = read_buffer(phase.before.folder / BUFFER) if phase.before is not None else []
        return cls(ctx.recipe.replay, ctx.seed("replay", phase.number), earlier)

    @property
    def steps(self) -> int:
        """Remembered steps with tokens."""
        return sum(map(_steps, self.episodes))

    def add(self, rollouts: Sequence[Trajectory]) -> None:
        """Remember the first success of each task among the policy's own rollouts; drop the oldest beyond capacity."""
        fresh: dict[str, Trajectory] = {}
        for t in rollouts:
            if t.source != "expert" and t.reward is not None and t.reward >= SUCCESS and _steps(t):
                fresh.setdefault(t.task.id, t)
        self.episodes = [t for t in self.episodes if t.task.id not in fresh] + list(fresh.values())
        while self.episodes and self.steps > self.settings.capacity:
            self.episodes.pop(0)

    def drawn(self, update: int, fresh: Sequence[Trajectory]) -> list[Trajectory]:
        """Episodes to replay beside `fresh`: about `ratio` steps for each of theirs, none of a task that they play."""
        wanted = self.settings.ratio * sum(map(_steps, fresh))
        played = {t.task.id for t in fresh}
        pool = [t for t in self.episodes if t.task.id not in played]
        random.Random(derive(self.seed, "replay", update)).shuffle(pool)
        chosen: list[Trajectory] = []
        for trajectory in pool:
            if sum(map(_steps, chosen)) + _steps(trajectory) <= wanted:
                chosen.append(trajectory)
        return [_as_group(trajectory) for trajectory in chosen]

    def fitting(self, trainer: TorchTrainer, rows: Sequence[TokenRow]) -> list[bool]:
        """For each row, whether its perplexity under the trainer's policy lies in the band."""
        low, high = self.settings.perplexity
        return [low <= perplexity(values.tolist()) <= high for values in trainer.logprobs(rows)]

    def save(self, folder: Path, updates: int) -> None:
        """Write a checkpoint for so many updates; older ones stay until `prune`."""
        self.write(folder / f"{updates:06d}-{BUFFER}")

    def finish(self, folder: Path, updates: int) -> None:
        """Leave the buffer in a stage's folder."""
        self.write(folder / BUFFER)

    def write(self, path: Path) -> None:
        """Write all episodes into a file, in one piece."""
        from dynaweb.data.store import TrajectoryStore

        TrajectoryStore.write(path, self.episodes)

    def prune(self, folder: Path, checkpoints: Set[int]) -> None:
        """Remove the checkpoints but those for as many updates as one of the trainer's own has."""
        for old in folder.glob(f"*-{BUFFER}"):
            if old.name not in {f"{done:06d}-{BUFFER}" for done in checkpoints}:
                old.unlink()

    def load(self, folder: Path, updates: int) -> None:
        """Go on from the checkpoint for so many updates. Raises `CheckpointError` when it is not there."""
        path = folder / f"{updates:06d}-{BUFFER}"
        if not path.is_file():
            raise CheckpointError(f"there is no replay buffer for {updates} updates in {folder}")
        self.episodes = read_buffer(path)


def keep_of(
    buffer: ReplayBuffer, trainer: TorchTrainer, fresh: Sequence[Trajectory], replayed: Sequence[Trajectory]
) -> list[bool]:
    """For each row of the graded fresh rollouts and then of the replayed ones, whether it may be learned from."""
    graded = [t for t in fresh if t.reward is not None]
    return [*[True] * len(step_rows(graded)), *buffer.fitting(trainer, step_rows(replayed))]


def read_buffer(path: Path) -> list[Trajectory]:
    """The episodes of a buffer that a phase left; none where it left no file."""
    from dynaweb.data.store import TrajectoryStore

    return list(TrajectoryStore(path)) if path.is_file() else []


def perplexity(logps: Sequence[float]) -> float:
    """exp(-mean natural-log probability) of the tokens of a step; infinite without any: such a step fits no band."""
    return math.exp(min(700.0, -math.fsum(logps) / len(logps))) if logps else math.inf


def _steps(trajectory: Trajectory) -> int:
    return sum(bool(step.response_ids) for step in trajectory.steps)


def _as_group(trajectory: Trajectory) -> Trajectory:
    from dataclasses import replace

    return replace(trajectory, group=f"{GROUP}{trajectory.task.id}")
