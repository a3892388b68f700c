"""Transitions and whole episodes of other people's data, read in constant memory, with an account of what was left out.

    report = ImportReport()
    TransitionStore(path).extend(read_foreign("nnetnav", Path("train.jsonl"), report))
    print(report)
    TrajectoryStore(path).extend(read_trajectories("nnetnav", Path("train.jsonl"), report := ImportReport()))

Nothing is invented: what a format does not hold (the address of a page in Mind2Web, the page after a last step) is
marked as unknown or left out. Element numbers are those of our view of the page, whatever the source calls them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from dynaweb.errors import ConfigError, MissingError, hint

if TYPE_CHECKING:
    from dynaweb.data.demonstrations import Only
    from dynaweb.types import Trajectory, Transition

RUN = "run"
FORMATS: Mapping[str, tuple[str, str]] = {
    "nnetnav": (
        "nnetnav",
        "NNetNav, one row a step: a .jsonl or .parquet file, a folder of them, or a name of the hub",
    ),
    "webarena": ("webarena", "WebArena trajectories: render_*.html files or traces/*.jsonl, or a folder of them"),
    "browsergym": ("browsergym", "BrowserGym or AgentLab experiments: a folder with step_*.pkl.gz, or of such folders"),
    "mind2web": ("mind2web", "Mind2Web: a .json, .jsonl or .parquet file, a folder of them, or a name of the hub"),
    RUN: ("runs", "runs of dynaweb: the folder of a run, or one of the stores in its folder trajectories/"),
}
"""Name of each format: its module here, and what it reads."""


@dataclass(slots=True)
class ImportReport:
    """How many steps were read, what was made of them, and why the others were left out."""

    read: int = 0
    transitions: int = 0
    """How many steps became transitions."""
    trajectories: int = 0
    """How many whole episodes were read, where these were asked for."""
    steps: int = 0
    """How many steps these have."""
    dropped: Counter[str] = field(default_factory=Counter)
    """Steps that were left out, by reason; those of an episode that is left out count for its reason."""
    dropped_episodes: Counter[str] = field(default_factory=Counter)
    """Episodes that were left out whole, by reason."""
    noted: Counter[str] = field(default_factory=Counter)
    """What was odd about steps that were taken."""

    def drop(self, reason: str, count: int = 1) -> None:
        """Note steps that are left out."""
        self.dropped[reason] += count

    def drop_episode(self, reason: str, steps: int) -> None:
        """Note an episode that is left out with all its steps."""
        self.dropped_episodes[reason] += 1
        self.drop(reason, steps)

    def note(self, what: str, count: int = 1) -> None:
        """Note something odd."""
        self.noted[what] += count

    def __str__(self) -> str:
        whole = self.trajectories or self.dropped_episodes
        kind = f"{self.trajectories} trajectories ({self.steps} steps)" if whole else f"{self.transitions} transitions"
        lines = [f"{kind} of {self.read} steps"]
        for reason, count in self.dropped.most_common():
            episodes = self.dropped_episodes[reason]
            lines.append(f"  left out: {count} x {f'in {episodes} episodes: ' if episodes else ''}{reason}")
        lines += [f"  kept, but: {count} x {reason}" for reason, count in self.noted.most_common()]
        return "\n".join(lines)


def read_foreign(name: str, source: str | Path, report: ImportReport) -> Iterator[Transition]:
    """The transitions of a file, folder or data set in one of `FORMATS`; `report` is complete when they are read.

    Raises `ConfigError` for an unknown format and `MissingError` for a source that is not there.
    """
    from dynaweb.data.importers.episodes import transitions
    from dynaweb.worldmodels.fidelity import transitions_of

    module = _module(name)

    def of_each() -> Iterator[Iterable[Transition]]:
        if name == RUN:
            for whole in module.trajectories(str(source), report):
                batch = transitions_of([whole])
                report.drop("it leads to no other page", len(whole.steps) - len(batch))
                yield batch
            return
        for episode in module.episodes(str(source), report):
            yield transitions(episode, report)

    def counted() -> Iterator[Transition]:
        for batch in of_each():
            for transition in batch:
                report.transitions += 1
                yield transition

    return counted()


def read_trajectories(
    name: str, source: str | Path, report: ImportReport, only: Only | None = None
) -> Iterator[Trajectory]:
    """The whole episodes of the same sources, as `read_foreign`: those of which every step can be said exactly.

    `only` leaves out those whose success nobody has seen (`dynaweb.data.demonstrations.passes`).
    """
    from dynaweb.data.demonstrations import passes
    from dynaweb.data.importers.episodes import trajectory

    module = _module(name)

    def whole() -> Iterator[Trajectory]:
        if name == RUN:
            yield from module.trajectories(str(source), report)
            return
        for number, episode in enumerate(module.episodes(str(source), report)):
            one = trajectory(episode, report, number)
            if one is not None:
                yield one

    def counted() -> Iterator[Trajectory]:
        for one in whole():
            if only is not None and not passes(one, only):
                report.drop_episode(f"it is no success ({only})", len(one.steps))
                continue
            report.trajectories += 1
            report.steps += len(one.steps)
            yield one

    return counted()


def _module(name: str) -> ModuleType:
    if name not in FORMATS:
        raise ConfigError(f"no format is called {name!r}; {hint(name, FORMATS)}")
    return import_module(f"{__name__}.{FORMATS[name][0]}")


def files_of(source: str, *patterns: str) -> list[Path]:
    """A file itself, or all files of a folder that fit a pattern, sorted. Raises `MissingError` when there is none."""
    path = Path(source)
    listed = (file for pattern in patterns for file in path.rglob(pattern) if file.is_file())
    files = [path] if path.is_file() else sorted(set(listed))
    if not files:
        raise MissingError(f"{source} is no file, and no folder that holds {' or '.join(patterns)}")
    return files
