"""Events as named numbers, for observers that write to dashboards.

Names: `rl/reward` of an update of stage `rl`, `eval/dynaweb/success` and `eval/dynaweb/n` of an evaluation,
`cost/rl/seconds` of a stage. What is not finite is left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from dynaweb import events
from dynaweb.config.layers import flatten
from dynaweb.hookspecs import hookimpl
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
    metrics = {**event.metrics, **rate, "n": float(len(graded))}
    return finite({f"eval/{event.arm}/{name}": value for name, value in metrics.items()})


def of_stage(event: events.Stage) -> Scalars:
    """What a stage cost; empty for one that only starts."""
    return finite({f"cost/{event.name}/{name}": value for name, value in event.cost.items()})


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


class Dashboard:
    """Observer that sends numbers to a dashboard: a subclass says how, by `open`, `curve`, `result`, `cost`, `close`.

    A stage of a cached run has told its curves when it was run, so they are sent again: nobody else does, for a
    dashboard that is to have the curves of stages that runs share. Where a run goes on, its own stages are in the
    cache, and their curves in the dashboard already.
    """

    _resumed = False

    def open(self, event: events.RunStart) -> None:
        """A run starts or goes on; `settings` gives its recipe."""

    def curve(self, stage: str, index: int, values: Scalars) -> None:
        """The metrics of an update, of which every stage counts its own from 0."""

    def result(self, values: Scalars) -> None:
        """The result of an evaluation."""

    def cost(self, stage: str, values: Scalars) -> None:
        """What a stage cost; a run may have several of one name."""

    def close(self) -> None:
        """Everything reaches its place; twice is allowed."""

    @hookimpl
    def dynaweb_run_start(self, event: events.RunStart) -> None:
        """Open the run, with the recipe as its configuration."""
        self._resumed = event.resumed
        self.open(event)

    @hookimpl
    def dynaweb_update(self, event: events.Update) -> None:
        """A point of each curve."""
        self.curve(event.stage, event.index, of_update(event))

    @hookimpl
    def dynaweb_eval(self, event: events.Evaluation) -> None:
        """The result of an evaluation."""
        self.result(of_evaluation(event))

    @hookimpl
    def dynaweb_stage(self, event: events.Stage) -> None:
        """What a stage cost; the curves too of one that comes from the cache."""
        for cached in () if self._resumed else of_cached(event):
            if isinstance(cached, events.Update):
                self.dynaweb_update(cached)
            else:
                self.dynaweb_eval(cached)
        if values := of_stage(event):
            self.cost(event.name, values)
