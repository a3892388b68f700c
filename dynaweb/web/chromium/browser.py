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


FLAGS = (
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    # A page that is scrolled by a key is there at once.
    "--disable-smooth-scrolling",
    # All frames in one process, as the headless shell has them: one DevTools session then reaches every frame.
    "--disable-site-isolation-trials",
    # The last such flag wins, so this one repeats what Playwright turns off. The first line is ours: without
    # `RenderDocument` a navigation within a site keeps its frame and takes a third less time.
    "--disable-features=RenderDocument,IsolateOrigins,IsolateSandboxedIframes,site-per-process,AimEnabled,AutoDeElevate,AvoidUnnecessaryBeforeUnloadCheckSync,"
    "DestroyProfileOnBrowserClose,DialMediaRouteProvider,GlobalMediaControls,HttpsFirstBalancedModeAutoEnable,"
    "HttpsUpgrades,LensOverlay,MediaRouter,NetworkTimeServiceQuerying,OptimizationHints,PaintHolding,PreconnectToSearch,"
    "ThirdPartyStoragePartitioning,Translate",
)
"""Switches that Chromium is started with beside Playwright's."""


class Running:
    """A started browser and how much it has been used.

    `endpoint` is the address of a browser that runs elsewhere, '' for one of this process.
    """

    def __init__(
        self, playwright: Playwright, browser: Browser, loop: asyncio.AbstractEventLoop, *, endpoint: str = ""
    ) -> None:
        self.playwright = playwright
        self.browser = browser
        self.loop = loop
        self.endpoint = endpoint
        self.browser_pid = 0
        """Its process here; 0 when it runs elsewhere or does not say."""
        self.proxy_port = 0
        """Where it reaches the proxy of its contexts; 0 when it was started behind the host list."""
        self.tunnels: Closing | None = None
        """What carries its connections back to that proxy, where something has to."""
        self.episodes = 0
        self.users = 0
        self._given_up = False

    @property
    def alive(self) -> bool:
        """The browser answers, and belongs to the event loop that runs now."""
        return self.loop is asyncio.get_running_loop() and self.browser.is_connected() and not self._given_up

    @property
    def context_options(self) -> dict[str, Any]:
        """What contexts of this browser need so that they connect through the proxy."""
        if not self.proxy_port:
            return {}
        return {"proxy": {"server": f"socks5://127.0.0.1:{self.proxy_port}", "bypass": "<-loopback>"}}

    def kill(self) -> None:
        """End the browser at once, or leave one that runs elsewhere; sessions that use it get a `BrowserError`."""
        if self.browser_pid:
            with suppress(ProcessLookupError):
                os.kill(self.browser_pid, signal.SIGKILL)
        elif self.endpoint:
            self._given_up = True
            leaving = asyncio.ensure_future(self.close())
            _leaving.add(leaving)
            leaving.add_done_callback(_leaving.discard)

    async def close(self) -> None:
        """End browser and driver; never fails and never waits for a dead one."""
        if self.loop is not asyncio.get_running_loop():
            # Its event loop ended without `close`: nothing can be awaited any more. The browser follows its driver.
            end_driver(self.browser_pid)
            if self.tunnels is not None:
                self.tunnels.close()
            return
        for ending in (self.browser.close, self.playwright.stop):
            with suppress(Exception):
                await asyncio.wait_for(ending(), 5.0)
        if self.tunnels is not None:
            self.tunnels.close()


_LOST = "Connection closed while reading from the driver"
_leaving: set[asyncio.Future[None]] = set()
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


class Closing(Protocol):
    """What ends with a browser."""

    def close(self) -> None:
        """End it; calling it twice is allowed."""
        ...


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
    viewport: tuple[int, int]

    def allows(self, url: str) -> bool:
        """Whether the allow-list admits the host of an address."""
        ...

    def refuse(self, url: str) -> str:
        """Count a request to a host that is not allowed, and name the host."""
        ...
