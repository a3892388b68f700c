"""World model `full-state`: predicts the whole next page."""

from __future__ import annotations

from pydantic import Field

from dynaweb.config.sections import Section
from dynaweb.hookspecs import PluginSpec, hookimpl


class FullStateConfig(Section):
    """Settings of the full-state world model."""

    goal: bool = True
    """The model is shown the goal (DynaWeb, appendix A.2): what a page lists follows in part from what is looked
    for."""
    history: int = Field(default=0, ge=0)
    """How many earlier actions the model is shown."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Nucleus of the sampling; the temperature is `dream.temperature`."""
    max_new_tokens: int = Field(default=448, ge=8)
    """Longest page in tokens; a longer one is invalid."""
    retries: int = Field(default=1, ge=0)
    """How often a page that cannot be read is sampled again before the dream ends as invalid."""


@hookimpl
def dynaweb_world_models() -> list[PluginSpec]:
    """Offer `full-state`."""
    return [
        PluginSpec(
            name="full-state",
            target="dynaweb_wm_full_state.model:FullStateWorldModel",
            config=FullStateConfig,
            summary="predicts the whole next page (WebDreamer, WebEvolver)",
            extra="train",
            capabilities=frozenset({"trainable"}),
        )
    ]
