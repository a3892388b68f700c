"""The progress display, on stderr: bars with rate and time left on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Protocol

from dynaweb import events
from dynaweb.hookspecs import hookimpl

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn, TaskID

PLAIN_SECONDS = 5.0
"""Plain lines of one job come no closer than this."""


class ProgressDisplay:
    """Observer that shows stages, jobs and evaluations."""

    def __init__(self, stream: IO[str] | None = None, *, bars: bool | None = None) -> None:
        stream = stream if stream is not None else sys.stderr
        use_bars = stream.isatty() if bars is None else bars
        self._view: _View = _Bars(stream) if use_bars else _Lines(stream)

    @hookimpl
    def dynaweb_run_start(self, event: events.RunStart) -> None:
        """Say where the run is."""
        self._view.say(f"run folder {event.folder}{' (resumed)' if event.resumed else ''}")

    @hookimpl
    def dynaweb_run_end(self, event: events.RunEnd) -> None:
        """Say how the run ended, and stop drawing."""
        self._view.close()
        self._view.say(f"run {event.status} after {clock(event.seconds)}")

    @hookimpl
    def dynaweb_stage(self, event: events.Stage) -> None:
        """Say that a stage starts, was cached, or ended with its cost."""
        if event.status != "start":
            self._view.finish()
        detail = f": {event.detail}" if event.detail else ""
        self._view.say(f"stage {event.name} {event.status} [{event.key[:8]}]{detail}{costs(event.cost)}")

    @hookimpl
    def dynaweb_progress(self, event: events.Progress) -> None:
        """Move the bar of a job."""
        self._view.move(event)

    @hookimpl
    def dynaweb_eval(self, event: events.Evaluation) -> None:
        """Say how an evaluation went."""
        graded = [value for value in event.successes if value is not None]
        share = f"{sum(graded) / len(graded):.3f}" if graded else "none graded"
        self._view.say(f"evaluation {event.arm} ({event.split}): success {share}, n = {len(graded)}")

    @hookimpl
    def dynaweb_error(self, event: events.Failure) -> None:
        """Say what failed. What ends the run is raised to the caller, who says it, once."""
        if not event.fatal:
            self._view.say(f"problem in {event.where}: {event.error}")

    def close(self) -> None:
        """Stop drawing; twice is allowed."""
        self._view.close()


class _View(Protocol):
    def say(self, text: str) -> None: ...

    def move(self, event: events.Progress) -> None: ...

    def finish(self) -> None: ...

    def close(self) -> None: ...


@dataclass(slots=True)
class Meter:
    """Rate and time left of one job, from its first report on: work done before a resume does not count as speed."""

    start_done: int
    start_time: float
    shown: float = 0.0

    def rate(self, done: int, now: float) -> float:
        """Units a second; 0 when it cannot be told yet."""
        return (done - self.start_done) / (now - self.start_time) if now > self.start_time else 0.0

    def left(self, done: int, total: int, now: float) -> float | None:
        """Seconds left, or None when it cannot be told."""
        rate = self.rate(done, now)
        return (total - done) / rate if rate > 0 and total >= done else None


class _Lines:
    """Plain lines, for logs and pipes."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self._meters: dict[str, Meter] = {}

    def say(self, text: str) -> None:
        self._stream.write(f"{text}\n")
        self._stream.flush()

    def move(self, event: events.Progress) -> None:
        now = time.monotonic()
        meter = self._meters.setdefault(event.job, Meter(event.done, now))
        finished = bool(event.total) and event.done >= event.total
        if finished or now - meter.shown >= PLAIN_SECONDS:
            meter.shown = now
            self.say(line(event, meter, now))
        if finished:
            del self._meters[event.job]

    def finish(self) -> None:
        self._meters.clear()

    def close(self) -> None:
        self.finish()


class _Bars:
    """Rich progress bars, for terminals."""

    def __init__(self, stream: IO[str]) -> None:
        from rich.console import Console

        self._console = Console(file=stream, highlight=False)
        self._progress: Progress | None = None
        self._tasks: dict[str, TaskID] = {}

    def say(self, text: str) -> None:
        self._console.print(text, markup=False)

    def move(self, event: events.Progress) -> None:
        progress = self._progress or self._start()
        if event.job not in self._tasks:
            self._tasks[event.job] = progress.add_task(event.job, total=None, unit=event.unit, metrics="")
        shown = metrics_text(event.metrics)
        progress.update(self._tasks[event.job], completed=event.done, total=event.total or None, metrics=shown)

    def _start(self) -> Progress:
        from rich import progress as rich

        speed = _speed_column()
        bar = rich.BarColumn(bar_width=24)
        left = rich.TimeRemainingColumn(compact=True, elapsed_when_finished=True)
        text = rich.TextColumn("[progress.description]{task.description}")
        extra = rich.TextColumn("{task.fields[metrics]}", markup=False)
        self._progress = rich.Progress(text, bar, rich.MofNCompleteColumn(), speed, left, extra, console=self._console)
        self._progress.start()
        return self._progress

    def finish(self) -> None:
        self.close()

    def close(self) -> None:
        if self._progress is not None:
            self._progress.stop()
        self._progress = None
        self._tasks.clear()


def _speed_column() -> ProgressColumn:
    from rich import progress as rich
    from rich.text import Text

    class Speed(rich.ProgressColumn):
        """Units a second."""

        def render(self, task: rich.Task) -> Text:
            speed = task.finished_speed or task.speed
            return Text(f"{speed:.1f} {task.fields['unit']}/s" if speed else "", style="progress.data.speed")

    return Speed()


def line(event: events.Progress, meter: Meter, now: float) -> str:
    """`rl 12/50 it, 0.8 it/s, 0:47 left, reward=0.5`."""
    of = f"/{event.total}" if event.total else ""
    parts = [f"{event.job} {event.done}{of} {event.unit}"]
    if rate := meter.rate(event.done, now):
        parts.append(f"{rate:.1f} {event.unit}/s")
    left = meter.left(event.done, event.total, now) if event.total else None
    if left:
        parts.append(f"{clock(left)} left")
    if event.metrics:
        parts.append(metrics_text(event.metrics))
    return ", ".join(parts)


def metrics_text(metrics: Mapping[str, float]) -> str:
    """`loss=0.123 reward=0.5`."""
    return " ".join(f"{name}={value:.3g}" for name, value in metrics.items())


def costs(cost: Mapping[str, float]) -> str:
    """` (seconds 12.3, tokens 4,000)`, or nothing."""
    if not cost:
        return ""
    shown = (f"{name} {value:,.1f}" if value % 1 else f"{name} {int(value):,}" for name, value in cost.items())
    return f" ({', '.join(shown)})"


def clock(seconds: float) -> str:
    """`1:02:03`, or `2:03` below an hour."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
