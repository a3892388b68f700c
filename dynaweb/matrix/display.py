"""The live table of a matrix that runs: rich on a terminal, a line for each change elsewhere."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import IO, TYPE_CHECKING, Protocol

from dynaweb.observers.progress import clock

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

    from dynaweb.matrix.runner import Progress

ROWS = 24
"""Rows of the live table; a longer matrix shows what runs and counts the rest."""
STYLES = {"done": "green", "failed": "red", "running": "cyan", "interrupted": "yellow", "waiting": "dim"}


class Display(Protocol):
    """Shows how the cells stand."""

    def changed(self, progress: Progress) -> None:
        """A cell changed."""
        ...

    def close(self) -> None:
        """Stop drawing."""
        ...


def display_of(cells: Sequence[Progress], stream: IO[str] | None = None) -> Display:
    """The display that fits the stream (stderr by default). `cells` is filled before the first change is told."""
    stream = stream if stream is not None else sys.stderr
    return LiveTable(cells, stream) if stream.isatty() else Lines(cells, stream)


class Lines:
    """A line when a cell starts and ends, and of a long cell its last words once a minute."""

    EVERY = 60.0

    def __init__(self, cells: Sequence[Progress], stream: IO[str]) -> None:
        self._cells, self._stream = cells, stream
        self._states: dict[str, str] = {}
        self._said: dict[str, float] = {}

    def changed(self, progress: Progress) -> None:
        """Say what changed."""
        id, now = progress.cell.id, time.monotonic()
        if self._states.get(id) == progress.state and now - self._said[id] < self.EVERY:
            return
        self._states[id], self._said[id] = progress.state, now
        done = sum(cell.state == "done" for cell in self._cells)
        took = f" after {clock(progress.took)}" if progress.took >= 1 else ""
        # The last words of a finished cell are its report, but one that never ran says why.
        words = f": {progress.line}" if progress.line and (progress.state != "done" or not took) else ""
        self._stream.write(f"[{done}/{len(self._cells)}] {id} {progress.cell}: {progress.state}{took}{words}\n")
        self._stream.flush()

    def close(self) -> None:
        """Nothing to stop."""


class LiveTable:
    """A table of all cells that is drawn anew four times a second."""

    def __init__(self, cells: Sequence[Progress], stream: IO[str]) -> None:
        from rich.console import Console
        from rich.live import Live

        self._cells = cells
        self._live: Live = Live(
            console=Console(file=stream, highlight=False), get_renderable=self._table, refresh_per_second=4
        )
        self._live.start()

    def changed(self, progress: Progress) -> None:
        """The next drawing shows it."""

    def close(self) -> None:
        """Draw once more and stop."""
        self._live.stop()

    def _table(self) -> Table:
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False, title=self._title(), title_justify="left", title_style="bold")
        for name, ratio in (("cell", None), ("settings", 3), ("state", None), ("time", None), ("last words", 4)):
            table.add_column(name, no_wrap=True, overflow="ellipsis", ratio=ratio)
        for cell in shown(self._cells):
            state = Text(cell.state, style=STYLES.get(cell.state, ""))
            took = clock(cell.took) if cell.took >= 1 else ""
            table.add_row(cell.cell.id, Text(str(cell.cell)), state, took, Text(cell.line))
        return table

    def _title(self) -> str:
        counts = Counter(cell.state for cell in self._cells)
        return f"{len(self._cells)} cells: " + ", ".join(f"{count} {state}" for state, count in counts.items())


def shown(cells: Sequence[Progress], rows: int = ROWS) -> list[Progress]:
    """The cells of the live table: all, or those that run and failed first and then as many as fit."""
    if len(cells) <= rows:
        return list(cells)
    order = {"running": 0, "failed": 1, "interrupted": 2, "waiting": 3, "done": 4}
    chosen = sorted(range(len(cells)), key=lambda at: (order.get(cells[at].state, 5), at))[:rows]
    return [cells[at] for at in sorted(chosen)]
