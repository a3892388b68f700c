"""Weighted imitation: the log-likelihood of own steps, each with a weight that a critic of success decides.

    loss = - sum over agent tokens of (w log pi) / number of agent tokens of steps in the batch

`awr` (Peng et al., 2019): w = min(exp((R - V) / beta), max_weight), R the verdict on the episode and V the critic's
chance of success on the page. `digirl` (Bai et al., 2024): w = 1 for steps whose doubly robust advantage

    A_h = lam^(H - h) r + (1 - lam^(H - h)) (V_(h+1) - V_h),   h = 1..H, V_(H+1) = r

is above a threshold, and 0 for all others. Both learn off-policy: no ratio appears anywhere. Ungraded episodes have
left the batch before.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING

from dynaweb.protocols import Credit, CreditInput, CriticSpec, LossInput, LossOutput, PluginContext, ValueInput, Wants
from dynaweb.trainer.advantages import peaks
from dynaweb.trainer.critic import CLASSES, cross_entropy, probability
from dynaweb.trainer.losses import clean

if TYPE_CHECKING:
    from dynaweb_opt_awr import AwrConfig, DigirlConfig

WITHOUT_RATIO = {"clip_frac_low_sum": 0.0, "clip_frac_high_sum": 0.0}


class Imitation(ABC):
    """What both have in common: a critic of success, one weight a step, and the loss. Subclasses give the weights."""

    needs_trajectory_ratio = False

    def __init__(self, critic_lr: float, critic_max_grad_norm: float) -> None:
        self.wants = Wants(
            critic=CriticSpec(critic_lr, outputs=CLASSES, at="rows", max_grad_norm=critic_max_grad_norm),
            off_policy="any",
        )

    def advantages(self, rewards: Sequence[float | None], groups: Sequence[str]) -> list[float]:
        """The rewards as they are (None = 0): there is no group baseline. What steps weigh comes from `credit`."""
        return [0.0 if reward is None else reward for reward in rewards]

    @abstractmethod
    def weights(self, batch: CreditInput, values: Sequence[Sequence[float]]) -> list[list[float]]:
        """For each trajectory the weights of its steps, given the critic's chance of success on each of its pages."""

    def credit(self, batch: CreditInput) -> Credit:
        """Weights of the steps as their advantages, and the critic's targets. Steps without a reward leave the
        batch."""
        steps, graded = batch.steps(), batch.graded
        values = [[self.value(batch.rows[i].values[0]) for i in indices] for indices in steps]
        weights = self.weights(batch, values)
        rows = [0.0] * len(batch.rows)
        for indices, of_steps in zip(steps, weights, strict=True):
            for i, weight in zip(indices, of_steps, strict=True):
                rows[i] = weight
        known = [graded[row.trajectory] for row in batch.rows]
        return Credit(
            peaks([[rows[i] for i in indices] for indices in steps]),
            rows=rows,
            row_mask=[reward is not None for reward in known],
            targets=[[None if reward is None else float(reward > 0)] for reward in known],
            values=[row.values for row in batch.rows],
            scalable=False,
            metrics={"learned_steps": sum(w > 0 for w in rows) / max(1, len(rows)), "mean_weight": _mean(rows)},
        )

    def value(self, outputs: Sequence[float]) -> float:
        """Chance of success from the critic's outputs."""
        return probability(outputs)

    def loss(self, batch: LossInput) -> LossOutput:
        """This micro-batch's share of the weighted negative log-likelihood. Raises `ValueError` without row weights."""
        if batch.advantage_S is None or batch.tokens_S is None or batch.row_R is None:
            raise ValueError("weighted imitation needs one weight for each row")
        logp_R = clean(batch.logp_RT, batch.mask_RT).sum(1)
        weight_R = batch.advantage_S[batch.row_R].to(logp_R.dtype)
        return LossOutput(-(weight_R * logp_R).sum() / max(1, int(batch.tokens_S.sum())), WITHOUT_RATIO)

    def critic_loss(self, batch: ValueInput) -> LossOutput:
        """Cross-entropy of success on each page."""
        return cross_entropy(batch)


class Awr(Imitation):
    """Advantage-weighted regression."""

    def __init__(self, config: AwrConfig, context: PluginContext | None = None) -> None:
        super().__init__(config.critic_lr, config.critic_max_grad_norm)
        self.config = config

    def weights(self, batch: CreditInput, values: Sequence[Sequence[float]]) -> list[list[float]]:
        """min(exp((R - V) / beta), max_weight); 0 without a reward."""
        return [
            [0.0] * len(of_steps) if reward is None else [self.weight(reward - value) for value in of_steps]
            for reward, of_steps in zip(batch.graded, values, strict=True)
        ]

    def weight(self, advantage: float) -> float:
        """The weight of one step."""
        limit = math.log(self.config.max_weight)
        return math.exp(min(limit, advantage / self.config.beta))


class Digirl(Imitation):
    """DigiRL's step filter, with the mean of the task in the place of its instruction-level critic."""

    def __init__(self, config: DigirlConfig, context: PluginContext | None = None) -> None:
        super().__init__(config.critic_lr, config.critic_max_grad_norm)
        self.config = config

    def weights(self, batch: CreditInput, values: Sequence[Sequence[float]]) -> list[list[float]]:
        """1 for chosen steps, 0 for all others."""
        longest = max(map(len, values), default=1)
        threshold = self.config.threshold or 1 / max(1, longest)
        means = self._means(batch)
        found = []
        for reward, group, of_steps in zip(batch.graded, batch.groups, values, strict=True):
            news = reward is not None and (not self.config.instructions or reward > means[group])
            steps = self.step_advantages(reward or 0.0, of_steps)
            found.append([float(news and advantage > threshold) for advantage in steps])
        return found

    def step_advantages(self, reward: float, values: Sequence[float]) -> list[float]:
        """The doubly robust advantage of each step of one episode."""
        count, lam = len(values), self.config.lam
        following = [*values[1:], reward]
        return [
            (share := lam ** (count - 1 - h)) * reward + (1 - share) * (after - value)
            for h, (value, after) in enumerate(zip(values, following, strict=True))
        ]

    def _means(self, batch: CreditInput) -> dict[str, float]:
        groups: dict[str, list[float]] = {}
        for reward, group in zip(batch.graded, batch.groups, strict=True):
            if reward is not None:
                groups.setdefault(group, []).append(reward)
        return {group: fmean(rewards) for group, rewards in groups.items()}


def _mean(values: Sequence[float]) -> float:
    return fmean(values) if values else 0.0
