"""Elements that are hard to hit: scrolled out of their container, or covered at their middle; free labels."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from web_pages import PageServer, serving

from dynaweb.types import Action, Observation
from dynaweb.web.chromium.pool import BrowserPool
from dynaweb.web.chromium.session import ChromiumSession

CLIPPED = """<!doctype html><style>#box{height:60px;overflow:auto}#box p{height:200px}</style>
<div id=box><p>A</p><button onclick="document.title='far'">Far</button><p>B</p></div>
<button onclick="document.title='below'">Below</button><script>0</script>"""
COVERED = """<!doctype html><style>button{position:absolute;width:100px;height:100px;top:0;left:0}
#over{top:30px;left:30px}</style><button onclick="document.title='under'">Under</button>
<button id=over onclick="document.title='over'">Over</button><script>0</script>"""
HIDDEN = """<!doctype html><style>button{position:absolute;width:100px;height:100px;top:0;left:0}</style>
<button>Under</button><button>Over</button><script>0</script>"""
LABELS = """<!doctype html><label>User</label><input><label for=p>Word</label><input id=p>
<label><input type=checkbox> Stay <b>here</b></label>"""


@pytest.fixture
async def browsing() -> AsyncIterator[tuple[ChromiumSession, PageServer]]:
    with serving() as server:
        async with BrowserPool(timeout=2.0) as pool:
            session = await pool.session()
            await session.reset()
            yield session, server
            await session.close()


async def click(browsing: tuple[ChromiumSession, PageServer], html: str, name: str) -> tuple[str, str]:
    """Why a click was refused, and the title of the page after it."""
    session, server = browsing
    server.pages["/"] = html
    await session.goto(server.url())
    page: Observation = await session.observe()
    node = next(node for node in page.nodes if (node.role, node.name) == ("button", name))
    return await session.act(Action("click", node.id)), await session.evaluate("last", "document.title")


async def test_what_its_container_has_scrolled_away_is_clicked_where_it_is(
    browsing: tuple[ChromiumSession, PageServer],
) -> None:
    assert await click(browsing, CLIPPED, "Far") == ("", "far")
    assert await click(browsing, CLIPPED, "Below") == ("", "below")


async def test_what_is_covered_at_its_middle_is_clicked_where_it_is_free(
    browsing: tuple[ChromiumSession, PageServer],
) -> None:
    assert await click(browsing, COVERED, "Under") == ("", "under")
    assert await click(browsing, COVERED, "Over") == ("", "over")
    why, _ = await click(browsing, HIDDEN, "Under")
    assert "is covered by button 'Over'" in why


async def test_a_label_is_shown_when_it_names_no_control(browsing: tuple[ChromiumSession, PageServer]) -> None:
    session, server = browsing
    server.pages["/"] = LABELS
    await session.goto(server.url())
    page = await session.observe()
    assert [(node.role, node.name) for node in page.nodes] == [
        ("text", "User"),
        ("textbox", ""),
        ("textbox", "Word"),
        ("checkbox", "Stay here"),
    ]
