"""World model `delta`: predicts the change of a page as a short script that rebuilds the new page from the old one."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from dynaweb.config.sections import Section
from dynaweb.hookspecs import PluginSpec, hookimpl


class DeltaConfig(Section):
    """Settings of the delta world model."""

    apply: Literal["patch", "llm"] = "patch"
    """`patch`: the model writes edits, code applies them. `llm`: the model writes the change in words and then, from
    them, the next page (DynaWeb)."""
    learn_apply: bool = True
    """With `apply = "llm"`, fit the rewriting too. DynaWeb's loss is on reasoning and change only (false), which suits
    a large model that follows instructions; a small one has to learn it."""
    goal: bool = True
    """The model is shown the goal (DynaWeb, appendix A.2): what a page lists follows in part from what is looked
    for."""
    history: int = Field(default=0, ge=0)
    """How many earlier actions the model is shown."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Nucleus of the sampling; the temperature is `dream.temperature`."""
    max_new_tokens: int = Field(default=224, ge=8)
    """Longest answer in tokens; a longer one is invalid."""
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
