"""The transformers engine as a plugin."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dynaweb.engines.transformers_engine import TransformersEngine
from dynaweb.protocols import PluginContext

if TYPE_CHECKING:
    from dynaweb.engines.plugin import TransformersConfig


class TransformersRole(TransformersEngine):
    """`TransformersEngine` as a plugin. It computes with the trainer's own weights, so nothing has to be pushed."""

    exact = True

    def __init__(self, config: TransformersConfig, context: PluginContext) -> None:
        loaded = context.services["model"]
        super().__init__(
            loaded.model,
            context.services["lockstep"],
            pad_id=loaded.format.pad_id,
            max_batch_tokens=config.max_batch_tokens,
            static=config.static,
            decode=getattr(loaded.tokenizer, "decode", None),
        )
