"""World model `delta`: predicts the change of a page as a short script that rebuilds the new page from the old one."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from dynaweb.hookspecs import PluginSpec, hookimpl


class DeltaConfig(BaseModel):
    """Settings of the delta world model."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    top_p: float = Field(default=1.0, gt=0, le=1)
    """Nucleus of the sampling; the temperature is `dream.temperature`."""
    max_new_tokens: int = Field(default=224, ge=8)
    """Longest change in tokens; a longer one is invalid."""
    retries: int = Field(default=1, ge=0)
    """How often a change that cannot be read is sampled again before the dream ends as invalid."""


@hookimpl
def dynaweb_world_models() -> list[PluginSpec]:
    """Offer `delta`."""
    return [
        PluginSpec(
            name="delta",
            target="dynaweb_wm_delta.model:DeltaWorldModel",
            config=DeltaConfig,
            summary="predicts the change of the page as a rebuild script (DynaWeb, arXiv 2601.22149)",
            extra="train",
            capabilities=frozenset({"trainable"}),
        )
    ]
