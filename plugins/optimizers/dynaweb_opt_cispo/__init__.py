"""Policy optimizer `cispo`: policy gradient weighted by clipped importance ratios."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from dynaweb.config.optim import TokenWeights
from dynaweb.hookspecs import PluginSpec, hookimpl


class CispoConfig(TokenWeights):
    """Settings of CISPO (MiniMax-M1, arXiv 2506.13585)."""

    ratio_min: float | None = Field(default=None, ge=0)
    """Smallest weight, an ABSOLUTE ratio; None = no lower bound (the paper)."""
    ratio_max: float | None = Field(default=5.0, gt=0)
    """Largest weight, an ABSOLUTE ratio: verl's 1 + eps, TRL's epsilon_high."""
    log_ratio_limit: float | None = Field(default=20.0, gt=0)
    """Log-ratios are clamped to +- this before exp; None = no clamp."""
    beta: float = Field(default=0.0, ge=0)
    """Weight of the KL term to the reference policy in the loss; 0 = none."""
    kl: Literal["k1", "k2", "k3", "k1+", "k3+"] = "k3"
    """Its estimator: k1 = l-f, k2 = (l-f)^2/2, k3 = exp(f-l)-(f-l)-1, with l the policy's and f the reference's
    log-probability; `+` = that value with the gradient of k2."""
    scale: Literal["group", "batch", "none"] = "group"
    """Advantages are divided by the standard deviation of the group, of the batch, or not at all."""
    eps: float = Field(default=1e-4, ge=0)
    """Added to that standard deviation."""
    ddof: Literal[0, 1] = 1
    """1 = unbiased standard deviation, 0 = of the population."""
    singleton: Literal["zero", "raw"] = "zero"
    """Advantage of a trajectory that is alone in its group: 0, or its reward."""
    zero_var_tol: float = Field(default=1e-6, ge=0)
    """A group whose rewards differ by no more than this is dead: its advantages are exactly 0."""


@hookimpl
def dynaweb_optimizers() -> list[PluginSpec]:
    """Offer `--opt cispo`."""
    return [
        PluginSpec(
            name="cispo",
            target="dynaweb_opt_cispo.cispo:Cispo",
            config=CispoConfig,
            summary="policy gradient weighted by clipped importance ratios (arXiv 2506.13585)",
            extra="train",
        )
    ]
