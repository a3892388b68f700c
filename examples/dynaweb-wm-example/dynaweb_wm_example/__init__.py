"""World model `example-memory`: the next page of the most similar real step."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from dynaweb.hookspecs import PluginSpec, hookimpl


class MemoryConfig(BaseModel):
    """Settings of `example-memory`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    exact: bool = False
    """Only a step on the very same page counts; else the most similar one does."""
    overlap: float = Field(default=0.5, ge=0, le=1)
    """Share of the elements of both pages that must be the same for a page to count as similar."""


@hookimpl
def dynaweb_world_models() -> list[PluginSpec]:
    """Offer `--wm example-memory`."""
    return [
        PluginSpec(
            name="example-memory",
            target="dynaweb_wm_example.memory:MemoryWorldModel",
            config=MemoryConfig,
            summary="the next page of the most similar real step, without a model",
        )
    ]
