"""WebRL (arXiv 2411.02337): a KL-constrained actor-critic whose policy regresses its log-ratio on the advantage.

`variant = "paper"` (eq. 4-8): with L = sum over the agent tokens of a step of (l - f), l and f its log-probabilities
under the policy and the reference (`log_ratio = "mean"`: their mean), minimised is over the steps that have agent
tokens

    mean (beta L - A)^2,   A = lam (r + V' - V) + (1 - lam) (r_T - V),

r being the reward of the step, r_T the verdict on the trajectory, V the critic's probability of success on the page and
V' that on the next page, 0 after the last step. The critic minimises the cross-entropy of (success, failure) over
pages.

`variant = "released-code"`: what the published trainer computes, with the batch in the place of its micro-batch:

    a = clamp(V' - V - step_cost + r + mc, -1, 1), V the smaller of two heads, mc the discounted return of the step,
    y = 1 if a >= 0 else negative_target,   x = (sum l - sum f) / C, C = agent tokens of all steps with y > 0,
    loss = mean over all steps of [y > 0] SmoothL1(beta x - y) / beta,   beta = min(5 or 1, |y / x|) without gradient.

Shapes: R rows padded to T tokens, S rows of the whole batch (see `dynaweb.protocols.LossInput`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from dynaweb.protocols import Credit, CreditInput, CriticSpec, LossInput, LossOutput, PluginContext, ValueInput, Wants
from dynaweb.trainer.advantages import discounted, peaks
from dynaweb.trainer.critic import cross_entropy, probability
from dynaweb.trainer.losses import clean
from dynaweb_opt_webrl import WebrlConfig

SURE = (0.8, 0.9)
"""Released code: the reference is sure of a step from this mean probability on (target above 0), or below (target <
0)."""
WITHOUT_RATIO = {"clip_frac_low_sum": 0.0, "clip_frac_high_sum": 0.0}
"""A regression clips nothing."""


class Webrl:
    """WebRL's policy objective and critic as a `PolicyOptimizer` that gives credit to rows."""

    needs_trajectory_ratio = False

    def __init__(self, config: WebrlConfig, context: PluginContext | None = None) -> None:
        self.config = c = config
        self._heads = 1 if c.variant == "paper" else 2
        self.wants = Wants(
            old_in_credit=c.perplexity is not None,
            reference_in_loss=True,
            critic=CriticSpec(c.critic_lr, outputs=2 * self._heads, at="rows", max_grad_norm=c.critic_max_grad_norm),
            off_policy="any",
        )

    def advantages(self, rewards: Sequence[float | None], groups: Sequence[str]) -> list[float]:
        """The rewards as they are (None = 0): there is no group baseline. What steps get comes from `credit`."""
        return [0.0 if reward is None else reward for reward in rewards]

    def credit(self, batch: CreditInput) -> Credit:
        """A (or a) of each row and the critic's targets; rows without a reward or outside the band leave the batch."""
        graded = batch.graded
        rows = [0.0] * len(batch.rows)
        for reward, indices in zip(graded, batch.steps(), strict=True):
            values = [self.value(batch.rows[i].values[0]) for i in indices]
            own = [batch.rows[i].reward for i in indices]
            for i, advantage in zip(indices, self._steps(own, reward or 0.0, values), strict=True):
                rows[i] = advantage
        known = [graded[row.trajectory] for row in batch.rows]
        row_mask = [r is not None and fits for r, fits in zip(known, self.fitting(batch), strict=True)]
        return Credit(
            peaks([[rows[i] for i in indices] for indices in batch.steps()]),
            rows=rows,
            row_mask=row_mask,
            targets=[[None if r is None else float(r > 0)] for r in known],
            scalable=False,
            metrics={"kept_steps": sum(row_mask) / max(1, len(row_mask))},
        )

    def value(self, outputs: Sequence[float]) -> float:
        """Probability of success from the critic's outputs: the second class, the smaller of the heads."""
        pairs = [outputs[2 * head : 2 * head + 2] for head in range(self._heads)]
        return min(map(probability, pairs))

    def _steps(self, own: Sequence[float], verdict: float, values: Sequence[float]) -> list[float]:
        """Advantages of the steps of one trajectory."""
        if not own:
            return []
        rewards = [*own[:-1], own[-1] + verdict]
        following = [*values[1:], 0.0]
        if self.config.variant == "paper":
            return self.paper_advantages(rewards, verdict, values, following)
        return self.released_advantages(rewards, discounted(rewards, self.config.mc_gamma), values, following)

    def paper_advantages(
        self, rewards: Sequence[float], verdict: float, values: Sequence[float], following: Sequence[float]
    ) -> list[float]:
        """A = lam (r + V' - V) + (1 - lam) (r_T - V) of each step."""
        lam = self.config.lam
        steps = zip(rewards, values, following, strict=True)
        return [lam * (r + after - v) + (1 - lam) * (verdict - v) for r, v, after in steps]

    def released_advantages(
        self, rewards: Sequence[float], mc: Sequence[float], values: Sequence[float], following: Sequence[float]
    ) -> list[float]:
        """a = clamp(V' - V - step_cost + r + mc, -1, 1) of each step."""
        steps = zip(rewards, mc, values, following, strict=True)
        return [max(-1.0, min(1.0, after - v - self.config.step_cost + r + m)) for r, m, v, after in steps]

    def fitting(self, batch: CreditInput) -> list[bool]:
        """Rows whose perplexity under the policy that played lies in the band."""
        band = self.config.perplexity
        if band is None:
            return [True] * len(batch.rows)
        return [band[0] <= perplexity(row.old_logps) <= band[1] for row in batch.rows]

    def loss(self, batch: LossInput) -> LossOutput:
        """The loss of the variant: this micro-batch's share. Raises `ValueError` without a reference."""
        if batch.ref_logp_RT is None or batch.advantage_S is None or batch.tokens_S is None or batch.row_R is None:
            raise ValueError("webrl needs reference log-probabilities and one advantage for each row")
        mask_RT = batch.mask_RT
        logp_R = clean(batch.logp_RT, mask_RT).sum(1)
        ref_R = clean(batch.ref_logp_RT, mask_RT).sum(1)
        tokens_R = mask_RT.sum(1).to(logp_R.dtype)
        advantage_R = batch.advantage_S[batch.row_R].to(logp_R.dtype)
        if self.config.variant == "paper":
            loss = self._paper_loss(logp_R - ref_R, tokens_R, advantage_R, int((batch.tokens_S > 0).sum()))
            return LossOutput(loss, WITHOUT_RATIO)
        trained = max(1, int(batch.tokens_S[self.targets(batch.advantage_S) > 0].sum()))
        target_R = self.targets(advantage_R)
        x_R = (logp_R - ref_R) / trained
        beta_R = self.betas(x_R, target_R, (ref_R / tokens_R.clamp_min(1)).exp())
        miss_R = torch.nn.functional.smooth_l1_loss(beta_R * x_R, target_R, reduction="none") / beta_R
        loss = torch.where(target_R > 0, miss_R, torch.zeros_like(miss_R)).sum() / len(batch.tokens_S)
        return LossOutput(loss, WITHOUT_RATIO)

    def _paper_loss(
        self, log_ratio_R: torch.Tensor, tokens_R: torch.Tensor, advantage_R: torch.Tensor, rows: int
    ) -> torch.Tensor:
        if self.config.log_ratio == "mean":
            log_ratio_R = log_ratio_R / tokens_R.clamp_min(1)
        miss_R = (self.config.beta * log_ratio_R - advantage_R).square()
        return torch.where(tokens_R > 0, miss_R, torch.zeros_like(miss_R)).sum() / max(1, rows)

    def targets(self, advantage: torch.Tensor) -> torch.Tensor:
        """Released code: y = 1 for a >= 0, else the negative target."""
        one = torch.ones_like(advantage)
        return torch.where(advantage >= 0, one, one * self.config.negative_target)

    def betas(self, x: torch.Tensor, target: torch.Tensor, sure: torch.Tensor) -> torch.Tensor:
        """Released code: min(5 or 1, |y / x|), 5 where (y > 0 and p >= .8) or (y < 0 and p < .9); no gradient."""
        strong = ((target > 0) & (sure >= SURE[0])) | ((target < 0) & (sure < SURE[1]))
        limit = torch.where(strong, torch.full_like(x, self.config.beta_max), torch.ones_like(x))
        return torch.minimum(limit, (target / x.detach()).abs())

    def critic_loss(self, batch: ValueInput) -> LossOutput:
        """Cross-entropy of success against failure on each page, mean over pages (and the sum over heads).

        `value_mean_sum` is the share of the mean probability of success, of the first head.
        """
        return cross_entropy(batch, heads=self._heads)


def perplexity(logps: Sequence[float]) -> float:
    """exp(-mean log-probability) of the tokens, a finite number; 1 without any."""
    return math.exp(min(700.0, -math.fsum(logps) / len(logps))) if logps else 1.0
