"""One tab: a page, its DevTools session, and whether it is loading."""

from __future__ import annotations

import asyncio
import time
from base64 import b64decode
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from playwright.async_api import BrowserContext, CDPSession, Page
from playwright.async_api import Error as PlaywrightError

from dynaweb.errors import BrowserError
from dynaweb.web.chromium import scripts
from dynaweb.web.chromium.devtools import Sender, TabError, as_error, sender_of, value_of
from dynaweb.web.session import QUIET_WINDOW, SETTLE_SECONDS, WINDOW

LOADED_WINDOW = 0.05
"""Quiet window of a page that has just loaded, if it is shorter: what scripts do at once, they have done."""
MAX_FRAMES = 60
"""Frames of one page that are read or scrolled; further ones stay empty."""
_ROUNDS = 4
_STOP_SECONDS = 2.0
_TICK_SECONDS = 0.2
_MAX_STOPS = 1
_REFRESHES = ("metaTagRefresh", "httpHeaderRefresh")
_LATE_SECONDS = 0.3
"""How much later than it said a page may lead on by itself."""


class Tab:
    """A Playwright page. Every call has a deadline; what Playwright raises becomes `BrowserError` or `TabError`."""

    def __init__(
        self,
        page: Page,
        cdp: CDPSession,
        *,
        patience: float,
        deadline: float,
        quiet: float,
        bound: float,
        window: tuple[int, int],
    ) -> None:
        self.page = page
        self.cdp = cdp
        self._sender = sender_of(cdp)
        self._second: Sender | None = None
        self._styled = False
        """The second session may write style sheets."""
        self.quiet = quiet
        """Seconds without a change after which the page counts as settled."""
        self.bound = bound
        """Seconds after which a page that keeps changing, or still waits for something, is read as it is."""
        self.patience = patience
        """Seconds that a page may take to load before it is read as it is."""
        self.deadline = deadline
        """Seconds after which a browser that does not answer is given up."""
        self.window = window
        """Size of the window in CSS pixels."""
        self.broken = False
        """The page crashed or hangs; its context must not be used again."""
        self.crashed = False
        """The renderer of the page is gone: the tab shows nothing any more, and another one may take its position."""
        self.frame_id = ""
        self.opening: list[str] = []
        """Addresses of windows that this page asked for and that have not appeared yet."""
        self.failed_url = ""
        self.late = False
        """The last page was read before it had loaded."""
        self.scripted = False
        """A page of this tab could run scripts since `forget`, so it may have stored something."""
        self.origins: set[str] = set()
        """Origins of all documents since `forget`, frames included."""
        self.live = False
        """The page that is shown can run scripts, so it may change by itself and elements may listen to clicks."""
        self.huge = ""
        """The size of a page that is too large to be read."""
        self.elements = 0
        """Elements of the main document when it was last looked at."""
        self.characters = 0
        """Characters of its text, without scripts."""
        self.pointed = False
        """The mouse has been somewhere since `park`, and what appears there gets its events."""
        self.stops = 0
        """How often a script that did not end was stopped since `forget`."""
        self._calls: set[asyncio.Future[Any]] = set()
        self.mute: set[str] = set()
        """Frames in which no script and no timer runs."""
        self._loading_frames: set[str] = set()
        self._refreshes: dict[str, float] = {}
        """When frames lead on by themselves (`meta refresh`, a `Refresh` header), by their id."""
        self._ready = asyncio.Event()
        self._ready.set()
        self._committed = True
        self._requested = asyncio.Event()

    @classmethod
    async def attach(
        cls,
        context: BrowserContext,
        page: Page,
        *,
        patience: float,
        deadline: float,
        quiet: float = QUIET_WINDOW,
        bound: float = SETTLE_SECONDS,
        window: tuple[int, int] = WINDOW,
    ) -> Tab:
        """Open the DevTools session of a page."""
        cdp = await context.new_cdp_session(page)
        tab = cls(page, cdp, patience=patience, deadline=deadline, quiet=quiet, bound=bound, window=window)
        page.on("crash", lambda _: tab.crash())
        listeners = {
            "Page.frameRequestedNavigation": tab._on_requested,
            "Page.frameStartedNavigating": tab._on_started,
            "Page.frameNavigated": tab._on_committed,
            "Page.frameDetached": lambda event: tab._loading_frames.discard(event.get("frameId", "")),
            "Page.frameStoppedLoading": tab._on_stopped,
            "Page.domContentEventFired": tab._on_dom_ready,
            "Page.windowOpen": tab._on_window_open,
            "Page.frameScheduledNavigation": tab._on_scheduled,
            "Page.frameClearedScheduledNavigation": tab._on_cleared,
        }
        for event, listener in listeners.items():
            tab.cdp.on(event, listener)
        _, tree = await asyncio.gather(tab.send("Page.enable"), tab.send("Page.getFrameTree"))
        tab.frame_id = tree["frameTree"]["frame"]["id"]
        trees = [tree["frameTree"]]
        while trees:
            one = trees.pop()
            tab.origins.add(one["frame"].get("securityOrigin", ""))
            trees += one.get("childFrames", [])
        return tab

    async def send(self, method: str, **parameters: Any) -> Any:
        """One DevTools command. Raises `BrowserError` when the browser is gone or silent, `TabError` if it refuses.

        A page that does not answer in time has its script stopped, once; after that it is given up.
        """
        return await self._answer(method, parameters, self._sender)

    async def send_apart(self, method: str, **parameters: Any) -> Any:
        """One command on a second DevTools session of the page, which is opened when it is first needed.

        For `Accessibility.enable`: Chromium's renderer crashes at it (seen with 156) in a session that has read the
        whole tree of an earlier page. In this one no tree is ever read without it.
        """
        if self._second is None:
            opening = self.page.context.new_cdp_session(self.page)
            try:
                self._second = sender_of(await asyncio.wait_for(opening, self.deadline))
            except Exception as error:
                self.broken = True
                raise as_error(error, method) from None
        return await self._answer(method, parameters, self._second)

    async def _answer(self, method: str, parameters: dict[str, Any], sender: Sender) -> Any:
        if self.broken:
            raise BrowserError(f"the page crashed or hangs, so it cannot be asked ({method})")
        call = self._start(method, parameters, sender)
        self._calls.add(call)
        try:
            done, _ = await asyncio.wait({call}, timeout=self.deadline)
            if not done and not await self._stop_script(call):
                self.broken = True
                call.cancel()
                raise BrowserError(f"the page did not answer {method} within {self.deadline:g} s")
            return call.result()
        except asyncio.CancelledError:
            if not self.broken:
                call.cancel()
                raise
            raise BrowserError(f"the page crashed ({method})") from None
        except BrowserError:
            raise
        except Exception as error:
            raise as_error(error, method) from None
        finally:
            self._calls.discard(call)

    async def _stop_script(self, call: asyncio.Future[Any]) -> bool:
        """End what the page runs; whether it then answers the call."""
        self.stops += 1
        if self.stops > _MAX_STOPS:
            return False
        await asyncio.wait({self._start("Runtime.terminateExecution", {})}, timeout=_STOP_SECONDS)
        await asyncio.wait({call}, timeout=_STOP_SECONDS)
        return call.done()

    def _start(self, method: str, parameters: dict[str, Any], sender: Sender | None = None) -> asyncio.Future[Any]:
        """A command whose answer may be waited for or not; its failure is never reported by the event loop."""
        call = asyncio.ensure_future((sender or self._sender)(method, parameters))
        call.add_done_callback(lambda done: done.cancelled() or done.exception())
        return call

    def crash(self) -> None:
        """The page crashed: nothing it was asked will be answered."""
        self.broken = self.crashed = True
        for call in self._calls:
            call.cancel()
        self._ready.set()

    async def picture(self, *, scale: float = 1.0, fast: bool = False) -> bytes:
        """What the window shows, as PNG. Raises `TabError` when there is none in time: the tab can still be read.

        `scale` are pixels for one CSS pixel, 1 or more; the page does not learn of it. `fast` is a larger file in less
        time. A text cursor is left out, since it blinks: the same page gives the same picture.
        """
        options: dict[str, Any] = {"format": "png", "optimizeForSpeed": fast}
        hidden: list[str] = []
        try:
            if scale != 1.0:
                view = (await self.send("Page.getLayoutMetrics"))["cssLayoutViewport"]
                corner = {"x": view["pageX"], "y": view["pageY"]}
                options["clip"] = {**corner, "width": self.window[0], "height": self.window[1], "scale": scale}
            hidden = await self._hide_cursor()
            return await self._captured(options)
        except (LookupError, ValueError) as error:
            raise TabError(f"the browser gave none ({error})") from None
        finally:
            for sheet in hidden:
                with suppress(TabError):
                    await self.send_apart("CSS.setStyleSheetText", styleSheetId=sheet, text="")

    async def _captured(self, options: dict[str, Any]) -> bytes:
        call = self._start("Page.captureScreenshot", options)
        self._calls.add(call)
        try:
            await asyncio.wait({call}, timeout=self.deadline)
            if call.cancelled():
                raise TabError("the page crashed")
            if not call.done():
                call.cancel()
                raise TabError(f"the browser drew none within {self.deadline:g} s")
            return b64decode(call.result()["data"])
        except PlaywrightError as error:
            raise as_error(error, "take a picture") from None
        finally:
            self._calls.discard(call)

    async def _hide_cursor(self) -> list[str]:
        """Hide the text cursor; the style sheets that do so, which nothing in the page can list."""
        focus = await self.evaluate(scripts.TEXT_CURSOR)
        if not focus:
            return []
        with suppress(TabError):
            if not self._styled:
                await self.send_apart("DOM.enable")
                await self.send_apart("CSS.enable")
                self._styled = True
            frames = [self.frame_id]
            if focus == "frame":
                frames += _frame_ids((await self.send("Page.getFrameTree"))["frameTree"])[:MAX_FRAMES]
            return [sheet for frame in frames if (sheet := await self._hides_cursor(frame))]
        return []

    async def _hides_cursor(self, frame: str) -> str:
        """'' for a frame that has gone."""
        with suppress(TabError):
            sheet = str((await self.send_apart("CSS.createStyleSheet", frameId=frame))["styleSheetId"])
            style = "* { caret-color: transparent !important }"
            await self.send_apart("CSS.setStyleSheetText", styleSheetId=sheet, text=style)
            return sheet
        return ""

    async def evaluate(self, expression: str, *, wait: bool = False) -> Any:
        """The value of a JavaScript expression. Raises `TabError` when it throws."""
        answer = await self.send(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=wait, userGesture=True
        )
        return value_of(answer)

    async def call(self, backend: int, function: str, *arguments: str | bool) -> Any:
        """Call a function with a node of the page as `this`; `{"why": "stale"}` when the node is gone."""
        try:
            resolved = await self.send("DOM.resolveNode", backendNodeId=backend)
        except TabError:
            return {"why": "stale"}
        answer = await self.send(
            "Runtime.callFunctionOn",
            objectId=resolved["object"]["objectId"],
            functionDeclaration=function,
            arguments=[{"value": argument} for argument in arguments],
            returnByValue=True,
            awaitPromise=True,
            userGesture=True,
        )
        return value_of(answer)

    async def mouse(self, kind: str, x: float, y: float) -> None:
        """One mouse event at a point of the viewport."""
        self.pointed = True
        buttons = {} if kind == "mouseMoved" else {"button": "left", "clickCount": 1}
        await self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, **buttons)

    async def park(self) -> None:
        """Take the mouse out of the window."""
        await self.mouse("mouseMoved", -1, -1)
        self.pointed = False

    async def navigate(self, url: str) -> None:
        """Start loading an address; failures leave Chromium's error page and set `failed_url`.

        Raises `TabError` for what Chromium does not take for an address; the page stays.
        """
        self.expect()
        try:
            answer = await self.send("Page.navigate", url=url)
        except TabError:
            self.release()
            raise
        failure = answer.get("errorText", "")
        # A download and an answer without content abort the navigation and keep the page.
        self.failed_url = url if failure and failure != "net::ERR_ABORTED" else ""
        if failure or not answer.get("loaderId"):
            self._ready.set()

    async def empty(self) -> None:
        """Show an empty page, and take the mouse out of the window meanwhile: that waits for a frame to be drawn.

        There is nothing on it to look at or to wait for. A page that is left must not run scripts (see `wipe`), for
        the mouse may still be felt there.
        """
        waits = [self._blank(), self.park()] if self.pointed else [self._blank()]
        await asyncio.gather(*waits)

    async def _blank(self) -> None:
        await self.navigate("about:blank")
        await self._wait_ready(time.monotonic() + self.patience)

    def expect(self) -> None:
        """A navigation is about to begin."""
        self._ready.clear()
        self._committed = False
        self.failed_url = ""

    def release(self) -> None:
        """The expected navigation does not come."""
        self._ready.set()

    def forget(self) -> None:
        """The tab is clean: what it showed before does not count any more."""
        self.scripted, self.failed_url, self.late = False, "", False
        self.live, self.huge, self.stops = False, "", 0
        self._loading_frames.clear()
        self._refreshes.clear()
        self.mute.clear()
        self.opening.clear()
        self.origins.clear()

    @property
    def loading(self) -> bool:
        """A navigation has begun and its document is not ready."""
        return not self._ready.is_set()

    async def settle(self, *, likely: bool = False, check: bool = True) -> bool:
        """Wait until the page can be read: its document is ready, nothing is pending, and nothing changes.

        A page that leads on by itself within the bound is followed. Everything has a cap: `patience` for documents,
        `bound` for the rest (see `dynaweb.web.chromium.watch`).
        `likely` waits a moment for a navigation to begin; without `check` a page that does not navigate is not looked
        at (it has no scripts). Returns whether the tab navigated.
        """
        deadline = time.monotonic() + self.patience
        self.late = False
        if likely and not self.loading:
            await self._begin()
        navigated = self.loading
        for _ in range(_ROUNDS):
            if self.loading:
                navigated = check = True
                if not await self._wait_ready(deadline):
                    self.scripted = True
                    return navigated
            window = min(LOADED_WINDOW, self.quiet) if navigated else self.quiet
            quiet = not check or await self._quiet(deadline, window)
            if quiet and not self.loading and not await self._refreshed(deadline):
                break
        return navigated

    async def _refreshed(self, deadline: float) -> bool:
        """Whether the page, or a frame of it, leads on by itself in time; it has begun to then."""
        now = time.monotonic()
        if not self._refreshes or min(self._refreshes.values()) > min(now + self.bound, deadline):
            return False
        due = min(self._refreshes.values()) + _LATE_SECONDS
        pending = set(self._refreshes)
        while pending <= self._refreshes.keys() and time.monotonic() < due:
            await asyncio.sleep(0.01)
        for frame in pending & self._refreshes.keys():
            if self._refreshes[frame] <= due:
                del self._refreshes[frame]
        return True

    async def arrive(self) -> None:
        """Wait for the first document of a new window: it shows `about:blank` before its own address."""
        deadline = time.monotonic() + self.patience
        while time.monotonic() < deadline and not self.loading:
            with suppress(TabError):
                if await self.evaluate("location.href") != "about:blank":
                    break
            await asyncio.sleep(0.01)

    async def _begin(self) -> None:
        self._requested.clear()
        if not self.loading and not self.opening:
            try:
                await asyncio.wait_for(self._requested.wait(), 0.1)
            except TimeoutError:
                return

    async def _wait_ready(self, deadline: float) -> bool:
        """False when the page did not become ready in time: it is stopped and read as it is."""
        try:
            await asyncio.wait_for(self._ready.wait(), max(deadline - time.monotonic(), 0.05))
        except TimeoutError:
            await self.send("Page.stopLoading")
            self.late = True
            self._ready.set()
            await self.look()
            return False
        return True

    async def look(self) -> None:
        """Find out again whether the page has scripts and is small enough to be read."""
        await self._quiet(time.monotonic(), self.quiet)

    async def _quiet(self, deadline: float, window: float) -> bool:
        cap = max(min(self.bound, deadline - time.monotonic()), 0.05)
        script = scripts.QUIET % {"window": int(window * 1000), "cap": int(cap * 1000)}
        try:
            reply = str(await self.evaluate(script, wait=True))
            state, *sizes = reply.split()
            if state == "framed":
                await self._frames_quiet(script, time.monotonic() + cap)
        except TabError:
            self.scripted = self.live = True
            # The document was replaced while it was being watched.
            await asyncio.sleep(0)
            return False
        self.live = state != "static"
        self.scripted |= self.live
        self.huge = reply if reply.endswith("characters") else ""
        self.elements, self.characters = (0, 0) if self.huge else map(int, sizes)
        return True

    async def frame_worlds(self) -> list[int]:
        """A JavaScript world of our own in each frame below the main one, for `evaluate_in`."""
        tree = await self.send("Page.getFrameTree")
        worlds = await asyncio.gather(*(self._world(frame) for frame in _frame_ids(tree["frameTree"])[:MAX_FRAMES]))
        return [world for world in worlds if world is not None]

    async def _world(self, frame: str) -> int | None:
        """None for a frame that has gone."""
        with suppress(TabError):
            return int((await self.send("Page.createIsolatedWorld", frameId=frame))["executionContextId"])
        return None

    async def evaluate_in(self, world: int, expression: str) -> Any:
        """The value of an expression in a world of `frame_worlds`; None where that has gone."""
        with suppress(TabError):
            return value_of(
                await self.send("Runtime.evaluate", expression=expression, contextId=world, returnByValue=True)
            )
        return None

    async def _frames_quiet(self, script: str, deadline: float) -> None:
        """Wait until the frames of the page have their documents and these are quiet, at most until the deadline."""
        while self._loading_frames and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        tree = await self.send("Page.getFrameTree")
        await asyncio.gather(*(self._frame_quiet(frame, script) for frame in _frame_ids(tree["frameTree"])))

    async def _frame_quiet(self, frame: str, script: str) -> None:
        """A frame may go away meanwhile."""
        with suppress(TabError):
            world = await self._world(frame)
            if world is None:
                return
            if await self._resolves(scripts.TICK, world, _TICK_SECONDS):
                self.mute.discard(frame)
                await self._resolves(script, world, self.bound)
            else:
                self.mute.add(frame)

    async def _resolves(self, expression: str, context: int, seconds: float) -> bool:
        """Whether a promise of a frame resolves in time; one that does not is left alone."""
        call = self._start("Runtime.evaluate", {"expression": expression, "contextId": context, "awaitPromise": True})
        done, _ = await asyncio.wait({call}, timeout=seconds)
        return bool(done)

    def _on_requested(self, event: Mapping[str, Any]) -> None:
        if event.get("disposition") == "currentTab" and event.get("frameId") == self.frame_id:
            self.expect()
        self._requested.set()

    def _on_started(self, event: Mapping[str, Any]) -> None:
        if event.get("navigationType", "").endswith("ameDocument"):
            return
        if event.get("frameId") == self.frame_id:
            self.expect()
            self._requested.set()
        else:
            self._loading_frames.add(event.get("frameId", ""))
        self._refreshes.pop(event.get("frameId", ""), None)

    def _on_committed(self, event: Mapping[str, Any]) -> None:
        frame = event["frame"]
        self.origins.add(frame.get("securityOrigin", ""))
        self._loading_frames.discard(frame["id"])
        if frame["id"] == self.frame_id:
            self._loading_frames.clear()
            self._refreshes.clear()
            self._committed = True
            self.failed_url = frame.get("unreachableUrl", "")

    def _on_scheduled(self, event: Mapping[str, Any]) -> None:
        """A page that only loads itself again shows what it shows."""
        if event.get("reason") in _REFRESHES and _page_of(event.get("url", "")) != _page_of(self.page.url):
            self._refreshes[event.get("frameId", "")] = time.monotonic() + float(event.get("delay", 0.0))

    def _on_cleared(self, event: Mapping[str, Any]) -> None:
        self._refreshes.pop(event.get("frameId", ""), None)

    def _on_dom_ready(self, _: Mapping[str, Any]) -> None:
        if self._committed:
            self._ready.set()

    def _on_stopped(self, event: Mapping[str, Any]) -> None:
        self._loading_frames.discard(event.get("frameId", ""))
        if event.get("frameId") == self.frame_id:
            self._ready.set()

    def _on_window_open(self, event: Mapping[str, Any]) -> None:
        self.opening.append(str(event.get("url", "")))
        self._requested.set()


def _page_of(url: str) -> str:
    """The address without its fragment."""
    return url.partition("#")[0]


def _frame_ids(tree: Mapping[str, Any]) -> list[str]:
    """Ids of all frames below the main one."""
    ids: list[str] = []
    pending = list(tree.get("childFrames", ()))
    while pending:
        frame = pending.pop()
        ids.append(frame["frame"]["id"])
        pending.extend(frame.get("childFrames", ()))
    return ids
