"""What the stage cache holds, and taking things out of it: never what a running run uses.

A run keeps a shared lock on `<key>.used` of every stage that it was handed (`StageCache`), until it ends or is killed;
whoever takes a stage out needs that lock, and the one of making it, for itself. Run folders have links of their own to
results: they lose nothing.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dynaweb.config.files import read_json
from dynaweb.errors import CheckpointError, ConfigError
from dynaweb.runs.cache import IMAGES, MANIFEST, PARTIAL, PICTURES, USED, default_root
from dynaweb.runs.example import EXAMPLE
from dynaweb.runs.sidecar import FOLDER as ENVIRONMENTS

State = Literal["done", "unfinished", "in use"]
_NO_STAGES = frozenset({IMAGES, EXAMPLE, ENVIRONMENTS})
"""Folders of the cache that hold other things: pictures, the shipped run, environments of other packages."""
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_SIZES = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@dataclass(frozen=True, slots=True)
class CachedStage:
    """One stage in the cache: what it is, bytes, seconds since it was last used, and how it stands.

    `freed` are the bytes that taking it out gives back: files that run folders link to stay on the disk.
    """

    name: str
    key: str
    folder: Path
    size: int
    freed: int
    age: float
    state: State


def cached_stages(root: Path | None = None) -> list[CachedStage]:
    """Every stage of the cache, finished or not, the one that was used last first."""
    root = root if root is not None else default_root()
    homes = (home for home in _folders(root) if home.name not in _NO_STAGES)
    stages = [_stage(folder) for home in homes for folder in _folders(home)]
    return sorted(stages, key=lambda stage: (stage.age, stage.name, stage.key))


def chosen_stages(
    stages: Iterable[CachedStage], *, older_than: float | None = None, max_size: int | None = None, every: bool = False
) -> list[CachedStage]:
    """Which of them to take out: all, those not used for so many seconds, or the oldest until the rest fits `max_size`
    bytes. Stages in use are never chosen. Raises `ConfigError` where nothing says which."""
    if not every and older_than is None and max_size is None:
        raise ConfigError("say what to take out: --older-than AGE, --max-size SIZE, or --all")
    stages = sorted(stages, key=lambda stage: stage.age, reverse=True)
    chosen, total = [], sum(stage.size for stage in stages)
    for stage in stages:
        old = older_than is not None and stage.age >= older_than
        large = max_size is not None and total > max_size
        if stage.state != "in use" and (every or old or large):
            chosen.append(stage)
            total -= stage.size
    return chosen


def take_out(stages: Iterable[CachedStage]) -> list[CachedStage]:
    """Delete stages; returns those that were. One that a run uses or makes by now is left."""
    gone = []
    for stage in stages:
        with _alone(stage.folder) as alone:
            if alone and stage.folder.is_dir():
                # The manifest first: a kill then leaves a folder that counts as damaged, not one that seems whole.
                (stage.folder / MANIFEST).unlink(missing_ok=True)
                shutil.rmtree(stage.folder)
                gone.append(stage)
    return gone


def drop_pictures(root: Path | None = None) -> int:
    """Delete the pictures of pages that no stage lists any more; returns how many.

    None goes while a stage is in the making, whose list is not written yet, nor one that was put there within a day.
    Run folders have links of their own.
    """
    root = root if root is not None else default_root()
    if not (root / IMAGES).is_dir() or any(stage.state != "done" for stage in cached_stages(root)):
        return 0
    listed: set[str] = set()
    for path in root.glob(f"*/*/{PICTURES}"):
        listed.update(str(one[0]) for one in read_json(path, list))
    stray = [
        path
        for path in (root / IMAGES).glob("*/*.png")
        if path.stem not in listed and time.time() - path.stat().st_mtime > _UNITS["d"]
    ]
    for path in stray:
        path.unlink(missing_ok=True)
    return len(stray)


def seconds_of(text: str) -> float:
    """Seconds of an age such as `12h`, `7d` or `2w`; a bare number counts days. Raises `ConfigError`."""
    return _number(text, {"": 86400, **_UNITS}, "an age: a number with s, m, h, d or w, such as 12h or 7d")


def bytes_of(text: str) -> int:
    """Bytes of a size such as `500M` or `2G`. Raises `ConfigError`."""
    return int(_number(text.upper().removesuffix("B"), {"": 1, **_SIZES}, "a size: such as 500M or 2G"))


def _number(text: str, units: dict[str, int], what: str) -> float:
    unit = text[-1:] if text[-1:].isalpha() else ""
    try:
        value = float(text.removesuffix(unit)) * units[unit]
    except (ValueError, KeyError):
        raise ConfigError(f"{text!r} is not {what}") from None
    if not 0 <= value < float("inf"):
        raise ConfigError(f"{text!r} is not {what}")
    return value


def _folders(path: Path) -> Iterator[Path]:
    return (one for one in sorted(path.iterdir()) if one.is_dir()) if path.is_dir() else iter(())


def _stage(folder: Path) -> CachedStage:
    key = folder.name.removesuffix(PARTIAL)
    sizes = [(file.st_size, file.st_nlink) for file in _stats(folder)]
    age = max(0.0, time.time() - _last_used(folder, key))
    with _alone(folder) as alone:
        state: State = "in use" if not alone else "done" if _whole(folder) else "unfinished"
    total, own = sum(size for size, _ in sizes), sum(size for size, links in sizes if links == 1)
    return CachedStage(folder.parent.name, key, folder, total, own, age, state)


def _stats(folder: Path) -> Iterator[os.stat_result]:
    for path in folder.rglob("*"):
        try:
            if path.is_file() and not path.is_symlink():
                yield path.stat()
        except OSError:  # a stage in the making moves its files
            continue


def _whole(folder: Path) -> bool:
    try:
        return bool(read_json(folder / MANIFEST, dict)) and not folder.name.endswith(PARTIAL)
    except CheckpointError:
        return False


def _last_used(folder: Path, key: str) -> float:
    marks = (folder.with_name(f"{key}{USED}"), folder)
    return max((path.stat().st_mtime for path in marks if path.exists()), default=0.0)


@contextmanager
def _alone(folder: Path) -> Iterator[bool]:
    """Hold both locks of a stage for a moment, so that nobody makes or uses it; False where somebody does."""
    key = folder.name.removesuffix(PARTIAL)
    with ExitStack() as stack:
        yield all(_locked(folder.with_name(f"{key}{end}"), folder, stack) for end in (".lock", USED))


def _locked(path: Path, folder: Path, stack: ExitStack) -> bool:
    handle = _opened(path, folder)
    if handle is None:
        return True
    stack.callback(os.close, handle)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _opened(path: Path, folder: Path) -> int | None:
    """A lock file of a stage; made where there was none, with the stage's own time, since looking is no use of it.

    In a cache that is only readable: the file for reading, or None.
    """
    try:
        return os.open(path, os.O_RDWR)
    except FileNotFoundError:
        pass
    except OSError:
        return os.open(path, os.O_RDONLY)
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        last = folder.stat().st_mtime
        os.utime(path, (last, last))
    except OSError:
        return None
    return handle
