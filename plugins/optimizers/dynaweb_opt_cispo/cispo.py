"""Clipped importance sampling policy optimization (CISPO, MiniMax-M1, arXiv 2506.13585, eq. 4 and 5).

The ratio of an agent token is a weight without gradient, clipped to [ratio_min, ratio_max], so that no token's gradient
is ever lost:

    loss = -sum_it w_it sg[clip(r_it, ratio_min, ratio_max)] A_i l_it,   r_it = exp(l_it - o_it),

with l and o the log-probabilities under the present and the old policy, A_i the advantage of the trajectory over its
group and w_it = 1 / (agent tokens of the batch) by default. Both bounds are ABSOLUTE ratios.

Shapes: R rows padded to T tokens (see `dynaweb.protocols.LossInput`).
"""

from __future__ import annotations

from collections.abc import Sequence

from dynaweb.protocols import LossInput, LossOutput, PluginContext, Wants
from dynaweb.trainer.advantages import normalised
from dynaweb.trainer.losses import Tokens, clamped
from dynaweb_opt_cispo import CispoConfig


class Cispo:
    """CISPO as a `PolicyOptimizer`."""

    needs_trajectory_ratio = False

    def __init__(self, config: CispoConfig, context: PluginContext | None = None) -> None:
        self.config = config
        self.wants = Wants(reference_in_loss=config.beta > 0)

    def advantages(self, rewards: Sequence[float | None], groups: Sequence[str]) -> list[float]:
        """(reward - group mean) / (standard deviation + eps); None rewards leave the group and get 0."""
        return normalised(rewards, groups, self.config)

    def loss(self, batch: LossInput) -> LossOutput:
        """The loss above: this micro-batch's share.

        `clip_frac_low_sum` and `clip_frac_high_sum` are the shares of agent tokens with a ratio beyond a bound,
        whatever the sign of their advantage: the weight is clipped either way.
        """
        c = self.config
        tokens = Tokens.of(batch)
        weight_RT = tokens.weight_RT(c.agg, c.norm_const or 1.0)
        limit = c.log_ratio_limit
        ratio_RT = clamped(tokens.log_ratio_RT.detach(), None if limit is None else -limit, limit).exp()
        used_RT = ratio_RT if c.ratio_min is None and c.ratio_max is None else ratio_RT.clamp(c.ratio_min, c.ratio_max)
        loss = -(weight_RT * used_RT * tokens.advantage_RT * tokens.logp_RT).sum()
        metrics = {
            "clip_frac_low_sum": float((tokens.share_RT * (used_RT > ratio_RT)).sum()),
            "clip_frac_high_sum": float((tokens.share_RT * (used_RT < ratio_RT)).sum()),
        }
        if c.beta > 0:
            kl, metrics["kl_sum"] = tokens.kl(weight_RT, c.kl, None, None)
            loss = loss + c.beta * kl
        return LossOutput(loss, metrics)
