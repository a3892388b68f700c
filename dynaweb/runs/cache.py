"""The stage cache: folders named by the hash of the settings that made them, shared by all runs of a user.

    cache = StageCache(notify=plugins.notify)
    with cache.stage("sft", key, settings=key.settings, resumable=True) as stage:
        if not stage.cached:
            train(into=stage.folder, resume_from=stage.scratch)
            stage.commit(cost={"tokens": 1000})
    use(stage.folder)

On disk, `<root>/<name>/<key>/` is finished (it was put there by one rename), `<key>.partial/` is in the making, and
`<key>.lock` keeps a second process waiting. On `<key>.used` every run that was handed the stage holds a shared lock as
long as its `StageCache` lives, so that nobody takes the stage out (`dynaweb.runs.pruning`). `DYNAWEB_CACHE` moves the
root. The manifest has the checksum of every file, which is compared once by each `StageCache` that hands the stage out,
and its own.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import json
import logging
import math
import os
import shutil
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from dynaweb import __version__, events
from dynaweb.config.files import expanded, read_json, understood
from dynaweb.errors import CheckpointError, ConfigError, TrainingError
from dynaweb.runs.atomic import rename_folder, write_json
from dynaweb.runs.checksums import file_sum, fits_sum, with_sum
from dynaweb.runs.lock import locked

log = logging.getLogger("dynaweb")

ENV_CACHE = "DYNAWEB_CACHE"
MANIFEST = "manifest.json"
USED, PARTIAL = ".used", ".partial"
SCRATCH = "scratch"
IMAGES, PICTURES = "images", "pictures.json"
"""The folder of the pictures that stages refer to (`dynaweb.data.images`), and the list of those of one stage: SHA-256,
width and height of each."""

Notify = Callable[[object], None]


@dataclass(slots=True)
class Stage:
    """One stage of one run.

    `folder` holds the results: finished ones when `cached`, else the place to write them (`commit` moves it).
    `scratch` is for what only a resumed stage needs; `commit` deletes it. `cost` is what making it took. `resumed`
    tells whether an earlier attempt has left something in `folder`.
    """

    name: str
    key: str
    folder: Path
    cached: bool
    settings: Mapping[str, Any] = field(default_factory=dict)
    cost: dict[str, float] = field(default_factory=dict)
    committed: bool = False
    resumed: bool = False
    _started: float = field(default_factory=time.monotonic)

    @property
    def scratch(self) -> Path:
        """A folder beside the results that a killed stage finds again and a finished one loses."""
        path = self.folder / SCRATCH
        path.mkdir(parents=True, exist_ok=True)
        return path

    def commit(self, *, cost: Mapping[str, float] | None = None) -> Path:
        """Finish: write the manifest and put the folder in place by one rename. Returns the final folder.

        Its files become read-only, because run folders link to them: what edits one in place would change all runs.
        `cost` counts what the stage took; `seconds` (of this process) is added when it is not given.
        """
        shutil.rmtree(self.folder / SCRATCH, ignore_errors=True)
        self.cost = {"seconds": time.monotonic() - self._started, **(cost or {})}
        sizes = _sizes(self.folder)
        manifest = {
            "stage": self.name,
            "key": self.key,
            "dynaweb": __version__,
            "settings": self.settings,
            "cost": self.cost,
            "files": sizes,
            "sha256": {name: file_sum(self.folder / name) for name in sizes},
        }
        write_json(self.folder / MANIFEST, with_sum(manifest))
        for path in _files(self.folder):
            path.chmod(0o444)
        final = self.folder.with_name(str(self.key))
        rename_folder(self.folder, final)
        self.folder, self.committed = final, True
        return final


class StageCache:
    """Finds and makes stages. `notify` is told about each stage's start and end."""

    def __init__(self, root: Path | None = None, *, notify: Notify | None = None) -> None:
        self.root = root if root is not None else default_root()
        self._notify = notify or (lambda event: None)
        self._used: dict[Path, int] = {}
        self._whole: set[Path] = set()
        # At the end of the process the operating system lets go of the locks.
        weakref.finalize(self, _let_go, self._used)

    @contextmanager
    def stage(
        self, name: str, key: str, *, settings: Mapping[str, Any] | None = None, resumable: bool = False
    ) -> Iterator[Stage]:
        """The finished stage of that key, or a new one to fill and `commit`.

        With `resumable`, a folder that a killed process left is handed on as it is; else it is emptied. Another process
        that makes the same stage is waited for. Leaving the block without `commit` is an error of the caller. A damaged
        state that was handed on becomes a `CheckpointError` that names the folder to delete.
        """
        home = self.root / name
        self._make(home)
        with locked(home / f"{key}.lock", what=f"stage {name} {key}", wait=True):
            self._use(home / f"{key}{USED}")
            stage = self._open(name, key, settings or {}, resumable)
            self._tell(stage, "cached" if stage.cached else "start")
            try:
                yield stage
            except BaseException as error:
                if not stage.cached:
                    self._tell(stage, *_how_it_ended(error))
                if stage.resumed and isinstance(error, CheckpointError | json.JSONDecodeError):
                    raise CheckpointError(
                        f"stage {name} cannot go on from what an interrupted attempt left: {error}. "
                        f"To make the stage anew, delete {stage.folder} and give the same command again"
                    ) from error
                raise
            if not (stage.cached or stage.committed):
                raise TrainingError(f"stage {name} ended without commit(); its folder {stage.folder} is kept")
            if not stage.cached:
                self._whole.add(stage.folder)
                self._tell(stage, "done")

    def find(self, name: str, key: str) -> Path | None:
        """The finished folder of a stage, or None. A damaged one does not count: `stage` makes it anew."""
        folder = self.root / name / key
        if not folder.is_dir():
            return None
        self._use(folder.with_name(f"{key}{USED}"))
        return folder if self._checked(folder) is not None else None

    def close(self) -> None:
        """Let others take out the stages that were handed out; twice is allowed."""
        _let_go(self._used)

    def _use(self, mark: Path) -> None:
        """Hold the mark of a stage, and say when it was used. A cache that is only read has no marks."""
        with suppress(OSError):
            if mark not in self._used:
                handle = os.open(mark, os.O_RDWR | os.O_CREAT, 0o666)
                self._used[mark] = handle
                fcntl.flock(handle, fcntl.LOCK_SH)
            os.utime(mark)

    def reopen(self, name: str, key: str, *, keep: Mapping[str, str], cost: str) -> None:
        """Take a finished stage back into the making, for the next attempt to mend; nothing where there is none.

        `keep` names files of it and what they are called in the attempt's `scratch`, where they are copied; what the
        stage has cost is written there as `cost`. Killed in between, the stage is finished or in the making.
        """
        with locked(self.root / name / f"{key}.lock", what=f"stage {name} {key}", wait=True):
            folder = self.find(name, key)
            if folder is None:
                return
            scratch = folder.with_name(f"{key}{PARTIAL}") / SCRATCH
            shutil.rmtree(scratch.parent, ignore_errors=True)
            scratch.mkdir(parents=True)
            for file, called in keep.items():
                shutil.copyfile(folder / file, scratch / called)
            write_json(scratch / cost, (_manifest(folder) or {})["cost"])
            # The manifest first: a kill then leaves a folder that counts as damaged, not one with half of its files.
            (folder / MANIFEST).unlink()
            shutil.rmtree(folder)

    def _open(self, name: str, key: str, settings: Mapping[str, Any], resumable: bool) -> Stage:
        folder = self.root / name / key
        manifest = self._checked(folder)
        if manifest is not None:
            return Stage(name, key, folder, True, manifest["settings"], dict(manifest["cost"]))
        if folder.exists():
            log.warning("stage %s: the cached folder %s is damaged; it is made anew", name, folder)
            _discard(name, folder)
        partial = folder.with_name(f"{key}{PARTIAL}")
        if not resumable:
            shutil.rmtree(partial, ignore_errors=True)
        resumed = partial.exists() and any(partial.iterdir())
        partial.mkdir(exist_ok=True)
        return Stage(name, key, partial, False, settings, resumed=resumed)

    def _checked(self, folder: Path) -> dict[str, Any] | None:
        """The manifest of a folder whose files are those that it was committed with, else None."""
        manifest = _manifest(folder)
        if manifest is not None and folder not in self._whole:
            if not _is_whole(folder, manifest):
                return None
            self._whole.add(folder)
        return manifest

    def _make(self, home: Path) -> None:
        try:
            home.mkdir(parents=True, exist_ok=True)
            if not os.access(home, os.W_OK):
                raise PermissionError(errno.EACCES, f"{home} is read-only")
        except OSError as error:
            raise ConfigError(
                f"the stage cache {self.root} cannot be written: {error.strerror}; set {ENV_CACHE} to another folder"
            ) from error

    def _tell(self, stage: Stage, status: Any, detail: str = "") -> None:
        log.info("stage %s %s: %s (%s)", stage.name, stage.key, status, detail or stage.folder)
        event = events.Stage(stage.name, status, stage.key, detail, dict(stage.cost), stage.folder)
        self._notify(event)


def _let_go(used: dict[Path, int]) -> None:
    while used:
        os.close(used.popitem()[1])


def default_root() -> Path:
    """`$DYNAWEB_CACHE`, or the user's cache folder."""
    if path := os.environ.get(ENV_CACHE):
        return expanded(path)
    from platformdirs import user_cache_path

    return user_cache_path("dynaweb", appauthor=False) / "stages"


def _how_it_ended(error: BaseException) -> tuple[str, str]:
    """Status and detail of a stage that `error` ended."""
    if isinstance(error, KeyboardInterrupt | asyncio.CancelledError):
        return "interrupted", "what it has done is kept"
    return "failed", f"{type(error).__name__}: {error}"


def _files(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.rglob("*")) if path.is_file() and not path.is_symlink()]


def _sizes(folder: Path) -> dict[str, int]:
    files = (path for path in _files(folder) if path != folder / MANIFEST)
    return {path.relative_to(folder).as_posix(): path.stat().st_size for path in files}


def _is_whole(folder: Path, manifest: Mapping[str, Any]) -> bool:
    """Whether all files have the checksums of the manifest."""
    try:
        return all(file_sum(folder / name) == digest for name, digest in manifest["sha256"].items())
    except OSError:
        return False


def _discard(name: str, folder: Path) -> None:
    """Remove a damaged folder. Raises `CheckpointError` that names it where that cannot be."""
    try:
        shutil.rmtree(folder)
    except OSError as error:
        raise CheckpointError(
            f"stage {name}: the cached folder {folder} is damaged and cannot be removed ({error.strerror or error}); "
            f"delete it, or set {ENV_CACHE} to another folder, and give the same command again"
        ) from error


def _manifest(folder: Path) -> dict[str, Any] | None:
    """The manifest of a folder whose files all have the size they were committed with, else None.

    It is the one that was written for this stage and key, names nothing outside of the folder, has a checksum for every
    file, and costs that can be added up.
    """
    try:
        with understood(folder / MANIFEST):
            manifest = read_json(folder / MANIFEST, dict)
            files: dict[str, int] = manifest["files"]
            is_sound = (
                fits_sum(manifest)
                and (manifest["stage"], manifest["key"]) == (folder.parent.name, folder.name)
                and files.keys() == manifest["sha256"].keys()
                and all(_is_inside(PurePosixPath(name)) for name in files)
                and all(type(cost) in (int, float) and 0 <= cost < math.inf for cost in manifest["cost"].values())
            )
            return manifest if is_sound and files == {name: (folder / name).stat().st_size for name in files} else None
    except (CheckpointError, OSError):
        return None


def _is_inside(name: PurePosixPath) -> bool:
    return not name.is_absolute() and ".." not in name.parts
