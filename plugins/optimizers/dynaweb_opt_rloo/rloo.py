"""REINFORCE leave-one-out (RLOO, arXiv 2402.14740, eq. 6-8).

The advantage of a trajectory is its reward minus the mean reward of the other trajectories of its task; each reward
first pays kl_coef x the sum over its agent tokens of KL(old || reference). The loss is

    surrogate "pg":    -sum_it w_it A_i l_it                                               (w_it = 1/N: the paper)
    surrogate "clip":  -sum_it w_it min(r_it A_i, clip(r_it, 1 - clip_low, 1 + clip_high) A_i)

with l_it the log-probability of an agent token, r_it = exp(l_it - o_it) its ratio to the old policy and w_it the weight
of the aggregation. `level = "trajectory"` has one ratio exp(sum_t (l_it - o_it)) for a trajectory and the mean over
them.

Shapes: R rows padded to T tokens, N trajectories (see `dynaweb.protocols.LossInput`).
"""

from __future__ import annotations

from collections.abc import Sequence

from dynaweb.protocols import Credit, CreditInput, LossInput, LossOutput, PluginContext, Wants
from dynaweb.trainer.advantages import group_advantages, penalised
from dynaweb.trainer.losses import Sequences, Tokens, Window, clip_shares, clipped_gain
from dynaweb_opt_rloo import RlooConfig


class Rloo:
    """RLOO as a `PolicyOptimizer` that gives credit."""

    def __init__(self, config: RlooConfig, context: PluginContext | None = None) -> None:
        self.config = config
        self.needs_trajectory_ratio = config.surrogate == "clip" and config.level == "trajectory"
        self.wants = Wants(
            old_in_credit=config.kl_coef > 0,
            reference_in_credit=config.kl_coef > 0,
            off_policy="weights" if config.surrogate == "pg" else "ratio",
        )
        self._window = Window(config.clip_low, config.clip_high)

    def advantages(self, rewards: Sequence[float | None], groups: Sequence[str]) -> list[float]:
        """Reward - mean reward of the other members of the group; None rewards leave the group and get 0."""
        c = self.config
        found = group_advantages(rewards, groups, baseline="loo", singleton=c.singleton, zero_var_tol=c.zero_var_tol)
        return found.advantages

    def credit(self, batch: CreditInput) -> Credit:
        """The advantages of the rewards minus their KL."""
        return Credit(self.advantages(penalised(batch, self.config.kl_coef, self.config.kl), batch.groups))

    def loss(self, batch: LossInput) -> LossOutput:
        """The loss above: this micro-batch's share. Clip fractions are 0 for `pg`, which clips nothing.

        Raises `ValueError` when a trajectory is split without `log_ratio_sum_N` and its ratio is needed.
        """
        c = self.config
        tokens = Tokens.of(batch)
        if self.needs_trajectory_ratio:
            whole = Sequences.of(tokens, mean=False)
            advantage_N = batch.advantage_N.to(whole.log_ratio_N.dtype)
            loss = -whole.mean(clipped_gain(whole.log_ratio_N, advantage_N, self._window))
            return LossOutput(loss, clip_shares(whole.log_ratio_N, advantage_N, whole.share_N, self._window))
        weight_RT = tokens.weight_RT(c.agg, c.norm_const or 1.0)
        if c.surrogate == "pg":
            loss = -(weight_RT * tokens.advantage_RT * tokens.logp_RT).sum()
            return LossOutput(loss, {"clip_frac_low_sum": 0.0, "clip_frac_high_sum": 0.0})
        loss = -(weight_RT * clipped_gain(tokens.log_ratio_RT, tokens.advantage_RT, self._window)).sum()
        return LossOutput(loss, clip_shares(tokens.log_ratio_RT, tokens.advantage_RT, tokens.share_RT, self._window))
