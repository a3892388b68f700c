"""Engines as plugins: what the loop asks of one besides the protocol `Engine`, and the transformers engine as one.

An engine may serve the policy, the world model or the judge. All that is asked for here is optional.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

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
        )


async def rest(engine: Any) -> None:
    """Let an engine give its memory to the trainer, if it can."""
    if hasattr(engine, "rest"):
        await engine.rest()


async def close(engine: Any) -> None:
    """End what an engine holds open, if anything."""
    if hasattr(engine, "close"):
        result = engine.close()
        if asyncio.iscoroutine(result):
            await result


def correction(engine: Any) -> float:
    """The cap of the importance weights that make up for the engine's probabilities; 0 = they are the trainer's."""
    return 0.0 if getattr(engine, "exact", False) else float(getattr(engine, "correction", 0.0))


def seen(engine: Any) -> dict[str, float]:
    """What the engine found when it got the weights (`engine.probe_mean` and its like)."""
    return dict(getattr(engine, "mismatch", {}))
