"""Policy optimizer `ppo`: proximal policy optimization with a critic."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from dynaweb.config.optim import TokenWeights
from dynaweb.hookspecs import PluginSpec, hookimpl


class PpoConfig(TokenWeights):
    """Settings of PPO (arXiv 1707.06347) with GAE (1506.02438)."""

    clip_low: float = Field(default=0.2, ge=0)
    """The ratio is clipped below 1 - clip_low."""
    clip_high: float = Field(default=0.2, ge=0)
    """The ratio is clipped above 1 + clip_high."""
    dual_clip: float | None = Field(default=None, gt=1)
    """c: for a negative advantage A the loss of a token is at most -cA (arXiv 1912.09729); None = off, 3 is usual."""
    gamma: float = Field(default=1.0, ge=0, le=1)
    """Discount per agent token."""
    lam: float = Field(default=0.95, ge=0, le=1)
    """Lambda of GAE, per agent token."""
    whiten: bool = True
    """Advantages are whitened over all agent tokens of the update."""
    value_clip: float | None = Field(default=0.2, gt=0)
    """The critic's new values stay within +- this of its old ones in its loss; None = a plain square."""
    critic_lr: float = Field(default=1e-3, gt=0)
    """Peak learning rate of the critic's AdamW."""
    critic_max_grad_norm: float = Field(default=1.0, gt=0)
    """The norm of the critic's gradient is clipped to this."""
    step_rewards: bool = False
    """Rewards that the environment gives to steps count too, on the last agent token of the step."""
    kl_coef: float = Field(default=0.0, ge=0)
    """Weight of the KL to the reference policy in the reward; 0 = none."""
    kl: Literal["k1", "k2", "k3"] = "k1"
    """Its estimator: k1 = o-f, k2 = (o-f)^2/2, k3 = exp(f-o)-(f-o)-1, with o the log-probability under the policy that
    played and f that under the reference."""


@hookimpl
def dynaweb_optimizers() -> list[PluginSpec]:
    """Offer `--opt ppo`."""
    return [
        PluginSpec(
            name="ppo",
            target="dynaweb_opt_ppo.ppo:Ppo",
            config=PpoConfig,
            summary="proximal policy optimization with a critic and GAE over agent tokens (arXiv 1707.06347)",
            extra="train",
        )
    ]
