"""Downloads of one browsing context: offered ones are reported, and kept in a folder up to a size when there is one."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from playwright.async_api import Download
from playwright.async_api import Error as PlaywrightError

MAX_DOWNLOAD = 50_000_000
"""Bytes of one file that are kept unless the pool says otherwise."""

_UNSAFE = re.compile(r"[\x00-\x1f\x7f/\\:*?\"<>|\ud800-\udfff]")
_NAME_LIMIT = 120


class Downloads:
    """Takes the downloads of a context's tabs; what becomes of each is told to `say`.

    A file is kept whole or not at all, under its own name made safe, with a number when the name is taken.
    """

    def __init__(self, folder: Path | None, limit: int, say: Callable[[str], None]) -> None:
        self._folder = folder
        self._limit = limit
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
        name = safe_name(download.suggested_filename)
        try:
            path = await download.path()
            size = path.stat().st_size
            if size > self._limit:
                self._too_large.add(download.url)
            else:
                kept = _move(path, folder, name)
                self._say(f"a download was saved: {kept.name} ({size} bytes)")
        except (PlaywrightError, OSError) as error:
            if download.url not in self._too_large:
                self._say(f"a download failed: {name} ({str(error).splitlines()[0]})")
        if download.url in self._too_large:
            self._say(f"a download was refused: {name} is larger than {self._limit} bytes")
        with suppress(Exception):
            await download.delete()


def safe_name(name: str) -> str:
    """A file name without folders, control characters or leading dots; never empty."""
    clean = _UNSAFE.sub("_", name).strip(" .")
    stem, dot, ending = clean.rpartition(".")
    return (clean if len(clean) <= _NAME_LIMIT else f"{stem[: _NAME_LIMIT - 20]}{dot}{ending[:16]}") or "download"


def _move(path: Path, folder: Path, name: str) -> Path:
    """Put a finished file into the folder under a name that is free."""
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f".{path.name}.part"
    shutil.copyfile(path, part)
    stem, dot, ending = name.rpartition(".")
    for number in range(1, 10_000):
        mark = "" if number == 1 else f" ({number})"
        target = folder / (f"{stem}{mark}{dot}{ending}" if stem else f"{name}{mark}")
        try:
            # A link fails when the name is taken, also by another process.
            os.link(part, target)
        except FileExistsError:
            continue
        part.unlink()
        return target
    part.unlink()
    raise OSError(f"{folder} has ten thousand files of the name {name}")
