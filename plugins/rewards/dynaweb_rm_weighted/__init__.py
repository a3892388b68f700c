"""Reward judge `weighted`: a declared combination of other judges."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from dynaweb.config.sections import Section
from dynaweb.hookspecs import PluginSpec, hookimpl


class Part(Section):
    """One judge of a combination."""

    weight: float = Field(default=1.0, gt=0)
    """How much its score counts."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Its own settings."""


class WeightedConfig(Section):
    """Settings of a combination, such as `reward.judges.orm.weight = 2` and `reward.judges.self-assess.weight = 1`."""

    judges: dict[str, Part] = Field(default_factory=dict)
    """The judges by name, each with `weight` and `settings`."""
    missing: Literal["none", "others"] = "none"
    """What a judge without a score means: no score at all, or the weighted mean of the others."""
    threshold: float = Field(default=0.0, ge=0, le=1)
    """The reward is 1 from this weighted mean on, else 0; 0 = the weighted mean itself."""

    @model_validator(mode="after")
    def _some(self) -> Self:
        if not self.judges:
            raise ValueError(
                "a combination needs judges: set reward.judges.NAME.weight for each, such as "
                "reward.judges.self-assess.weight = 1"
            )
        if "weighted" in self.judges:
            raise ValueError("a combination cannot be a part of itself")
        return self


@hookimpl
def dynaweb_rewards() -> list[PluginSpec]:
    """Offer `--reward weighted`."""
    return [
        PluginSpec(
            name="weighted",
            target="dynaweb_rm_weighted.weighted:WeightedJudge",
            config=WeightedConfig,
            summary="weighted mean of other judges, as declared",
            capabilities=frozenset({"dream", "real", "combines"}),
        )
    ]
