"""Lines that a person reads while a run goes on; the progress display stays as it is."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from dynaweb import events
from dynaweb.hookspecs import hookimpl
from dynaweb.observers.progress import metrics_text
from dynaweb.observers.scalars import finite, of_evaluation

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
            self._say(f"{event.stage} update {event.index}: {metrics_text(shown) or '-'}")

    @hookimpl
    def dynaweb_eval(self, event: events.Evaluation) -> None:
        """A line for an evaluation."""
        self._say(f"{event.split}: {metrics_text(of_evaluation(event))}")

    def _say(self, text: str) -> None:
        # The stream of this moment: a display that draws bars puts itself there.
        sys.stderr.write(f"{text}\n")
