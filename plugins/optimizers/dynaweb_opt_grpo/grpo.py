"""Group relative policy optimization (GRPO, arXiv 2402.03300, eq. 3), Dr. GRPO (2503.20783) and DAPO (2503.14476).

Maximised is, with r_it = exp(l_it - o_it) of each agent token, l and o its log-probabilities under the present and the
old policy, A_i the advantage of its trajectory over the group and w_it the weight of the aggregation,

    J = sum_it w_it min(r_it A_i, clip(r_it, 1 - clip_low, 1 + clip_high) A_i)  -  beta KL(policy || reference).

The loss is -J. GRPO: w_it = 1/(N n_i). Dr. GRPO: `scale = "none"`, `agg = "constant"`. DAPO: `agg = "token_mean"`,
`clip_high = 0.28`, `dynamic_sampling = true` (eq. 11: groups kept iff 0 < successes < size, by plain success and not by
reward, so that a length penalty keeps no group alive) and a soft penalty of long trajectories (eq. 13).

Shapes: R rows padded to T tokens (see `dynaweb.protocols.LossInput`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from dynaweb.protocols import Credit, CreditInput, LossInput, LossOutput, PluginContext, Wants
from dynaweb.trainer.advantages import normalised, penalised
from dynaweb.trainer.losses import Tokens, Window, clamped, clip_shares, clipped_gain
from dynaweb_opt_grpo import GrpoConfig


class Grpo:
    """GRPO as a `PolicyOptimizer` that gives credit."""

    needs_trajectory_ratio = False

    def __init__(self, config: GrpoConfig, context: PluginContext | None = None) -> None:
        self.config = c = config
        in_reward = c.beta > 0 and c.kl_in == "reward"
        self._reward_kl = c.beta if in_reward else 0.0
        self._loss_kl = 0.0 if in_reward else c.beta
        self._window = Window(c.clip_low, c.clip_high, c.dual_clip, c.ratio_cap)
        self.wants = Wants(
            old_in_credit=in_reward,
            reference_in_credit=in_reward,
            reference_in_loss=self._loss_kl > 0,
            refills=c.refills if c.dynamic_sampling else 0,
        )

    def advantages(self, rewards: Sequence[float | None], groups: Sequence[str]) -> list[float]:
        """(reward - group mean) / (standard deviation + eps); None rewards leave the group and get 0."""
        return normalised(rewards, groups, self.config)

    def credit(self, batch: CreditInput) -> Credit:
        """Advantages of the shaped rewards; with dynamic sampling, 0 and no place in the batch for one-sided groups."""
        costs = self.overlong(batch)
        shaped = [
            None if r is None else r + cost
            for r, cost in zip(penalised(batch, self._reward_kl, self.config.kl), costs, strict=True)
        ]
        metrics = {"overlong_penalty": sum(costs) / len(costs)} if self.config.overlong_max_len and costs else {}
        if not self.config.dynamic_sampling:
            return Credit(self.advantages(shaped, batch.groups), metrics=metrics)
        mixed = mixed_groups(batch)
        shaped = [r if group in mixed else None for r, group in zip(shaped, batch.groups, strict=True)]
        row_mask = [batch.groups[row.trajectory] in mixed for row in batch.rows]
        dropped = len(set(batch.groups) - mixed)
        return Credit(
            self.advantages(shaped, batch.groups), row_mask=row_mask, metrics={**metrics, "dropped_groups": dropped}
        )

    def overlong(self, batch: CreditInput) -> list[float]:
        """DAPO's eq. 13: 0 up to max_len - cache_len tokens, down to -factor at max_len, and no further."""
        limit, cache = self.config.overlong_max_len, self.config.overlong_cache_len
        lengths = batch.tokens() if batch.lengths is None else batch.lengths
        if limit is None:
            return [0.0] * len(lengths)
        over = [min(1.0, max(0.0, (length - (limit - cache)) / cache)) for length in lengths]
        return [-self.config.overlong_factor * share if share else 0.0 for share in over]

    def loss(self, batch: LossInput) -> LossOutput:
        """Minus J above: this micro-batch's share. Clip fractions are shares of agent tokens, by the sign of A."""
        c = self.config
        tokens = Tokens.of(batch)
        weight_RT = tokens.weight_RT(c.agg, c.norm_const or 1.0)
        limit = c.log_ratio_limit
        log_ratio_RT = clamped(tokens.log_ratio_RT, None if limit is None else -limit, limit)
        loss = -(weight_RT * clipped_gain(log_ratio_RT, tokens.advantage_RT, self._window)).sum()
        metrics = clip_shares(log_ratio_RT, tokens.advantage_RT, tokens.share_RT, self._window)
        if self._loss_kl > 0:
            kl, metrics["kl_sum"] = tokens.kl(weight_RT, c.kl, c.kl_log_diff_clip, c.kl_value_clip)
            loss = loss + self._loss_kl * kl
        return LossOutput(loss, metrics)


def mixed_groups(batch: CreditInput) -> set[str]:
    """Groups with at least one success and one failure among their graded trajectories."""
    correct = [None if r is None else r > 0 for r in batch.graded] if batch.correct is None else batch.correct
    seen: dict[str, set[bool]] = defaultdict(set)
    for group, success in zip(batch.groups, correct, strict=True):
        if success is not None:
            seen[group].add(success)
    return {group for group, outcomes in seen.items() if len(outcomes) == 2}
