"""Policy optimizer `grpo`: group relative policy optimization, and with its options Dr. GRPO and DAPO."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from dynaweb.config.optim import Aggregation, GroupBaseline, TokenWeights
from dynaweb.hookspecs import PluginSpec, hookimpl


class GrpoConfig(GroupBaseline, TokenWeights):
    """Settings of GRPO (arXiv 2402.03300), Dr. GRPO (2503.20783) and DAPO (2503.14476). Defaults: GRPO without KL."""

    clip_low: float = Field(default=0.2, ge=0)
    """The ratio is clipped below 1 - clip_low."""
    clip_high: float = Field(default=0.2, ge=0)
    """The ratio is clipped above 1 + clip_high."""
    dual_clip: float | None = Field(default=None, gt=1)
    """c: for a negative advantage A the loss of a token is at most -cA (arXiv 1912.09729); None = off, 3 is usual."""
    ratio_cap: float | None = Field(default=None, gt=1)
    """Two-sided clipping: the unclipped branch uses at most this ratio; None = off."""
    log_ratio_limit: float | None = Field(default=None, gt=0)
    """Log-ratios are clamped to +- this before exp, and to +- 20 in any case."""
    agg: Aggregation = "traj_mean_token_mean"
    """Weight of a token: 1/(N n_i), 1/(all tokens), 1/(N norm_const), 1/N; n_i = tokens of its trajectory, of N."""
    beta: float = Field(default=0.0, ge=0)
    """Weight of the KL to the reference policy; 0 = none."""
    kl: Literal["k1", "k2", "k3", "k1+", "k3+"] = "k3"
    """Its estimator: k1 = l-f, k2 = (l-f)^2/2, k3 = exp(f-l)-(f-l)-1, with l the policy's and f the reference's
    log-probability; `+` = that value with the gradient of k2."""
    kl_in: Literal["loss", "reward"] = "loss"
    """Where it goes: into the loss, or summed over a trajectory's tokens into its reward (l is then the old
    policy's)."""
    kl_log_diff_clip: float | None = Field(default=None, gt=0)
    """k3 in the loss: f-l is clamped to +- this, and to +- 20 in any case (verl: 20)."""
    kl_value_clip: float | None = Field(default=None, gt=0)
    """k3 in the loss: its value is capped at this; None = no cap (verl, OpenRLHF: 10)."""
    dynamic_sampling: bool = False
    """DAPO: only groups with successes and failures, by plain success, stay in the batch; others are played instead."""
    refills: int = Field(default=3, ge=0)
    """DAPO: rounds of other groups played in an update at most."""
    overlong_max_len: int | None = Field(default=None, ge=1)
    """DAPO: longest trajectory in agent tokens; longer than this minus the cache costs reward; None = no penalty."""
    overlong_cache_len: int = Field(default=0, ge=0)
    """DAPO: length over which the penalty grows from 0 to its full size."""
    overlong_factor: float = Field(default=1.0, ge=0)
    """DAPO: full size of the penalty."""

    @model_validator(mode="after")
    def _penalty_grows(self) -> Self:
        if self.overlong_max_len is not None and not 0 < self.overlong_cache_len <= self.overlong_max_len:
            raise ValueError("overlong_max_len needs overlong_cache_len between 1 and itself")
        return self


@hookimpl
def dynaweb_optimizers() -> list[PluginSpec]:
    """Offer `--opt grpo`."""
    return [
        PluginSpec(
            name="grpo",
            target="dynaweb_opt_grpo.grpo:Grpo",
            config=GrpoConfig,
            summary="group relative policy optimization, with Dr. GRPO and DAPO as options (arXiv 2402.03300)",
            extra="train",
        )
    ]
