"""A run of trackio beside a run of dynaweb. Its files go where `TRACKIO_DIR` says."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, redirect_stdout
from typing import TYPE_CHECKING, Any, TextIO

import trackio

from dynaweb import events
from dynaweb.hookspecs import hookimpl
from dynaweb.observers.scalars import Dashboard, Scalars, settings

if TYPE_CHECKING:
    from dynaweb.protocols import PluginContext
    from dynaweb_obs_trackio import TrackioConfig


class Trackio(Dashboard):
    """Logs numbers; `<stage>/update` counts the updates of each stage."""

    def __init__(self, config: TrackioConfig, context: PluginContext) -> None:
        self.config = config
        self._run: Any = None

    def open(self, event: events.RunStart) -> None:
        """Open the run, with the recipe as its configuration."""
        with _quiet():
            self._run = trackio.init(
                project=self.config.project,
                name=self.config.run_name or event.folder.name,
                space_id=self.config.space_id or None,
                config=settings(event),
                resume="allow",
                embed=False,
                auto_log_gpu=False,
                auto_log_cpu=False,
            )

    def curve(self, stage: str, index: int, values: Scalars) -> None:
        """The metrics of an update."""
        self.result({f"{stage}/update": float(index), **values})

    def result(self, values: Scalars) -> None:
        """Numbers without a step."""
        if self._run is not None and values:
            self._run.log(values)

    def cost(self, stage: str, values: Scalars) -> None:
        """What a stage cost."""
        self.result(values)

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


def _quiet() -> AbstractContextManager[TextIO]:
    # trackio talks on stdout, which is for results.
    return redirect_stdout(sys.stderr)
