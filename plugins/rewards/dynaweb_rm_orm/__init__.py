"""Reward judge `orm`: WebRL's outcome reward model, fitted on real episodes that the environment has graded."""

from __future__ import annotations

from pydantic import Field

from dynaweb.config.sections import Section
from dynaweb.hookspecs import PluginSpec, hookimpl


class OrmConfig(Section):
    """Settings of the outcome reward model. How it is fitted is in the recipe's section `judge_fit`."""

    weights: str = ""
    """A folder that `dynaweb orm fit` made; empty = the run fits one itself."""
    threshold: float = Field(default=0.5, ge=0, le=1)
    """Calibrated P(YES), at even odds of success and failure, from which the reward is 1 (WebRL: 0.5); ignored when
    `soft`."""
    pictures: int = Field(default=0, ge=0)
    """How many of the last screenshots it is shown besides, where pages have some (`observation.modality`)."""
    soft: bool = False
    """The reward is the calibrated P(YES) itself."""


@hookimpl
def dynaweb_rewards() -> list[PluginSpec]:
    """Offer `--reward orm`."""
    return [
        PluginSpec(
            name="orm",
            target="dynaweb_rm_orm.orm:OutcomeRewardModel",
            config=OrmConfig,
            summary="outcome reward model: fitted, calibrated P(YES) on the final page (WebRL, arXiv 2411.02337)",
            extra="train",
            capabilities=frozenset({"dream", "real", "trainable"}),
        )
    ]
