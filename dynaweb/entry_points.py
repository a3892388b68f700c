"""Which installed packages declare plugins: their entry points, also where the metadata of some package is damaged."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from importlib import metadata

from dynaweb.hookspecs import PROJECT


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a plugin comes from: its entry point, and the package that declares it."""

    entry_point: str
    package: str
    version: str

    def __str__(self) -> str:
        return f"package {self.package} {self.version}"


Unreadable = list[tuple[Origin, Exception]]
"""Packages with plugins whose list of entry points is damaged, and how that showed."""


def entry_points() -> tuple[list[tuple[metadata.EntryPoint, Origin]], Unreadable]:
    """All entry points of plugins, by package, and the packages that have some which cannot be read."""
    unreadable: Unreadable = []
    entries: Iterable[metadata.EntryPoint]
    try:
        entries = metadata.entry_points(group=PROJECT)
    # One damaged file among those of all packages; the standard library says neither which nor why.
    except Exception:
        entries = list(_readable(unreadable))
    origins: dict[int, Origin] = {}
    found = []
    for entry in entries:
        # Reading metadata costs a file each time, and one package declares many entry points.
        if id(entry.dist) not in origins:
            origins[id(entry.dist)] = _origin(entry.dist)
        found.append((entry, replace(origins[id(entry.dist)], entry_point=entry.name)))
    return sorted(found, key=lambda pair: (pair[1].package, pair[1].entry_point)), unreadable


def _readable(unreadable: Unreadable) -> Iterator[metadata.EntryPoint]:
    """Package by package."""
    seen: set[str] = set()
    for dist in metadata.distributions():
        origin = _origin(dist)
        if origin.package in seen:  # Python imports the first one
            continue
        seen.add(origin.package)
        try:
            yield from dist.entry_points.select(group=PROJECT)
        except Exception as error:
            if f"[{PROJECT}]" in (dist.read_text("entry_points.txt") or ""):
                unreadable.append((replace(origin, entry_point=origin.package), error))


def _origin(dist: metadata.Distribution | None) -> Origin:
    """The package of a distribution; the name of its folder, where its metadata has none."""
    if dist is None:
        return Origin("", "unknown", "?")
    folder = getattr(dist, "_path", None)
    name, version = (_field(dist, key) for key in ("Name", "Version"))
    return Origin("", name or (folder.name.partition("-")[0] if folder is not None else "unknown"), version or "?")


def _field(dist: metadata.Distribution, key: str) -> str:
    try:
        return str(dist.metadata[key] or "")
    except (KeyError, TypeError, OSError, ValueError):
        return ""
