"""Proximal policy optimization (PPO, arXiv 1707.06347, eq. 7 and 9) with a critic and GAE (1506.02438).

Maximised by the policy is, with r_it = exp(l_it - o_it) of each agent token and its own advantage A_it,

    J = sum_it w_it min(r_it A_it, clip(r_it, 1 - clip_low, 1 + clip_high) A_it);    the policy's loss is -J.

A_it = sum_k (gamma lam)^k d_{t+k} runs over agent tokens only: V_{t+1} is the value at the next agent token, be it
behind an observation or in the next row. The verdict on the trajectory is the reward of its last agent token, each
token pays kl_coef x KL(old || reference). The critic V, a model of its own, minimises over agent tokens

    1/2 mean max((V - R)^2, (clip(V, V_old - value_clip, V_old + value_clip) - R)^2),   R_it = A_it + V_old,it.

Shapes: R rows padded to T tokens (see `dynaweb.protocols.LossInput` and `dynaweb.protocols.ValueInput`).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dynaweb.protocols import Credit, CreditInput, CriticSpec, LossInput, LossOutput, PluginContext, ValueInput, Wants
from dynaweb.trainer.advantages import chains, gae, peaks, token_rewards, unchain, whiten
from dynaweb.trainer.losses import Tokens, Window, clean, clip_shares, clipped_gain
from dynaweb_opt_ppo import PpoConfig


class Ppo:
    """PPO as a `PolicyOptimizer` that gives credit and trains a critic."""

    needs_trajectory_ratio = False

    def __init__(self, config: PpoConfig, context: PluginContext | None = None) -> None:
        self.config = c = config
        self._window = Window(c.clip_low, c.clip_high, c.dual_clip)
        self.wants = Wants(
            old_in_credit=c.kl_coef > 0,
            reference_in_credit=c.kl_coef > 0,
            critic=CriticSpec(lr=c.critic_lr, max_grad_norm=c.critic_max_grad_norm),
        )

    def advantages(self, rewards: Sequence[float | None], groups: Sequence[str]) -> list[float]:
        """The rewards as they are (None = 0): PPO has no group baseline. What tokens get comes from `credit`."""
        return [0.0 if reward is None else reward for reward in rewards]

    def credit(self, batch: CreditInput) -> Credit:
        """GAE over each trajectory's agent tokens, whitened over the update; returns as targets of the critic.

        A trajectory without a reward leaves both: advantage 0, no target.
        """
        c = self.config
        graded = batch.graded
        terminal = [reward or 0.0 for reward in graded]
        rewards = token_rewards(batch, terminal, kl_coef=c.kl_coef, kl=c.kl, step_rewards=c.step_rewards)
        values = chains(batch, [[state[0] for state in row.values] for row in batch.rows])
        found = [
            gae(reward, value, gamma=c.gamma, lam=c.lam)
            for reward, value in zip(chains(batch, rewards), values, strict=True)
        ]
        known = [advantage if r is not None else [] for r, advantage in zip(graded, found, strict=True)]
        used = whiten(known) if c.whiten else known
        used = [chain or [0.0] * len(value) for chain, value in zip(used, values, strict=True)]
        returns = [[a + v for a, v in zip(*pair, strict=True)] for pair in zip(found, values, strict=True)]
        targets = [
            row if graded[of.trajectory] is not None else [None] * of.tokens
            for row, of in zip(unchain(batch, returns), batch.rows, strict=True)
        ]
        return Credit(peaks(used), tokens=unchain(batch, used), targets=targets)

    def loss(self, batch: LossInput) -> LossOutput:
        """Minus J above: this micro-batch's share. Clip fractions are shares of agent tokens, by the sign of A."""
        c = self.config
        tokens = Tokens.of(batch)
        gain_RT = clipped_gain(tokens.log_ratio_RT, tokens.advantage_RT, self._window)
        loss = -(tokens.weight_RT(c.agg, c.norm_const or 1.0) * gain_RT).sum()
        return LossOutput(loss, clip_shares(tokens.log_ratio_RT, tokens.advantage_RT, tokens.share_RT, self._window))

    def critic_loss(self, batch: ValueInput) -> LossOutput:
        """The critic's loss above: this micro-batch's share.

        Shares of means over states: `value_mean_sum`, `value_error_sum` (squared) and `value_clip_frac_sum` (clipped).
        """
        states = max(1, batch.states)
        value_RT = clean(batch.output_RTO[..., 0], batch.mask_RT)
        target_RT = clean(batch.target_RT, batch.mask_RT)
        error_RT = (value_RT - target_RT).square()
        metrics = {
            "value_mean_sum": float(value_RT.detach().sum()) / states,
            "value_error_sum": float(error_RT.detach().sum()) / states,
            "value_clip_frac_sum": 0.0,
        }
        if self.config.value_clip is not None:
            old_RT = clean(batch.old_RTO[..., 0], batch.mask_RT)
            near_RT = value_RT.clamp(old_RT - self.config.value_clip, old_RT + self.config.value_clip)
            near_error_RT = (near_RT - target_RT).square()
            metrics["value_clip_frac_sum"] = float((near_error_RT > error_RT).sum()) / states
            error_RT = torch.maximum(error_RT, near_error_RT)
        return LossOutput(error_RT.sum() / (2 * states), metrics)
