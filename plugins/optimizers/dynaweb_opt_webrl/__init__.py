"""Policy optimizer `webrl`: the KL-constrained actor-critic of WebRL."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from dynaweb.config.sections import Section
from dynaweb.hookspecs import PluginSpec, hookimpl


class WebrlConfig(Section):
    """Settings of WebRL (arXiv 2411.02337)."""

    variant: Literal["paper", "released-code"] = "paper"
    """The paper's objective, or what the published trainer computes; they differ in more than constants."""
    beta: float = Field(default=0.1, gt=0)
    """Paper: strength of the pull to the reference policy."""
    lam: float = Field(default=0.5, ge=0, le=1)
    """Paper: weight of the one-step advantage against that of the whole episode."""
    log_ratio: Literal["sum", "mean"] = "sum"
    """Paper: log-ratio of a step as the sum over its tokens, or their mean."""
    step_cost: float = 0.05
    """Released code: subtracted from each step's advantage."""
    negative_target: float = Field(default=-0.6, lt=0)
    """Released code: target of steps with a negative advantage."""
    beta_max: float = Field(default=5.0, gt=0)
    """Released code: largest strength of the pull, for steps that the reference is sure of."""
    mc_gamma: float = Field(default=0.9, ge=0, le=1)
    """Released code: discount per step of the Monte Carlo return in the advantage."""
    perplexity: tuple[float, float] | None = None
    """Steps whose perplexity under the policy that played is outside this band leave the batch; None = all stay."""
    critic_lr: float = Field(default=1e-3, gt=0)
    """Peak learning rate of the critic's AdamW."""
    critic_max_grad_norm: float = Field(default=1.0, gt=0)
    """The norm of the critic's gradient is clipped to this."""


@hookimpl
def dynaweb_optimizers() -> list[PluginSpec]:
    """Offer `--opt webrl`."""
    return [
        PluginSpec(
            name="webrl",
            target="dynaweb_opt_webrl.webrl:Webrl",
            config=WebrlConfig,
            summary="KL-constrained actor-critic of WebRL, paper or released code (arXiv 2411.02337)",
            extra="train",
        )
    ]
