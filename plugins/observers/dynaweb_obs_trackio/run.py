"""A run of trackio beside a run of dynaweb. Its files go where `TRACKIO_DIR` says."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, redirect_stdout
from typing import TYPE_CHECKING, Any, TextIO

import trackio

from dynaweb import events
from dynaweb.hookspecs import hookimpl
from dynaweb.observers import scalars

if TYPE_CHECKING:
    from dynaweb.protocols import PluginContext
    from dynaweb_obs_trackio import TrackioConfig


class Trackio:
    """Logs numbers; `<stage>/update` counts the updates of each stage."""

    def __init__(self, config: TrackioConfig, context: PluginContext) -> None:
        self.config = config
        self._run: Any = None
        self._resumed = False

    @hookimpl
    def dynaweb_run_start(self, event: events.RunStart) -> None:
        """Open the run, with the recipe as its configuration."""
        self._resumed = event.resumed
        with _quiet():
            self._run = trackio.init(
                project=self.config.project,
                name=self.config.run_name or event.folder.name,
                space_id=self.config.space_id or None,
                config=scalars.settings(event),
                resume="allow",
                embed=False,
                auto_log_gpu=False,
                auto_log_cpu=False,
            )

    @hookimpl
    def dynaweb_update(self, event: events.Update) -> None:
        """The metrics of an update."""
        self._log({f"{event.stage}/update": float(event.index), **scalars.of_update(event)})

    @hookimpl
    def dynaweb_eval(self, event: events.Evaluation) -> None:
        """The result of an evaluation."""
        self._log(scalars.of_evaluation(event))

    @hookimpl
    def dynaweb_stage(self, event: events.Stage) -> None:
        """What a stage cost; the curves too of one that was found in the cache."""
        # Where a run goes on, its own stages are in the cache, and their curves in the run already.
        if not self._resumed:
            scalars.tell_again(event, self)
        self._log(scalars.of_stage(event))

    @hookimpl
    def dynaweb_run_end(self, event: events.RunEnd) -> None:
        """Close the run."""
        self.close()

    def close(self) -> None:
        """Close the run; twice is allowed."""
        if self._run is not None:
            with _quiet():
                trackio.finish()
            self._run = None

    def _log(self, values: dict[str, float]) -> None:
        if self._run is not None and values:
            self._run.log(values)


def _quiet() -> AbstractContextManager[TextIO]:
    # trackio talks on stdout, which is for results.
    return redirect_stdout(sys.stderr)
