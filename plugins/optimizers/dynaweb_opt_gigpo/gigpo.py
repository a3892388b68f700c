"""Group-in-group policy optimization (GiGPO, arXiv 2505.10978, eq. 3 and 5-8).

Two advantages are added, A_row = A_episode + step_weight x A_step:

- episode: the reward of the trajectory against the mean of its group, one voice for each trajectory however long it is;
- step: steps of a group that saw the same page (the anchor) form a group of their own. The return of a step, its reward
  plus gamma x the return of the next step, is compared with the mean of those. A page seen once gives 0.

The loss is that of PPO on the agent tokens with the advantage of their row:

    -sum_it w_it min(r_it A_row, clip(r_it, 1 - clip_low, 1 + clip_high) A_row) + beta KL,   r_it = exp(l_it - o_it).

Shapes: R rows padded to T tokens (see `dynaweb.protocols.LossInput`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from difflib import SequenceMatcher

from dynaweb.protocols import Credit, CreditInput, LossInput, LossOutput, PluginContext, Wants
from dynaweb.trainer.advantages import Singleton, discounted, group_advantages, peaks
from dynaweb.trainer.losses import Tokens, Window, clip_shares, clipped_gain
from dynaweb_opt_gigpo import GigpoConfig


class Gigpo:
    """GiGPO as a `PolicyOptimizer` that gives credit to rows."""

    needs_trajectory_ratio = False

    def __init__(self, config: GigpoConfig, context: PluginContext | None = None) -> None:
        self.config = c = config
        self.wants = Wants(reference_in_loss=c.beta > 0)
        self._window = Window(c.clip_low, c.clip_high, c.dual_clip)

    def advantages(self, rewards: Sequence[float | None], groups: Sequence[str]) -> list[float]:
        """The episode advantages; None rewards leave the group and get 0."""
        return self._over_groups(rewards, groups, singleton=self.config.singleton)

    def _over_groups(
        self, values: Sequence[float | None], groups: Sequence[str], *, singleton: Singleton
    ) -> list[float]:
        c = self.config
        return group_advantages(
            values,
            groups,
            scale="group" if c.mode == "mean_std_norm" else "none",
            eps=c.eps,
            singleton=singleton,
            zero_var_tol=c.zero_var_tol,
        ).advantages

    def step_returns(self, batch: CreditInput) -> list[float]:
        """Discounted return of each row; the verdict on the trajectory comes with its last row. 0 for ungraded ones."""
        out = [0.0] * len(batch.rows)
        for reward, indices in zip(batch.graded, batch.steps(), strict=True):
            if reward is None or not indices:
                continue
            rewards = [batch.rows[i].reward for i in indices]
            rewards[-1] += reward
            for i, value in zip(indices, discounted(rewards, self.config.gamma), strict=True):
                out[i] = value
        return out

    def anchors(self, batch: CreditInput) -> list[list[int]]:
        """Rows of graded trajectories in groups that saw the same page; alike pages join the first they resemble."""
        members: dict[str, list[list[int]]] = defaultdict(list)
        exact: dict[tuple[str, str], list[int]] = {}
        graded = batch.graded
        for i, row in enumerate(batch.rows):
            if graded[row.trajectory] is None:
                continue
            group = batch.groups[row.trajectory]
            found = exact.get((group, row.anchor)) or self._alike(batch, members[group], row.anchor)
            if found is None:
                found = []
                members[group].append(found)
            exact.setdefault((group, row.anchor), found)
            found.append(i)
        return [found for of_group in members.values() for found in of_group]

    def _alike(self, batch: CreditInput, known: Sequence[list[int]], anchor: str) -> list[int] | None:
        if self.config.similarity is None:
            return None
        for found in known:
            if SequenceMatcher(None, batch.rows[found[0]].anchor, anchor).ratio() >= self.config.similarity:
                return found
        return None

    def step_advantages(self, batch: CreditInput, anchors: Sequence[Sequence[int]]) -> list[float]:
        """Each row's return against the mean of the rows that saw its page; 0 for rows in none of the groups."""
        page = {i: str(number) for number, indices in enumerate(anchors) for i in indices}
        returns = [value if i in page else None for i, value in enumerate(self.step_returns(batch))]
        return self._over_groups(returns, [page.get(i, "") for i in range(len(returns))], singleton="zero")

    def credit(self, batch: CreditInput) -> Credit:
        """One advantage per row; dead groups of episodes may still teach through their steps."""
        episode = self.advantages(batch.graded, batch.groups)
        groups = self.anchors(batch)
        steps = self.step_advantages(batch, groups)
        rows = [
            episode[row.trajectory] + self.config.step_weight * step
            for row, step in zip(batch.rows, steps, strict=True)
        ]
        shared = sum(len(indices) for indices in groups if len(indices) > 1)
        share = shared / len(batch.rows) if batch.rows else 0.0
        of = [[rows[i] for i in indices] for indices in batch.steps()]
        return Credit(peaks(of), rows=rows, metrics={"shared_pages": share})

    def loss(self, batch: LossInput) -> LossOutput:
        """The loss above: this micro-batch's share. Clip fractions are shares of agent tokens, by the sign of A."""
        c = self.config
        tokens = Tokens.of(batch)
        weight_RT = tokens.weight_RT(c.agg, c.norm_const or 1.0)
        loss = -(weight_RT * clipped_gain(tokens.log_ratio_RT, tokens.advantage_RT, self._window)).sum()
        metrics = clip_shares(tokens.log_ratio_RT, tokens.advantage_RT, tokens.share_RT, self._window)
        if c.beta > 0:
            kl, metrics["kl_sum"] = tokens.kl(weight_RT, c.kl, None, None)
            loss = loss + c.beta * kl
        return LossOutput(loss, metrics)
