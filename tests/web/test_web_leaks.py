"""What an episode does to the browser ends with it: keys that are down, credentials, the name of the window."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio
from playwright.async_api import Page
from web_pages import PageServer, serving, text_of

from dynaweb.types import Action
from dynaweb.web.chromium.context import OpenContext
from dynaweb.web.chromium.pool import BrowserPool
from dynaweb.web.chromium.tab import Tab

pytestmark = pytest.mark.asyncio(loop_scope="module")

KEYS = """<p id=p>none</p><script>
onkeydown = e => p.textContent = [e.ctrlKey, e.shiftKey, e.altKey, e.metaKey, e.key].join(' ');
</script>"""


@pytest.fixture(scope="module")
def server() -> Iterator[PageServer]:
    with serving() as running:
        running.pages["/keys"] = KEYS
        address = _with_credentials(running, "/auth")
        running.pages["/link"] = f"<a href='{address}'>in</a>"
        running.pages["/popup"] = f"<button onclick=\"window.open('{address}')\">in</button>"
        running.pages["/asks"] = """<button>in</button><script>document.querySelector('button').onclick = () => {
          const request = new XMLHttpRequest();
          request.open('GET', '/auth', false, 'u', 'p');
          request.send();
        }</script>"""
        running.pages["/name"] = "<p id=p></p><script>p.textContent = `name: ${name}`; name = 'leak';</script>"
        running.pages["/named"] = "<a href=/name target=leak>name</a>"
        yield running


def _with_credentials(server: PageServer, path: str) -> str:
    return server.url(path).replace("://", "://u:p@")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool() -> AsyncIterator[BrowserPool]:
    async with BrowserPool() as pool:
        yield pool


@pytest.mark.parametrize(
    "keys", ["Control+foo", "Shift+", "Control+Shift+foo", "Alt+Meta+nothing", "Meta+Control+é!", "Control+Enter+foo"]
)
async def test_a_refused_combination_leaves_no_key_down(pool: BrowserPool, server: PageServer, keys: str) -> None:
    session, later = await pool.session(), await pool.session()
    await session.reset()
    await session.goto(server.url("/keys"))
    assert "write a key such as" in await session.act(Action("press", text=keys))
    assert await session.act(Action("press", text="x")) == ""
    assert await text_of(session) == "false false false false x"
    await session.act(Action("press", text=keys))
    await session.reset()
    await session.goto(server.url("/keys"))
    await session.act(Action("press", text="y"))
    assert await text_of(session) == "false false false false y"
    await session.act(Action("press", text=keys))
    await session.close()
    await later.reset()
    await later.goto(server.url("/keys"))
    await later.act(Action("press", text="z"))
    assert await text_of(later) == "false false false false z"
    await later.close()


async def test_a_key_that_makes_the_page_spin_is_no_key_down(server: PageServer) -> None:
    server.pages["/spins"] = KEYS.replace(
        "onkeydown = e => ", "onkeydown = e => { if (e.key == 'q') while (1); ", 1
    ).replace("join(' ');", "join(' '); };")
    async with BrowserPool(timeout=0.3, deadline=1.0) as pool:
        session = await pool.session()
        await session.reset()
        await session.goto(server.url("/spins"))
        assert "did not take it within 0.3 s" in await session.act(Action("press", text="Control+Shift+q"))
        assert "was stopped" in (await session.observe()).notice
        assert await session.act(Action("press", text="x")) == ""
        assert await text_of(session) == "false false false false x"


@pytest.mark.parametrize("path", ["/auth", "/to-auth", "/link", "/popup", "/asks"])
async def test_credentials_of_addresses_end_with_the_episode(server: PageServer, path: str) -> None:
    async with BrowserPool() as pool:
        session, later = await pool.session(), await pool.session()
        for leave in (session.reset, session.close):
            await session.reset()
            await session.goto(_with_credentials(server, path) if path == "/auth" else server.url(path))
            page = await session.observe()
            for node in page.nodes:
                if node.role in ("link", "button"):
                    await session.act(Action("click", node.id))
            await session.goto(server.url("/auth"))
            assert await text_of(session) == "in as u:p", "the browser does not remember them within the episode"
            await leave()
            after = session if leave == session.reset else later
            if after is later:
                await later.reset()
            await after.goto(server.url("/auth"))
            assert await text_of(after) == "no entry"


async def test_an_at_sign_elsewhere_costs_no_context(pool: BrowserPool, server: PageServer) -> None:
    server.pages["/@ann"] = "<p>ann</p>"
    session = await pool.session()
    await session.reset()
    before = session._open
    await session.goto(server.url("/@ann?mail=a@b.c#@"))
    await session.reset()
    assert session._open is before is not None
    await session.close()


@pytest.mark.parametrize("path", ["/name", "/named"])
async def test_the_name_of_a_window_ends_with_the_episode(pool: BrowserPool, server: PageServer, path: str) -> None:
    session, later = await pool.session(), await pool.session()
    for _ in range(2):
        await session.reset()
        await session.goto(server.url(path))
        if path == "/named":
            page = await session.observe()
            await session.act(Action("click", page.nodes[0].id))
            assert "name: leak" in await text_of(session)
            # The window that was opened is what the next episode begins with.
            await session.act(Action("tab_focus", index=0))
            await session.act(Action("close_tab"))
        else:
            assert await text_of(session) == "name:"
    await session.close()
    await later.reset()
    await later.goto(server.url("/name"))
    assert await text_of(later) == "name:"
    await later.close()


@pytest.mark.parametrize("script", ["", "<script>setTimeout(() => window.close(), 100)</script>"])
async def test_what_a_closed_tab_has_stored_ends_with_the_episode(
    pool: BrowserPool, server: PageServer, script: str
) -> None:
    other = server.url("/stores", host="other.localhost")
    server.pages["/opens"] = f"<a href='{other}' target=_blank rel=opener>Open</a>"
    server.pages["/stores"] = (
        f"<p id=p></p><script>p.textContent = `is ${{localStorage.a}}`; localStorage.a = 1</script>{script}"
    )
    session = await pool.session()
    for _ in range(2):
        await session.reset()
        await session.goto(server.url("/opens"))
        page = await session.observe()
        await session.act(Action("click", page.nodes[0].id))
        if script:
            await asyncio.sleep(0.3)
        else:
            assert await text_of(session) == "is undefined"
            await session.act(Action("close_tab"))
        assert await text_of(session) == "Open"
    # Without what closes it: that is waited for too.
    server.pages["/stores"] = server.pages["/stores"].removesuffix(script)
    await session.reset()
    await session.goto(other)
    assert await text_of(session) == "is undefined"
    await session.close()


LEAVES = {
    "closes at once": "<script>window.close()</script>",
    "closes soon": "<script>setTimeout(() => window.close(), 20)</script>",
    "leads on and closes": "<script>location.replace('/closes')</script>",
    "holds a frame": "<iframe src={third}/stored></iframe><script>setTimeout(() => window.close(), 150)</script>",
}


@pytest.mark.parametrize("name", LEAVES)
async def test_what_a_window_stored_before_it_was_attached_to_ends_with_the_episode(
    pool: BrowserPool, server: PageServer, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    attach = OpenContext._attach

    async def late(self: OpenContext, page: Page) -> Tab:
        # As on a busy machine: the window has done all that it does before it is known here.
        if not self._own_page:
            await asyncio.sleep(0.3)
        return await attach(self, page)

    monkeypatch.setattr(OpenContext, "_attach", late)
    store = "<p id=p></p><script>p.textContent = `is ${localStorage.a}`; localStorage.a = 1</script>"
    hosts = {host: server.url("", host=f"{host}.localhost") for host in ("first", "third")}
    server.pages["/stored"] = store
    server.pages["/closes"] = store + LEAVES["closes at once"]
    server.pages["/stores"] = store + LEAVES[name].replace("{third}", hosts["third"].rstrip("/"))
    server.pages["/opens"] = f"<a href='{hosts['first'].rstrip('/')}/stores' target=_blank rel=opener>Open</a>"
    session = await pool.session()
    await session.reset()
    await session.goto(server.url("/opens"))
    page = await session.observe()
    await session.act(Action("click", page.nodes[0].id))
    for _ in range(100):
        if len(session._context().context.pages) == 1 and not session._context()._adopting:
            break
        await asyncio.sleep(0.02)
    await session.reset()
    for host in hosts.values():
        await session.goto(f"{host.rstrip('/')}/stored")
        assert await text_of(session) == "is undefined", host
    await session.close()
