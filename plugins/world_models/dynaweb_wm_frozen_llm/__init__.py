"""World model `frozen-llm`: a language model as it is, local or behind a server, with or without examples."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import ConfigDict, Field

from dynaweb.config.sections import Section
from dynaweb.config.server import Server
from dynaweb.hookspecs import PluginSpec, hookimpl


class FrozenConfig(Section):
    """Settings of the frozen world model."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True, allow_inf_nan=False)

    FILES: ClassVar[frozenset[str]] = frozenset({"store"})

    form: Literal["delta", "page"] = "delta"
    """What the model is asked for: reasoning and edits, or the whole next page."""
    server: Server = Field(default_factory=Server)
    """An OpenAI-compatible server; without `server.model` the run's own base model answers."""
    shots: int = Field(default=0, ge=0)
    """Real transitions shown as examples; 0 = zero-shot. They need a chat model."""
    retrieval: bool = True
    """Examples are the transitions most like the one asked about; false = the same ones always."""
    store: str = ""
    """A transition store to take examples from; empty = the run's own exploration of the training sites."""
    goal: bool = True
    """The model is shown the goal (DynaWeb, appendix A.2): what a page lists follows in part from what is looked
    for."""
    history: int = Field(default=0, ge=0)
    """How many earlier actions the model is shown."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Nucleus of the sampling; the temperature is `dream.temperature`."""
    max_new_tokens: int = Field(default=448, ge=8)
    """Longest answer in tokens; a longer one is invalid."""
    retries: int = Field(default=1, ge=0)
    """How often an answer that cannot be read is sampled again before the dream ends as invalid."""


@hookimpl
def dynaweb_world_models() -> list[PluginSpec]:
    """Offer `frozen-llm`."""
    return [
        PluginSpec(
            name="frozen-llm",
            target="dynaweb_wm_frozen_llm.model:FrozenWorldModel",
            config=FrozenConfig,
            summary="any language model as it is, zero- or few-shot, local or behind an OpenAI-compatible server",
            extra="train",
        )
    ]
