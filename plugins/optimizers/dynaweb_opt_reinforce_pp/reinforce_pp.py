"""REINFORCE++ (arXiv 2501.03262): token returns whitened over the batch, clipped ratios, no critic.

The reward of the trajectory (with `variant = "baseline"`: minus the mean reward of its group) falls on its last agent
token, each agent token pays kl_coef x KL(old || reference). The return of a token is the sum of what follows,
discounted by gamma per AGENT token: observation tokens are stepped over, in a row and between rows. The returns of all
agent tokens of the batch, minus their mean and divided by sqrt(variance + whiten_eps), are the advantages A_it of the
loss

    -sum_it w_it min(r_it A_it, clip(r_it, 1 - clip_low, 1 + clip_high) A_it),   r_it = exp(l_it - o_it).

Shapes: R rows padded to T tokens (see `dynaweb.protocols.LossInput`).
"""

from __future__ import annotations

from collections.abc import Sequence

from dynaweb.protocols import Credit, CreditInput, LossInput, LossOutput, PluginContext, Wants
from dynaweb.trainer.advantages import chains, discounted, group_advantages, peaks, token_rewards, unchain, whiten
from dynaweb.trainer.losses import Tokens, Window, clip_shares, clipped_gain
from dynaweb_opt_reinforce_pp import ReinforcePpConfig


class ReinforcePp:
    """REINFORCE++ as a `PolicyOptimizer` that gives credit."""

    needs_trajectory_ratio = False

    def __init__(self, config: ReinforcePpConfig, context: PluginContext | None = None) -> None:
        self.config = c = config
        self.wants = Wants(old_in_credit=c.kl_coef > 0, reference_in_credit=c.kl_coef > 0)
        self._window = Window(c.clip_low, c.clip_high, c.dual_clip)

    def advantages(self, rewards: Sequence[float | None], groups: Sequence[str]) -> list[float]:
        """What falls on the last agent token: the reward, minus the group's mean with `baseline`; 0 for None."""
        if self.config.variant == "baseline":
            return group_advantages(rewards, groups, scale="none", zero_var_tol=0.0).advantages
        return [0.0 if reward is None else reward for reward in rewards]

    def returns(self, batch: CreditInput) -> list[list[float]]:
        """Discounted return of each agent token of each row, before whitening."""
        c = self.config
        terminal = self.advantages(batch.graded, batch.groups)
        rewards = token_rewards(batch, terminal, kl_coef=c.kl_coef, kl=c.kl, step_rewards=c.step_rewards)
        return unchain(batch, [discounted(chain, c.gamma) for chain in chains(batch, rewards)])

    def credit(self, batch: CreditInput) -> Credit:
        """The whitened returns. Trajectories without a reward leave the mean and get 0."""
        joined = chains(batch, self.returns(batch))
        graded = [r is not None for r in batch.graded]
        known = [chain if known else [] for known, chain in zip(graded, joined, strict=True)]
        white = whiten(known, ddof=self.config.whiten_ddof, eps=self.config.whiten_eps)
        white = [found or [0.0] * len(chain) for found, chain in zip(white, joined, strict=True)]
        return Credit(peaks(white), tokens=unchain(batch, white))

    def loss(self, batch: LossInput) -> LossOutput:
        """The loss above: this micro-batch's share. Clip fractions are shares of agent tokens, by the sign of A."""
        c = self.config
        tokens = Tokens.of(batch)
        gain_RT = clipped_gain(tokens.log_ratio_RT, tokens.advantage_RT, self._window)
        loss = -(tokens.weight_RT(c.agg, c.norm_const or 1.0) * gain_RT).sum()
        return LossOutput(loss, clip_shares(tokens.log_ratio_RT, tokens.advantage_RT, tokens.share_RT, self._window))
