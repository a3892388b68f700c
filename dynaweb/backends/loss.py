"""The parts that policy losses are made of: clean log-ratios, clipped gains, weights of tokens, whole trajectories.

Every tensor that leaves this module is 0 in masked slots, replaced *before* any arithmetic, so that nan or inf there
changes neither value nor gradient. Losses are shares: the micro-batches of a batch, on all ranks, add up to the loss.

Shapes: R rows padded to T tokens, N trajectories, S rows of the whole batch (see `dynaweb.protocols.LossInput`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from dynaweb.backends.kl import Estimator, divergence
from dynaweb.config.optim import Aggregation
from dynaweb.protocols import LossInput


@dataclass(frozen=True, slots=True)
class Window:
    """Where a ratio r counts: from 1 - `low` to 1 + `high`, on the side towards which the advantage A pulls.

    `dual` c (arXiv 1912.09729): for A < 0 the loss of a token is at most -cA. `cap`: the unclipped branch uses
    min(r, cap) (two-sided clipping). None = off.
    """

    low: float
    high: float
    dual: float | None = None
    cap: float | None = None


@dataclass(frozen=True, slots=True)
class Tokens:
    """A micro-batch without its masked slots: log-probabilities, l - o with gradient, and advantages per token."""

    batch: LossInput
    logp_RT: torch.Tensor
    log_ratio_RT: torch.Tensor
    advantage_RT: torch.Tensor

    @classmethod
    def of(cls, batch: LossInput) -> Tokens:
        """The micro-batch, cleaned."""
        logp_RT = clean(batch.logp_RT, batch.mask_RT)
        old_RT = clean(batch.old_logp_RT, batch.mask_RT)
        return cls(batch, logp_RT, logp_RT - old_RT, clean(_advantages(batch), batch.mask_RT).to(logp_RT.dtype))

    @property
    def mask_RT(self) -> torch.Tensor:
        """True on agent tokens."""
        return self.batch.mask_RT

    @property
    def trajectories(self) -> int:
        """Trajectories of the whole batch that have agent tokens (at least 1, to divide by)."""
        return max(1, int((self.batch.tokens_N > 0).sum()))

    @property
    def total(self) -> int:
        """Agent tokens of the whole batch (at least 1, to divide by)."""
        return max(1, int(self.batch.tokens_N.sum()))

    @property
    def share_RT(self) -> torch.Tensor:
        """1 / (agent tokens of the batch) on agent tokens: what a mean over tokens is made of."""
        return self.mask_RT.to(self.logp_RT.dtype) / self.total

    def weight_RT(self, agg: Aggregation, constant: float = 1.0) -> torch.Tensor:
        """Weights of the agent tokens under an aggregation."""
        mask_RT = self.mask_RT.to(self.logp_RT.dtype)
        if agg == "token_mean":
            return mask_RT / self.total
        if agg == "traj_mean_token_sum":
            return mask_RT / self.trajectories
        if agg == "constant":
            return mask_RT / (self.trajectories * constant)
        length_R = self.batch.tokens_N.clamp_min(1)[self.batch.trajectory_R].to(self.logp_RT.dtype)
        return mask_RT / (self.trajectories * length_R)[:, None]

    def kl(
        self, weight_RT: torch.Tensor, estimator: Estimator, log_diff_clip: float | None, value_clip: float | None
    ) -> tuple[torch.Tensor, float]:
        """The weighted sum of KL(policy || reference), and the share of its mean over tokens."""
        if self.batch.ref_logp_RT is None:
            raise ValueError("a KL term (beta above 0) needs reference log-probabilities, but there are none")
        ref_RT = clean(self.batch.ref_logp_RT, self.mask_RT)
        kl_RT = divergence(self.logp_RT, ref_RT, estimator, log_diff_clip=log_diff_clip, value_clip=value_clip)
        return (weight_RT * kl_RT).sum(), float((self.share_RT * kl_RT.detach()).sum())


def clean(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The values, 0 in masked slots whatever stood there."""
    return torch.where(mask, values, torch.zeros_like(values))


def _advantages(batch: LossInput) -> torch.Tensor:
    """Advantages [R, T]: the finest that the batch has."""
    if batch.advantage_RT is not None:
        return batch.advantage_RT
    if batch.advantage_S is not None and batch.row_R is not None:
        return batch.advantage_S[batch.row_R][:, None].expand(batch.mask_RT.shape)
    return batch.advantage_N[batch.trajectory_R][:, None].expand(batch.mask_RT.shape)


def clamped(log_ratio: torch.Tensor, low: float | None, high: float | None) -> torch.Tensor:
    """The log-ratio within bounds, without gradient beyond them."""
    return log_ratio if low is None and high is None else log_ratio.clamp(low, high)


def clipped_gain(log_ratio: torch.Tensor, advantage: torch.Tensor, window: Window) -> torch.Tensor:
    """min(r A, clip(r) A) with r = exp(log_ratio): what PPO, GRPO and GSPO maximise (arXiv 1707.06347, eq. 7).

    A clipped element has no gradient at all, not even 0 x inf when its ratio overflows; nor has one with A = 0.
    """
    with torch.no_grad():
        ratio = log_ratio.exp()
        used = _used_ratio(ratio, advantage, window)
        free = (used == ratio) & (advantage != 0)
        fixed = torch.where(advantage == 0, torch.zeros_like(used), used * advantage)
    moving = torch.where(free, log_ratio, torch.zeros_like(log_ratio)).exp() * advantage
    return torch.where(free, moving, torch.where(advantage == 0, torch.zeros_like(fixed), fixed))


def _used_ratio(ratio: torch.Tensor, advantage: torch.Tensor, window: Window) -> torch.Tensor:
    """The ratio after clipping: the smaller of both branches for A > 0, the larger for A < 0."""
    inside = ratio.clamp(1 - window.low, 1 + window.high)
    plain = ratio if window.cap is None else ratio.clamp(max=window.cap)
    upper = torch.maximum(plain, inside)
    if window.dual is not None:
        upper = upper.clamp(max=window.dual)
    return torch.where(advantage < 0, upper, torch.minimum(plain, inside))


def clip_shares(
    log_ratio: torch.Tensor, advantage: torch.Tensor, share: torch.Tensor, window: Window
) -> dict[str, float]:
    """Shares of clipped elements by side: r < 1 - low with A < 0, r > 1 + high with A > 0, and r > dual with A < 0."""
    ratio = log_ratio.detach().exp()
    out = {
        "clip_frac_low_sum": (ratio < 1 - window.low) & (advantage < 0),
        "clip_frac_high_sum": (ratio > 1 + window.high) & (advantage > 0),
    }
    if window.dual is not None:
        out["clip_frac_dual_sum"] = (ratio > window.dual) & (advantage < 0)
    return {name: float((share * hit).sum()) for name, hit in out.items()}


@dataclass(frozen=True, slots=True)
class Sequences:
    """Whole trajectories as seen from one micro-batch.

    `log_ratio_N`: value from all agent tokens of the trajectory, wherever they are; gradient through those that are
    here. `share_N`: the part of the mean over trajectories that falls on the tokens that are here.
    """

    log_ratio_N: torch.Tensor
    share_N: torch.Tensor
    trajectories: int

    @property
    def here_N(self) -> torch.Tensor:
        """Trajectories with agent tokens in this micro-batch."""
        return self.share_N > 0

    @classmethod
    def of(cls, tokens: Tokens, *, mean: bool) -> Sequences:
        """Mean or sum of the log-ratios of each trajectory.

        Raises `ValueError` when a trajectory lies in several micro-batches and `log_ratio_sum_N` is not given.
        """
        batch, logp_RT = tokens.batch, tokens.logp_RT
        zero_N = torch.zeros(len(batch.tokens_N), dtype=logp_RT.dtype, device=logp_RT.device)
        own_N = zero_N.index_add(0, batch.trajectory_R, tokens.log_ratio_RT.sum(1))
        count_N = zero_N.index_add(0, batch.trajectory_R, batch.mask_RT.sum(1).to(logp_RT.dtype))
        if batch.log_ratio_sum_N is None:
            _refuse_split(batch, count_N)
        whole_N = own_N.detach() if batch.log_ratio_sum_N is None else batch.log_ratio_sum_N
        length_N = batch.tokens_N.clamp_min(1).to(logp_RT.dtype)
        divisor_N = length_N if mean else torch.ones_like(length_N)
        value_N = (whole_N / divisor_N.to(whole_N.dtype)).to(logp_RT.dtype)
        log_ratio_N = (own_N - own_N.detach()) / divisor_N + value_N
        share_N = count_N / length_N / tokens.trajectories
        return cls(torch.where(count_N > 0, log_ratio_N, zero_N), share_N, tokens.trajectories)

    def mean(self, gain_N: torch.Tensor) -> torch.Tensor:
        """This micro-batch's share of the mean over trajectories: values by share of tokens, gradients wholly."""
        value_N = self.share_N * gain_N.detach() + (gain_N - gain_N.detach()) / self.trajectories
        return torch.where(self.here_N, value_N, torch.zeros_like(value_N)).sum()


def _refuse_split(batch: LossInput, count_N: torch.Tensor) -> None:
    split_N = (count_N > 0) & (count_N != batch.tokens_N)
    if bool(split_N.any()):
        raise ValueError(
            f"trajectory {int(split_N.nonzero()[0])} has agent tokens outside this micro-batch; the ratio of a whole"
            " trajectory needs log_ratio_sum_N, the sum over all of them"
        )
