"""Events as named numbers, for observers that write to dashboards.

Names: `rl/reward` of an update of stage `rl`, `eval/dynaweb/success` and `eval/dynaweb/n` of an evaluation,
`cost/rl/seconds` of a stage. What is not finite is left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from dynaweb import events
from dynaweb.config.layers import flatten
from dynaweb.observers.metrics import STAGE_FILE, joined_times
from dynaweb.runs.jsonl import read_jsonl

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


class Curves(Protocol):
    """An observer of updates and evaluations."""

    def dynaweb_update(self, event: events.Update) -> None:
        """An update."""

    def dynaweb_eval(self, event: events.Evaluation) -> None:
        """An evaluation."""


def tell_again(event: events.Stage, observer: Curves) -> None:
    """Tell an observer what a stage that was found in the cache told when it was made.

    Nobody else does: for a dashboard that is to have the curves of stages that runs share.
    """
    for told in of_cached(event):
        if isinstance(told, events.Update):
            observer.dynaweb_update(told)
        else:
            observer.dynaweb_eval(told)


def of_cached(event: events.Stage) -> Iterator[events.Update | events.Evaluation]:
    """What a stage that was found in the cache told when it was made, in that order; nothing of other stages."""
    if event.status != "cached" or event.folder is None:
        return
    for row in read_jsonl(event.folder / STAGE_FILE):
        if row["event"] == "update":
            yield events.Update(row["stage"], row["index"], joined_times(row))
        elif row["event"] == "eval":
            yield events.Evaluation(row["arm"], row["split"], tuple(row["successes"]), joined_times(row))


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
