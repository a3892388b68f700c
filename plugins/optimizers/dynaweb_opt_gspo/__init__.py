"""Policy optimizer `gspo`: group sequence policy optimization with the whole trajectory as the sequence."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from dynaweb.config.optim import GroupBaseline
from dynaweb.hookspecs import PluginSpec, hookimpl


class GspoConfig(GroupBaseline):
    """Settings of GSPO. Window, advantage and defaults: arXiv 2507.18071, sections 4 and 5.1."""

    clip_low: float = Field(default=3e-4, ge=0)
    """The ratio is clipped below 1 - clip_low. Ratios are geometric means over a trajectory, so they stay near 1."""
    clip_high: float = Field(default=4e-4, ge=0)
    """The ratio is clipped above 1 + clip_high."""
    level: Literal["trajectory", "token"] = "trajectory"
    """`trajectory`: one ratio and one clip decision for all agent tokens. `token`: GSPO-token, for token advantages."""
    log_ratio_max: float | None = None
    """Mean log-ratios are clamped to at most this before exp (verl: 10), and to +- 20 in any case."""
    beta: float = Field(default=0.0, ge=0)
    """Weight of the KL term to the reference policy; 0 = no reference (the paper)."""
    kl: Literal["k1", "k2", "k3", "k1+", "k3+"] = "k3"
    """Estimator of that term: k1 = l-f, k2 = (l-f)^2/2, k3 = exp(f-l)-(f-l)-1, with l the policy's and f the
    reference's log-probability; `+` = that value with the gradient of k2."""


@hookimpl
def dynaweb_optimizers() -> list[PluginSpec]:
    """Offer `--opt gspo`."""
    return [
        PluginSpec(
            name="gspo",
            target="dynaweb_opt_gspo.gspo:Gspo",
            config=GspoConfig,
            summary="group sequence policy optimization over whole trajectories (arXiv 2507.18071; DynaWeb Eq. 8)",
            extra="train",
        )
    ]
