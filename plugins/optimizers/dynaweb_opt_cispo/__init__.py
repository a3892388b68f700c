"""Policy optimizer `cispo`: policy gradient weighted by clipped importance ratios."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from dynaweb.config.optim import GroupBaseline, TokenWeights
from dynaweb.hookspecs import PluginSpec, hookimpl


class CispoConfig(GroupBaseline, TokenWeights):
    """Settings of CISPO (MiniMax-M1, arXiv 2506.13585)."""

    ratio_min: float | None = Field(default=None, ge=0)
    """Smallest weight, an ABSOLUTE ratio; None = no lower bound (the paper)."""
    ratio_max: float | None = Field(default=5.0, gt=0)
    """Largest weight, an ABSOLUTE ratio: verl's 1 + eps, TRL's epsilon_high."""
    log_ratio_limit: float | None = Field(default=20.0, gt=0)
    """Log-ratios are clamped to +- this before exp, and to +- 20 in any case."""
    beta: float = Field(default=0.0, ge=0)
    """Weight of the KL term to the reference policy in the loss; 0 = none."""
    kl: Literal["k1", "k2", "k3", "k1+", "k3+"] = "k3"
    """Its estimator: k1 = l-f, k2 = (l-f)^2/2, k3 = exp(f-l)-(f-l)-1, with l the policy's and f the reference's
    log-probability; `+` = that value with the gradient of k2."""


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
