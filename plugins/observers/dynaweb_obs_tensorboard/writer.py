"""TensorBoard's event files, by the writer that comes with PyTorch."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from torch.utils.tensorboard import SummaryWriter

from dynaweb import events
from dynaweb.hookspecs import hookimpl
from dynaweb.observers.scalars import Dashboard, Scalars, settings

if TYPE_CHECKING:
    from dynaweb.protocols import PluginContext
    from dynaweb_obs_tensorboard import TensorBoardConfig


class TensorBoard(Dashboard):
    """Writes to `config.folder`, or to `tensorboard` in the run folder."""

    def __init__(self, config: TensorBoardConfig, context: PluginContext) -> None:
        folder = Path(config.folder) if config.folder else (context.folder or Path()) / "tensorboard"
        self._writer = SummaryWriter(str(folder), flush_secs=config.flush_seconds)
        self._stages: Counter[str] = Counter()

    def open(self, event: events.RunStart) -> None:
        """The recipe, as text."""
        lines = [f"| `{path}` | {value} |" for path, value in settings(event).items()]
        self._writer.add_text("recipe", "\n".join(["| setting | value |", "| --- | --- |", *lines]))

    def curve(self, stage: str, index: int, values: Scalars) -> None:
        """A point of each curve."""
        self._write(values, index)

    def result(self, values: Scalars) -> None:
        """Points without a step."""
        self._write(values, None)

    def cost(self, stage: str, values: Scalars) -> None:
        """Points by the number of the stage among those of its name."""
        self._write(values, self._stages[stage])
        self._stages[stage] += 1

    @hookimpl
    def dynaweb_run_end(self, event: events.RunEnd) -> None:
        """Everything reaches the disk."""
        self._writer.flush()

    def close(self) -> None:
        """Close the file; twice is allowed."""
        self._writer.close()

    def _write(self, values: Scalars, step: int | None) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
