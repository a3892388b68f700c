"""Frames and shadow roots: one tree, and every element in it can be acted on where it really is."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio
from web_pages import PageServer, acted, names, one_session, opened, reply_of, serving

from dynaweb.web.chromium.pool import BrowserPool
from dynaweb.web.chromium.session import ChromiumSession

pytestmark = pytest.mark.asyncio(loop_scope="module")

INNER = """<button onclick="this.textContent='Pressed'">Press</button><input aria-label=Field>
<select aria-label=List><option>A<option>B</select><a href=/next>Leave</a><p>inner text</p>"""


@pytest.fixture(scope="module")
def server() -> Iterator[PageServer]:
    with serving() as running:
        running.pages["/inner"] = INNER
        running.pages["/middle"] = "<h2>Middle</h2><iframe src=/inner width=600 height=200></iframe>"
        running.pages["/plain"] = "<h3>Plain</h3><form action=/done><input type=submit value=Send></form>"
        running.pages["/next"] = "<h1>Next page</h1>"
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def session() -> AsyncIterator[ChromiumSession]:
    async with one_session(timeout=2.0) as session:
        yield session


def frame(server: PageServer, kind: str) -> str:
    """The element that shows `/inner` in a frame of that kind."""
    other = server.url("/inner", host="other.localhost")
    forms = {
        "same origin": "<iframe src=/inner width=700 height=300></iframe>",
        "cross-origin": f"<iframe src='{other}' width=700 height=300></iframe>",
        "sandboxed": "<iframe sandbox='allow-scripts allow-forms' src=/inner width=700 height=300></iframe>",
        "nested": f"<iframe src='{server.url('/middle', host='third.localhost')}' width=700 height=400></iframe>",
    }
    return forms[kind]


@pytest.mark.parametrize("kind", ["same origin", "cross-origin", "sandboxed", "nested"])
async def test_frames_are_part_of_the_page(session: ChromiumSession, server: PageServer, kind: str) -> None:
    page = await opened(session, server, f"<h1>Top</h1><div style='height:900px'></div>{frame(server, kind)}<p>End</p>")
    middle = ["Middle"] if kind == "nested" else []
    assert names(page) == ["Top", *middle, "Press", "Field", "List", "Leave", "inner text", "End"]
    for reply in ("click 'Press' []", "type 'Field' [] '羊 wool'", "select 'List' [] 'B'", "hover 'Leave' []"):
        reason, page = await acted(session, page, reply)
        assert reason == "", reply
    assert "Pressed" in names(page)
    values = {node.name: node.value for node in page.nodes}
    assert (values["Field"], values["List"]) == ("羊 wool", "B")
    reason, page = await acted(session, page, "click 'Leave' []")
    assert (reason, page.url) == ("", server.url("/"))
    assert names(page) == ["Top", *middle, "Next page", "End"]


async def test_a_frame_without_scripts_is_read_and_refuses_or_works(
    session: ChromiumSession, server: PageServer
) -> None:
    page = await opened(session, server, "<h1>Top</h1><iframe sandbox src=/inner width=700 height=300></iframe>")
    assert names(page) == ["Top", "Press", "Field", "List", "Leave", "inner text"]
    start = time.perf_counter()
    reason, page = await acted(session, page, "type 'Field' [] 'abc'")
    assert reason == ""
    assert {node.name: node.value for node in page.nodes}["Field"] == "abc"
    reason, page = await acted(session, page, "click 'Leave' []")
    assert reason == ""
    assert names(page) == ["Top", "Next page"]
    assert time.perf_counter() - start < 15


async def test_a_covered_frame_says_what_covers_it(session: ChromiumSession, server: PageServer) -> None:
    cover = "<div style='position:fixed;inset:0;background:#fff' id=c>Cookies?</div>"
    page = await opened(session, server, f"{frame(server, 'cross-origin')}{cover}")
    start = time.perf_counter()
    reason, page = await acted(session, page, "click 'Press' []")
    assert reason == "button 'Press' is covered by div 'Cookies?'"
    assert time.perf_counter() - start < 4
    assert "Press" in names(page)


async def test_a_frame_that_scrolls_and_one_that_is_removed(session: ChromiumSession, server: PageServer) -> None:
    server.pages["/tall"] = f"<div style='height:2000px'></div>{INNER}"
    page = await opened(
        session, server, "<iframe src=/tall width=500 height=150></iframe><button onclick=f.remove()>Remove</button>"
        "<script>f = document.querySelector('iframe')</script>"
    )  # fmt: skip
    reason, page = await acted(session, page, "click 'Press' []")
    assert (reason, names(page)[0]) == ("", "Pressed")
    old = reply_of(page, "click 'Pressed' []")
    _, page = await acted(session, page, "click 'Remove' []")
    assert names(page) == ["Remove"]
    assert await session.act(old) == "[1] is button 'Remove' now, not button 'Pressed'; look at the page again"


async def test_an_element_of_a_frame_that_went_away_is_stale(session: ChromiumSession, server: PageServer) -> None:
    page = await opened(
        session, server, "<iframe src=/inner></iframe><script>setTimeout(() => {"
        "document.querySelector('iframe').remove()}, 1200)</script>"
    )  # fmt: skip
    action = reply_of(page, "click 'Press' []")
    await asyncio.sleep(1.2)
    start = time.perf_counter()
    assert "is not on the page any more" in await session.act(action)
    assert time.perf_counter() - start < 2


async def test_a_frame_that_never_loads_does_not_hold_the_page(session: ChromiumSession, server: PageServer) -> None:
    start = time.perf_counter()
    page = await opened(session, server, "<h1>Top</h1><iframe src=/hang></iframe><p>End</p>")
    assert names(page) == ["Top", "End"]
    assert time.perf_counter() - start < 7.5


async def test_a_page_of_many_frames_is_bounded(server: PageServer) -> None:
    # Ninety documents take a busy machine longer than the other tests wait for a page.
    async with BrowserPool(timeout=60) as pool:
        session = await pool.session()
        page = await opened(session, server, "<iframe srcdoc='<p>x</p>'></iframe>" * 90 + "<p>End</p>")
        await session.close()
    assert not page.notice
    assert names(page).count("x") == 60
    assert names(page)[-1] == "End"


@pytest.mark.parametrize("mode", ["open", "closed"])
async def test_shadow_roots_inside_shadow_roots_and_frames(
    session: ChromiumSession, server: PageServer, mode: str
) -> None:
    server.pages["/shadow"] = f"""<x-a></x-a><script>
    const outer = document.querySelector('x-a').attachShadow({{mode: '{mode}'}});
    outer.innerHTML = '<p>outer</p><x-b></x-b><input aria-label=Deep>';
    const inner = outer.querySelector('x-b').attachShadow({{mode: '{mode}'}});
    inner.innerHTML = "<button onclick=\\"this.textContent='hit'\\">Core</button>";
    </script>"""
    page = await opened(session, server, "<iframe src=/shadow width=500 height=300></iframe>")
    assert names(page) == ["outer", "Core", "Deep"]
    reason, page = await acted(session, page, "click 'Core' []")
    assert (reason, names(page)) == ("", ["outer", "hit", "Deep"])
    reason, page = await acted(session, page, "type 'Deep' [] 'abc'")
    assert (reason, page.nodes[2].value) == ("", "abc")


async def test_late_frames_are_waited_for(session: ChromiumSession, server: PageServer) -> None:
    server.pages["/late"] = "<div id=app></div><script>setTimeout(() => app.innerHTML = '<p>late</p>', 600)</script>"
    page = await opened(session, server, "<h1>Top</h1><iframe src=/late></iframe>")
    assert names(page) == ["Top", "late"]
