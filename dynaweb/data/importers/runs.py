"""Our own runs: the real episodes in a run's folder or in one trajectory store, dreams left out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from dynaweb.data.images import ImageStore, images_of, pictures_of
from dynaweb.data.importers.report import ImportReport
from dynaweb.data.store import SUFFIX, existing_trajectories
from dynaweb.errors import MissingError
from dynaweb.runs.checksums import TRAJECTORIES, check_records
from dynaweb.types import Trajectory


def trajectories(source: str, report: ImportReport, images: ImageStore | None = None) -> Iterator[Trajectory]:
    """The episodes of a run as they are, those of every stage, with their pictures in `images` too.

    Raises `MissingError` for what is neither a run nor a store, `CheckpointError` for a damaged one.
    """
    for path in _stores(Path(source)):
        known = images_of(path)
        for episode in existing_trajectories(path):
            report.read += len(episode.steps)
            if episode.source == "dream":
                report.drop_episode("its pages were dreamed", len(episode.steps))
            elif episode.end == "infrastructure":
                report.drop_episode("the infrastructure broke it", len(episode.steps))
            else:
                if images is not None and (missing := known.share(pictures_of(episode), images.folder)):
                    report.note("a picture of it is missing or damaged", missing)
                yield episode


def _stores(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    check_records(path, f"{TRAJECTORIES}/")
    stores = sorted((path / TRAJECTORIES).glob(f"*{SUFFIX}"))
    if not stores:
        raise MissingError(f"{path} is no trajectory store, and no folder of a run with episodes in trajectories/")
    return stores
