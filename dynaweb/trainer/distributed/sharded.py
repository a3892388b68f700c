"""Trainers whose weights are sharded over ranks: what DeepSpeed and FSDP2 have in common.

Every rank is given the same rows and computes a part of the micro-batches; losses are shares of the whole batch, so the
result does not depend on the number of ranks. Both libraries average gradients over ranks, so shares are multiplied by
their number. Where passes gather weights, all ranks make as many of them: a rank with fewer micro-batches computes
empty ones. What is trained is a copy: the model that engines and files see stays whole on every rank, in its own
precision, and gets the new weights after each update. Checkpoints have the torch backend's form, with float32 weights
and moments, so that another number of ranks, another stage, or another backend goes on from them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from dynaweb.errors import TrainingError
from dynaweb.protocols import PolicyOptimizer, TokenRow, Vision
from dynaweb.trainer.batching import MicroBatch, collate, units
from dynaweb.trainer.logprobs import GenericScorer
from dynaweb.trainer.losses import PolicyBatch
from dynaweb.trainer.torch_trainer import TorchTrainer, UpdatePass
from dynaweb.types import Prompt


class Scored(nn.Module):
    """A language model whose output are the log-probabilities of response tokens: what is sharded."""

    def __init__(self, model: nn.Module, checkpointing: bool, vision: Vision | None = None) -> None:
        super().__init__()
        self.model = model
        self.scorer = GenericScorer(model, checkpointing=checkpointing, vision=vision)

    def forward(self, batch: MicroBatch, temperature: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
        """As `Scorer.logprobs`."""
        return self.scorer.logprobs(batch, temperature)


class ShardedScorer:
    """A `Scorer` that computes through `call`, what a library made of `scored`, so that weights are whole when they are
    needed."""

    shares_prompts = False

    def __init__(self, call: Callable[..., tuple[torch.Tensor, torch.Tensor]], scored: Scored) -> None:
        self._call, self._scored = call, scored
        self.packs, self.rope, self.vision = scored.scorer.packs, scored.scorer.rope, scored.scorer.vision

    @contextmanager
    def step(self) -> Iterator[None]:
        """Layers are recomputed in backward passes where that was asked for."""
        with self._scored.scorer.step():
            yield

    def logprobs(self, batch: MicroBatch, temperature: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probabilities and entropies [N] of response tokens."""
        return self._call(batch, temperature)

    def hidden(self, batch: MicroBatch) -> torch.Tensor:
        """Not offered: a critic has a model of its own."""
        raise TrainingError("hidden states are not computed of sharded weights")


class ShardedTrainer(TorchTrainer, ABC):
    """`TorchTrainer` of a sharded copy of its model.

    Needs a process group with all ranks (`Team.join`). Every rank calls every method, with the same arguments.
    """

    def __init__(self, model: nn.Module, **named: Any) -> None:
        self.filler = _filler(model)
        super().__init__(model, **named)

    @abstractmethod
    def publish(self) -> None:
        """The trained weights into the model that engines and files see."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """As the torch backend's, and the whole model gets the weights too."""
        super().load_state_dict(state)
        self.publish()

    def _even_out(self, count: int) -> None:
        for _ in range(self.ranks.missing(count)):
            self._scorer.logprobs(self.filler)

    def _find_offender(self, batch: PolicyBatch, live: Sequence[int], optimizer: PolicyOptimizer) -> int | None:
        """The first trajectory with a log-probability that is not finite; others are not told apart here."""
        logprobs = self.logprobs([batch.rows[i] for i in live])
        bad = [
            batch.rows[i].trajectory for i, one in zip(live, logprobs, strict=True) if not bool((abs(one) < 1e30).all())
        ]
        return min(bad, default=None)


class ShardedPass(UpdatePass, ABC):
    """One update of a sharded copy: micro-batches, as many on every rank, and what remains to be exchanged."""

    def __init__(self, trainer: ShardedTrainer) -> None:
        super().__init__(trainer, trainer.ranks)
        self._filler = trainer.filler

    @abstractmethod
    def _exchange(self) -> None:
        """Complete the gradients of all ranks."""

    @abstractmethod
    def _clip(self) -> float: ...

    def _fill(self) -> None:
        """Forward and backward of nothing."""
        logp_N, _ = self._scorer.logprobs(self._filler)
        self._differentiate(0.0 * logp_N.sum())

    def _even_out(self, count: int, *, gradient: bool) -> None:
        for _ in range(self._ranks.missing(count)):
            if gradient:
                self._fill()
            else:
                with torch.no_grad():
                    self._scorer.logprobs(self._filler)

    def _share(self) -> None:
        self._gather_counts()
        if self.computed:
            self._exchange()


def _filler(model: nn.Module) -> MicroBatch:
    """A micro-batch of one token, for ranks that have to take part without having anything to compute."""
    rows = [TokenRow(Prompt((0,)), (0,))]
    return collate(rows, units(rows, [0], share=False), next(model.parameters()).device)
