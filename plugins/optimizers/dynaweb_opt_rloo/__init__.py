"""Policy optimizer `rloo`: REINFORCE with the other rollouts of the task as baseline."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from dynaweb.config.optim import Aggregation, TokenWeights
from dynaweb.hookspecs import PluginSpec, hookimpl


class RlooConfig(TokenWeights):
    """Settings of RLOO (arXiv 2402.14740)."""

    surrogate: Literal["pg", "clip"] = "pg"
    """`pg`: the plain policy gradient (the paper). `clip`: clipped ratios, for more than one step on the same
    rollouts."""
    level: Literal["token", "trajectory"] = "token"
    """With `clip`: one ratio per token, or exp(sum of log-ratios) per trajectory (TRL)."""
    clip_low: float = Field(default=0.2, ge=0)
    """With `clip`: the ratio is clipped below 1 - clip_low."""
    clip_high: float = Field(default=0.2, ge=0)
    """With `clip`: the ratio is clipped above 1 + clip_high."""
    agg: Aggregation = "traj_mean_token_sum"
    """Weight of a token: 1/(N n_i), 1/(all tokens), 1/(N norm_const), 1/N; n_i = tokens of its trajectory, of N."""
    kl_coef: float = Field(default=0.0, ge=0)
    """Weight of the KL to the reference policy in the reward; 0 = none."""
    kl: Literal["k1", "k2", "k3"] = "k1"
    """Its estimator: k1 = o-f, k2 = (o-f)^2/2, k3 = exp(f-o)-(f-o)-1, with o the log-probability under the policy that
    played and f that under the reference."""
    singleton: Literal["zero", "raw"] = "zero"
    """Advantage of a trajectory that is alone in its group: 0, or its reward."""
    zero_var_tol: float = Field(default=1e-6, ge=0)
    """A group whose rewards differ by no more than this is dead: its advantages are exactly 0."""


@hookimpl
def dynaweb_optimizers() -> list[PluginSpec]:
    """Offer `--opt rloo`."""
    return [
        PluginSpec(
            name="rloo",
            target="dynaweb_opt_rloo.rloo:Rloo",
            config=RlooConfig,
            summary="REINFORCE with a leave-one-out baseline (arXiv 2402.14740)",
            extra="train",
        )
    ]
