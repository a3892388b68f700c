"""A started browser, and what the browsing contexts in it need of their pool."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, Protocol
from weakref import WeakSet

from dynaweb.web.chromium.install import end_driver

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.async_api import Browser, Playwright

    from dynaweb.web.chromium.downloads import Budget


class Running:
    """A started browser and how much it has been used."""

    def __init__(self, playwright: Playwright, browser: Browser, loop: asyncio.AbstractEventLoop) -> None:
        self.playwright = playwright
        self.browser = browser
        self.loop = loop
        self.browser_pid = 0
        self.episodes = 0
        self.users = 0

    @property
    def alive(self) -> bool:
        """The browser answers, and belongs to the event loop that runs now."""
        return self.loop is asyncio.get_running_loop() and self.browser.is_connected()

    def kill(self) -> None:
        """End the browser at once; every session that uses it gets a `BrowserError`."""
        if self.browser_pid:
            with suppress(ProcessLookupError):
                os.kill(self.browser_pid, signal.SIGKILL)

    async def close(self) -> None:
        """End browser and driver; never fails and never waits for a dead one."""
        if self.loop is not asyncio.get_running_loop():
            # Its event loop ended without `close`: nothing can be awaited any more. The browser follows its driver.
            end_driver(self.browser_pid)
            return
        for ending in (self.browser.close, self.playwright.stop):
            with suppress(Exception):
                await asyncio.wait_for(ending(), 5.0)


_LOST = "Connection closed while reading from the driver"
_heard: WeakSet[asyncio.AbstractEventLoop] = WeakSet()


def expect_lost_drivers(loop: asyncio.AbstractEventLoop) -> None:
    """Keep asyncio from reporting that Playwright's driver died: whoever used it has been told by a `BrowserError`.

    Playwright notes the death in a future of its own that nobody reads.
    """
    if loop in _heard:
        return
    _heard.add(loop)
    before = loop.get_exception_handler()

    def handler(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if str(context.get("exception")) == _LOST:
            return
        if before is not None:
            before(loop, context)
        else:
            loop.default_exception_handler(context)

    loop.set_exception_handler(handler)


class Settings(Protocol):
    """What a context needs of its pool; `dynaweb.web.chromium.pool.BrowserPool` says what each setting is."""

    timeout: float
    deadline: float
    dialogs: Literal["accept", "dismiss"]
    downloads: Path | None
    max_download: int
    download_budget: Budget
    keep_cache: bool
    quiet: float
    settle: float

    def allows(self, url: str) -> bool:
        """Whether the allow-list admits the host of an address."""
        ...

    def refuse(self, url: str) -> str:
        """Count a request to a host that is not allowed, and name the host."""
        ...
