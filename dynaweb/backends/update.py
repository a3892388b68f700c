"""The forward and backward passes of one update: micro-batch after micro-batch, one gradient at the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn

from dynaweb.backends.batch import MicroBatch
from dynaweb.backends.masters import Masters
from dynaweb.backends.models import frozen
from dynaweb.backends.policy_loss import PolicyBatch, PolicyTally
from dynaweb.backends.ranks import Ranks
from dynaweb.backends.scoring import Scorer
from dynaweb.protocols import PolicyOptimizer, TokenRow
from dynaweb.returned import loss_output

MicroBatches = Callable[[Sequence[TokenRow], Sequence[int]], list[MicroBatch]]


class UpdatePass:
    """A context in which losses are computed and differentiated; on leaving, the masters' gradients are complete and
    clipped.

    `grad_norm` is the global norm before clipping, `computed` tells whether there was anything to differentiate,
    `tokens` counts response tokens, `padded_tokens` everything that went through the model, `entropy` sums over tokens.
    """

    def __init__(
        self,
        model: nn.Module,
        scorer: Scorer,
        micro_batches: MicroBatches,
        masters: Masters,
        max_grad_norm: float,
        ranks: Ranks | None = None,
    ) -> None:
        self._ranks = ranks or Ranks()
        self._masters = masters
        self._micro_batches = micro_batches
        self._scorer = scorer
        self._parameters = list(masters.leaves.values())
        self._max_grad_norm = max_grad_norm
        self._around = ExitStack()
        self._model = model
        self.tokens = 0
        self.padded_tokens = 0
        self.entropy = 0.0
        self.grad_norm = 0.0
        self.computed = False

    def __enter__(self) -> UpdatePass:
        self._masters.drop_gradients()
        for context in (frozen(self._model), self._masters.collecting(), self._scorer.step()):
            self._around.enter_context(context)
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self._around.__exit__(kind, error, trace)
        if kind is not None:
            return
        self._share()
        if self.computed:
            self.grad_norm = float(nn.utils.clip_grad_norm_(self._parameters, self._max_grad_norm))

    def supervised(self, rows: Sequence[TokenRow], weight: float) -> float:
        """Backward of `weight` x the mean cross-entropy; returns the cross-entropy itself."""
        total = sum(len(row.response_ids) for row in rows)
        loss = 0.0
        micros = self._micro_batches(rows, range(len(rows)))
        for micro in self._ranks.mine(micros):
            logp_N, entropy_N = self._scorer.logprobs(micro)
            weights = [rows[row].weight for row in micro.rows]
            weight_N = torch.tensor(weights, dtype=torch.float32, device=logp_N.device)[micro.row_N]
            share = -(weight_N * logp_N).sum() / total
            self._backward(weight * share, micro, entropy_N)
            loss += float(share.detach())
        self._even_out(len(micros), gradient=True)
        return sum(self._ranks.gather(loss))

    def policy(self, batch: PolicyBatch, live: Sequence[int], optimizer: PolicyOptimizer) -> tuple[float, PolicyTally]:
        """Backward of the optimizer's loss over the live rows; returns its value and what was seen."""
        micros = self._micro_batches(batch.rows, live)
        split = self._ranks.size > 1 or batch.splits_trajectories(micros)
        count, micros = len(micros), self._ranks.mine(micros)
        log_ratio_sum = None
        if batch.old is not None and optimizer.needs_trajectory_ratio and split:
            log_ratio_sum = self._log_ratio_sums(batch, micros)
            self._even_out(count, gradient=False)
            self._ranks.add(log_ratio_sum)
        tally, loss = PolicyTally(len(batch.advantages)), 0.0
        for micro in micros:
            logp_N, entropy_N = self._scorer.logprobs(micro)
            given, _ = batch.loss_input(micro, logp_N, log_ratio_sum)
            out = loss_output(optimizer, optimizer.loss(given))
            self._backward(out.loss, micro, entropy_N)
            tally.add(given, entropy_N, out.metrics)
            loss += float(out.loss.detach())
        self._even_out(count, gradient=True)
        return self._together(batch, tally, loss)

    def _together(self, batch: PolicyBatch, tally: PolicyTally, loss: float) -> tuple[float, PolicyTally]:
        """Losses and tallies of all ranks as one."""
        if self._ranks.size == 1:
            return loss, tally
        whole = PolicyTally(len(batch.advantages))
        parts = self._ranks.gather((loss, tally))
        for _, part in parts:
            whole.merge(part)
        return sum(part for part, _ in parts), whole

    def _log_ratio_sums(self, batch: PolicyBatch, micros: Sequence[MicroBatch]) -> torch.Tensor:
        """First pass: this rank's sum of (logp - old) over agent tokens of each trajectory [N], float64."""
        device = next(iter(self._parameters)).device
        sums = torch.zeros(len(batch.advantages), dtype=torch.float64, device=device)
        with torch.no_grad():
            for micro in micros:
                logp_N = self._scorer.logprobs(micro)[0]
                given, old_N = batch.loss_input(micro, logp_N, None)
                sums.index_add_(0, given.trajectory_R[micro.row_N], (logp_N - old_N).double())
        return sums

    def _even_out(self, count: int, *, gradient: bool) -> None:
        """Called when this rank has computed its part of `count` micro-batches, before ranks exchange anything.

        Where every forward pass is itself an exchange (ZeRO-3), ranks with fewer of them have to make up for it.
        """

    def _share(self) -> None:
        """Add up gradients and counts of all ranks."""
        self._ranks.add_gradients(self._parameters)
        self._gather_counts()

    def _gather_counts(self) -> None:
        """Counts of all ranks as one."""
        parts = self._ranks.gather((self.computed, self.tokens, self.padded_tokens, self.entropy))
        self.computed = any(part[0] for part in parts)
        self.tokens = sum(part[1] for part in parts)
        self.padded_tokens = sum(part[2] for part in parts)
        self.entropy = sum(part[3] for part in parts)

    def _backward(self, loss: torch.Tensor, micro: MicroBatch, entropy_N: torch.Tensor) -> None:
        self._differentiate(loss)
        self.computed = True
        self.tokens += len(micro.target_N)
        self.padded_tokens += micro.tokens if self._scorer.packs else micro.padded_tokens
        self.entropy += float(entropy_N.sum())

    def _differentiate(self, loss: torch.Tensor) -> None:
        loss.backward()  # type: ignore[no-untyped-call]
