"""A run of Weights & Biases beside a run of dynaweb."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import wandb

from dynaweb import events
from dynaweb.hookspecs import hookimpl
from dynaweb.observers import scalars

if TYPE_CHECKING:
    from dynaweb.protocols import PluginContext
    from dynaweb_obs_wandb import WandbConfig


class Wandb:
    """Logs numbers. Every stage counts its updates from 0, so each has its own axis, `<stage>/update`.

    A run of dynaweb that is resumed goes on with the same run there. Offline each part has files of its own, which
    `wandb sync` joins (0.31 does).
    """

    def __init__(self, config: WandbConfig, context: PluginContext) -> None:
        self.config = config
        self._run: Any = None
        self._stages: set[str] = set()
        self._resumed = False

    @hookimpl
    def dynaweb_run_start(self, event: events.RunStart) -> None:
        """Open the run, with the recipe as its configuration."""
        self._resumed = event.resumed
        self._run = wandb.init(
            project=self.config.project,
            entity=self.config.entity or None,
            name=self.config.run_name or event.folder.name,
            mode=self.config.mode,
            id=run_id(event.folder),
            resume="allow",
            dir=str(event.folder),
            config=scalars.settings(event),
            settings=wandb.Settings(console="off", silent=True, x_disable_stats=True),
        )

    @hookimpl
    def dynaweb_update(self, event: events.Update) -> None:
        """The metrics of an update."""
        if self._run is None:
            return
        axis = f"{event.stage}/update"
        if event.stage not in self._stages:
            self._stages.add(event.stage)
            self._run.define_metric(f"{event.stage}/*", step_metric=axis)
        self._run.log({axis: event.index, **scalars.of_update(event)})

    @hookimpl
    def dynaweb_eval(self, event: events.Evaluation) -> None:
        """The result of an evaluation."""
        self._summary(scalars.of_evaluation(event))

    @hookimpl
    def dynaweb_stage(self, event: events.Stage) -> None:
        """What a stage cost; the curves too of one that was found in the cache."""
        # Where a run goes on, its own stages are in the cache, and their curves in the run already.
        if not self._resumed:
            scalars.tell_again(event, self)
        self._summary(scalars.of_stage(event))

    @hookimpl
    def dynaweb_run_end(self, event: events.RunEnd) -> None:
        """Close the run; one that failed is marked as such."""
        if self._run is not None:
            self._run.finish(exit_code=0 if event.status == "done" else 1)
            self._run = None

    def close(self) -> None:
        """Close the run when nothing else did; twice is allowed."""
        if self._run is not None:
            self._run.finish(exit_code=1)
            self._run = None

    def _summary(self, values: dict[str, float]) -> None:
        if self._run is not None and values:
            self._run.summary.update(values)


def run_id(folder: Path) -> str:
    """The id of a run folder's run: drawn once and kept there, so that a folder that is moved keeps it, too."""
    path = folder / "wandb" / "run-id"
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        path.write_text(uuid.uuid4().hex, encoding="utf-8")
    return path.read_text(encoding="utf-8")
