"""What the loop asks of an engine besides the protocol `Engine`; an engine may lack any of it.

Imports nothing heavy.
"""

from __future__ import annotations

import asyncio
from typing import Any


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
