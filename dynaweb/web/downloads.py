"""Downloads of one browsing context: offered ones are reported, and kept in a folder up to a size when there is one.

What a page's notice says never depends on what earlier episodes left in the folder.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from playwright.async_api import Download
from playwright.async_api import Error as PlaywrightError

from dynaweb.web.keeping import Budget, safe_name, store


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
