"""Transitions from other people's data, read in constant memory, with an account of what was left out and why.

    report = ImportReport()
    TransitionStore(path).extend(read_foreign("nnetnav", Path("train.jsonl"), report))
    print(report)

Nothing is invented: what a format does not hold (the address of a page in Mind2Web, the page after a last step) is
marked as unknown or left out. Element numbers are those of our view of the page, whatever the source calls them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TypeVar

from dynaweb.errors import ConfigError, MissingError, hint
from dynaweb.types import Transition

FORMATS: Mapping[str, tuple[str, str]] = {
    "nnetnav": (
        "nnetnav",
        "NNetNav, one row a step: a .jsonl or .parquet file, a folder of them, or a name of the hub",
    ),
    "webarena": ("webarena", "WebArena trajectories: render_*.html files or traces/*.jsonl, or a folder of them"),
    "browsergym": ("browsergym", "BrowserGym or AgentLab experiments: a folder with step_*.pkl.gz, or of such folders"),
    "mind2web": ("mind2web", "Mind2Web: a .json, .jsonl or .parquet file, a folder of them, or a name of the hub"),
}
"""Name of each format: its module here, and what it reads."""

T = TypeVar("T")


@dataclass(slots=True)
class ImportReport:
    """How many steps were read, how many became transitions, and why the others did not."""

    read: int = 0
    transitions: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    noted: Counter[str] = field(default_factory=Counter)
    """What was odd about steps that were kept."""

    def drop(self, reason: str, count: int = 1) -> None:
        """Note steps that are left out."""
        self.dropped[reason] += count

    def note(self, what: str, count: int = 1) -> None:
        """Note something odd."""
        self.noted[what] += count

    def __str__(self) -> str:
        lines = [f"{self.transitions} transitions of {self.read} steps"]
        for title, counts in (("left out", self.dropped), ("kept, but", self.noted)):
            lines += [f"  {title}: {count} x {reason}" for reason, count in counts.most_common()]
        return "\n".join(lines)


Reader = Callable[[str, ImportReport], Iterator[Transition]]


def read_foreign(name: str, source: str | Path, report: ImportReport) -> Iterator[Transition]:
    """The transitions of a file, folder or data set in one of `FORMATS`; `report` is complete when they are read.

    Raises `ConfigError` for an unknown format and `MissingError` for a source that is not there.
    """
    if name not in FORMATS:
        raise ConfigError(f"no format is called {name!r}; {hint(name, FORMATS)}")
    module = import_module(f"{__name__}.{FORMATS[name][0]}")
    reader: Reader = module.read
    return _counted(reader(str(source), report), report)


def _counted(transitions: Iterable[Transition], report: ImportReport) -> Iterator[Transition]:
    for transition in transitions:
        report.transitions += 1
        yield transition


def files_of(source: str, *patterns: str) -> list[Path]:
    """A file itself, or all files of a folder that fit a pattern, sorted. Raises `MissingError` when there is none."""
    path = Path(source)
    listed = (file for pattern in patterns for file in path.rglob(pattern) if file.is_file())
    files = [path] if path.is_file() else sorted(set(listed))
    if not files:
        raise MissingError(f"{source} is no file, and no folder that holds {' or '.join(patterns)}")
    return files
