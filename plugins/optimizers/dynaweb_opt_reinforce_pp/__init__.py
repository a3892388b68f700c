"""Policy optimizer `reinforce-pp`: REINFORCE++ without a critic."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from dynaweb.config.optim import TokenWeights
from dynaweb.hookspecs import PluginSpec, hookimpl


class ReinforcePpConfig(TokenWeights):
    """Settings of REINFORCE++ (arXiv 2501.03262)."""

    variant: Literal["plain", "baseline"] = "plain"
    """`baseline`: the mean reward of the group is subtracted first."""
    clip_low: float = Field(default=0.2, ge=0)
    """The ratio is clipped below 1 - clip_low."""
    clip_high: float = Field(default=0.2, ge=0)
    """The ratio is clipped above 1 + clip_high."""
    dual_clip: float | None = Field(default=None, gt=1)
    """c: for a negative advantage A the loss of a token is at most -cA (arXiv 1912.09729); None = off, 3 is usual."""
    gamma: float = Field(default=1.0, ge=0, le=1)
    """Discount per agent token."""
    kl_coef: float = Field(default=0.0, ge=0)
    """Weight of the KL to the reference policy in the reward; 0 = none."""
    kl: Literal["k1", "k2", "k3"] = "k1"
    """Its estimator: k1 = o-f, k2 = (o-f)^2/2, k3 = exp(f-o)-(f-o)-1, with o the log-probability under the policy that
    played and f that under the reference."""
    step_rewards: bool = False
    """Rewards that the environment gives to steps count too, on the last agent token of the step."""
    whiten_ddof: Literal[0, 1] = 1
    """Token advantages are whitened over the update: 1 = unbiased variance, 0 = of the population."""
    whiten_eps: float = Field(default=1e-8, ge=0)
    """Added to that variance."""


@hookimpl
def dynaweb_optimizers() -> list[PluginSpec]:
    """Offer `--opt reinforce-pp`."""
    return [
        PluginSpec(
            name="reinforce-pp",
            target="dynaweb_opt_reinforce_pp.reinforce_pp:ReinforcePp",
            config=ReinforcePpConfig,
            summary="REINFORCE++: discounted token returns, whitened over the batch (arXiv 2501.03262)",
            extra="train",
        )
    ]
