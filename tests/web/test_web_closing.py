"""Tabs that close themselves and pages that crash: the agent reads it in words, and the episode goes on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress

import pytest
import pytest_asyncio
from web_pages import PageServer, reply_of, serving, text_of

from dynaweb.types import Action
from dynaweb.web.chromium.pool import BrowserPool
from dynaweb.web.chromium.session import ChromiumSession

pytestmark = pytest.mark.asyncio(loop_scope="module")

OPENER = """<p id=p>waiting</p><button onclick="window.open('/popup')">Sign in</button><script>
addEventListener('message', event => p.textContent = event.data);
</script>"""
POPUP = """<button onclick="%s">Allow</button>"""
WAYS = {
    "at once": "opener.postMessage('allowed', '*'); window.close()",
    "after a moment": "opener.postMessage('allowed', '*'); setTimeout(() => window.close(), 30)",
    "after a request": "fetch('/').then(() => { opener.postMessage('allowed', '*'); window.close() })",
}


@pytest.fixture(scope="module")
def server() -> Iterator[PageServer]:
    with serving() as running:
        running.pages["/"] = "<p>home</p><a href=/next>next</a>"
        running.pages["/next"] = "<p>next</p>"
        running.pages["/opener"] = OPENER
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool() -> AsyncIterator[BrowserPool]:
    async with BrowserPool(timeout=1.0) as pool:
        yield pool


@pytest.fixture
def session(pool: BrowserPool) -> ChromiumSession:
    return ChromiumSession(pool)


async def _crash(session: ChromiumSession) -> None:
    """Crash the page that is shown, as a renderer out of memory does."""
    assert session._open is not None
    tab = session._open.current
    with suppress(Exception):
        await asyncio.wait_for(tab.cdp.send("Page.crash"), 5)
    for _ in range(200):
        if tab.crashed:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("the page did not crash")


@pytest.mark.parametrize("way", WAYS)
async def test_a_popup_that_an_action_closes_is_no_dead_browser(
    session: ChromiumSession, server: PageServer, way: str
) -> None:
    server.pages["/popup"] = POPUP % WAYS[way]
    await session.reset()
    await session.goto(server.url("/opener"))
    page = await session.observe()
    await session.act(reply_of(page, "click 'Sign in' []"))
    page = await session.observe()
    assert page.notice == "a new tab was opened; it is tab 1 and current"
    assert await session.act(reply_of(page, "click 'Allow' []")) == ""
    for _ in range(20):
        page = await session.observe()
        if page.url == server.url("/opener"):
            break
        await asyncio.sleep(0.05)
    assert "allowed" in [node.name for node in page.nodes]
    assert page.notice == "the tab closed itself; tab 0 is current"
    assert await session.act(Action("tab_focus", index=1)) == "there is no tab 1; tabs are 0 to 0"
    await session.close()


async def test_a_popup_that_closes_while_the_mouse_is_down(session: ChromiumSession, server: PageServer) -> None:
    server.pages["/popup"] = "<button onmousedown='window.close()'>Allow</button>"
    await session.reset()
    await session.goto(server.url("/opener"))
    await session.act(reply_of(await session.observe(), "click 'Sign in' []"))
    assert await session.act(reply_of(await session.observe(), "click 'Allow' []")) == ""
    assert "waiting" in await text_of(session)
    await session.close()


@pytest.mark.parametrize("reply", ["type 'Code' [] '12'", "press 'x'", "select 'Who' [] 'Ann'"])
async def test_a_popup_that_other_actions_close(session: ChromiumSession, server: PageServer, reply: str) -> None:
    server.pages["/popup"] = """<label>Code <input></label><label>Who <select><option>Bob<option>Ann</select></label>
    <script>oninput = onkeydown = () => window.close()</script>"""
    await session.reset()
    await session.goto(server.url("/opener"))
    await session.act(reply_of(await session.observe(), "click 'Sign in' []"))
    assert await session.act(reply_of(await session.observe(), reply)) == ""
    assert "waiting" in await text_of(session)
    assert await session.act(reply_of(await session.observe(), "click 'Sign in' []")) == ""
    await session.close()


async def test_popups_that_close_at_once_are_never_current(session: ChromiumSession, server: PageServer) -> None:
    server.pages["/popup"] = "<script>window.close()</script>"
    await session.reset()
    await session.goto(server.url("/opener"))
    for _ in range(5):
        await session.act(reply_of(await session.observe(), "click 'Sign in' []"))
        assert "waiting" in await text_of(session)
    await session.close()


async def test_the_only_tab_that_closes_itself_leaves_an_empty_one(pool: BrowserPool, server: PageServer) -> None:
    server.pages["/popup"] = "<button onclick='window.close()'>Allow</button>"
    session = ChromiumSession(pool)
    await session.reset()
    await session.goto(server.url("/opener"))
    await session.act(reply_of(await session.observe(), "click 'Sign in' []"))
    await session.act(Action("tab_focus", index=0))
    await session.act(Action("close_tab"))
    await session.act(reply_of(await session.observe(), "click 'Allow' []"))
    page = await session.observe()
    assert (page.url, page.notice) == ("about:blank", "the tab closed itself; an empty one is there now")
    await session.goto(server.url())
    assert "home" in await text_of(session)
    await session.goto(server.url("/opener"))
    await session.act(reply_of(await session.observe(), "click 'Sign in' []"))
    await session.act(Action("tab_focus", index=0))
    await session.act(Action("close_tab"))
    await session.act(reply_of(await session.observe(), "click 'Allow' []"))
    await session.reset()
    assert (await session.observe()).notice == ""
    await session.close()


@pytest.mark.parametrize("view", ["compact", "full"])
async def test_a_crashed_page_is_told_and_left_with_goto(server: PageServer, view: str) -> None:
    async with BrowserPool(view=view) as pool:
        session = ChromiumSession(pool)
        await session.reset()
        await session.goto(server.url())
        await session.observe()
        await _crash(session)
        page = await session.observe()
        assert [(node.role, node.name) for node in page.nodes] == [("heading", "This page crashed")]
        assert page.url == server.url()
        for action in (Action("press", text="x"), Action("scroll", text="down"), Action("go_back"), Action("wait")):
            assert await session.act(action) == "the page crashed; open another one with goto", action
        assert len(await session.screenshot()) > 100
        assert await session.act(Action("click", 1)) != ""
        assert await session.act(Action("goto", text=server.url("/next"))) == ""
        assert "next" in await text_of(session)
        opened = session._open
        assert opened is not None and opened.dirty and len(opened.tabs) == 1
        await session.reset()
        assert session._open is not opened
        assert pool.launches == 1


async def test_tabs_of_a_crashed_page_can_be_changed_and_closed(session: ChromiumSession, server: PageServer) -> None:
    await session.reset()
    await session.goto(server.url())
    await session.act(Action("new_tab"))
    await session.goto(server.url("/next", host="other.localhost"))
    await _crash(session)
    assert await session.act(Action("tab_focus", index=0)) == ""
    assert "home" in await text_of(session)
    assert await session.act(Action("tab_focus", index=1)) == ""
    assert await text_of(session) == "This page crashed"
    assert await session.act(Action("close_tab")) == ""
    assert "home" in await text_of(session)
    await session.close()


async def test_a_page_that_crashes_while_it_is_acted_on(session: ChromiumSession, server: PageServer) -> None:
    server.pages["/long"] = (
        "<button onclick='setTimeout(() => { const end = Date.now() + 800; while (Date.now() < end); })'>Go</button>"
    )
    await session.reset()
    await session.goto(server.url("/long"))
    page = await session.observe()
    crashing = asyncio.get_running_loop().create_task(_crash_later(session, 0.1))
    reason = await session.act(reply_of(page, "click 'Go' []"))
    await crashing
    assert reason in ("", "the page crashed; open another one with goto")
    assert await text_of(session) == "This page crashed"
    await session.goto(server.url())
    assert "home" in await text_of(session)
    await session.close()


async def _crash_later(session: ChromiumSession, seconds: float) -> None:
    await asyncio.sleep(seconds)
    await _crash(session)
