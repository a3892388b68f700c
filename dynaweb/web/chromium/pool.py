"""One Chromium, many browsing contexts: `BrowserPool` hands out `ChromiumSession`s.

    async with BrowserPool(hosts=("*.localhost", "127.0.0.1")) as pool:
        session = await pool.session()
        await session.reset()
        await session.goto("http://shop.localhost:8123/")
        observation = await session.observe()

Contexts are reset between episodes and used again, because a fresh one costs four times as much. A browser that died
is started again at the next reset; one that has played `recycle` episodes is replaced, because Chromium keeps some
memory for every context it ever had. Hosts off the allow-list are out of reach for the browser's whole network
(`dynaweb.web.chromium.network`).
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from dynaweb.errors import BrowserError, MissingError
from dynaweb.masking import expanded
from dynaweb.web.chromium.browser import FLAGS, Running, expect_lost_drivers
from dynaweb.web.chromium.downloads import DOWNLOAD_BUDGET, MAX_DOWNLOAD, Budget
from dynaweb.web.chromium.endpoints import NO_WEBRTC, Endpoint
from dynaweb.web.chromium.install import Chromium, find
from dynaweb.web.chromium.network import LOOPBACK, FilteringProxy, allows, arguments, check_hosts, is_loopback_only
from dynaweb.web.environment import run_apart
from dynaweb.web.page.view import MAX_NODES, MAX_OPTIONS
from dynaweb.web.session import QUIET_WINDOW, SETTLE_SECONDS, WINDOW, Region, UrlMap

if TYPE_CHECKING:
    from playwright.async_api import Browser

    from dynaweb.protocols import BrowserSettings
    from dynaweb.web.chromium.context import OpenContext
    from dynaweb.web.chromium.session import ChromiumSession
    from dynaweb.web.pictures import Pictures

log = logging.getLogger("dynaweb")

DOWNLOADS = "downloads"
"""Folder of downloaded files within a run's."""
_LAUNCH_SECONDS = 60.0
_PATIENCE = 5.0
"""Seconds that an endpoint is waited for while another one has a browser."""
_RETRY_SECONDS = 5.0
"""Seconds for which an endpoint that gave no browser is not asked again."""


class BrowserPool:
    """One browser, its contexts, and a limit on how many browser operations run at once.

    `browser`: path of a Chromium (empty = look for one). `endpoints`: addresses of browsers that run elsewhere, which
    are used instead (`dynaweb.web.chromium.endpoints`); sessions go to the one with the fewest, one that dies is
    connected to again, and what pages offer for download is only reported there. `proxy_port`: port of the proxy that
    keeps their host list (0 = any). `workers`: operations at once, 0 = number of cores.
    `timeout`: seconds that a page may take to load before it is read as it is. `deadline`: seconds after which a
    browser that does not answer is given up (`BrowserError`). `hosts`: allowed host names, with `*` as wildcard.
    `urls`: real <-> canonical addresses. `view`, `region`, `max_nodes` and `max_chars` (0 = no limit): what of a page
    is shown; one that is longer is shown near the window. `max_options`: options of a native select that are shown, the
    chosen ones aside, until it is clicked; 0 = all. `dialogs`: what happens to `confirm`, `prompt` and `alert`.
    `downloads`: a folder that keeps downloaded files of up to `max_download` bytes, and of `download_budget` bytes over
    the pool's life (see `Budget`); without one they are only reported. Permissions are denied. `keep_cache`: keep what
    the HTTP cache holds between episodes, for sites whose files never change. `quiet`: seconds without a change after
    which a page with scripts counts as settled; less where scripts do everything at once. `settle`: seconds after which
    a page that keeps changing, or still waits for requests, timers, frames or the page it leads on to, is read as it
    is. `pictures`: observations have a picture of what the window shows (`dynaweb.web.pictures`).

    A pool belongs to one event loop at a time: close it in the loop that used it. A forgotten browser is ended when the
    pool is next used, or with the process.
    """

    def __init__(
        self,
        *,
        browser: str = "",
        endpoints: Sequence[str] = (),
        proxy_port: int = 0,
        workers: int = 0,
        timeout: float = 3.0,
        deadline: float = 15.0,
        hosts: tuple[str, ...] = LOOPBACK,
        urls: UrlMap | None = None,
        view: str = "compact",
        max_nodes: int = MAX_NODES,
        max_chars: int = 0,
        max_options: int = MAX_OPTIONS,
        region: Region = "page",
        dialogs: Literal["accept", "dismiss"] = "accept",
        recycle: int = 400,
        downloads: Path | None = None,
        max_download: int = MAX_DOWNLOAD,
        download_budget: int = DOWNLOAD_BUDGET,
        keep_cache: bool = False,
        quiet: float = QUIET_WINDOW,
        settle: float = SETTLE_SECONDS,
        pictures: Pictures | None = None,
    ) -> None:
        self.browser = browser
        self.proxy_port = proxy_port
        self.timeout = timeout
        self.deadline = deadline
        check_hosts(hosts)
        self.hosts = hosts
        self.urls = urls or UrlMap()
        self.view = view
        self.max_nodes = max_nodes
        self.max_chars = max_chars
        self.max_options = max_options
        self.region: Region = region
        self.dialogs: Literal["accept", "dismiss"] = dialogs
        self.recycle = recycle
        self.downloads = downloads
        self.max_download = max_download
        self.download_budget = Budget(download_budget)
        self.keep_cache = keep_cache
        self.quiet = quiet
        self.settle = settle
        self.pictures = pictures
        self.viewport = WINDOW if pictures is None else pictures.viewport
        self.blocked: Counter[str] = Counter()
        """Requests refused by the allow-list, by host, over the pool's life."""
        self.launches = 0
        """How often a browser was started."""
        self._workers = workers or os.cpu_count() or 1
        self._slots: asyncio.Semaphore | None = None
        self._seats = [_Seat(Endpoint.read(endpoint)) for endpoint in endpoints] or [_Seat()]
        self._retired: list[Running] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._proxy: FilteringProxy | None = None

    async def session(self) -> ChromiumSession:
        """A new session; the browser starts with its first `reset`."""
        from dynaweb.web.chromium.session import ChromiumSession

        return ChromiumSession(self)

    async def __aenter__(self) -> BrowserPool:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End every browser; calling it twice is allowed, and a later reset starts a new one."""
        fillings = [seat.filling for seat in self._seats if seat.filling is not None]
        if fillings and self._loop is asyncio.get_running_loop():
            for filling in fillings:
                filling.cancel()
            await asyncio.gather(*fillings, return_exceptions=True)
        ending, self._retired = self._retired, []
        for seat in self._seats:
            if seat.running is not None:
                ending.append(seat.running)
            seat.running, seat.idle, seat.failure, seat.retry_at, seat.filling = None, [], "", 0.0, None
        for running in ending:
            await running.close()
        proxy, self._proxy = self._proxy, None
        if proxy is not None:
            proxy.close()

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Wait for a turn: at most `workers` operations run at once."""
        async with self._turns():
            yield

    def allows(self, url: str) -> bool:
        """Whether the allow-list admits the host of an address."""
        return allows(url, self.hosts)

    def refuse(self, url: str) -> str:
        """Count a request to a host that is not allowed, and name the host."""
        host = urlsplit(url).hostname or url[:40]
        self.blocked[host] += 1
        return host

    async def acquire(self, *, storage_state: Path | None = None, har: Path | None = None) -> OpenContext:
        """A clean context for one session: an idle one, or a fresh one (always for a stored login or a recording)."""
        try:
            return await self._acquire(storage_state, har)
        except BrowserError:
            # Playwright's driver may have died, which a browser does not tell that it holds: once more, with new ones.
            return await self._acquire(storage_state, har)

    async def _acquire(self, storage_state: Path | None, har: Path | None) -> OpenContext:
        seat, running = await self._ensure()
        running.users += 1
        running.episodes += 1
        if seat.idle and storage_state is None and har is None:
            return seat.idle.pop()
        try:
            return await self._new_context(running, storage_state, har)
        except BaseException as error:
            running.users -= 1
            if isinstance(error, BrowserError) and seat.running is running:
                await self._retire(seat)
            raise

    async def give_back(self, opened: OpenContext) -> None:
        """A session is done with its context: a clean one waits for the next session, a dirty one is closed."""
        running = opened.running
        running.users -= 1
        seat = next((seat for seat in self._seats if seat.running is running), None)
        if seat is not None and not opened.dirty and running.alive:
            seat.idle.append(opened)
        else:
            await opened.close()
        if running in self._retired and running.users == 0:
            self._retired.remove(running)
            await running.close()

    def outdated(self, running: Running) -> bool:
        """Whether a session should move to another browser at its next reset."""
        present = any(seat.running is running for seat in self._seats)
        return not present or not running.alive or running.episodes >= self.recycle

    async def _ensure(self, patience: float | None = _PATIENCE) -> tuple[_Seat, Running]:
        """A browser that runs, and its seat: the one with the fewest sessions.

        Endpoints without a browser are all tried at once, and go on being tried in the background. While others have
        one, they are waited for during `patience` (seconds; None = to the end), unless they failed the last time.
        """
        self._turns()
        first = self._seats[0]
        if first.endpoint is None:
            running = await self._fill(first)
            assert running is not None  # only endpoints may have none
            return first, running
        empty = [seat for seat in self._seats if seat.running is None or self.outdated(seat.running)]
        for seat in empty:
            if seat.filling is None and time.monotonic() >= seat.retry_at:
                seat.filling = asyncio.get_running_loop().create_task(self._fill_behind(seat))
        if tasks := [seat.filling for seat in empty if seat.filling is not None and not seat.failure]:
            await asyncio.wait(tasks, timeout=patience)
            for seat in empty:
                if seat.filling is not None and not seat.failure:
                    seat.failure = f"no browser at {seat.endpoint}: it has not answered yet"
        while True:
            full = [(seat, seat.running) for seat in self._seats if seat.running and not self.outdated(seat.running)]
            if full:
                return min(full, key=lambda pair: pair[1].users)
            tasks = [seat.filling for seat in self._seats if seat.filling is not None]
            if not tasks:
                if error := next((seat.error for seat in self._seats if seat.error is not None), None):
                    raise error
                reasons = (seat.failure or f"the browser at {seat.endpoint} is gone" for seat in self._seats)
                raise BrowserError("; ".join(dict.fromkeys(reasons)))
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)

    async def _fill_behind(self, seat: _Seat) -> None:
        """Fill the seat of an endpoint while others are used; why it stays empty is in `seat.failure`."""
        seat.error = None
        try:
            await self._fill(seat)
        except Exception as error:
            # Not of the endpoint: something is missing here. It is raised where no other one has a browser.
            seat.failure, seat.retry_at, seat.error = str(error), time.monotonic() + _RETRY_SECONDS, error
        finally:
            seat.filling = None

    async def _fill(self, seat: _Seat) -> Running | None:
        """The browser of a seat, started or connected to where that has to be; None for an endpoint without one."""
        async with seat.lock:
            current = seat.running
            if current is not None and not self.outdated(current):
                return current
            if current is not None:
                await self._retire(seat)
            if time.monotonic() < seat.retry_at:
                return None
            if seat.endpoint is None:
                seat.running = await self._launch(None)
                return seat.running
            try:
                seat.running = await self._launch(seat.endpoint)
                seat.failure = ""
            except BrowserError as error:
                seat.failure, seat.retry_at = str(error), time.monotonic() + _RETRY_SECONDS
                log.warning("%s", error)
            return seat.running

    async def _retire(self, seat: _Seat) -> None:
        running, seat.running, seat.idle = seat.running, None, []
        if running is None:
            return
        # Also while it is closed, so that `close` ends what an interrupt has left of it.
        self._retired.append(running)
        if not (running.alive and running.users):
            await running.close()
            with suppress(ValueError):
                self._retired.remove(running)

    async def _launch(self, endpoint: Endpoint | None) -> Running:
        try:
            from playwright.async_api import async_playwright
        except ImportError:
            raise MissingError("Playwright is not installed: pip install 'dynaweb[web]'") from None
        if endpoint is None:
            chosen = find(self.browser)
        expect_lost_drivers(asyncio.get_running_loop())
        playwright = await async_playwright().start()
        try:
            if endpoint is not None:
                running = await endpoint.connect(playwright, self._filter())
                self.launches += 1
                return running
            # Ctrl-C reaches the driver too. It would end itself and the browser, while this process still says what it
            # was doing and closes both.
            launching = playwright.chromium.launch(
                executable_path=str(chosen.path), headless=True, args=self._arguments(), handle_sigint=False
            )
            browser = await asyncio.wait_for(launching, _LAUNCH_SECONDS)
            running = Running(playwright, browser, asyncio.get_running_loop())
            running.browser_pid = await _browser_pid(browser)
        except BaseException as error:
            # Also for an interrupt, until the pool knows of the browser: a driver that nobody stops leaves its browser
            # running and complains when the event loop ends.
            with suppress(Exception):
                await playwright.stop()
            if not isinstance(error, Exception):
                raise
            if endpoint is not None:
                raise
            raise _launch_error(chosen, error) from None
        self.launches += 1
        return running

    def _arguments(self) -> list[str]:
        if is_loopback_only(self.hosts):
            return [*FLAGS, *arguments(self.hosts, None)]
        return [*FLAGS, *arguments(self.hosts, self._filter().port)]

    def _filter(self) -> FilteringProxy:
        """The proxy that keeps the host list. Raises `BrowserError` where its port is taken."""
        if self._proxy is None:
            try:
                self._proxy = FilteringProxy(self.hosts, self.proxy_port).start()
            except OSError as error:
                raise BrowserError(
                    f"the port {self.proxy_port} for the filter of hosts is not free ({error.strerror}); "
                    "choose another web.proxy_port, or 0 for any"
                ) from None
        return self._proxy

    async def _new_context(self, running: Running, storage_state: Path | None, har: Path | None) -> OpenContext:
        from dynaweb.web.chromium import scripts
        from dynaweb.web.chromium.context import OpenContext

        options: dict[str, Any] = {
            "viewport": dict(zip(("width", "height"), self.viewport, strict=True)),
            "service_workers": "block",
            "accept_downloads": self.downloads is not None and not running.endpoint,
            **running.context_options,
        }
        if storage_state is not None:
            options["storage_state"] = str(storage_state)
        if har is not None:
            # Any other way of recording leaves out what was posted.
            options |= {"record_har_path": str(har), "record_har_content": "embed"}
        try:
            context = await asyncio.wait_for(running.browser.new_context(**options), _LAUNCH_SECONDS)
            await context.add_init_script(scripts.NO_SERVICE_WORKERS)
            if running.endpoint:
                await context.add_init_script(NO_WEBRTC)
        except Exception as error:
            raise BrowserError(f"could not open a browsing context: {str(error).splitlines()[0]}") from None
        return await OpenContext.open(self, running, context, fresh=storage_state is not None or har is not None)

    def _turns(self) -> asyncio.Semaphore:
        """Turns in the running event loop; a pool may serve several `asyncio.run` one after another."""
        loop = asyncio.get_running_loop()
        if self._slots is None or self._loop is not loop:
            self._loop = loop
            self._slots = asyncio.Semaphore(self._workers)
            for seat in self._seats:
                seat.lock, seat.filling = asyncio.Lock(), None
        return self._slots


@dataclass(eq=False)
class _Seat:
    """Where browsers come from, this machine or an endpoint, and the one that runs."""

    endpoint: Endpoint | None = None
    running: Running | None = None
    idle: list[OpenContext] = field(default_factory=list)
    """Its clean contexts."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    failure: str = ""
    """Why the endpoint gave no browser when it was tried last."""
    retry_at: float = 0.0
    """When it may be tried again, as `time.monotonic` counts."""
    filling: asyncio.Task[None] | None = None
    """What connects to the endpoint now."""
    error: Exception | None = None
    """What kept this process from trying the endpoint."""


def pool_of(web: BrowserSettings, folder: Path | None = None, **options: Any) -> BrowserPool:
    """A pool with a recipe's browser settings, for environments; `options` are those of `BrowserPool`.

    `settle=None` leaves what the recipe says.
    What pages offer for download is kept in `downloads` below `folder`, where a plugin may write; None keeps nothing.
    """
    downloads = folder / DOWNLOADS if folder is not None else None
    own: dict[str, Any] = {
        "browser": web.browser,
        "endpoints": tuple(expanded("web.endpoint", endpoint, address=True) for endpoint in web.endpoint),
        "proxy_port": web.proxy_port,
        "workers": web.workers,
        "timeout": web.action_timeout,
        "settle": web.settle,
        "downloads": downloads,
    }
    if options.get("settle") is None:
        options.pop("settle", None)
    return BrowserPool(**(own | options))


def check_endpoints(web: BrowserSettings) -> dict[str, str]:
    """Try all of `web.endpoint` before anything is spent: the version of the browser of each that answers.

    One that does not is told in the log. Raises `MissingError` with the reasons when none does.
    """

    async def versions() -> dict[str, str]:
        async with pool_of(web) as pool:
            try:
                await pool._ensure(patience=None)
            except BrowserError as error:
                raise MissingError(f"web.endpoint: {error}") from None
            return {seat.running.endpoint: seat.running.browser.version for seat in pool._seats if seat.running}

    return run_apart(versions()) if web.endpoint else {}


async def _browser_pid(browser: Browser) -> int:
    """Process id of the browser; 0 when it does not say."""
    with suppress(Exception):
        cdp = await browser.new_browser_cdp_session()
        answer = await asyncio.wait_for(cdp.send("SystemInfo.getProcessInfo"), 5.0)
        await cdp.detach()
        return next(int(process["id"]) for process in answer["processInfo"] if process["type"] == "browser")
    return 0


def _launch_error(chosen: Chromium, error: Exception) -> BrowserError:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return BrowserError(
        f"{chosen.path} (found by: {chosen.origin}) did not start: {lines[0] if lines else type(error).__name__}. "
        "Try it by hand with --headless --version, or name another browser with --set web.browser=PATH."
    )
