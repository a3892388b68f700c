"""Transitions and whole episodes of other people's data, read in constant memory, with an account of what was left out.

    report = ImportReport()
    TransitionStore(path).extend(read_foreign("nnetnav", Path("train.jsonl"), report))
    print(report)
    TrajectoryStore(path).extend(read_trajectories("nnetnav", Path("train.jsonl"), report := ImportReport()))

Nothing is invented: what a format does not hold (the address of a page in Mind2Web, the page after a last step) is
marked as unknown or left out. Element numbers are those of our view of the page, whatever the source calls them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from dynaweb.data.demonstrations import Only, passes
from dynaweb.data.importers.episodes import trajectory, transitions
from dynaweb.data.importers.report import ImportReport
from dynaweb.errors import ConfigError, hint
from dynaweb.worldmodels.fidelity import transitions_of

if TYPE_CHECKING:
    from dynaweb.data.images import ImageStore
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
PICTURED = (RUN, "browsergym")
"""Formats with pictures of pages."""


def read_foreign(
    name: str, source: str | Path, report: ImportReport, images: ImageStore | None = None
) -> Iterator[Transition]:
    """The transitions of a file, folder or data set in one of `FORMATS`; `report` is complete when they are read.

    Pictures of pages, where the format has some (`PICTURED`), go to `images`; None leaves them out.

    Raises `ConfigError` for an unknown format and `MissingError` for a source that is not there.
    """
    module, more = _module(name), _pictures(name, images)

    def of_each() -> Iterator[Iterable[Transition]]:
        if name == RUN:
            for whole in module.trajectories(str(source), report, *more):
                batch = transitions_of([whole])
                report.drop("it leads to no other page", len(whole.steps) - len(batch))
                yield batch
            return
        for episode in module.episodes(str(source), report, *more):
            yield transitions(episode, report)

    def counted() -> Iterator[Transition]:
        for batch in of_each():
            for transition in batch:
                report.transitions += 1
                yield transition

    return counted()


def read_trajectories(
    name: str,
    source: str | Path,
    report: ImportReport,
    only: Only | None = None,
    images: ImageStore | None = None,
) -> Iterator[Trajectory]:
    """The whole episodes of the same sources, as `read_foreign`: those of which every step can be said exactly.

    `only` leaves out those whose success nobody has seen (`dynaweb.data.demonstrations.passes`).
    """
    module, more = _module(name), _pictures(name, images)

    def whole() -> Iterator[Trajectory]:
        if name == RUN:
            yield from module.trajectories(str(source), report, *more)
            return
        for number, episode in enumerate(module.episodes(str(source), report, *more)):
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


def _pictures(name: str, images: ImageStore | None) -> tuple[ImageStore, ...]:
    """What the readers of formats with pictures are called with besides."""
    return (images,) if images is not None and name in PICTURED else ()


def _module(name: str) -> ModuleType:
    if name not in FORMATS:
        raise ConfigError(f"no format is called {name!r}; {hint(name, FORMATS)}")
    return import_module(f"{__name__}.{FORMATS[name][0]}")


__all__ = ["FORMATS", "ImportReport", "read_foreign", "read_trajectories"]
