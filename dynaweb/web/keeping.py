"""How downloaded files are kept: whole or not at all, under safe names, within a budget of bytes.

Without Playwright, so that a pool can be made before it is known to be installed.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import shutil
from pathlib import Path

log = logging.getLogger("dynaweb")

MAX_DOWNLOAD = 50_000_000
"""Bytes of one file that are kept unless the pool says otherwise."""
DOWNLOAD_BUDGET = 1_000_000_000
"""Bytes that a pool keeps in all unless it says otherwise."""
LEAST = 100_000
"""Bytes that a file counts at least, so that a budget bounds the number of files too."""

_UNSAFE = re.compile(r"[\x00-\x1f\x7f/\\:*?\"<>|\ud800-\udfff]")
_NAME_LIMIT = 120
"""Bytes of a file name: file systems count bytes, and most take 255."""


class Budget:
    """The bytes that a pool may still keep; its contexts share them."""

    def __init__(self, left: int) -> None:
        self.left = left
        self._told = False

    def take(self, size: int) -> bool:
        """Whether a file of that size may be kept; it then counts. The first that may not is told in the log."""
        if max(size, LEAST) <= self.left:
            self.left -= max(size, LEAST)
            return True
        if not self._told:
            self._told = True
            log.warning("a download of %d bytes is not kept: the budget for downloads is used up", size)
        return False

    def give_back(self, size: int) -> None:
        """A file of that size was not kept after all."""
        self.left += max(size, LEAST)


async def store(path: Path, folder: Path, name: str, size: int, budget: Budget) -> None:
    """Copy a file into the folder if the budget allows; in a thread, since other episodes go on meanwhile."""
    if not budget.take(size):
        return
    try:
        await asyncio.to_thread(_move, path, folder, name)
    except OSError:
        # Not for a cancelled copy: its thread may still finish it.
        budget.give_back(size)
        raise


def safe_name(name: str) -> str:
    """A file name without folders, control characters or leading dots, of at most 120 bytes; never empty."""
    clean = _UNSAFE.sub("_", name).strip(" .")
    if len(clean.encode()) > _NAME_LIMIT:
        stem, dot, ending = clean.rpartition(".")
        clean = f"{_cut(stem, _NAME_LIMIT - 20)}{dot}{_cut(ending, 16)}" if stem else _cut(clean, _NAME_LIMIT)
    return clean or "download"


def _cut(text: str, size: int) -> str:
    """As many whole characters as fit into that many bytes."""
    return text.encode()[:size].decode(errors="ignore")


def _move(path: Path, folder: Path, name: str) -> Path:
    """Put a finished file into the folder under a name that is free."""
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f".{path.name}.part"
    stem, dot, ending = name.rpartition(".")
    try:
        shutil.copyfile(path, part)
        for number in range(1, 10_000):
            mark = "" if number == 1 else f" ({number})"
            target = folder / (f"{stem}{mark}{dot}{ending}" if stem else f"{name}{mark}")
            if _named(part, target):
                return target
    finally:
        part.unlink(missing_ok=True)
    raise OSError(f"{folder} has ten thousand files of the name {name}")


def _named(part: Path, target: Path) -> bool:
    """Give a whole file its name; False when the name is taken, also by another process."""
    try:
        os.link(part, target)
    except FileExistsError:
        return False
    except OSError:
        return _renamed(part, target)
    return True


def _renamed(part: Path, target: Path) -> bool:
    """The same where the file system has no links: the name is reserved by an empty file first."""
    try:
        target.touch(exist_ok=False)
    except FileExistsError:
        return False
    try:
        part.replace(target)
    except OSError:
        target.unlink(missing_ok=True)
        raise
    return True
