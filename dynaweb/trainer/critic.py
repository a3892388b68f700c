"""The critic: a language model's body with a linear head, its own AdamW, and its own learning rate.

A state is what the policy sees before it says an agent token, so it is the hidden state that predicts that token; a
critic that looks at rows uses the state before the first. The head starts at 0: the first values are 0, not noise.

Shapes: see `dynaweb.protocols.ValueInput`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from dynaweb.engines.local import llama
from dynaweb.errors import TrainingError
from dynaweb.plugin.contracts import loss_output
from dynaweb.protocols import Credit, CriticSpec, HasCritic, LossOutput, TokenRow, ValueInput, Vision
from dynaweb.trainer import checkpoint
from dynaweb.trainer.batching import MicroBatch
from dynaweb.trainer.logprobs import micro_batches, scorer_for
from dynaweb.trainer.losses import clean
from dynaweb.trainer.models import frozen, trainable
from dynaweb.trainer.ranks import Ranks
from dynaweb.trainer.stepper import AdamSettings, Gradient, Schedule, Stepper

Values = list[list[list[float]]]
"""Outputs of each state of each row."""


CLASSES = 2


@dataclass(frozen=True, slots=True)
class CriticGradient:
    """What a critic's pass over an update gave."""

    gradient: Gradient
    metrics: dict[str, float]


class Critic:
    """Values of states, and gradients of what gives them. `model` is the critic's own copy and is changed in place.

    `schedule` is the policy's, whose warm-up and decay it shares at the learning rate of `spec`.
    """

    def __init__(
        self,
        model: nn.Module,
        spec: CriticSpec,
        schedule: Schedule,
        *,
        micro_tokens: int = 4096,
        checkpointing: bool = False,
        ranks: Ranks | None = None,
        vision: Vision | None = None,
    ) -> None:
        self.model, self.spec = model, spec
        body: Any = model
        # What the body gives is what the output head takes; in OPT-350M that is half of the hidden size.
        words = body.get_output_embeddings()
        width = body.config.get_text_config().hidden_size if words is None else words.weight.shape[1]
        device = next(model.parameters()).device
        self.head = nn.Linear(width, spec.outputs, device=device)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        self._micro_tokens = micro_tokens
        self._ranks = ranks or Ranks()
        self._scorer = scorer_for(model, checkpointing=checkpointing, vision=vision)
        own = replace(schedule, peak=spec.lr)
        self.stepper = Stepper(_used(body, self.head), own, AdamSettings(), what="critic")

    def save(self, folder: Path, steps: int) -> None:
        """Write it into a folder of its own, after so many updates."""
        checkpoint.save(folder, self.stepper.tensors(), {"skipped": self.stepper.skipped}, steps)

    def load(self, folder: Path) -> None:
        """Go on from what `save` left. Raises `CheckpointError` for a critic of another shape."""
        tensors, meta = checkpoint.load(folder)
        self.stepper.load(tensors, int(meta["skipped"]))

    def values(self, rows: Sequence[TokenRow]) -> Values:
        """What the critic says now, without gradients: for each row, outputs for each of its states."""
        out: Values = [[] for _ in rows]
        with frozen(self.model), torch.no_grad():
            for micro in self._micro_batches(rows):
                output_NO = self._outputs(micro)
                for index, row in enumerate(micro.rows):
                    out[row] = output_NO[micro.row_N == index].tolist()
        return out

    def compute(self, rows: Sequence[TokenRow], credit: Credit, optimizer: HasCritic) -> CriticGradient:
        """The gradient towards `credit.targets`, for `stepper`. Raises `TrainingError` without targets."""
        if credit.targets is None or credit.values is None:
            raise TrainingError("a critic learns from targets and its old values; the optimizer's credit has none")
        tally = _Tally(sum(t is not None for row in credit.targets for t in row))
        masters = self.stepper.masters
        masters.drop_gradients()
        with frozen(self.model), masters.collecting(), self._scorer.step():
            for micro in self._ranks.mine(self._micro_batches(rows)):
                inputs = self._value_input(micro, credit, tally.states)
                out = loss_output(optimizer, optimizer.critic_loss(inputs), "critic_loss")
                out.loss.backward()  # type: ignore[no-untyped-call]
                tally.add(float(out.loss.detach()), out.metrics)
        tally = tally.over(self._ranks)
        leaves = list(masters.leaves.values())
        self._ranks.add_gradients(leaves)
        computed = tally.states > 0
        norm = float(nn.utils.clip_grad_norm_(leaves, self.spec.max_grad_norm)) if computed else 0.0
        return CriticGradient(Gradient(tally.loss, norm, computed), tally.metrics())

    def report(self, result: CriticGradient, index: int) -> dict[str, float]:
        """What is told of update `index`: `critic_loss`, `critic_grad_norm`, `critic_lr`, `critic_skipped` and the
        loss's own sums."""
        return {
            **result.metrics,
            "critic_grad_norm": result.gradient.norm,
            "critic_lr": self.stepper.schedule.at(index),
            "critic_skipped": float(self.stepper.skipped),
        }

    def _value_input(self, micro: MicroBatch, credit: Credit, states: int) -> ValueInput:
        targets, values = credit.targets or (), credit.values or ()
        output_NO = self._outputs(micro)
        flat = [t for row in micro.rows for t in targets[row]]
        old = [o for row in micro.rows for o in values[row]]
        target_N = output_NO.new_tensor([0.0 if t is None else t for t in flat])
        known_N = torch.tensor([t is not None for t in flat], device=output_NO.device)
        return ValueInput(
            output_RTO=micro.spread(output_NO),
            old_RTO=micro.spread(output_NO.new_tensor(old)),
            target_RT=micro.spread(target_N),
            mask_RT=micro.spread(known_N),
            states=states,
        )

    def _outputs(self, micro: MicroBatch) -> torch.Tensor:
        """Outputs [N, O] of the states of a micro-batch, float32."""
        hidden_ND = llama.widen(self._scorer.hidden(micro))
        return F.linear(hidden_ND, self.head.weight.to(hidden_ND.dtype), self.head.bias.to(hidden_ND.dtype))

    def _micro_batches(self, rows: Sequence[TokenRow]) -> list[MicroBatch]:
        if self.spec.at == "rows":
            rows = [replace(row, response_ids=row.response_ids[:1]) for row in rows]
        return micro_batches(self._scorer, rows, range(len(rows)), self._micro_tokens, self.head.weight.device)


def _used(model: Any, head: nn.Linear) -> dict[str, nn.Parameter]:
    """Trainable parameters that values depend on: the body's and the head's, not an output head of its own."""
    words = model.get_output_embeddings()
    apart = set() if words is None else {id(p) for p in words.parameters()}
    tied = {id(p) for p in model.get_input_embeddings().parameters()}
    body = {n: p for n, p in trainable(model).items() if id(p) not in apart - tied}
    return {**body, **{f"value_head.{name}": p for name, p in head.named_parameters()}}


class _Tally:
    """Sums of one update over micro-batches and ranks; `states` counts those with a target."""

    def __init__(self, states: int) -> None:
        self.states = states
        self.loss = 0.0
        self.sums: dict[str, float] = {}

    def add(self, loss: float, sums: Mapping[str, float]) -> None:
        self.loss += loss
        for name, share in sums.items():
            self.sums[name] = self.sums.get(name, 0.0) + float(share)

    def over(self, ranks: Ranks) -> _Tally:
        """The sum over ranks."""
        out = _Tally(self.states)
        for other in ranks.gather(self):
            out.add(other.loss, other.sums)
        return out

    def metrics(self) -> dict[str, float]:
        return {"critic_loss": self.loss, **{name.removesuffix("_sum"): share for name, share in self.sums.items()}}


# A critic that says how likely success is: two outputs (failure, success) for each page, trained by cross-entropy.


def probability(outputs: Sequence[float]) -> float:
    """Chance of success from the outputs for failure and success."""
    no, yes = outputs
    return 1 / (1 + math.exp(max(-700.0, min(700.0, no - yes))))


def cross_entropy(batch: ValueInput, *, heads: int = 1) -> LossOutput:
    """Cross-entropy of success against failure on each page: mean over pages, sum over heads of two outputs each.

    `value_mean_sum` is the share of the mean chance of success, of the first head.
    """
    mask_R = batch.mask_RT[:, 0]
    label_R = clean(batch.target_RT[:, 0], mask_R).long()
    total = batch.output_RTO.new_zeros(())
    for head in range(heads):
        logits_RC = clean(batch.output_RTO[:, 0, CLASSES * head : CLASSES * (head + 1)], mask_R[:, None])
        entropy_R = torch.nn.functional.cross_entropy(logits_RC, label_R, reduction="none")
        total = total + clean(entropy_R, mask_R).sum() / max(1, batch.states)
    sure_R = clean(batch.output_RTO[:, 0, :CLASSES].detach().softmax(-1)[:, 1], mask_R)
    return LossOutput(total, {"value_mean_sum": float(sure_R.sum()) / max(1, batch.states)})
