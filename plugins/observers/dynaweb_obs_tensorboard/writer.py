"""TensorBoard's event files, by the writer that comes with PyTorch."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from torch.utils.tensorboard import SummaryWriter

from dynaweb import events
from dynaweb.hookspecs import hookimpl
from dynaweb.observers import scalars

if TYPE_CHECKING:
    from dynaweb.protocols import PluginContext
    from dynaweb_obs_tensorboard import TensorBoardConfig


class TensorBoard:
    """Writes to `config.folder`, or to `tensorboard` in the run folder."""

    def __init__(self, config: TensorBoardConfig, context: PluginContext) -> None:
        folder = Path(config.folder) if config.folder else (context.folder or Path()) / "tensorboard"
        self._writer = SummaryWriter(str(folder), flush_secs=config.flush_seconds)
        self._stages: Counter[str] = Counter()
        self._resumed = False

    @hookimpl
    def dynaweb_run_start(self, event: events.RunStart) -> None:
        """The recipe, as text."""
        self._resumed = event.resumed
        lines = [f"| `{path}` | {value} |" for path, value in scalars.settings(event).items()]
        self._writer.add_text("recipe", "\n".join(["| setting | value |", "| --- | --- |", *lines]))

    @hookimpl
    def dynaweb_update(self, event: events.Update) -> None:
        """A point of each curve."""
        for name, value in scalars.of_update(event).items():
            self._writer.add_scalar(name, value, event.index)

    @hookimpl
    def dynaweb_eval(self, event: events.Evaluation) -> None:
        """The result of an evaluation."""
        for name, value in scalars.of_evaluation(event).items():
            self._writer.add_scalar(name, value)

    @hookimpl
    def dynaweb_stage(self, event: events.Stage) -> None:
        """What a stage cost (a run may have several of one name); the curves too of one that was found in the cache."""
        # Where a run goes on, its own stages are in the cache, and their curves in the files.
        if not self._resumed:
            scalars.tell_again(event, self)
        if cost := scalars.of_stage(event):
            for name, value in cost.items():
                self._writer.add_scalar(name, value, self._stages[event.name])
            self._stages[event.name] += 1

    @hookimpl
    def dynaweb_run_end(self, event: events.RunEnd) -> None:
        """Everything reaches the disk."""
        self._writer.flush()

    def close(self) -> None:
        """Close the file; twice is allowed."""
        self._writer.close()
