"""Checkpoints of the RL stage: the trainer and its partners, saved together and loaded together.

A partner is anything whose state goes with the policy: history, replay buffer, audits, the world model that is
refreshed, the best weights. Files carry the number of updates that they belong to, and the trainer's own file is the
last to change, so that a kill at any point leads back to a whole set: what stands beside it is at least as new, and is
cut back when it is read.
"""

from __future__ import annotations

import json
import logging
import math
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Protocol

from dynaweb.errors import DivergedError, TrainingError
from dynaweb.pipeline.artifacts import CRITIC, EPISODES, MODEL, link
from dynaweb.rl.rows import without_prompts
from dynaweb.runs import write_json
from dynaweb.runs.names import BEST_UPDATE, DREAMS
from dynaweb.stats import nanmean
from dynaweb.trainer.resume import BEST, Marks, best_folder, best_of, prune_best, resume, updates_kept
from dynaweb.types import Trajectory

if TYPE_CHECKING:
    from dynaweb.pipeline.artifacts import Artifact, LoadedModel
    from dynaweb.runs import RunFolder
    from dynaweb.trainer.torch_trainer import TorchTrainer

HISTORY = "history.json"
FIRST, DEAD = 10, 0.9
"""After so many updates a run is warned if so large a share of its groups was dead. Runs that learn have .5 to .8."""
log = logging.getLogger("dynaweb")


class Checkpointed(Protocol):
    """A partner of reinforcement learning whose state is saved with the policy's. `updates` are those done so far."""

    def load(self, folder: Path, updates: int) -> None:
        """Go on from what `save` wrote, cut back to `updates`."""
        ...

    def save(self, folder: Path, updates: int) -> None:
        """Write the state after `updates`, atomically; older ones that a checkpoint may lead to stay."""
        ...

    def prune(self, folder: Path, checkpoints: Set[int]) -> None:
        """Remove what no checkpoint of the trainer leads to; `checkpoints` are their numbers of updates."""
        ...

    def finish(self, folder: Path, updates: int) -> None:
        """Leave what later stages need in the folder of the finished stage."""
        ...


@dataclass(slots=True)
class Checkpoints:
    """All that is saved in the scratch folder of an RL stage: the trainer last, its partners before it, in order.

    `per_update` is the number of optimizer steps of one update, `keep` how many checkpoints stay.
    """

    scratch: Path
    trainer: TorchTrainer
    policy: LoadedModel
    partners: Sequence[Checkpointed]
    per_update: int
    keep: int
    on_save: Callable[[], None] = lambda: None
    """Called after each save, to write what goes with it."""

    @property
    def updates(self) -> int:
        """Whole updates that the trainer's state holds."""
        return self.trainer.steps // self.per_update

    def resume(self) -> int:
        """Load the last whole checkpoint, if there is one; how many updates are done."""
        if resume(self.trainer, self.scratch):
            for partner in self.partners:
                partner.load(self.scratch, self.updates)
        return self.updates

    def save(self) -> None:
        """Write a checkpoint of this moment."""
        for partner in self.partners:
            partner.save(self.scratch, self.updates)
        self.trainer.save(self.scratch, keep=self.keep)
        checkpoints = updates_kept(self.scratch, self.per_update)
        for partner in self.partners:
            partner.prune(self.scratch, checkpoints)
        self.on_save()

    def finish(self, folder: Path, updates: int) -> None:
        """Leave the weights, and what the partners have, in the folder of the finished stage."""
        self.policy.save(folder)
        for partner in self.partners:
            partner.finish(folder, updates)
        if self.trainer.critic is not None:
            (folder / CRITIC).mkdir(exist_ok=True)
            self.trainer.critic.save(folder / CRITIC, self.trainer.steps)

    @contextmanager
    def guard(self, update: int, offending: Path) -> Iterator[None]:
        """Around an update: when training cannot go on, the sound weights before it stay behind as a checkpoint.

        `offending` is the file of the trajectory that made it unsound, if there is one. Weights that have diverged are
        not sound and are not saved; nor are those that some optimizer steps of the update have changed already: the
        next attempt goes on from the checkpoint before.
        """
        skipped, moves = self.trainer.skipped, self.trainer.moves
        try:
            yield
        except DivergedError:
            raise
        except TrainingError as error:
            if self.trainer.moves == moves:
                # This update is done again by the next attempt, and so are those of its steps that were skipped.
                self.trainer.steps, self.trainer.skipped = update * self.per_update, skipped
                for partner in self.partners:
                    if isinstance(partner, History):
                        partner.cut(update)
                self.save()
            where = f"The last sound weights are in {self.scratch}"
            if not updates_kept(self.scratch, self.per_update):
                where = "There are no sound weights yet: the next attempt starts anew"
            cause = f", the first trajectory that gave it in {offending}" if offending.exists() else ""
            raise TrainingError(f"{error}. {where}{cause}") from error


@dataclass(slots=True)
class History:
    """What RL remembers besides weights: do dreams get better while reality gets worse?

    `rewards`: mean of each update (nan = none graded). `marks`: (updates done, real success) of each validation.
    `outcomes`: template and mean reward of each group, by update. `moved`: of each update, whether rows with an
    advantage moved the policy; False: their loss or gradient was not finite, None: there were none. `dead`: of each
    update, the share of groups whose rollouts all have one reward."""

    rewards: list[float] = field(default_factory=list)
    marks: list[tuple[int, float]] = field(default_factory=list)
    outcomes: list[list[tuple[str, float]]] = field(default_factory=list)
    moved: list[bool | None] = field(default_factory=list)
    dead: list[float] = field(default_factory=list)

    def load(self, folder: Path, updates: int) -> None:
        """Read what `save` wrote, cut back to the first `updates`: a kill may have come before the checkpoint."""
        data = json.loads((folder / HISTORY).read_text(encoding="utf-8"))
        self.rewards[:] = [math.nan if reward is None else reward for reward in data["rewards"]]
        self.marks[:] = [(done, success) for done, success in data["marks"]]
        self.outcomes[:] = [[(name, reward) for name, reward in groups] for groups in data["outcomes"]]
        self.moved[:] = data.get("moved", [None] * len(self.rewards))
        self.dead[:] = data.get("dead", [0.0] * len(self.rewards))
        self.cut(updates)

    def save(self, folder: Path, updates: int) -> None:
        """Write into a folder, atomically; all of it, whatever `updates` is."""
        rewards = [None if math.isnan(reward) else reward for reward in self.rewards]
        state = {"rewards": rewards, "marks": self.marks, "outcomes": self.outcomes}
        write_json(folder / HISTORY, {**state, "moved": self.moved, "dead": self.dead})

    def prune(self, folder: Path, checkpoints: Set[int]) -> None:
        """There is one file only."""

    def finish(self, folder: Path, updates: int) -> None:
        """Leaves nothing: metrics hold the same numbers."""

    def cut(self, updates: int) -> None:
        """Forget everything after the first `updates` updates."""
        del self.rewards[updates:], self.outcomes[updates:], self.moved[updates:], self.dead[updates:]
        self.marks[:] = [(done, success) for done, success in self.marks if done <= updates]

    def stepped(self, metrics: Mapping[str, float]) -> None:
        """Note whether an update moved the policy, from the metrics of its gradient steps."""
        live = metrics.get("rows", 0.0) > metrics.get("rows_skipped", 0.0)
        self.moved.append(metrics["updated"] > 0 if live else None)

    def refuse_unmoved(self, name: str) -> None:
        """Raise `TrainingError` when no update that had rows with an advantage could learn from them."""
        live = [moved for moved in self.moved if moved is not None]
        if live and not any(live):
            raise TrainingError(
                f"stage {name} learned nothing from its rollouts: in all {len(live)} updates that had any to learn "
                "from (groups with different rewards), the loss or gradient was not finite; lower the learning "
                "rate, or take another optimizer (--opt)"
            )

    def played(self, measured: Mapping[str, float], entropy: float) -> str:
        """Note the rollouts of an update; once, a warning when nearly all groups of the first ones are dead, else ''.

        `entropy`: of the policy's tokens in this update, in nats; nan = not measured.
        """
        self.rewards.append(measured["reward"])
        self.dead.append(measured["dead_groups"])
        if len(self.dead) != FIRST or (share := fmean(self.dead)) < DEAD:
            return ""
        said = "" if math.isnan(entropy) else f" (entropy of the policy's tokens in the last one: {entropy:.3f} nats)"
        return (
            f"in {share:.0%} of the groups of the first {FIRST} updates{said} all rollouts have one reward, which "
            "teaches nothing. If rollouts of a task are all alike, "
            "take fewer sft.steps or a higher rl.temperature; if tasks are too easy or too hard, other tasks, "
            'rl.sampling = "adaptive" or a larger rl.n'
        )

    def validated(self, success: float) -> str:
        """Note a validation; a warning when rewards rose since the last one and real success fell, else ''."""
        now = len(self.rewards)
        earlier = self.marks[-1] if self.marks else None
        start = self.marks[-2][0] if len(self.marks) > 1 else 0
        self.marks.append((now, success))
        if earlier is None:
            return ""
        done, real = earlier
        before, after = nanmean(self.rewards[start:done]), nanmean(self.rewards[done:])
        if not (after > before and success < real):
            return ""
        return (
            f"the reward rose from {before:.3f} to {after:.3f} while success on real validation tasks fell from "
            f"{real:.3f} to {success:.3f}: the policy may be learning to please the judge or the world model"
        )


@dataclass(frozen=True, slots=True)
class BestWeights:
    """The weights of the best validation so far, kept beside the last ones.

    The results of a run are those of the last policy, and the best one is there for whoever wants it; with
    `decides` they are those of the best one. Which it was follows from `marks`, so that a run that goes on from an
    earlier checkpoint forgets what came after it.
    """

    scratch: Path
    marks: Marks
    decides: bool = False

    def keep_if_best(self, model: LoadedModel) -> None:
        """Write the weights when the last validation is the best so far. Older ones stay until `prune`."""
        done = self.marks[-1][0]
        if best_of(self.marks, done) == done:
            # What a killed attempt left half-written.
            shutil.rmtree(best_folder(self.scratch, done), ignore_errors=True)
            model.write(best_folder(self.scratch, done))

    def load(self, folder: Path, updates: int) -> None:
        """They are on disk already."""

    def save(self, folder: Path, updates: int) -> None:
        """They were written when they were the best."""

    def prune(self, folder: Path, checkpoints: Set[int]) -> None:
        """Remove weights that are the best of no checkpoint that the run could go on from."""
        prune_best(folder, self.marks, checkpoints)

    def finish(self, folder: Path, updates: int) -> None:
        """Put the best weights after `updates` into the stage's folder; nothing without validations."""
        best = best_of(self.marks, updates)
        if best is None:
            if self.decides:
                log.warning(
                    "rl.results_of = best: no validation gave a number in %d updates; the last ones stay", updates
                )
            return
        weights = best_folder(self.scratch, best) / MODEL
        for file in (path for path in weights.rglob("*") if path.is_file()):
            link(file, folder / BEST / MODEL / file.relative_to(weights))
            if self.decides:
                link(file, folder / MODEL / file.relative_to(weights))
        write_json(folder / BEST_UPDATE, {"updates": best, "success": dict(self.marks)[best]})


def keep_best(run: RunFolder | None, artifact: Artifact, name: str) -> None:
    """Put a stage's best weights into the run folder too, as `NAME-best`."""
    for file in (artifact.folder / BEST / MODEL).glob("*"):
        if run is not None:
            link(file, run.checkpoints / f"{name}-{BEST}" / file.name)


@dataclass(frozen=True, slots=True)
class RolloutLog:
    """The policy's own rollouts of each update, a file an update, without prompts, which follow from the pages."""

    scratch: Path

    def save(self, update: int, rollouts: Sequence[Trajectory], advantages: Sequence[float]) -> None:
        """Keep the rollouts of an update, each with its advantage. A repeated update replaces them."""
        from dynaweb.data.store import TrajectoryStore

        path = self._file(update)
        path.unlink(missing_ok=True)
        pairs = zip(rollouts, advantages, strict=True)
        own = [(one, None if one.reward is None else advantage) for one, advantage in pairs if one.source != "expert"]
        TrajectoryStore(path).append(without_prompts(one, update, advantage) for one, advantage in own)

    def read(self, update: int) -> list[Trajectory]:
        """The rollouts of an update."""
        from dynaweb.data.store import TrajectoryStore

        return list(TrajectoryStore(self._file(update)))

    def collect(self, folder: Path, updates: int) -> None:
        """The rollouts of all updates as a stage's episodes."""
        from dynaweb.data.store import TrajectoryStore

        path = folder / EPISODES
        path.unlink(missing_ok=True)
        whole = TrajectoryStore(path)
        for update in range(updates):
            whole.append(TrajectoryStore(self._file(update)))

    def _file(self, update: int) -> Path:
        folder = self.scratch / DREAMS
        folder.mkdir(exist_ok=True)
        return folder / f"{update:06d}.jsonl.gz"
