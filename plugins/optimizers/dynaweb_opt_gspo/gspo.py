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

import torch

from dynaweb.protocols import LossInput, LossOutput, PluginContext, Wants
from dynaweb.trainer.advantages import normalised
from dynaweb.trainer.losses import Sequences, Tokens, Window, clamped, clip_shares, clipped_gain
from dynaweb_opt_gspo import GspoConfig

WINDOW_SAMPLE = 512
"""Trajectories seen before the window is judged."""

_log = logging.getLogger(__name__)


class Gspo:
    """GSPO as a `PolicyOptimizer`."""

    needs_trajectory_ratio = True

    def __init__(self, config: GspoConfig, context: PluginContext | None = None) -> None:
        self.config = config
        self.wants = Wants(reference_in_loss=config.beta > 0)
        self._window = Window(config.clip_low, config.clip_high)
        self._watch = _Watch(config.clip_low, config.clip_high)
        if config.clip_low >= 1:
            _log.warning("clip_low = %g can never clip: a ratio is not below 0", config.clip_low)

    def advantages(self, rewards: Sequence[float | None], groups: Sequence[str]) -> list[float]:
        """(reward - group mean) / (standard deviation + eps); None rewards leave the group and get 0."""
        return normalised(rewards, groups, self.config)

    def loss(self, batch: LossInput) -> LossOutput:
        """Minus the objective above, plus beta x KL: this micro-batch's share of the mean over trajectories.

        Shares of all micro-batches of a batch add up to the loss, their gradients to its gradient. Metrics ending in
        `_sum` are shares of batch-wide fractions: `clip_frac_low_sum` (s < 1 - clip_low and A < 0),
        `clip_frac_high_sum` (s > 1 + clip_high and A > 0), of trajectories or, at token level, of agent tokens;
        `kl_sum` of the mean KL per token. Raises `ValueError` when a trajectory is split without `log_ratio_sum_N`.
        """
        tokens = Tokens.of(batch)
        sequences = Sequences.of(tokens, mean=True)
        part = self._trajectory_loss if self.config.level == "trajectory" else self._token_loss
        loss, metrics = part(tokens, sequences)
        if self.config.beta > 0:
            weight_RT = tokens.weight_RT("traj_mean_token_mean")
            kl, metrics["kl_sum"] = tokens.kl(weight_RT, self.config.kl, None, None)
            loss = loss + self.config.beta * kl
        return LossOutput(loss, metrics)

    def _trajectory_loss(self, tokens: Tokens, sequences: Sequences) -> tuple[torch.Tensor, dict[str, float]]:
        if tokens.batch.advantage_RT is not None or tokens.batch.advantage_S is not None:
            raise ValueError('token advantages need level = "token"; level = "trajectory" has one for each trajectory')
        log_ratio_N = clamped(sequences.log_ratio_N, None, self.config.log_ratio_max)
        advantage_N = tokens.batch.advantage_N.to(log_ratio_N.dtype)
        loss = -sequences.mean(clipped_gain(log_ratio_N, advantage_N, self._window))
        self._watch.add(log_ratio_N.detach()[sequences.here_N].exp())
        return loss, clip_shares(log_ratio_N, advantage_N, sequences.share_N, self._window)

    def _token_loss(self, tokens: Tokens, sequences: Sequences) -> tuple[torch.Tensor, dict[str, float]]:
        # s_it: the trajectory's ratio as a value, its own token as the gradient; the sum comes last, for precision.
        own_RT = tokens.logp_RT - tokens.logp_RT.detach()
        whole_RT = own_RT + sequences.log_ratio_N.detach()[tokens.batch.trajectory_R][:, None]
        log_ratio_RT = torch.where(tokens.mask_RT, clamped(whole_RT, None, self.config.log_ratio_max), own_RT)
        gain_RT = clipped_gain(log_ratio_RT, tokens.advantage_RT, self._window)
        loss = -(tokens.weight_RT("traj_mean_token_mean") * gain_RT).sum()
        self._watch.add(log_ratio_RT.detach()[tokens.mask_RT].exp())
        return loss, clip_shares(log_ratio_RT, tokens.advantage_RT, tokens.share_RT, self._window)


class _Watch:
    """Watches whether the clip window does anything, and says so once."""

    def __init__(self, low: float, high: float) -> None:
        self._low, self._high = low, high
        self._width = max(low, high)
        self._count = self._outside = 0
        self._farthest = 0.0
        self._told = False

    def add(self, ratio: torch.Tensor) -> None:
        if self._told or not len(ratio):
            return
        self._count += len(ratio)
        self._outside += int(((ratio < 1 - self._low) | (ratio > 1 + self._high)).sum())
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
