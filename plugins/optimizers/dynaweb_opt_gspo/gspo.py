"""Group sequence policy optimization (GSPO, arXiv 2507.18071, eq. 5-7 and 12-14; DynaWeb, arXiv 2601.22149, Eq. 8).

The paper maximises, with the n_i agent tokens of trajectory i over all its steps as one sequence,

    J = 1/N sum_i min(s_i A_i, clip(s_i, 1 - clip_low, 1 + clip_high) A_i),   s_i = exp(1/n_i sum_t (l_it - o_it)),

l and o being the log-probabilities under the present and the old policy and A_i the advantage over the group. The loss
here is -J, to be minimised, plus beta x KL to a reference policy. GSPO-token (`level = "token"`) takes s_it = sg[s_i] x
exp(l_it - sg[l_it]) and the mean over a trajectory's tokens; it equals GSPO, in value and gradient, for a constant A.

Ratios near 1 need float32 or better: bfloat16 has no number but 1 inside the paper's window.

Shapes: R rows padded to T tokens, N trajectories of the whole batch (see `dynaweb.protocols.LossInput`).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from dynaweb.backends.advantages import group_advantages
from dynaweb.protocols import LossInput, LossOutput, PluginContext
from dynaweb_opt_gspo import GspoConfig

WINDOW_SAMPLE = 512
"""Trajectories seen before the window is judged."""

_log = logging.getLogger(__name__)


class Gspo:
    """GSPO as a `PolicyOptimizer`."""

    needs_trajectory_ratio = True

    def __init__(self, config: GspoConfig, context: PluginContext | None = None) -> None:
        self.config = config
        self._window = _Window(config.clip_low, config.clip_high)
        if config.clip_low >= 1:
            _log.warning("clip_low = %g can never clip: a ratio is not below 0", config.clip_low)

    def advantages(self, rewards: Sequence[float | None], groups: Sequence[str]) -> list[float]:
        """(reward - group mean) / (standard deviation + eps); None rewards leave the group and get 0."""
        c = self.config
        return group_advantages(
            rewards,
            groups,
            scale=c.scale,
            eps=c.eps,
            ddof=c.ddof,
            singleton=c.singleton,
            zero_var_tol=c.zero_var_tol,
        ).advantages

    def loss(self, batch: LossInput) -> LossOutput:
        """Minus the objective above, plus beta x KL: this micro-batch's share of the mean over trajectories.

        Shares of all micro-batches of a batch add up to the loss, their gradients to its gradient. Metrics ending in
        `_sum` are shares of batch-wide fractions: `clip_frac_low_sum` (s < 1 - clip_low and A < 0),
        `clip_frac_high_sum` (s > 1 + clip_high and A > 0), of trajectories or, at token level, of agent tokens;
        `kl_sum` of the mean KL per token. Raises `ValueError` when a trajectory is split without `log_ratio_sum_N`.
        """
        seen = _Seen.of(batch)
        part = self._trajectory_loss if self.config.level == "trajectory" else self._token_loss
        loss, metrics = part(batch, seen)
        if self.config.beta > 0:
            kl, kl_share = self._kl(batch, seen)
            loss = loss + self.config.beta * kl
            metrics["kl_sum"] = kl_share
        return LossOutput(loss, metrics)

    def _trajectory_loss(self, batch: LossInput, seen: _Seen) -> tuple[torch.Tensor, dict[str, float]]:
        if batch.advantage_RT is not None:
            raise ValueError('token advantages need level = "token"; level = "trajectory" has one for each trajectory')
        # Value: the whole trajectory's ratio. Gradient: through the tokens of this micro-batch.
        own_N = seen.own_N - seen.own_N.detach()
        log_ratio_N = self._clamp(own_N / seen.length_N + seen.mean_N)
        ratio_N = torch.where(seen.here_N, log_ratio_N, torch.zeros_like(log_ratio_N)).exp()
        advantage_N = batch.advantage_N.to(ratio_N.dtype)
        gain_N = self._surrogate(ratio_N, advantage_N)
        # A trajectory in several micro-batches counts in each by its share of tokens, its gradient wholly.
        share_N = seen.count_N / seen.length_N / seen.trajectories
        value_N = share_N * gain_N.detach() + (gain_N - gain_N.detach()) / seen.trajectories
        loss = -torch.where(seen.here_N, value_N, torch.zeros_like(value_N)).sum()
        return loss, self._clipped(ratio_N.detach(), advantage_N, share_N)

    def _token_loss(self, batch: LossInput, seen: _Seen) -> tuple[torch.Tensor, dict[str, float]]:
        logp_RT = seen.logp_RT
        log_ratio_RT = self._clamp((logp_RT - logp_RT.detach()) + seen.mean_N[batch.trajectory_R][:, None])
        zero_RT = torch.zeros_like(log_ratio_RT)
        ratio_RT = torch.where(batch.mask_RT, log_ratio_RT, zero_RT).exp()
        given_RT = batch.advantage_RT
        if given_RT is None:
            given_RT = batch.advantage_N[batch.trajectory_R][:, None].expand_as(ratio_RT)
        advantage_RT = torch.where(batch.mask_RT, given_RT.to(ratio_RT.dtype), zero_RT)
        weight_RT = seen.token_weight_RT(batch)
        loss = -(weight_RT * self._surrogate(ratio_RT, advantage_RT)).sum()
        share_RT = batch.mask_RT.to(ratio_RT.dtype) / max(1, int(batch.tokens_N.sum()))
        return loss, self._clipped(ratio_RT.detach(), advantage_RT, share_RT)

    def _surrogate(self, ratio: torch.Tensor, advantage: torch.Tensor) -> torch.Tensor:
        clipped = ratio.clamp(1 - self.config.clip_low, 1 + self.config.clip_high)
        return torch.minimum(ratio * advantage, clipped * advantage)

    def _clamp(self, log_ratio: torch.Tensor) -> torch.Tensor:
        limit = self.config.log_ratio_max
        return log_ratio if limit is None else log_ratio.clamp(max=limit)

    def _clipped(self, ratio: torch.Tensor, advantage: torch.Tensor, share: torch.Tensor) -> dict[str, float]:
        low, high = ratio < 1 - self.config.clip_low, ratio > 1 + self.config.clip_high
        present = share > 0
        self._window.add(ratio[present], (low | high)[present])
        return {
            "clip_frac_low_sum": float((share * (low & (advantage < 0))).sum()),
            "clip_frac_high_sum": float((share * (high & (advantage > 0))).sum()),
        }

    def _kl(self, batch: LossInput, seen: _Seen) -> tuple[torch.Tensor, float]:
        if batch.ref_logp_RT is None:
            raise ValueError(f"beta = {self.config.beta} needs reference log-probabilities, but there are none")
        ref_RT = torch.where(batch.mask_RT, batch.ref_logp_RT, torch.zeros_like(batch.ref_logp_RT))
        away_RT = ref_RT - seen.logp_RT
        # expm1: in float32, exp(x) - 1 - x is noise for |x| below 3e-4.
        kl_RT = away_RT.square() / 2 if self.config.kl == "k2" else torch.expm1(away_RT) - away_RT
        mean = float(kl_RT.detach().sum()) / max(1, int(batch.tokens_N.sum()))
        return (seen.token_weight_RT(batch) * kl_RT).sum(), mean


@dataclass(frozen=True, slots=True)
class _Seen:
    """Sums over this micro-batch (`own_N` with gradient, `count_N`) and over whole trajectories (`mean_N`, `length_N`).

    `logp_RT` is 0 in masked slots, whatever stood there; `trajectories` is the number of those with agent tokens.
    """

    logp_RT: torch.Tensor
    own_N: torch.Tensor
    count_N: torch.Tensor
    mean_N: torch.Tensor
    length_N: torch.Tensor
    trajectories: int

    @property
    def here_N(self) -> torch.Tensor:
        """Trajectories with agent tokens in this micro-batch."""
        return self.count_N > 0

    @classmethod
    def of(cls, batch: LossInput) -> _Seen:
        # Masked slots may hold nan or inf: they are replaced before any arithmetic, also in the backward pass.
        zero_RT = torch.zeros_like(batch.logp_RT)
        logp_RT = torch.where(batch.mask_RT, batch.logp_RT, zero_RT)
        log_ratio_RT = logp_RT - torch.where(batch.mask_RT, batch.old_logp_RT, zero_RT)
        zero_N = torch.zeros(len(batch.tokens_N), dtype=logp_RT.dtype, device=logp_RT.device)
        own_N = zero_N.index_add(0, batch.trajectory_R, log_ratio_RT.sum(1))
        count_N = zero_N.index_add(0, batch.trajectory_R, batch.mask_RT.sum(1).to(logp_RT.dtype))
        total_N = own_N.detach() if batch.log_ratio_sum_N is None else batch.log_ratio_sum_N
        split_N = (count_N > 0) & (count_N != batch.tokens_N)
        if batch.log_ratio_sum_N is None and bool(split_N.any()):
            raise ValueError(
                f"trajectory {int(split_N.nonzero()[0])} has agent tokens outside this micro-batch; GSPO's ratio needs"
                " log_ratio_sum_N, the sum over all of them"
            )
        length_N = batch.tokens_N.clamp_min(1).to(logp_RT.dtype)
        mean_N = (total_N / length_N.to(total_N.dtype)).to(logp_RT.dtype)
        return cls(logp_RT, own_N, count_N, mean_N, length_N, max(1, int((batch.tokens_N > 0).sum())))

    def token_weight_RT(self, batch: LossInput) -> torch.Tensor:
        """1 / (N n_i) on agent tokens: mean over a trajectory's tokens, then over trajectories."""
        return batch.mask_RT / (self.trajectories * self.length_N[batch.trajectory_R])[:, None]


class _Window:
    """Watches whether the clip window does anything, and says so once."""

    def __init__(self, low: float, high: float) -> None:
        self._width = max(low, high)
        self._count = self._outside = 0
        self._farthest = 0.0
        self._told = False

    def add(self, ratio: torch.Tensor, outside: torch.Tensor) -> None:
        if self._told or not len(ratio):
            return
        self._count += len(ratio)
        self._outside += int(outside.sum())
        self._farthest = max(self._farthest, float((ratio - 1).abs().max()))
        if self._count >= WINDOW_SAMPLE:
            self._judge()

    def _judge(self) -> None:
        self._told = True
        if self._outside > 0.95 * self._count:
            _log.warning(
                "the clip window (%g) is too narrow: %d of %d ratios were outside it, so it nearly always clips",
                self._width,
                self._outside,
                self._count,
            )
        elif self._farthest == 0:
            # By construction, not by mistake: with one step for each batch the policy is still the one that played.
            _log.info("the clip window cannot clip: every ratio is exactly 1 (one optimizer step for each batch)")
        elif self._farthest < 0.1 * self._width and math.isfinite(self._farthest):
            _log.warning(
                "the clip window (%g) never clips: the farthest of %d ratios was %.2g from 1",
                self._width,
                self._count,
                self._farthest,
            )
