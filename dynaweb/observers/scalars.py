"""Events as named numbers, for observers that write to dashboards.

Names: `rl/reward` of an update of stage `rl`, `eval/dynaweb/success` and `eval/dynaweb/n` of an evaluation,
`cost/rl/seconds` of a stage. What is not finite is left out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from dynaweb import events
from dynaweb.config.layers import flatten

Scalars = dict[str, float]


def of_update(event: events.Update) -> Scalars:
    """The metrics of one optimizer step."""
    return finite({f"{event.stage}/{name}": value for name, value in event.metrics.items()})


def of_evaluation(event: events.Evaluation) -> Scalars:
    """The success rate over graded episodes and their number, and the other metrics of an evaluation."""
    graded = [value for value in event.successes if value is not None]
    rate = {"success": sum(graded) / len(graded)} if graded else {}
    found = {**event.metrics, **rate, "n": float(len(graded))}
    return finite({f"eval/{event.arm}/{name}": value for name, value in found.items()})


def of_stage(event: events.Stage) -> Scalars:
    """What a stage cost; empty for one that only starts."""
    return finite({f"cost/{event.name}/{name}": value for name, value in event.cost.items()})


def finite(values: Mapping[str, Any]) -> Scalars:
    """The finite numbers among values."""
    return {
        name: float(value)
        for name, value in values.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }


def settings(event: events.RunStart) -> dict[str, Any]:
    """The recipe by dotted path, lists as text: what dashboards take as configuration."""
    flat = dict(flatten(event.recipe))
    return {path: value if isinstance(value, int | float | str | bool) else str(value) for path, value in flat.items()}
