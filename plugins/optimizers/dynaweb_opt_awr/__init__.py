"""Policy optimizers `awr` and `digirl`: weighted imitation of own rollouts, weighted or chosen by a critic."""

from __future__ import annotations

from pydantic import Field

from dynaweb.config.sections import Section
from dynaweb.hookspecs import PluginSpec, hookimpl


class AwrConfig(Section):
    """Settings of advantage-weighted regression (arXiv 1910.00177)."""

    beta: float = Field(default=0.5, gt=0)
    """Temperature: a step weighs exp(advantage / beta)."""
    max_weight: float = Field(default=20.0, gt=0)
    """Largest weight of a step."""
    critic_lr: float = Field(default=1e-3, gt=0)
    """Peak learning rate of the critic's AdamW."""
    critic_max_grad_norm: float = Field(default=1.0, gt=0)
    """The norm of the critic's gradient is clipped to this."""


class DigirlConfig(Section):
    """Settings of DigiRL (arXiv 2406.11896)."""

    lam: float = Field(default=0.5, ge=0, le=1)
    """Doubly robust: the verdict on the whole episode counts lam^(steps that are left), the critic's one step the
    rest."""
    threshold: float = Field(default=0.0, ge=0, le=1)
    """A step is learned from when its advantage is above this; 0 = 1 / (longest episode of the update), as the
    paper."""
    instructions: bool = True
    """Only of episodes that did better than the mean of their task in this update: those are news."""
    critic_lr: float = Field(default=1e-3, gt=0)
    """Peak learning rate of the critic's AdamW."""
    critic_max_grad_norm: float = Field(default=1.0, gt=0)
    """The norm of the critic's gradient is clipped to this."""


@hookimpl
def dynaweb_optimizers() -> list[PluginSpec]:
    """Offer `--opt awr` and `--opt digirl`."""
    return [
        PluginSpec(
            name="awr",
            target="dynaweb_opt_awr.imitation:Awr",
            config=AwrConfig,
            summary="advantage-weighted regression with a critic (Peng et al., 2019, arXiv 1910.00177)",
            extra="train",
        ),
        PluginSpec(
            name="digirl",
            target="dynaweb_opt_awr.imitation:Digirl",
            config=DigirlConfig,
            summary="imitation of the steps that a doubly robust advantage chooses (DigiRL, arXiv 2406.11896)",
            extra="train",
        ),
    ]
