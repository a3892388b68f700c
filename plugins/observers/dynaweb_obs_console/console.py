"""Lines that a person reads while a run goes on; the progress display stays as it is."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from dynaweb import events
from dynaweb.hookspecs import hookimpl
from dynaweb.observers.progress import metrics_text
from dynaweb.observers.scalars import finite, of_cached, of_evaluation

if TYPE_CHECKING:
    from dynaweb.protocols import PluginContext
    from dynaweb_obs_console import ConsoleConfig


class Console:
    """Prints what `config.metrics` names."""

    def __init__(self, config: ConsoleConfig, context: PluginContext) -> None:
        self.config = config

    @hookimpl
    def dynaweb_update(self, event: events.Update) -> None:
        """A line for an update."""
        if event.index % self.config.every == 0:
            wanted = self.config.metrics
            shown = {k: v for k, v in finite(event.metrics).items() if not wanted or k.startswith(wanted)}
            if shown:
                self._say(f"{event.stage} update {event.index}: {metrics_text(shown)}")

    @hookimpl
    def dynaweb_eval(self, event: events.Evaluation) -> None:
        """A line for an evaluation."""
        prefix = f"eval/{event.arm}/"
        found = {name.removeprefix(prefix): value for name, value in of_evaluation(event).items()}
        self._say(f"{event.split}, {event.arm}: {metrics_text(found)}")

    @hookimpl
    def dynaweb_stage(self, event: events.Stage) -> None:
        """The evaluations of a stage that was found in the cache."""
        for told in of_cached(event):
            if isinstance(told, events.Evaluation):
                self.dynaweb_eval(told)

    def _say(self, text: str) -> None:
        # The stream of this moment: a display that draws bars puts itself there.
        sys.stderr.write(f"{text}\n")
