"""What cache keys hold of settings: declared at the settings themselves, never listed at a stage.

A stage says what it does (`Activity`), and a section of the recipe says which activities its settings act on:

    class Rl(Section):
        MATTERS_TO = ("rl",)                                              # every setting, unless it says otherwise
        updates: Annotated[int, Matters("rl", "experts")] = 40            # on more, or on others
        checkpoint_every: Annotated[int, NotKeyed("when, not what")] = 5  # on nothing, with the reason

So a new setting counts until somebody says why it does not. A plugin's section counts whole, with the package, its
version and its code: a result of other code is another result. The config of a plugin, an engine or a server may say of
its own fields, as class variables:

    WITHOUT_EFFECT  settings that no result depends on, such as the price of a model server
    FILES           settings that are paths of files: what a file holds counts, not where it lies
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from pydantic import BaseModel

if TYPE_CHECKING:
    from dynaweb.plugin.discovery import Plugin

Activity = Literal[
    "demos",
    "experts",
    "sft",
    "graded",
    "judge-fit",
    "explore",
    "world-model",
    "drift",
    "rl",
    "curriculum",
    "eval",
    "judge-audit",
    # Only where the recipe asks for it.
    "wm-training",
    "calibration",
    "dreams",
    "real-rollouts",
    "policy-gradient",
    "replay",
    "run-ahead",
    "audit",
    "refresh",
    "judge-refresh",
    "validation",
    "eval-weights",
    "eval-server",
    "lookahead",
]
"""What a stage does. Its own name says most of it; the last group it does only where the recipe asks for it, so that
settings which cannot act do not split the cache."""
EVERY: tuple[Activity, ...] = get_args(Activity)

PLUGINS: dict[str, tuple[Activity, ...]] = {
    "wm": ("world-model", "drift", "dreams", "lookahead"),
    "opt": ("policy-gradient", "curriculum"),
    "reward": ("rl", "judge-audit", "lookahead"),
    "env": ("rl", "drift"),
}
"""What the sections of plugins act on."""
TASKS: tuple[Activity, ...] = ("demos", "experts", "explore", "graded", "rl", "curriculum")
"""What the environment acts on that tasks and real pages come from: `env` itself, or the one behind its dreams."""


@dataclass(frozen=True, slots=True)
class Matters:
    """The activities that a setting acts on, in the place of its section's."""

    activities: tuple[Activity, ...]

    def __init__(self, *activities: Activity) -> None:
        object.__setattr__(self, "activities", activities)


@dataclass(frozen=True, slots=True)
class NotKeyed:
    """A setting that no key holds, and why a result cannot depend on it other than through what keys hold anyway."""

    why: str


def activities_of(section: type[BaseModel], name: str) -> tuple[Activity, ...]:
    """The activities that a setting of a section acts on."""
    for note in section.model_fields[name].metadata:
        if isinstance(note, Matters):
            return note.activities
        if isinstance(note, NotKeyed):
            return ()
    activities: tuple[Activity, ...] = getattr(section, "MATTERS_TO", EVERY)
    return activities


def acting(section: BaseModel, activities: Collection[Activity]) -> dict[str, Any]:
    """The settings of a section that act on any of the activities, as plain data."""
    kind = type(section)
    return _plain(section, {name for name in kind.model_fields if set(activities) & set(activities_of(kind, name))})


def decisive(config: BaseModel) -> dict[str, Any]:
    """Settings that results depend on as plain data, of settings inside of them too."""
    return _plain(config, {name for name, _ in config})


def _plain(config: BaseModel, names: set[str]) -> dict[str, Any]:
    """A file that is not there counts by its path."""
    data: dict[str, Any] = {}
    dumped = config.model_dump(mode="json", include=names - set(getattr(config, "WITHOUT_EFFECT", ())))
    for name, plain in dumped.items():
        value = getattr(config, name)
        if isinstance(value, BaseModel):
            data[name] = decisive(value)
        elif value and name in getattr(config, "FILES", ()):
            data[name] = file_key(Path(str(value))) or plain
        else:
            data[name] = plain
    return data


# --- Hashes: of plain data, of files, and of the code of a plugin.


def digest(data: Any) -> str:
    """A stable hash (20 hex digits) of plain data; key order does not matter, 1 and 1.0 differ."""
    import hashlib
    import json

    text = json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=True)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:20]


def file_key(path: Path) -> str:
    """A hash (20 hex digits) of what a file holds, '' when there is no file."""
    if not path.is_file():
        return ""
    status = path.stat()
    return _file_hash(path.resolve(), status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=64)
def _file_hash(path: Path, size: int, changed: int) -> str:
    """Keys are asked for often, and stores are large: a file is read again only when it looks changed."""
    import hashlib

    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:20]


OWN = "dynaweb"
"""The package whose code is versioned by hand. Other packages are edited without a new version all the time, most of
all while they are written, so their source counts."""
LARGEST = 1_000_000
"""Bytes from which a file is data that a plugin carries, not source."""


def code_of(plugin: Plugin) -> str:
    """The package that offers a plugin, its version, and for packages other than this one a hash of its files."""
    origin = plugin.origin
    named = f"{origin.package} {origin.version}"
    if origin.package == OWN:
        return named
    source = _source_key(_module(plugin))
    return f"{named} {source}" if source else named


def source_paths(plugin: Plugin) -> list[Path]:
    """The folders of a plugin's code, or its one file; empty where there is none to be found."""
    return _source_paths(_module(plugin))


def _module(plugin: Plugin) -> str:
    """The top-level module."""
    return plugin.spec.target.partition(":")[0].partition(".")[0]


@lru_cache(maxsize=64)
def _source_key(module: str) -> str:
    """A hash (20 hex digits) over the files of a top-level package or module, '' where there are none to be found.

    Read once: what a process has imported does not change any more.
    """
    import hashlib

    total, files = hashlib.sha256(), list(_source_files(module))
    for name, path in files:
        total.update(f"{name} {file_key(path)}\n".encode())
    return total.hexdigest()[:20] if files else ""


def _source_files(module: str) -> Iterator[tuple[str, Path]]:
    for root in _source_paths(module):
        for path in [root] if root.is_file() else sorted(root.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts and path.stat().st_size < LARGEST:
                yield path.relative_to(root.parent).as_posix(), path


def _source_paths(module: str) -> list[Path]:
    try:
        spec = find_spec(module)
    except (ImportError, ValueError):
        return []
    if spec is None:
        return []
    if spec.submodule_search_locations:
        return [Path(folder) for folder in spec.submodule_search_locations]
    return [Path(spec.origin)] if spec.origin is not None and Path(spec.origin).is_file() else []
