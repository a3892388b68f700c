"""A run of Weights & Biases beside a run of dynaweb."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import wandb

from dynaweb import events
from dynaweb.hookspecs import hookimpl
from dynaweb.observers.scalars import Dashboard, Scalars, settings

if TYPE_CHECKING:
    from dynaweb.protocols import PluginContext
    from dynaweb_obs_wandb import WandbConfig


class Wandb(Dashboard):
    """Logs numbers. Every stage counts its updates from 0, so each has its own axis, `<stage>/update`.

    A run of dynaweb that is resumed goes on with the same run there. Offline each part has files of its own, which
    `wandb sync` joins (0.31 does).
    """

    def __init__(self, config: WandbConfig, context: PluginContext) -> None:
        self.config = config
        self._run: Any = None
        self._stages: set[str] = set()

    def open(self, event: events.RunStart) -> None:
        """Open the run, with the recipe as its configuration."""
        self._run = wandb.init(
            project=self.config.project,
            entity=self.config.entity or None,
            name=self.config.run_name or event.folder.name,
            mode=self.config.mode,
            id=run_id(event.folder),
            resume="allow",
            dir=str(event.folder),
            config=settings(event),
            settings=wandb.Settings(console="off", silent=True, x_disable_stats=True),
        )

    def curve(self, stage: str, index: int, values: Scalars) -> None:
        """The metrics of an update."""
        if self._run is None:
            return
        axis = f"{stage}/update"
        if stage not in self._stages:
            self._stages.add(stage)
            self._run.define_metric(f"{stage}/*", step_metric=axis)
        self._run.log({axis: index, **values})

    def result(self, values: Scalars) -> None:
        """Numbers of the summary."""
        if self._run is not None and values:
            self._run.summary.update(values)

    def cost(self, stage: str, values: Scalars) -> None:
        """What a stage cost."""
        self.result(values)

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


def run_id(folder: Path) -> str:
    """The id of a run folder's run: drawn once and kept there, so that a folder that is moved keeps it, too."""
    path = folder / "wandb" / "run-id"
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        path.write_text(uuid.uuid4().hex, encoding="utf-8")
    return path.read_text(encoding="utf-8")
