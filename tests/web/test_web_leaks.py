"""What an episode does to the browser ends with it: keys that are down, credentials, the name of the window."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio
from web_pages import PageServer, serving, text_of

from dynaweb.types import Action
from dynaweb.web.chromium.pool import BrowserPool

pytestmark = pytest.mark.asyncio(loop_scope="module")

KEYS = """<p id=p>none</p><script>
onkeydown = e => p.textContent = [e.ctrlKey, e.shiftKey, e.altKey, e.metaKey, e.key].join(' ');
</script>"""


@pytest.fixture(scope="module")
def server() -> Iterator[PageServer]:
    with serving() as running:
        running.pages["/keys"] = KEYS
        yield running


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
