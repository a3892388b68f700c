"""What the window shows of a page, budgets, and the ways in which small and large pages are read."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio
from web_pages import PageServer, acted, names, serving

from dynaweb.types import Action
from dynaweb.web.chromium import read as reading
from dynaweb.web.chromium.pool import BrowserPool
from dynaweb.web.chromium.session import ChromiumSession
from dynaweb.web.page.text import render

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def server() -> Iterator[PageServer]:
    with serving() as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool() -> AsyncIterator[BrowserPool]:
    async with BrowserPool(region="viewport") as pool:
        yield pool


@pytest_asyncio.fixture(loop_scope="module")
async def session(pool: BrowserPool) -> AsyncIterator[ChromiumSession]:
    """A session of its own for each test, in one browser."""
    session = await pool.session()
    await session.reset()
    yield session
    await session.close()


async def test_the_viewport_moves_over_the_page(session: ChromiumSession, server: PageServer) -> None:
    server.pages["/"] = "<h1>Top</h1>" + "".join(f"<p><a href=/{i}>Link {i}</a></p>" for i in range(200))
    await session.goto(server.url())
    page = await session.observe()
    assert names(page)[:2] == ["Top", "Link 0"]
    assert 15 < len(page.nodes) < 25
    box = session.boxes()[2]
    assert (box.x, 60 < box.y < 120, 20 < box.width < 80, 10 < box.height < 30) == (8, True, True, True)
    await session.act(Action("scroll", text="down"))
    below = await session.observe()
    assert names(below)[0] == names(page)[-1] or int(names(below)[0].split()[1]) <= int(names(page)[-1].split()[1]) + 1
    assert names(below)[-1] != names(page)[-1]


async def test_a_page_is_cut_to_a_budget_of_characters(
    session: ChromiumSession, pool: BrowserPool, server: PageServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.pages["/"] = "".join(f"<p><a href=/{i}>Link {i}</a></p>" for i in range(200))
    monkeypatch.setattr(pool, "region", "page")
    monkeypatch.setattr(pool, "max_chars", 300)
    await session.goto(server.url())
    page = await session.observe()
    assert page.truncated
    lines = render(page).split("\n")
    assert len("\n".join(lines[1:-2])) < 300
    assert lines[-2] == "..." and lines[-1].startswith("notice 'the page is long")


@pytest.mark.parametrize("view", ["compact", "webarena"])
async def test_the_viewport_of_a_large_page_is_read_without_the_rest(
    session: ChromiumSession, pool: BrowserPool, server: PageServer, monkeypatch: pytest.MonkeyPatch, view: str
) -> None:
    monkeypatch.setattr(pool, "view", view)
    rows = "".join(f"<li><h3><a href=/{i}>Item {i}</a></h3><p>Price <b>{i}</b><br>new</p></li>" for i in range(400))
    server.pages["/"] = f"""<div style="height:0"><p>Spills over</p></div><ul>{rows}</ul><div style="display:contents">
    <select aria-label=Sort style="position:fixed;top:5px"><option>New<option>Old</select></div>
    <iframe srcdoc="<button>Framed</button>" style="position:fixed;bottom:0"></iframe>"""
    await session.goto(server.url())
    for _ in range(2):
        part = await session.observe()
        with monkeypatch.context() as patch:
            patch.setattr(reading, "MANY_NODES", 10**9)
            whole = await session.observe()
        assert part == whole
        assert {"Sort", "Framed"} <= set(names(part))
        assert 10 < len(part.nodes) < 120
        await session.act(Action("scroll", text="down"))
    assert "Item 0" not in names(await session.observe())


async def test_small_and_large_pages_of_one_tab_are_read_in_turn(
    session: ChromiumSession, pool: BrowserPool, server: PageServer
) -> None:
    """Chromium crashes when accessibility is switched on where an earlier page was read without it."""
    server.pages["/small"] = "<a href=/large>Many</a><iframe srcdoc='<button>Framed</button>'></iframe>"
    server.pages["/large"] = "<a href=/small>Few</a>" + "<p>one <b>two</b></p>" * 400
    for _ in range(3):
        await session.goto(server.url("/small"))
        page = await session.observe()
        assert {"Many", "Framed"} <= set(names(page))
        reason, page = await acted(session, page, "click 'Many' []")
        assert (reason, page.url) == ("", server.url("/large"))
        await session.act(Action("go_back"))
        assert "Many" in names(await session.observe())
    assert pool.launches == 1
