"""Early stopping: the loss on rows that are not trained on, the best weights so far, and when to give up.

Everything is kept beside the trainer's checkpoint, so that a stage that goes on after a kill stops where it would have.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from dynaweb.loop.best import best_of, place_of, tidy
from dynaweb.loop.training import CHECKPOINTS
from dynaweb.protocols import TokenRow
from dynaweb.runs import write_json

if TYPE_CHECKING:
    from dynaweb.backends.torch_backend import TorchTrainer

STATE = "validation.json"
MAX_ROWS = 256


@dataclass(slots=True)
class EarlyStop:
    """Looks at the mean loss per target token on `rows` every `every` updates and after the last one; `patience` looks
    without a better one end the training. `folder` is the stage's scratch."""

    rows: Sequence[TokenRow]
    every: int
    patience: int
    folder: Path
    losses: list[tuple[int, float]] = field(default_factory=list)

    def resume(self, steps: int) -> None:
        """Go on with what was seen up to `steps` updates."""
        path = self.folder / STATE
        found = json.loads(path.read_text(encoding="utf-8")) if steps and path.exists() else []
        self.losses = [(step, loss) for step, loss in found if step <= steps]

    @property
    def best(self) -> tuple[int, float] | None:
        """Update and loss of the best look, the earliest of equals."""
        step = best_of(self._marks, self.losses[-1][0]) if self.losses else None
        return (step, dict(self.losses)[step]) if step is not None else None

    @property
    def given_up(self) -> bool:
        """Whether the last `patience` looks were no better than the best before them."""
        best = self.best
        return best is not None and sum(step > best[0] for step, _ in self.losses) >= self.patience

    def due(self, steps: int, *, last: bool = False) -> bool:
        """Whether to look after so many updates: at every `every`th, and at the `last`."""
        return bool(self.rows) and (last or steps % self.every == 0)

    def look(self, trainer: TorchTrainer) -> float:
        """Measure, note, and keep the weights if they are the best so far; then the trainer is checkpointed."""
        from dynaweb.backends import checkpoint

        loss = mean_loss(trainer, self.rows)
        self.losses.append((trainer.steps, loss))
        if self.best == (trainer.steps, loss):
            tensors = {name: p.detach() for name, p in trainer.model.named_parameters() if p.requires_grad}
            checkpoint.save(place_of(self.folder, trainer.steps), tensors, {}, trainer.steps)
        write_json(self.folder / STATE, self.losses)
        trainer.save(self.folder, keep=CHECKPOINTS)
        # Older weights go only now: until the trainer was saved, a kill would have led back to them.
        tidy(self.folder, self._marks, checkpoint.steps(self.folder))
        return loss

    def put_back_best(self, trainer: TorchTrainer) -> None:
        """Give the trainer's model, on all ranks, the best weights that were seen; the training must be over."""
        if self.best is not None and self.best[0] != trainer.steps:
            trainer.load_weights(place_of(self.folder, self.best[0]))

    @property
    def _marks(self) -> list[tuple[int, float]]:
        return [(step, -loss) for step, loss in self.losses]


def mean_loss(trainer: TorchTrainer, rows: Sequence[TokenRow]) -> float:
    """Mean negative log-probability per target token, in nats."""
    found = trainer.logprobs(rows)
    return -sum(float(one.sum()) for one in found) / max(1, sum(len(one) for one in found))
