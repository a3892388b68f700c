"""Runs the cells of a matrix, each in a process of its own: one that fails or eats all memory takes nothing along.

`display_of` shows them: as a live table on a terminal, as a line for each change elsewhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Protocol

from dynaweb.errors import EXIT_INTERRUPTED, Interrupted, StorageError
from dynaweb.matrix.folder import MatrixFolder, check_keeps_done
from dynaweb.matrix.plan import Cell, Plan
from dynaweb.observers.progress import clock
from dynaweb.runs import write_json
from dynaweb.runs.checksums import with_sum
from dynaweb.runs.processes import own_command
from dynaweb.runs.space import storage_error

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table


GRACE = 120.0
"""Seconds that an interrupted cell has to save its state."""

POLL = 0.2
"""Seconds between two looks at what the cells say."""
TAIL = 2**16
"""Bytes of a log in which its last line is looked for."""

Command = Callable[[MatrixFolder, str], Sequence[str]]
"""The command line that runs a cell, from the matrix folder and the cell's id."""


@dataclass(slots=True)
class Progress:
    """How one cell stands while the matrix runs; `line` is the last thing that its process said."""

    cell: Cell
    state: str = "waiting"
    started: float = 0.0
    seconds: float = 0.0
    line: str = ""

    @property
    def took(self) -> float:
        """Seconds so far, or in all."""
        return time.monotonic() - self.started if self.state == "running" else self.seconds


@dataclass(slots=True)
class Runner:
    """Runs the cells that are not done, `jobs` at a time.

    `changed` is told of every change of a cell, `block` holds `-p` options for their processes, and `command` may stand
    for them in tests. `only` are the ids of the cells to run now, where that is not all. With `fail_fast` the first
    failure stops the others, which can go on later. `options` are those of the command line that matter after the
    cells alone.
    """

    plan: Plan
    folder: MatrixFolder
    jobs: int = 1
    fail_fast: bool = False
    block: Sequence[str] = ()
    command: Command | None = None
    changed: Callable[[Progress], None] = lambda progress: None
    progress: list[Progress] = field(default_factory=list)
    options: Sequence[str] = ()
    only: Collection[str] | None = None
    _running: dict[str, asyncio.subprocess.Process] = field(default_factory=dict)
    _stopped: bool = False

    def run(self) -> list[Progress]:
        """Run them.

        Raises `ConfigError` before anything is written when the folder's table has done cells that the plan lacks, and
        `Interrupted` after Ctrl-C or SIGTERM, when every cell has saved its state.
        """
        cells = [cell for cell in self.plan.cells if self.only is None or cell.id in self.only]
        self.progress[:] = [Progress(cell) for cell in cells]
        with self.folder.lock():
            check_keeps_done(self.folder, self.plan)
            self.folder.write_plan(self.plan)
            go_on = self.go_on
            try:
                asyncio.run(self._all())
            except (KeyboardInterrupt, asyncio.CancelledError) as error:
                raise Interrupted(
                    f"interrupted{self._were_running()}the state is saved, go on with: {go_on}"
                ) from error
            except BaseExceptionGroup as group:
                # Of a task that cannot write; the others were told to save their state.
                first = _first(group)
                if not isinstance(first, OSError):
                    raise first from group
                what = f"{first.filename}: {first.strerror}" if first.filename else str(first)
                raise storage_error(first, self.folder.path) or StorageError(
                    f"the folder of the matrix cannot be used ({what}); mend it, then go on with: {self.go_on}"
                ) from group
        return self.progress

    @property
    def go_on(self) -> str:
        """The command that goes on with what is not done, as this one was given."""
        words = ["dynaweb", "matrix", "run", str(self.folder.path)]
        words += ["--jobs", str(self.jobs)] if self.jobs > 1 else []
        words += ["--fail-fast"] if self.fail_fast else []
        words += [word for option in self.block for word in ("-p", option)]
        return shlex.join([*words, *self.options])

    def _were_running(self) -> str:
        """What an interruption has stopped, a line for each cell."""
        running = [one for one in self.progress if one.state in ("running", "interrupted")]
        if not running:
            return "; "
        done = sum(one.state == "done" for one in self.progress)
        lines = [f"  {one.cell.id} {one.cell}{f': {one.line}' if one.line else ''}" for one in running]
        return "\n".join([f" with {done} of {len(self.progress)} cells done; running were", *lines, ""])

    async def _all(self) -> None:
        slots = asyncio.Semaphore(self.jobs)
        try:
            async with asyncio.TaskGroup() as group:
                for progress in self.progress:
                    group.create_task(self._one(progress, slots))
        finally:
            await self._stop_all()

    async def _one(self, progress: Progress, slots: asyncio.Semaphore) -> None:
        if self.folder.is_done(progress.cell.id):
            self._set(progress, "done", "was done already")
            return
        async with slots:
            if not self._stopped:
                await self._run_cell(progress)

    async def _run_cell(self, progress: Progress) -> None:
        id = progress.cell.id
        # How the last attempt ended says nothing while this one runs.
        self.folder.outcome(id).unlink(missing_ok=True)
        progress.started = time.monotonic()
        self._set(progress, "running")
        code = await self._process(progress, self._command(id))
        progress.seconds = time.monotonic() - progress.started
        state = "done" if code == 0 and self.folder.is_done(id) else "failed"
        if code == EXIT_INTERRUPTED or (self._stopped and state == "failed"):
            state = "interrupted"
        if code < 0 and state == "failed":
            # It could not say so itself, and its last line is from its work.
            progress.line = f"killed by {_signal_name(-code)}; its last words: {progress.line}"
        outcome = {"status": state, "exit": code, "seconds": round(progress.seconds, 3)}
        error = {"error": progress.line} if state != "done" else {}
        write_json(self.folder.outcome(id), with_sum(outcome | error))
        self._set(progress, state)
        if state == "failed" and self.fail_fast and not self._stopped:
            self._stopped = True
            self._signal(signal.SIGINT)

    async def _process(self, progress: Progress, command: Sequence[str]) -> int:
        log = self.folder.log(progress.cell.id)
        log.parent.mkdir(parents=True, exist_ok=True)
        # Into a file, not a pipe: a cell outlives a killed matrix while it saves its state, and may talk then.
        with log.open("ab") as file:
            start = file.tell()
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=file,
                stderr=asyncio.subprocess.STDOUT,
                env=_environment(self.jobs),
                # Ctrl-C reaches the matrix alone, which tells its cells once; twice would keep them from saving.
                start_new_session=True,
                preexec_fn=_die_with_parent if sys.platform == "linux" else None,
            )
        self._running[progress.cell.id] = process
        listener = asyncio.create_task(self._listen(progress, log, start))
        try:
            return await process.wait()
        finally:
            listener.cancel()
            self._hear(progress, log, start)
            if process.returncode is not None:
                self._running.pop(progress.cell.id, None)

    async def _listen(self, progress: Progress, log: Path, start: int) -> None:
        while True:
            await asyncio.sleep(POLL)
            self._hear(progress, log, start)

    def _hear(self, progress: Progress, log: Path, start: int) -> None:
        """Take the last line that the process has written since `start`."""
        try:
            file = log.open("rb")
        except OSError:  # somebody has removed it; the cell goes on
            return
        with file:
            file.seek(max(start, file.seek(0, 2) - TAIL))
            lines = [line.strip() for line in file.read().decode("utf-8", "replace").splitlines() if line.strip()]
        if lines and lines[-1] != progress.line:
            progress.line = lines[-1]
            self.changed(progress)

    def _command(self, id: str) -> Sequence[str]:
        if self.command is not None:
            return self.command(self.folder, id)
        blocked = [word for option in self.block for word in ("-p", option)]
        return [sys.executable, *own_command("matrix", "cell", str(self.folder.path), id, *blocked)]

    def _set(self, progress: Progress, state: str, line: str = "") -> None:
        progress.state = state
        progress.line = line or progress.line
        self.changed(progress)

    def _signal(self, number: signal.Signals) -> None:
        for process in self._running.values():
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(number)

    async def _stop_all(self) -> None:
        """Let what still runs save its state; kill what does not end."""
        if not self._running:
            return
        self._stopped = True
        self._signal(signal.SIGINT)
        ends = [asyncio.ensure_future(process.wait()) for process in self._running.values()]
        # Not `gather`: where a second Ctrl-C ends the loop, asyncio would print its future.
        _, late = await asyncio.wait(ends, timeout=GRACE)
        if late:
            self._signal(signal.SIGKILL)


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """One of the errors inside."""
    inner = group.exceptions[0]
    return _first(inner) if isinstance(inner, BaseExceptionGroup) else inner


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _environment(jobs: int) -> Mapping[str, str]:
    threads = max(1, (os.cpu_count() or 1) // jobs)
    return {**({"OMP_NUM_THREADS": str(threads)} if jobs > 1 else {}), **os.environ, "PYTHONUNBUFFERED": "1"}


def _die_with_parent() -> None:
    # A matrix that is killed leaves no cell running, which would hold its run folder against the next attempt.
    import ctypes

    ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGTERM)


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
        self._printed: dict[str, float] = {}

    def changed(self, progress: Progress) -> None:
        """Say what changed."""
        id, now = progress.cell.id, time.monotonic()
        if self._states.get(id) == progress.state and now - self._printed[id] < self.EVERY:
            return
        self._states[id], self._printed[id] = progress.state, now
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
        for cell in listed(self._cells):
            state = Text(cell.state, style=STYLES.get(cell.state, ""))
            took = clock(cell.took) if cell.took >= 1 else ""
            table.add_row(cell.cell.id, Text(str(cell.cell)), state, took, Text(cell.line))
        return table

    def _title(self) -> str:
        counts = Counter(cell.state for cell in self._cells)
        return f"{len(self._cells)} cells: " + ", ".join(f"{count} {state}" for state, count in counts.items())


def listed(cells: Sequence[Progress], rows: int = ROWS) -> list[Progress]:
    """The cells of the live table: all, or those that run and failed first and then as many as fit."""
    if len(cells) <= rows:
        return list(cells)
    order = {"running": 0, "failed": 1, "interrupted": 2, "waiting": 3, "done": 4}
    chosen = sorted(range(len(cells)), key=lambda at: (order.get(cells[at].state, 5), at))[:rows]
    return [cells[at] for at in sorted(chosen)]
