"""Policy optimizer `gigpo`: group-in-group policy optimization, with groups of steps on the same page."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from dynaweb.config.optim import TokenWeights
from dynaweb.hookspecs import PluginSpec, hookimpl


class GigpoConfig(TokenWeights):
    """Settings of GiGPO (arXiv 2505.10978)."""

    clip_low: float = Field(default=0.2, ge=0)
    """The ratio is clipped below 1 - clip_low."""
    clip_high: float = Field(default=0.2, ge=0)
    """The ratio is clipped above 1 + clip_high."""
    dual_clip: float | None = Field(default=None, gt=1)
    """c: for a negative advantage A the loss of a token is at most -cA (arXiv 1912.09729); None = off, 3 is usual."""
    beta: float = Field(default=0.0, ge=0)
    """Weight of the KL term to the reference policy in the loss; 0 = none."""
    kl: Literal["k1", "k2", "k3", "k1+", "k3+"] = "k3"
    """Its estimator: k1 = l-f, k2 = (l-f)^2/2, k3 = exp(f-l)-(f-l)-1, with l the policy's and f the reference's
    log-probability; `+` = that value with the gradient of k2."""
    gamma: float = Field(default=0.95, ge=0, le=1)
    """Discount per step."""
    step_weight: float = Field(default=1.0, ge=0)
    """Weight of the step advantage beside the episode advantage."""
    mode: Literal["mean_norm", "mean_std_norm"] = "mean_norm"
    """Both advantages: the distance to the mean, or that divided by (standard deviation + eps)."""
    eps: float = Field(default=1e-6, ge=0)
    """Added to the standard deviation."""
    similarity: float | None = Field(default=None, gt=0, le=1)
    """Pages count as the same from this difflib ratio on; None = only when their text is identical."""
    singleton: Literal["zero", "raw"] = "zero"
    """Episode advantage of a trajectory that is alone in its group: 0, or its reward (the released code)."""
    zero_var_tol: float = Field(default=1e-6, ge=0)
    """A group whose rewards differ by no more than this is dead: its episode advantages are exactly 0."""


@hookimpl
def dynaweb_optimizers() -> list[PluginSpec]:
    """Offer `--opt gigpo`."""
    return [
        PluginSpec(
            name="gigpo",
            target="dynaweb_opt_gigpo.gigpo:Gigpo",
            config=GigpoConfig,
            summary="group-in-group policy optimization: step groups by identical page (arXiv 2505.10978)",
            extra="train",
        )
    ]
