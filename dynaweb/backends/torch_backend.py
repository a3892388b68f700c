"""The trainer of one process: supervised and policy updates of a causal language model, on CPU or GPU.

What an update computes does not depend on the micro-batch split: losses are normalised by counts of the whole batch,
and ratios of whole trajectories come from a first pass without gradients when a trajectory is split. Prompts are never
targets. Dropout is off. An update whose loss or gradient is not finite is skipped and counted; three in a row are an
error.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from dynaweb.backends import batch as batching
from dynaweb.backends import checkpoint
from dynaweb.backends.batch import MicroBatch
from dynaweb.backends.models import trainable
from dynaweb.backends.policy_loss import Logps, PolicyBatch
from dynaweb.backends.schedule import Schedule
from dynaweb.backends.scoring import scorer_for
from dynaweb.backends.update import UpdatePass, frozen
from dynaweb.errors import CheckpointError, TrainingError
from dynaweb.protocols import PolicyOptimizer, TokenRow

MAX_SKIPPED = 3
"""Non-finite updates in a row that stop the training."""
ADAM_EPS = 1e-8

_log = logging.getLogger(__name__)


class TorchTrainer:
    """AdamW with a linear schedule and gradient clipping around the log-probabilities of response tokens.

    `micro_tokens` bounds the padded tokens of one forward pass. `total_steps`, `warmup` and `final_fraction` are those
    of `Schedule`; `steps` counts updates, skipped ones included. `seed` is that of `draw`.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        lr: float,
        total_steps: int,
        warmup: int = 0,
        final_fraction: float = 0.1,
        max_grad_norm: float = 1.0,
        weight_decay: float = 0.0,
        betas: tuple[float, float] = (0.9, 0.999),
        micro_tokens: int = 4096,
        seed: int = 0,
    ) -> None:
        self.model = model
        self.schedule = Schedule(lr, total_steps, warmup, final_fraction)
        self.max_grad_norm = max_grad_norm
        self.micro_tokens = micro_tokens
        self.seed = seed
        self.steps = 0
        self.skipped = 0
        self._skipped_in_row = 0
        self._moved = False
        self._scorer = scorer_for(model)
        self._parameters = trainable(model)
        if not self._parameters:
            raise TrainingError("the model has no trainable parameter")
        matrices = [p for p in self._parameters.values() if p.ndim > 1]
        others = [p for p in self._parameters.values() if p.ndim <= 1]
        groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
        self._adam = torch.optim.AdamW([g for g in groups if g["params"]], lr=lr, betas=betas, eps=ADAM_EPS)

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.model.parameters()).device

    def draw(self, size: int, count: int) -> list[int]:
        """Indices of the next update's rows, every row once before any comes again; a function of seed and `steps`."""
        return batching.draw(size, count, seed=self.seed, step=self.steps)

    def supervised_step(self, rows: Sequence[TokenRow]) -> dict[str, float]:
        """One update on the mean cross-entropy: sum of row weight x (-log p) over all response tokens / their number.

        Returns `loss`, `grad_norm`, `lr`, `entropy`, `tokens`, `padded_tokens`, `seconds`, `updated` (0 = skipped).
        """
        start = time.perf_counter()
        if not any(row.response_ids for row in rows):
            raise TrainingError("a supervised batch without any response token")
        with self._update() as update:
            loss = update.supervised(rows, 1.0)
        return self._report(update, start, {"loss": loss})

    def policy_step(
        self,
        rows: Sequence[TokenRow],
        optimizer: PolicyOptimizer,
        advantages: Sequence[float],
        old_logps: Logps | None = None,
        *,
        supervised: Sequence[TokenRow] = (),
        supervised_weight: float = 0.0,
        ref_logps: Logps | None = None,
    ) -> dict[str, float]:
        """One policy update, plus `supervised_weight` x the cross-entropy of `supervised`.

        `advantages` holds one number per trajectory, `old_logps` and `ref_logps` one per response token of each row.
        `old_logps` None: the present model made the rows (first and only step), ratios are exactly 1. Rows of
        trajectories with advantage 0 are not computed (unless there is a reference term); they count in all
        denominators.

        Returns what `supervised_step` does and `policy_loss`, `supervised_loss`, `clip_frac_low/high` and other sums of
        the loss, `ratio_*` quantiles over trajectories, `approx_kl`, `entropy`, `dead_share` (trajectories with
        advantage 0), `rows`, `rows_skipped`.
        """
        start = time.perf_counter()
        batch = PolicyBatch(rows, advantages, old_logps, ref_logps)
        batch.check()
        live = batch.live()
        with self._update() as update:
            policy_loss, tally = update.policy(batch, live, optimizer)
            bc_loss = update.supervised(supervised, supervised_weight) if supervised and supervised_weight else 0.0
        counts = [count for count in batch.tokens if count]
        dead = sum(count > 0 and a == 0.0 for count, a in zip(batch.tokens, advantages, strict=True))
        metrics = {
            "loss": policy_loss + supervised_weight * bc_loss,
            "policy_loss": policy_loss,
            "supervised_loss": bc_loss,
            **tally.metrics(),
            "dead_share": dead / len(counts) if counts else 0.0,
            "trajectories": float(len(counts)),
            "rows": float(len(rows)),
            "rows_skipped": float(len(rows) - len(live)),
        }
        return self._report(update, start, metrics)

    def logprobs(self, rows: Sequence[TokenRow]) -> list[np.ndarray]:
        """Natural-log probabilities of each row's response tokens, float32, without gradients."""
        out = [np.zeros(len(row.response_ids), dtype=np.float32) for row in rows]
        with frozen(self.model), torch.no_grad():
            for micro in self.micro_batches(rows, range(len(rows))):
                values = self._scorer.logprobs(micro)[0].cpu().numpy()
                sizes = np.cumsum([len(rows[row].response_ids) for row in micro.rows])[:-1]
                for row, part in zip(micro.rows, np.split(values, sizes), strict=True):
                    out[row] = part
        return out

    def micro_batches(self, rows: Sequence[TokenRow], chosen: Sequence[int]) -> list[MicroBatch]:
        """The chosen rows as micro-batches, rows with the same prompt together where the model's scorer shares it."""
        found = batching.units(rows, chosen, share=self._scorer.shares_prompts)
        return [batching.collate(rows, part, self.device) for part in batching.plan(found, self.micro_tokens)]

    def state_dict(self) -> dict[str, Any]:
        """`tensors` (parameters and AdamW state by parameter name) and `meta` (counters), all of it plain data."""
        tensors = {f"model.{name}": p.detach() for name, p in self._parameters.items()}
        for name, parameter in self._parameters.items():
            for key, value in self._adam.state.get(parameter, {}).items():
                tensors[f"adam.{key}.{name}"] = value
        return {"tensors": tensors, "meta": {"steps": self.steps, "skipped": self.skipped}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put back what `state_dict` gave. Raises `CheckpointError` when it belongs to another model."""
        tensors: dict[str, torch.Tensor] = state["tensors"]
        for name, parameter in self._parameters.items():
            saved = tensors.get(f"model.{name}")
            if saved is None or saved.shape != parameter.shape:
                found = "missing" if saved is None else f"of shape {tuple(saved.shape)}"
                raise CheckpointError(f"parameter {name} {tuple(parameter.shape)} is {found} in the checkpoint")
        with torch.no_grad():
            for name, parameter in self._parameters.items():
                parameter.copy_(tensors[f"model.{name}"])
        self._adam.state.clear()
        for key, value in tensors.items():
            kind, _, rest = key.partition(".")
            if kind == "adam":
                field, _, name = rest.partition(".")
                place = torch.device("cpu") if field == "step" else self._parameters[name].device
                self._adam.state[self._parameters[name]][field] = value.detach().clone().to(place)
        self.steps, self.skipped = int(state["meta"]["steps"]), int(state["meta"]["skipped"])
        self._skipped_in_row = 0

    def save(self, folder: Path) -> None:
        """Write an atomic checkpoint (safetensors and JSON)."""
        state = self.state_dict()
        checkpoint.save(folder, state["tensors"], state["meta"], self.steps)

    def load(self, folder: Path) -> None:
        """Go on from a checkpoint of `save`. Raises `CheckpointError` when it is missing, truncated or foreign."""
        tensors, meta = checkpoint.load(folder)
        self.load_state_dict({"tensors": tensors, "meta": meta})

    def _update(self) -> UpdatePass:
        parameters = self._parameters.values()
        return UpdatePass(self.model, self._scorer, self.micro_batches, parameters, self.max_grad_norm)

    def _report(self, update: UpdatePass, start: float, metrics: dict[str, float]) -> dict[str, float]:
        """Step the optimizer if the update is sound, and add what every update reports."""
        lr = self.schedule.at(self.steps)
        norm = update.grad_norm
        updated = update.computed and math.isfinite(norm) and math.isfinite(metrics["loss"])
        if updated:
            self._step(lr)
        elif update.computed:
            self._skip(metrics["loss"], norm)
        self._adam.zero_grad(set_to_none=True)
        self.steps += 1
        seconds = time.perf_counter() - start
        return {
            **metrics,
            "entropy": metrics.get("entropy", update.entropy / max(1, update.tokens)),
            "grad_norm": norm,
            "lr": lr,
            "tokens": float(update.tokens),
            "padded_tokens": float(update.padded_tokens),
            "updated": float(updated),
            "skipped": float(self.skipped),
            "seconds": seconds,
        }

    def _step(self, lr: float) -> None:
        self._skipped_in_row = 0
        for group in self._adam.param_groups:
            group["lr"] = lr
        # Gradients below Adam's epsilon may be lost to rounding without anything being wrong.
        before = {} if self._moved else {n: p.detach().clone() for n, p in self._parameters.items() if _felt(p)}
        self._adam.step()
        stuck = [name for name, value in before.items() if torch.equal(value, self._parameters[name])]
        if stuck and lr > 0:
            raise TrainingError(
                f"{len(stuck)} of {len(before)} parameters with a gradient did not move in the first update, such as"
                f" {stuck[0]} ({self._parameters[stuck[0]].dtype}); train in float32 or raise the learning rate"
            )
        self._moved = True

    def _skip(self, loss: float, norm: float) -> None:
        self.skipped += 1
        self._skipped_in_row += 1
        _log.warning("update %d skipped: loss %s, gradient norm %s", self.steps, loss, norm)
        if self._skipped_in_row >= MAX_SKIPPED:
            self._adam.zero_grad(set_to_none=True)
            raise TrainingError(
                f"{MAX_SKIPPED} updates in a row had a loss or gradient that is not finite (last: loss {loss}, gradient"
                f" norm {norm}); lower the learning rate, or go back to the last checkpoint"
            )


def _felt(parameter: nn.Parameter) -> bool:
    return parameter.grad is not None and float(parameter.grad.abs().max()) > 10 * ADAM_EPS


__all__ = ["TorchTrainer"]
