"""DeepSpeed as backend: ZeRO stages 1, 2 and 3 (arXiv 1910.02054) around the same losses as the torch backend.

Every rank is given the same rows and computes a part of the micro-batches; losses are shares of the whole batch, so the
result does not depend on the number of ranks. DeepSpeed averages gradients over ranks, so shares are multiplied by
their number. What DeepSpeed trains is a copy: the model that engines and files see stays whole on every rank, in its
own precision, and gets the new weights after each update. Checkpoints have the torch backend's form, with float32
weights and moments, so that another number of ranks, another stage, or the torch backend goes on from them.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from typing import Any

import torch
from torch import nn

from dynaweb.backends.batch import MicroBatch, collate, units
from dynaweb.backends.models import trainable
from dynaweb.backends.policy_loss import PolicyBatch
from dynaweb.backends.scoring import GenericScorer, Scorer
from dynaweb.backends.stepper import ADAM_EPS, AdamSettings, AnyStepper
from dynaweb.backends.torch_backend import TorchTrainer
from dynaweb.backends.update import UpdatePass
from dynaweb.backends.zero_config import ZeroSettings, deepspeed_config, import_deepspeed
from dynaweb.backends.zero_stepper import ZeroStepper
from dynaweb.errors import ConfigError, TrainingError
from dynaweb.protocols import PolicyOptimizer, TokenRow


class Scored(nn.Module):
    """A language model whose output are the log-probabilities of response tokens: what DeepSpeed wraps."""

    def __init__(self, model: nn.Module, checkpointing: bool) -> None:
        super().__init__()
        self.model = model
        self.scorer = GenericScorer(model, checkpointing=checkpointing)

    def forward(self, batch: MicroBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """As `Scorer.logprobs`."""
        return self.scorer.logprobs(batch)


class EngineScorer:
    """A `Scorer` that computes through DeepSpeed's engine, so that partitioned weights are there when needed."""

    shares_prompts = False

    def __init__(self, engine: Any, scored: Scored) -> None:
        self._engine, self._scored = engine, scored
        self.packs = scored.scorer.packs

    @contextmanager
    def step(self) -> Iterator[None]:
        """Layers are recomputed in backward passes where that was asked for."""
        with self._scored.scorer.step():
            yield

    def logprobs(self, batch: MicroBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probabilities and entropies [N] of response tokens."""
        found: tuple[torch.Tensor, torch.Tensor] = self._engine(batch)
        return found

    def hidden(self, batch: MicroBatch) -> torch.Tensor:
        """Not offered: a critic has a model of its own."""
        raise TrainingError("hidden states are not computed through DeepSpeed")


class DeepSpeedTrainer(TorchTrainer):
    """`TorchTrainer` with weights, gradients and AdamW's state spread over ranks as the ZeRO stage says.

    Needs a process group with all ranks (`Team.join`). Every rank calls every method, with the same arguments.
    """

    def __init__(self, model: nn.Module, *, zero: ZeroSettings, **named: Any) -> None:
        if not 1 <= zero.stage <= 3:
            raise ConfigError(f"backend.stage is {zero.stage}; ZeRO has stages 1, 2 and 3")
        self._zero = zero
        self._filler = _filler(model)
        super().__init__(model, **named)

    def _parts(self, adam: AdamSettings, checkpointing: bool) -> tuple[Scorer, AnyStepper]:
        scored = Scored(copy.deepcopy(self.model), checkpointing)
        config = deepspeed_config(
            self._zero, dtype=next(self.model.parameters()).dtype, max_grad_norm=self.max_grad_norm
        )
        self._trained = trainable(scored.model)
        self._engine = _initialize(scored, config, _adamw(self._trained, self.schedule.peak, adam))
        self._zero_stepper = ZeroStepper(self._engine, self._trained, self.schedule, self.publish)
        return EngineScorer(self._engine, scored), self._zero_stepper

    def _update(self) -> UpdatePass:
        return ZeroPass(self)

    def _even_out(self, count: int) -> None:
        for _ in range(-(-count // self.ranks.size) - len(self.ranks.mine(range(count)))):
            self._scorer.logprobs(self._filler)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """As the torch backend's, and the whole model gets the weights too."""
        super().load_state_dict(state)
        self.publish()

    def publish(self) -> None:
        """The trained weights into the model that engines and files see."""
        import deepspeed

        with torch.no_grad():
            for name, parameter in trainable(self.model).items():
                trained = self._trained[name]
                with deepspeed.zero.GatheredParameters([trained], enabled=hasattr(trained, "ds_id")):
                    parameter.copy_(trained)

    def _find_offender(self, batch: PolicyBatch, live: Sequence[int], optimizer: PolicyOptimizer) -> int | None:
        """The first trajectory with a log-probability that is not finite; others are not told apart here."""
        found = self.logprobs([batch.rows[i] for i in live])
        bad = [
            batch.rows[i].trajectory for i, one in zip(live, found, strict=True) if not bool((abs(one) < 1e30).all())
        ]
        return min(bad, default=None)


class ZeroPass(UpdatePass):
    """One update through DeepSpeed: micro-batches without, and a last empty one with the exchange of gradients."""

    def __init__(self, trainer: DeepSpeedTrainer) -> None:
        masters = trainer._stepper.masters
        super().__init__(
            trainer.model, trainer._scorer, trainer.micro_batches, masters, trainer.max_grad_norm, trainer.ranks
        )
        self._trainer, self._engine = trainer, trainer._engine

    def __enter__(self) -> UpdatePass:
        self._engine.set_gradient_accumulation_boundary(False)
        return super().__enter__()

    def _differentiate(self, loss: torch.Tensor) -> None:
        self._engine.backward(loss * self._ranks.size, scale_wrt_gas=False)

    def _even_out(self, count: int, *, gradient: bool) -> None:
        for _ in range(-(-count // self._ranks.size) - len(self._ranks.mine(range(count)))):
            with torch.set_grad_enabled(gradient):
                logp_N, _ = self._scorer.logprobs(self._trainer._filler)
            if gradient:
                self._differentiate(0.0 * logp_N.sum())

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self._around.__exit__(kind, error, trace)
        if kind is not None:
            return
        self._gather_counts()
        if self.computed:
            self._exchange()

    def _exchange(self) -> None:
        """Gradients of all ranks as one, in an empty last micro-batch; they wait for a step."""
        self._engine.set_gradient_accumulation_boundary(True)
        logp_N, _ = self._scorer.logprobs(self._trainer._filler)
        self._differentiate(0.0 * logp_N.sum())
        self.grad_norm = self._trainer._zero_stepper.norm()


def _adamw(parameters: Mapping[str, nn.Parameter], lr: float, adam: AdamSettings) -> torch.optim.AdamW:
    matrices = [p for p in parameters.values() if p.ndim > 1]
    others = [p for p in parameters.values() if p.ndim <= 1]
    groups = [{"params": matrices, "weight_decay": adam.weight_decay}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW([g for g in groups if g["params"]], lr=lr, betas=adam.betas, eps=ADAM_EPS)


def _initialize(scored: Scored, config: dict[str, Any], optimizer: torch.optim.Optimizer) -> Any:
    """DeepSpeed's engine around a model."""
    deepspeed = import_deepspeed()
    # What the scorer finds out about the model, it must find out while the weights are whole.
    _ = scored.scorer.packs
    head = scored.scorer._head
    with redirect_stdout(sys.stderr):  # stdout is for data; DeepSpeed tells there what it has built
        deepspeed.init_distributed(dist_backend="nccl" if torch.cuda.is_available() else "gloo", verbose=False)
        engine, *_rest = deepspeed.initialize(
            model=scored, optimizer=optimizer, config=config, dist_init_required=False
        )
    if config["zero_optimization"]["stage"] == 3 and head is not None:
        # The head's weight is used outside of the head's own forward.
        deepspeed.zero.register_external_parameter(scored, head.weight)
    return engine


def _filler(model: nn.Module) -> MicroBatch:
    """A micro-batch of one token, for ranks that have to take part without having anything to compute."""
    rows = [TokenRow((0,), (0,))]
    return collate(rows, units(rows, [0], share=False), next(model.parameters()).device)
