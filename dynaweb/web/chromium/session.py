"""`ChromiumSession`: an episode's browsing context, read and acted on through the DevTools protocol."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

from dynaweb.config.files import read_json
from dynaweb.errors import BrowserError, ConfigError, ImageError
from dynaweb.runs.atomic import write_text
from dynaweb.types import TARGETED, Action, Node, Observation, Screenshot
from dynaweb.types import Tab as OpenTab
from dynaweb.web.boxes import Box
from dynaweb.web.chromium import act, scripts
from dynaweb.web.chromium.browser import Settings
from dynaweb.web.chromium.context import BLANK
from dynaweb.web.chromium.devtools import TabError
from dynaweb.web.chromium.layout import Layout, backend_of, offsets, within
from dynaweb.web.chromium.read import Reading, is_long, read_boxes, read_marked, read_tab
from dynaweb.web.chromium.tab import Tab
from dynaweb.web.observation_formats import part_of
from dynaweb.web.page.view import TOTAL, VIEWS, Viewed, cut, left_out, nearest, shorten_lists
from dynaweb.web.pictures import marked
from dynaweb.web.quoting import quote
from dynaweb.web.session import is_address

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from dynaweb.web.chromium.browser import Running
    from dynaweb.web.chromium.context import OpenContext
    from dynaweb.web.pictures import Pictures
    from dynaweb.web.session import Region, UrlMap

_CRASHED = "the page crashed; open another one with goto"
_GONE = (Node(1, "heading", "This page crashed"),)
_READINGS = 3
"""How often a page is read whose document is replaced, or whose tab closes, while it is being read."""
_UNAVAILABLE = (Node(1, "heading", "This page is not available"),)
_TOO_LARGE = (Node(0, "heading", "This page is too large to be read"),)


class Contexts(Settings, Protocol):
    """What a session needs of its pool: its settings, and contexts to play in."""

    hosts: tuple[str, ...]
    urls: UrlMap
    view: str
    max_nodes: int
    max_chars: int
    max_options: int
    region: Region
    pictures: Pictures | None

    def slot(self) -> AbstractAsyncContextManager[None]:
        """Wait for a turn."""
        ...

    async def acquire(self, *, storage_state: Path | None = None, har: Path | None = None) -> OpenContext:
        """A clean context."""
        ...

    async def give_back(self, opened: OpenContext) -> None:
        """The session is done with a context."""
        ...

    def outdated(self, running: Running) -> bool:
        """Whether a session should move to another browser at its next reset."""
        ...


class ChromiumSession:
    """Implements `dynaweb.web.session.Session` on a context of a `BrowserPool`."""

    def __init__(self, pool: Contexts) -> None:
        self._pool = pool
        self.urls: UrlMap = pool.urls
        """Real <-> canonical addresses of this session: the pool's, unless somebody sets others before `reset`."""
        self._open: OpenContext | None = None
        self._last: Observation | None = None
        self._layout: Layout | None = None
        self._stops = 0
        self._opened: frozenset[str | None] = frozenset()
        """The long list that was clicked last: its options are told in full."""

    def boxes(self) -> dict[int, Box]:
        """Where the elements of the last observation are in the viewport, by number.

        Empty unless the pool reads layout (`region="viewport"`, marks in pictures) or the page has scripts; elements
        without a box, such as the options of a list, are left out.
        """
        if self._layout is None or self._last is None:
            return {}
        return _boxes(self._last.nodes, self._layout.boxes)

    @property
    def failed(self) -> str:
        """The address that the current tab could not load; '' when it shows a page."""
        return self._open.current.failed_url if self._open is not None else ""

    async def reset(
        self,
        *,
        headers: Mapping[str, str] | None = None,
        storage_state: Path | None = None,
        har: Path | None = None,
    ) -> None:
        """See `Session.reset`. `har` records the traffic with all bodies into a file that is there after `close`."""
        if storage_state is not None:
            _check_login(storage_state)
        async with self._pool.slot():
            try:
                await self._clean(storage_state, headers or {}, har)
            except (BrowserError, TabError):
                # The context or its browser died since the last episode: once more, with a new one.
                await self._discard()
                await self._clean(storage_state, headers or {}, har)
        self._last, self._layout, self._stops, self._opened = None, None, 0, frozenset()

    async def goto(self, url: str) -> None:
        """See `Session.goto`."""
        async with self._pool.slot():
            opened = self._context()
            refusal = await self._in_words(opened, "goto", lambda: self._goto(opened, url))
            if refusal:
                opened.notices.append(refusal)

    async def observe(self) -> Observation:
        """See `Session.observe`."""
        async with self._pool.slot():
            self._last = await self._observed(self._context())
        return self._last

    async def act(self, action: Action) -> str:
        """See `Session.act`. The reason is also a notice of the next observation."""
        node = self._last.node(action.target) if self._last and action.target is not None else None
        self._opened = frozenset()
        async with self._pool.slot():
            opened = self._context()
            reason = await self._in_words(opened, action.kind, lambda: self._act(opened, action))
            await opened.after_action()
        if not reason and action.kind == "click" and node is not None and any(key == TOTAL for key, _ in node.props):
            self._opened = frozenset({node.ref})
        if reason:
            opened.notices.append(reason)
        return reason

    async def html(self, url: str) -> str:
        """See `Session.html`."""
        return str(await self.evaluate(url, "document.documentElement ? document.documentElement.outerHTML : ''"))

    async def evaluate(self, url: str, script: str) -> Any:
        """See `Session.evaluate`. Raises `ConfigError` for a script that throws (it belongs to a task's evaluation)."""
        async with self._pool.slot():
            opened = self._context()
            tab = opened.current if url == "last" else await self._second_page(opened, self.urls.real(url))
            try:
                return await tab.evaluate(script, wait=True)
            except TabError as error:
                raise ConfigError(f"the expression {quote(script[:200])} failed on {url}: {error}") from None

    async def save_login(self, path: Path) -> None:
        """Store cookies and local storage of this session, for `reset(storage_state=path)`.

        The file is replaced as a whole. Raises `ConfigError` when it cannot be written.
        """
        async with self._pool.slot():
            opened = self._context()
            state = await opened.guarded(opened.context.storage_state(), "save the login")
        # What was signed in must not reach the next episode through the pool.
        opened.spoil()
        try:
            write_text(path, json.dumps(state), verbatim=True)
            # It opens an account.
            path.chmod(0o600)
        except OSError as error:
            raise ConfigError(f"the login {path} cannot be stored ({error.strerror}); choose another folder") from None

    async def screenshot(self) -> bytes:
        """What the window shows of the current page, as PNG without marks. Raises `BrowserError`."""
        async with self._pool.slot():
            opened = self._context()
            tab = await opened.present()
            if tab.crashed:
                tab = await opened.second_page()
            try:
                return await tab.picture()
            except TabError as error:
                raise BrowserError(f"no picture of the page could be taken: {error}") from None

    async def close(self) -> None:
        """See `Session.close`."""
        opened, self._open, self._last = self._open, None, None
        if opened is None:
            return
        with suppress(BrowserError, TabError):
            if not opened.dirty and opened.running.alive:
                await opened.wipe()
                await self._pool.give_back(opened)
                return
        opened.spoil()
        await self._pool.give_back(opened)

    # --- episodes ---

    async def _clean(self, storage_state: Path | None, headers: Mapping[str, str], har: Path | None) -> None:
        opened = self._open
        fresh = storage_state is not None or har is not None
        if opened is not None and (opened.dirty or fresh or self._pool.outdated(opened.running)):
            await self._discard()
        if self._open is None:
            self._open = await self._pool.acquire(storage_state=storage_state, har=har)
        else:
            await self._open.wipe()
            self._open.running.episodes += 1
        await self._open.set_headers(headers)

    async def _discard(self) -> None:
        opened, self._open = self._open, None
        if opened is not None:
            opened.spoil()
            await self._pool.give_back(opened)

    async def _in_words(self, opened: OpenContext, kind: str, work: Callable[[], Awaitable[str]]) -> str:
        """The reason why something was refused or failed. A tab that closes or crashes meanwhile is no dead browser."""
        tab = await opened.present()
        try:
            return await work()
        except TabError as error:
            return f"{kind} failed: {error}"
        except BrowserError:
            if not await opened.outlives(tab):
                raise
            return _CRASHED if tab.crashed else ""

    # --- reading ---

    async def _observed(self, opened: OpenContext) -> Observation:
        replaced = False
        for left in reversed(range(_READINGS)):
            tab = await opened.present()
            try:
                if replaced:
                    await tab.settle()
                return await self._read(opened, tab)
            except TabError:
                # The document was replaced while it was being read.
                replaced = True
                if not left:
                    raise
            except BrowserError:
                if not left or not await opened.outlives(tab):
                    raise
        raise AssertionError("the last reading returns or raises")

    async def _read(self, opened: OpenContext, tab: Tab) -> Observation:
        pool = self._pool
        page = await self._reading(tab)
        viewed = await self._viewed(opened, tab, page)
        url, title, nodes = page.url, page.title, viewed.nodes
        if tab.crashed:
            nodes = _GONE
        elif tab.failed_url or url.startswith("chrome-error:"):
            url, title, nodes = tab.failed_url or url, "", _UNAVAILABLE
        elif not nodes and url.startswith("http"):
            opened.notices.extend(await _empty(tab))
        if self.urls.origins:
            nodes = tuple(replace(n, address=self.urls.canonical(n.address)) if n.address else n for n in nodes)
        opened.notices.extend(self._remarks(tab))
        picture = await self._picture(opened, tab, nodes)
        notice = "; ".join(dict.fromkeys(opened.notices))
        opened.notices.clear()
        address = self.urls.canonical(url)
        if pool.view == "compact":
            return Observation(address, nodes, notice=notice, truncated=viewed.truncated, screenshot=picture)
        tabs = await self._open_tabs(opened)
        return Observation(address, nodes, title, tabs, notice, viewed.truncated, picture)

    async def _picture(self, opened: OpenContext, tab: Tab, nodes: Sequence[Node]) -> Screenshot | None:
        """The picture of a page that was just read, where pictures are wanted. Why there is none is a notice."""
        wanted = self._pool.pictures
        if wanted is None or tab.crashed:
            return None
        try:
            png = await tab.picture(scale=max(1.0, wanted.scale), fast=wanted.redrawn)
            boxes = {}
            if wanted.marks and nodes not in (_UNAVAILABLE, _TOO_LARGE):
                layout, shown = await read_marked(tab)
                self._layout = self._layout or layout
                boxes = marked(nodes, _boxes(nodes, shown), wanted.viewport)
            # Drawing and writing take longer than a page's events may wait.
            return await asyncio.to_thread(wanted.keep, png, boxes)
        except (TabError, ImageError, OSError) as error:
            opened.notices.append(f"there is no picture of this page: {error}")
            return None

    async def _viewed(self, opened: OpenContext, tab: Tab, page: Reading) -> Viewed:
        """What the pool's view shows of a page; of one that is too long for its budgets, what is near the window."""
        pool = self._pool
        view = VIEWS.get(pool.view) or part_of(pool.view, "view")
        raw = shorten_lists(page.nodes, pool.max_options, self._opened)
        viewed = cut(view(raw, max_nodes=pool.max_nodes), pool.max_chars)
        above, below = page.left_out
        if viewed.truncated and pool.region == "page":
            if page.layout is None:
                page.layout = self._layout = await read_boxes(tab)
            whole = view(raw, max_nodes=len(raw))
            budgets = {"max_nodes": pool.max_nodes, "max_chars": pool.max_chars}
            viewed, *more = nearest(whole, offsets(whole.nodes, page.layout), **budgets)
            above, below = above + more[0], below + more[1]
        if above or below:
            opened.notices.append(left_out(above, below))
        return Viewed(viewed.nodes, viewed.truncated or above + below > 0)

    async def _reading(self, tab: Tab) -> Reading:
        """What the tab shows; a heading that says so for a page that is too large."""
        if tab.crashed:
            return Reading(tab.page.url, "", ())
        if tab.late:
            # What had arrived when loading was stopped may have been parsed only now.
            await tab.look()
        if tab.huge:
            return Reading(tab.page.url, "", _TOO_LARGE)
        by_viewport = self._pool.region == "viewport"
        near = self._pool.max_nodes if not by_viewport and is_long(tab, self._pool.max_nodes) else 0
        page = await read_tab(tab, layout=by_viewport, verbose=self._pool.view not in VIEWS, near=near)
        self._layout = page.layout
        if by_viewport and page.layout is not None:
            page.nodes = tuple(within(page.nodes, page.layout))
        return page

    def _remarks(self, tab: Tab) -> Iterator[str]:
        """What happened to the page itself; said once."""
        if tab.late:
            yield f"the page had not loaded after {self._pool.timeout:g} s; this is what was there"
        if tab.huge:
            yield f"the page is too large to be read ({tab.huge}); go back or open another one"
        if tab.stops > self._stops:
            yield f"a script of the page did not end within {self._pool.deadline:g} s and was stopped"
        tab.late, self._stops = False, tab.stops

    async def _open_tabs(self, opened: OpenContext) -> tuple[OpenTab, ...]:
        titles = await asyncio.gather(*(_title(tab) for tab in opened.tabs))
        return tuple(
            OpenTab(title, self.urls.canonical(tab.page.url), tab is opened.current)
            for title, tab in zip(titles, opened.tabs, strict=True)
        )

    # --- acting ---

    async def _act(self, opened: OpenContext, action: Action) -> str:
        tab = opened.current
        if action.kind in TARGETED or action.target is not None:
            node = self._last.node(action.target) if self._last and action.target is not None else None
            if node is None:
                return f"there is no element [{action.target}] on this page"
            if action.target_role and (action.target_role, action.target_name) != (node.role, node.name):
                expected = f"{action.target_role} {quote(action.target_name)}"
                return f"[{node.id}] is {node.role} {quote(node.name)} now, not {expected}; look at the page again"
            return await act.perform(tab, action, node)
        others: dict[str, Callable[[], Awaitable[str]]] = {
            "press": lambda: act.press(tab, action.text),
            "scroll": lambda: act.scroll(tab, action.text),
            "goto": lambda: self._goto(opened, action.text),
            "go_back": lambda: _history(tab, -1),
            "go_forward": lambda: _history(tab, +1),
            "new_tab": lambda: _new_tab(opened),
            "tab_focus": lambda: _focus(opened, action.index),
            "close_tab": lambda: _close_tab(opened),
            "wait": lambda: self._wait(tab),
        }
        return await others[action.kind]() if action.kind in others else ""

    async def _goto(self, opened: OpenContext, url: str) -> str:
        tab = opened.current
        return await self._load(await opened.renewed(tab) if tab.crashed else tab, self.urls.real(url))

    async def _load(self, tab: Tab, url: str) -> str:
        no_address = f"goto {quote(url[:120])}: this is no address; write one such as 'shop.localhost/cart'"
        if not is_address(url):
            return no_address
        if urlsplit(url).scheme not in ("http", "https") and url != BLANK:
            return f"goto {quote(url[:120])}: only http and https addresses can be opened"
        if url != BLANK and not self._pool.allows(url):
            self._pool.refuse(url)
            return f"goto {quote(url[:120])}: this host is not allowed; allowed are {', '.join(self._pool.hosts)}"
        try:
            await tab.navigate(url)
        except TabError:
            # Such as a port above 65535.
            return no_address
        await tab.settle()
        return ""

    async def _wait(self, tab: Tab) -> str:
        """Nothing can change by itself on a page without scripts."""
        if tab.live:
            await asyncio.sleep(min(1.0, self._pool.timeout))
        await tab.settle()
        return ""

    async def _second_page(self, opened: OpenContext, url: str) -> Tab:
        tab = await opened.second_page()
        refusal = await self._load(tab, url)
        if refusal or tab.failed_url:
            raise BrowserError(refusal or f"{url} could not be loaded")
        return tab

    def _context(self) -> OpenContext:
        if self._open is None:
            raise BrowserError("the session has no page: call reset() first")
        return self._open


def _boxes(nodes: Iterable[Node], boxes: Mapping[int, Box]) -> dict[int, Box]:
    """The boxes of elements by number, of those that have one, out of those by backend node id."""
    boxed = ((node.id, boxes.get(backend_of(node.ref) or 0)) for node in nodes)
    return {number: box for number, box in boxed if box is not None}


async def _title(tab: Tab) -> str:
    with suppress(TabError):
        return "" if tab.crashed else str(await tab.evaluate("document.title"))
    return ""


async def _empty(tab: Tab) -> list[str]:
    """What an empty page came with, where that was an error."""
    status = int(await tab.evaluate(scripts.STATUS) or 0)
    return [f"the page is empty: the server answered with the error {status}"] if status >= 400 else []


async def _history(tab: Tab, by: int) -> str:
    answer = await tab.send("Page.getNavigationHistory")
    entries, index = answer["entries"], answer["currentIndex"] + by
    if not 0 <= index < len(entries) or entries[index]["url"] == BLANK:
        return f"there is no page to go {'back' if by < 0 else 'forward'} to"
    await tab.send("Page.navigateToHistoryEntry", entryId=entries[index]["id"])
    await tab.settle(likely=True)
    return ""


async def _new_tab(opened: OpenContext) -> str:
    await opened.new_tab()
    return ""


async def _focus(opened: OpenContext, index: int | None) -> str:
    if index is None or not 0 <= index < len(opened.tabs):
        return f"there is no tab {index}; tabs are 0 to {len(opened.tabs) - 1}"
    await opened.focus(opened.tabs[index])
    return ""


async def _close_tab(opened: OpenContext) -> str:
    if len(opened.tabs) == 1:
        return "this is the only tab; it stays open"
    await opened.close_tab(opened.current)
    return ""


def _check_login(path: Path) -> None:
    """A stored login is JSON with `cookies`. Raises `ConfigError` that says what is wrong."""
    stored = read_json(path, dict, error=ConfigError, advice="log in and save it again")
    if not isinstance(stored.get("cookies"), list):
        raise ConfigError(f"the stored login {path} has no `cookies` list; save it with Playwright's storage_state")
