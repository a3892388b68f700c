"""The progress display, on stderr: bars with rate and time left on a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Protocol

from dynaweb import events
from dynaweb.hookspecs import hookimpl
from dynaweb.observers.scalars import finite, of_cached, of_evaluation
from dynaweb.runs.names import IMAGE_TOKENS, PROMPT_TOKENS_LEFT_OUT, PROMPTS, PROMPTS_CUT

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn, TaskID

    from dynaweb.plugin.registry import Plugins

PLAIN_SECONDS = 5.0
"""Plain lines of one job come no closer than this."""


class ProgressDisplay:
    """Observer that shows stages, jobs and evaluations, and a line of metrics where `run.log_every` asks for one."""

    def __init__(self, stream: IO[str] | None = None, *, bars: bool | None = None) -> None:
        stream = stream if stream is not None else sys.stderr
        use_bars = stream.isatty() if bars is None else bars
        self._view: _View = _Bars(stream) if use_bars else _Lines(stream)
        self._stages, self._of = 0, 0
        self._log_every, self._log_metrics = 0, tuple[str, ...]()

    @hookimpl
    def dynaweb_run_start(self, event: events.RunStart) -> None:
        """Say where the run is."""
        settings = event.recipe.get("run", {})
        self._log_every, self._log_metrics = settings.get("log_every", 0), tuple(settings.get("log_metrics", ()))
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
        if event.status in ("start", "cached"):
            self._stages += 1
        detail = f": {event.detail}" if event.detail else ""
        which = f"{self._number()}{event.name} {event.status} [{event.key[:8]}]"
        self._view.say(f"stage {which}{detail}{costs(event.cost)}")
        if event.status in ("failed", "interrupted"):
            # It will be taken up again, or finished under another key: either way it is not over.
            self._stages -= 1
        if self._log_every:
            for cached in of_cached(event):
                if isinstance(cached, events.Evaluation):
                    self._log_evaluation(cached)

    @hookimpl
    def dynaweb_update(self, event: events.Update) -> None:
        """A line of metrics for every so many updates."""
        if self._log_every and event.index % self._log_every == 0:
            wanted = self._log_metrics
            metrics = {k: v for k, v in finite(event.metrics).items() if not wanted or k.startswith(wanted)}
            if metrics:
                self._view.say(f"{event.stage} update {event.index}: {metrics_text(metrics)}")

    def _log_evaluation(self, event: events.Evaluation) -> None:
        prefix = f"eval/{event.arm}/"
        metrics = {name.removeprefix(prefix): value for name, value in of_evaluation(event).items()}
        self._view.say(f"{event.split}, {event.arm}: {metrics_text(metrics)}")

    def _number(self) -> str:
        """`4 of 16: `, or nothing where it is not known how many there will be."""
        return f"{self._stages} of {self._of}: " if self._stages <= self._of else ""

    @hookimpl
    def dynaweb_progress(self, event: events.Progress) -> None:
        """Move the bar of a job, or learn how many stages there are."""
        if event.job == events.STAGES:
            self._of = event.total
            return
        self._view.move(event)

    @hookimpl
    def dynaweb_eval(self, event: events.Evaluation) -> None:
        """Say how an evaluation went."""
        self._view.say(evaluated(event))
        if self._log_every:
            self._log_evaluation(event)

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
    last: float = 0.0

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
        if finished or now - meter.last >= PLAIN_SECONDS:
            meter.last = now
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
        text = metrics_text(event.metrics)
        progress.update(self._tasks[event.job], completed=event.done, total=event.total or None, metrics=text)

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


def evaluated(event: events.Evaluation) -> str:
    """`evaluation of SFT, 30 updates (test): success 83.3 %, n = 36`; of the judge its mean score, which is none."""
    graded = [value for value in event.successes if value is not None]
    mean = sum(graded) / len(graded) if graded else None
    judge = event.arm.startswith(events.JUDGE_OF)
    arm = event.label or event.arm.removeprefix(events.JUDGE_OF)
    if judge:
        score = f"mean score {mean:.3f}" if mean is not None else "no score"
        return f"judge on {arm} ({event.split}): {score}, n = {len(graded)}"
    share = f"success {100 * mean:.1f} %" if mean is not None else "none graded"
    return f"evaluation of {arm} ({event.split}): {share}, n = {len(graded)}"


def metrics_text(metrics: Mapping[str, float]) -> str:
    """`loss=0.123 reward=0.5`; `-` for what is no number, such as the reward where nothing was graded."""
    return " ".join(f"{name}={'-' if math.isnan(value) else f'{value:.3g}'}" for name, value in metrics.items())


COST_WORDS = {
    "tokens_generated": "tokens generated",
    "tokens_trained": "tokens trained",
    "browser_steps": "steps in the browser",
    "browser_steps_evaluation": "of them for evaluation",
    "static_steps": "steps without a browser",
    PROMPTS: "prompts",
    PROMPTS_CUT: "of them cut to fit the model",
    PROMPT_TOKENS_LEFT_OUT: "tokens left out of them",
    IMAGE_TOKENS: "tokens of images read",
    "engine_starts": "starts of vLLM",
}
"""Counts of `events.Stage.cost`, in words that follow the number."""


def costs(cost: Mapping[str, float]) -> str:
    """` (12.3 s, 4,000 tokens generated, peak memory 1.00 GiB)`, without what is 0; or nothing.

    Prompts are named where some were cut.
    """
    shown = {name: value for name, value in cost.items() if value and (name != PROMPTS or cost.get(PROMPTS_CUT))}
    words = [_cost(name, value) for name, value in shown.items()]
    return f" ({', '.join(words)})" if words else ""


def _cost(name: str, value: float) -> str:
    from dynaweb.stats import duration

    if name == "seconds":
        return duration(value)
    if name == "peak_memory_mib":
        return f"peak memory {value / 1024:.2f} GiB" if value >= 1024 else f"peak memory {value:.0f} MiB"
    number = f"{value:,.1f}" if value % 1 else f"{int(value):,}"
    return f"{number} {COST_WORDS.get(name, name.replace('_', ' '))}"


def clock(seconds: float) -> str:
    """`1:02:03`, or `2:03` below an hour."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


@contextmanager
def showing_progress(plugins: Plugins, wanted: bool = True) -> Iterator[None]:
    """Draw progress on stderr meanwhile."""
    if not wanted:
        yield
        return
    display = ProgressDisplay()
    try:
        with plugins.observing(display):
            yield
    finally:
        display.close()
