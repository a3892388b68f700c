"""Which code a plugin is, for cache keys: a result of other code is another result.

This package counts the versions of its own stages. Other packages are edited without a new version all the time, most
of all while they are written, so their source counts.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from dynaweb.config.decisive import file_key

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dynaweb.discovery import Plugin

OWN = "dynaweb"
"""The package whose code is versioned by hand."""
LARGEST = 1_000_000
"""Bytes from which a file is data that a plugin carries, not source."""


def code_of(plugin: Plugin) -> str:
    """The package that offers a plugin, its version, and for packages other than this one a hash of its files."""
    origin = plugin.origin
    named = f"{origin.package} {origin.version}"
    if origin.package == OWN:
        return named
    found = _files_key(_module(plugin))
    return f"{named} {found}" if found else named


def places_of(plugin: Plugin) -> list[Path]:
    """The folders of a plugin's code, or its one file; empty where there is none to be found."""
    return _places(_module(plugin))


def _module(plugin: Plugin) -> str:
    """The top-level module."""
    return plugin.spec.target.partition(":")[0].partition(".")[0]


@lru_cache(maxsize=64)
def _files_key(module: str) -> str:
    """A hash (20 hex digits) over the files of a top-level package or module, '' where there are none to be found.

    Read once: what a process has imported does not change any more.
    """
    found = hashlib.sha256()
    files = list(_files(module))
    for name, path in files:
        found.update(f"{name} {file_key(path)}\n".encode())
    return found.hexdigest()[:20] if files else ""


def _files(module: str) -> Iterator[tuple[str, Path]]:
    for place in _places(module):
        for path in [place] if place.is_file() else sorted(place.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts and path.stat().st_size < LARGEST:
                yield path.relative_to(place.parent).as_posix(), path


def _places(module: str) -> list[Path]:
    try:
        spec = find_spec(module)
    except (ImportError, ValueError):
        return []
    if spec is None:
        return []
    if spec.submodule_search_locations:
        return [Path(folder) for folder in spec.submodule_search_locations]
    return [Path(spec.origin)] if spec.origin is not None and Path(spec.origin).is_file() else []
