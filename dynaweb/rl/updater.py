"""The gradient steps of one update: the policy's rows, the behaviour-cloning term, and what is said of unsound ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dynaweb.protocols import PolicyOptimizer, TokenRow
from dynaweb.rl.rows import minibatches, weighted
from dynaweb.types import Trajectory

if TYPE_CHECKING:
    from dynaweb.config.sections import Rl
    from dynaweb.pipeline.costs import Meter
    from dynaweb.rl.batch import Batch
    from dynaweb.trainer.torch_trainer import TorchTrainer

ADDED = frozenset({"tokens", "padded_tokens", "rows", "rows_skipped", "trajectories", "seconds"})
LAST = frozenset({"lr", "critic_lr", "skipped", "critic_skipped"})


@dataclass(frozen=True, slots=True)
class Updater:
    """Takes `rl.epochs` x `rl.minibatches` optimizer steps on a batch.

    `demonstrations` are the rows of the behaviour-cloning term, drawn anew at each step; `imitates` makes every step a
    supervised one on the batch (filtered behaviour cloning). `offending` is where the first trajectory goes that gave a
    loss or gradient that is not finite, prompts and all; `on_offender` is told of it in words. `meter` counts the
    tokens of each step as soon as it is taken: an update that fails later has cost them.
    """

    rl: Rl
    trainer: TorchTrainer
    optimizer: PolicyOptimizer
    meter: Meter
    demonstrations: Sequence[TokenRow]
    imitates: bool
    offending: Path
    on_offender: Callable[[str], None]

    def steps(self, batch: Batch) -> dict[str, float]:
        """All gradient steps of one update; their metrics as one. No rows: the behaviour-cloning term alone."""
        metrics = []
        for _ in range(self.rl.epochs):
            for part in minibatches(len(batch.trajectories), self.rl.minibatches):
                metrics.append(self._step(batch.part(part)))
                self.meter.tokens_trained += int(metrics[-1]["tokens"])
        return over_steps(metrics)

    def _step(self, batch: Batch) -> dict[str, float]:
        rl, anchor = self.rl, list[TokenRow]()
        if rl.bc_weight > 0 and rl.bc_batch > 0 and self.demonstrations:
            anchor = [self.demonstrations[i] for i in self.trainer.draw(len(self.demonstrations), rl.bc_batch)]
        if self.imitates and batch.rows:
            return self.trainer.supervised_step([*batch.rows, *weighted(batch.rows, anchor, rl.bc_weight)])
        try:
            return self.trainer.policy_step(
                batch.rows,
                self.optimizer,
                batch.credit,
                batch.old,
                supervised=anchor,
                supervised_weight=rl.bc_weight,
                ref_logps=batch.reference,
                **({} if batch.weights is None else {"token_weights": batch.weights}),
            )
        finally:
            if self.trainer.offender is not None:
                self._keep_offender(batch.trajectories[self.trainer.offender])

    def _keep_offender(self, trajectory: Trajectory) -> None:
        from dynaweb.data.store import TrajectoryStore

        if self.offending.exists():
            return
        TrajectoryStore(self.offending).append([trajectory])
        self.on_offender(
            f"trajectory {trajectory.id} gives a loss or gradient that is not finite; it is in {self.offending}"
        )


def over_steps(steps: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The metrics of an update from those of its optimizer steps: counts are added, everything else is the mean."""
    out: dict[str, float] = {}
    for name in {name: None for metrics in steps for name in metrics}:
        values = [metrics[name] for metrics in steps if name in metrics]
        out[name] = values[-1] if name in LAST else sum(values) if name in ADDED else sum(values) / len(values)
    return out
