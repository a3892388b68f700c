"""Downloads of one browsing context: offered ones are reported, and kept in a folder up to a size when there is one.

A file is kept whole or not at all, under a safe name, within a budget of bytes. What a page's notice says never depends
on what earlier episodes left in the folder. Playwright is imported late, so that a pool can be made before it is known
to be installed.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.async_api import Download

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


class Downloads:
    """Takes the downloads of a context's tabs; what becomes of each is told to `say`.

    A file is kept whole or not at all, under its own name made safe, with a number when the name is taken. One that
    the budget has no room for is told like any other, and not kept.
    """

    def __init__(self, folder: Path | None, limit: int, budget: Budget, say: Callable[[str], None]) -> None:
        self._folder = folder
        self._limit = limit
        self._budget = budget
        self._say = say
        self._active: dict[asyncio.Task[None], Download] = {}
        self._urls: dict[str, str] = {}
        self._too_large: set[str] = set()

    def take(self, download: Download) -> None:
        """A download has begun."""
        if self._folder is None:
            self._say(f"a download was offered: {download.suggested_filename}")
            return
        task = asyncio.get_running_loop().create_task(self._keep(download, self._folder))
        self._active[task] = download
        task.add_done_callback(lambda done: self._active.pop(done, None))

    def on_begin(self, event: Mapping[str, Any]) -> None:
        """`Page.downloadWillBegin`: which address a transfer belongs to."""
        self._urls[event["guid"]] = event["url"]

    def on_progress(self, event: Mapping[str, Any]) -> None:
        """`Page.downloadProgress`: a file that is or grows too large is cancelled."""
        size = max(event.get("totalBytes", 0), event.get("receivedBytes", 0))
        if event.get("state") != "inProgress" or size <= self._limit or self._folder is None:
            return
        url = self._urls.get(event["guid"], "")
        if url not in self._too_large:
            self._too_large.add(url)
            for task, download in list(self._active.items()):
                if download.url == url:
                    self._cancel(task, download)

    async def settle(self, seconds: float) -> None:
        """Wait for what is being downloaded, at most that long."""
        if self._active:
            await asyncio.wait(set(self._active), timeout=seconds)

    def forget(self) -> None:
        """The episode is over: what is not complete is given up."""
        for task, download in list(self._active.items()):
            self._cancel(task, download)
            task.cancel()
        self._urls.clear()
        self._too_large.clear()

    def _cancel(self, task: asyncio.Task[None], download: Download) -> None:
        cancelling = asyncio.ensure_future(download.cancel())
        cancelling.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def _keep(self, download: Download, folder: Path) -> None:
        from playwright.async_api import Error as PlaywrightError

        name = safe_name(download.suggested_filename)
        try:
            path = await download.path()
            size = path.stat().st_size
            if size > self._limit:
                self._too_large.add(download.url)
            else:
                await store(path, folder, name, size, self._budget)
                self._say(f"a file was downloaded: {name} ({size} bytes)")
        except (PlaywrightError, OSError) as error:
            if download.url not in self._too_large:
                self._say(f"a download failed: {name} ({str(error).splitlines()[0]})")
        if download.url in self._too_large:
            self._say(f"a download was refused: {name} is larger than {self._limit} bytes")
        with suppress(Exception):
            await download.delete()


class Budget:
    """The bytes that a pool may still keep; its contexts share them."""

    def __init__(self, left: int) -> None:
        self.left = left
        self._warned = False

    def take(self, size: int) -> bool:
        """Whether a file of that size may be kept; it then counts. The first that may not is told in the log."""
        if max(size, LEAST) <= self.left:
            self.left -= max(size, LEAST)
            return True
        if not self._warned:
            self._warned = True
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
