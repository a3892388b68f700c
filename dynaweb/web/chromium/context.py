"""One browsing context: its tabs, its events, and how it is made clean for the next episode."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from playwright.async_api import BrowserContext, Dialog, Page, Request
from playwright.async_api import Error as PlaywrightError

from dynaweb.errors import BrowserError
from dynaweb.web.chromium.devtools import TabError, as_error
from dynaweb.web.chromium.downloads import Downloads
from dynaweb.web.chromium.tab import Tab
from dynaweb.web.chromium.watch import WATCH
from dynaweb.web.quoting import quote

if TYPE_CHECKING:
    from dynaweb.web.chromium.browser import Running, Settings

BLANK = "about:blank"
_POPUP_SECONDS = 1.0
_CLOSE_SECONDS = 5.0
_DOWNLOAD_SECONDS = 2.0
_MAX_NOTICES = 20
_NOTICE_LIMIT = 500
_NO_FILES = "the page asks for a file, and there is none to choose here; go on without it"
_WEB = ("http", "https", "ws", "wss")
_T = TypeVar("_T")


class OpenContext:
    """A Playwright context in use. `notices` collects what the browser did by itself (dialogs, downloads, new tabs)."""

    def __init__(self, pool: Settings, running: Running, context: BrowserContext, *, fresh: bool) -> None:
        self.running = running
        self.context = context
        self.tabs: list[Tab] = []
        self.notices: list[str] = []
        # A browser elsewhere keeps its files there.
        folder = None if running.endpoint else pool.downloads
        self.downloads = Downloads(folder, pool.max_download, pool.download_budget, self.say)
        self._spoiled = fresh
        self._pool = pool
        self._current: Tab | None = None
        self._helper: Tab | None = None
        self._adopting: set[asyncio.Task[None]] = set()
        self._own_page = False
        self._closed_origins: set[str] = set()
        """Origins of tabs closed since the last `wipe`, and of windows before they were attached to."""
        self._headers: dict[str, str] = {}
        for event, listener in self._listeners().items():
            context.on(event, listener)  # type: ignore[call-overload]

    @classmethod
    async def open(cls, pool: Settings, running: Running, context: BrowserContext, *, fresh: bool) -> OpenContext:
        """Wrap a new context and open its first tab."""
        opened = cls(pool, running, context, fresh=fresh)
        await opened.guarded(context.add_init_script(WATCH), "watch pages")
        await opened.new_tab()
        return opened

    @property
    def dirty(self) -> bool:
        """Not to be used again: it holds a login or credentials, or something in it crashed or hangs."""
        return self._spoiled or any(tab.broken for tab in (*self.tabs, *([self._helper] if self._helper else [])))

    def spoil(self) -> None:
        """Mark it as not to be used again."""
        self._spoiled = True

    @property
    def current(self) -> Tab:
        """The tab that is acted on."""
        if self._current is None:
            raise BrowserError("every tab of this context was closed")
        return self._current

    def say(self, notice: str) -> None:
        """Add a notice; a page that makes hundreds of them is cut short."""
        if len(self.notices) < _MAX_NOTICES:
            self.notices.append(notice[:_NOTICE_LIMIT])

    async def set_headers(self, headers: Mapping[str, str]) -> None:
        """Headers that go with every request of every tab."""
        if dict(headers) != self._headers:
            self._headers = dict(headers)
            await self.guarded(self.context.set_extra_http_headers(self._headers), "set headers")

    async def wipe(self) -> None:
        """One empty tab without a name, no cookies, no storage, no history, no notices."""
        await self.present()
        first, *extra = [*self.tabs, *([self._helper] if self._helper else [])]
        scripted = any(tab.scripted for tab in (first, *extra))
        origins = set().union(*(tab.origins for tab in (first, *extra)))
        self._helper, self.tabs, self._current = None, [first], first
        for tab in extra:
            await self.guarded(tab.page.close(), "close a tab")
        silenced = scripted and await _clear_session(first)
        if scripted and not silenced:
            # It will be replaced, and its scripts still run: they shall not feel the mouse leave.
            first.pointed = False
        await first.empty()
        stored = self._closed_origins | (origins if scripted else set())
        await asyncio.gather(*self._cleaning(first, stored, silenced))
        self._closed_origins.clear()
        if scripted and not silenced:
            first = await self._replace(first)
        first.forget()
        self.downloads.forget()
        self.notices.clear()

    async def new_tab(self) -> Tab:
        """Open an empty tab and make it current."""
        tab = await self._attach(await self._new_page())
        self.tabs.append(tab)
        self._current = tab
        return tab

    async def focus(self, tab: Tab) -> None:
        """Make a tab current."""
        self._current = tab
        if not tab.crashed:
            await tab.send("Page.bringToFront")

    async def close_tab(self, tab: Tab) -> None:
        """Close a tab; the one before it becomes current."""
        self._drop(tab)
        await self.guarded(tab.page.close(), "close a tab")

    async def present(self) -> Tab:
        """The current tab, once new windows are attached to; an empty one where the last has closed itself."""
        await self.adopted()
        return await self.new_tab() if self._current is None else self._current

    async def renewed(self, tab: Tab) -> Tab:
        """An empty tab in the position of a crashed one."""
        at = self.tabs.index(tab)
        new = await self.new_tab()
        self.tabs.remove(new)
        self.tabs[at] = new
        # What the crashed page has stored is not known any more.
        self.spoil()
        await self.guarded(tab.page.close(), "close a tab")
        return new

    async def outlives(self, tab: Tab) -> bool:
        """Whether a failed command means no more than that the tab closed itself or crashed."""
        for _ in range(int(_POPUP_SECONDS / 0.01)):
            if tab.broken or tab.page.is_closed():
                break
            await asyncio.sleep(0.01)
        if not tab.crashed and not tab.page.is_closed():
            return False
        with suppress(BrowserError, TabError):
            # All tabs close when the browser goes; then it does not answer either.
            await self.guarded(self.context.cookies(), "list cookies")
            return True
        return False

    async def second_page(self) -> Tab:
        """A page beside the tabs, for evaluators; the agent never sees it."""
        if self._helper is None:
            self._helper = await self._attach(await self._new_page())
        return self._helper

    async def after_action(self) -> None:
        """New windows that an action opened become tabs, and the newest becomes current."""
        tab = self._current
        if tab is not None and tab.opening:
            for _ in range(int(_POPUP_SECONDS / 0.01)):
                if self._adopting:
                    break
                await asyncio.sleep(0.01)
            tab.opening.clear()
        await self.adopted()
        await self.downloads.settle(_DOWNLOAD_SECONDS)

    async def adopted(self) -> None:
        """Wait for new windows that are being attached to."""
        while self._adopting:
            tasks = list(self._adopting)
            await asyncio.gather(*tasks)
            self._adopting.difference_update(tasks)

    async def close(self) -> None:
        """Close it for good; never fails and never waits for a dead browser.

        A context that does not close in time still has a page that spins: its browser is ended.
        """
        self.downloads.forget()
        if not self.running.alive:
            return
        try:
            await asyncio.wait_for(self.context.close(), _CLOSE_SECONDS)
        except TimeoutError:
            self.running.kill()
        except Exception:
            # It is closed already, or its browser is.
            return

    async def guarded(self, call: Awaitable[_T], what: str) -> _T:
        """A Playwright call with a deadline. Raises `BrowserError` or `TabError`."""
        try:
            return await asyncio.wait_for(call, self._pool.deadline)
        except TimeoutError:
            self._spoiled = True
            raise BrowserError(f"the browser did not {what} in time") from None
        except (BrowserError, TabError):
            raise
        except Exception as error:
            raise as_error(error, what) from None

    def _cleaning(self, first: Tab, origins: set[str], silenced: bool) -> Iterator[Awaitable[Any]]:
        """Everything that an empty tab and its context are cleaned of; the session storage apart."""
        yield self.guarded(self.context.clear_cookies(), "clear cookies")
        yield first.send("Page.resetNavigationHistory")
        yield first.evaluate("name = ''")
        if not self._pool.keep_cache:
            yield first.send("Network.clearBrowserCache")
        for origin in origins:
            yield first.send("Storage.clearDataForOrigin", origin=origin, storageTypes="all")
        if silenced:
            yield first.send("Emulation.setScriptExecutionDisabled", value=False)

    async def _replace(self, first: Tab) -> Tab:
        """A new tab in place of the only one: the session storage of a tab goes with its page."""
        self.tabs = []
        tab = await self.new_tab()
        await self.guarded(first.page.close(), "close a tab")
        return tab

    async def _attach(self, page: Page) -> Tab:
        pool = self._pool
        patience = {"patience": pool.timeout, "deadline": pool.deadline, "quiet": pool.quiet, "bound": pool.settle}
        attaching = Tab.attach(self.context, page, **patience, window=pool.viewport)
        tab = await self.guarded(attaching, "attach to a page")
        page.on("close", lambda _: self._on_closed(tab))
        page.on("download", self.downloads.take)
        page.on("filechooser", lambda _: self.say(_NO_FILES))
        page.on("websocket", lambda socket: self._on_socket(socket.url))
        tab.cdp.on("Page.downloadWillBegin", self.downloads.on_begin)
        tab.cdp.on("Page.downloadProgress", self.downloads.on_progress)
        return tab

    async def _new_page(self) -> Page:
        self._own_page = True
        try:
            return await self.guarded(self.context.new_page(), "open a page")
        finally:
            self._own_page = False

    def _drop(self, tab: Tab) -> None:
        if tab not in self.tabs:
            return
        at = self.tabs.index(tab)
        self.tabs.remove(tab)
        self._closed_origins |= tab.origins
        if tab is self._current:
            self._current = self.tabs[max(at - 1, 0)] if self.tabs else None

    def _listeners(self) -> dict[str, Callable[[Any], Any]]:
        return {
            "page": self._on_page,
            "dialog": self._on_dialog,
            "request": self._on_request,
            "requestfailed": self._on_failed,
        }

    def _on_page(self, page: Page) -> None:
        if not self._own_page:
            self._adopting.add(asyncio.get_running_loop().create_task(self._adopt(page)))

    async def _adopt(self, page: Page) -> None:
        opening = next((tab.opening[0] for tab in self.tabs if tab.opening), "")
        try:
            tab = await self._attach(page)
        except (BrowserError, TabError):
            # One that closed in time is forgotten (see `_on_request`); one that is still there cannot be cleaned.
            if not page.is_closed():
                self.spoil()
            return
        with suppress(BrowserError, TabError):
            if page.is_closed():
                self._closed_origins |= tab.origins
                return
            self.tabs.append(tab)
            self._current = tab
            self.say(f"a new tab was opened; it is tab {len(self.tabs) - 1} and current")
            if opening not in ("", BLANK):
                await tab.arrive()
            await tab.settle()

    def _on_closed(self, tab: Tab) -> None:
        """A page closed that nobody here has closed."""
        if tab in self.tabs:
            self._drop(tab)
            left = f"tab {self.tabs.index(self._current)} is current" if self._current else "an empty one is there now"
            self.say(f"the tab closed itself; {left}")

    async def _on_dialog(self, dialog: Dialog) -> None:
        accepted = self._pool.dialogs == "accept" or dialog.type == "beforeunload"
        if dialog.type != "beforeunload":
            verb = "accepted" if accepted else "dismissed"
            default = dialog.default_value if accepted else ""
            self.say(f"{dialog.type} {verb}: {dialog.message}{f' (with {quote(default)})' if default else ''}")
        with suppress(Exception):
            # Who accepts a prompt as it is leaves what stands in it.
            await (dialog.accept(dialog.default_value) if accepted else dialog.dismiss())

    def _on_request(self, request: Request) -> None:
        self._on_address(request.url)
        if request.is_navigation_request() and not self._watches(request):
            # A new window may leave a page, or close, before it is attached to: what it stored goes all the same.
            origin = _origin(request.url)
            if origin.startswith("http"):
                self._closed_origins.add(origin)

    def _watches(self, request: Request) -> bool:
        """Whether a tab that is attached to sees this navigation."""
        if self._adopting:
            return False
        try:
            page = request.frame.page
        except PlaywrightError:
            # The first request of a new window comes before its page.
            return False
        return any(tab.page is page for tab in (*self.tabs, *([self._helper] if self._helper else [])))

    def _on_address(self, url: str) -> None:
        """Chromium keeps user names and passwords of addresses as long as a context lives."""
        if "@" in url and "@" in urlsplit(url).netloc:
            self.spoil()

    def _on_socket(self, url: str) -> None:
        self._on_address(url)
        self._tell_refused(url)

    def _on_failed(self, request: Request) -> None:
        self._tell_refused(request.url)

    def _tell_refused(self, url: str) -> None:
        if urlsplit(url).scheme in _WEB and not self._pool.allows(url):
            host = self._pool.refuse(url)
            self.say(f"a request to {host} was refused: this host is not allowed")


async def _clear_session(tab: Tab) -> bool:
    """Empty the session storage of what a tab shows and silence its scripts, so that none writes while it is left.

    False when the tab has been at origins that it does not show now: their storage is out of reach.
    """
    present = {_origin(frame.url) for frame in tab.page.frames}
    if not tab.origins <= present | {"", "://", "null"}:
        return False
    try:
        await asyncio.gather(
            tab.send("Emulation.setScriptExecutionDisabled", value=True),
            *(
                tab.send("DOMStorage.clear", storageId={"securityOrigin": origin, "isLocalStorage": False})
                for origin in tab.origins & present
                if origin.startswith("http")
            ),
        )
    except TabError:
        await tab.send("Emulation.setScriptExecutionDisabled", value=False)
        return False
    return True


def _origin(url: str) -> str:
    """The origin of an address as the browser writes it."""
    scheme, separator, rest = url.partition("://")
    return f"{scheme}://{rest.partition('/')[0]}" if separator else ""
