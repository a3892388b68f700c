"""What a person would click although it is no control: items of something that listens, and what shows a hand."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from web_pages import PageServer, serving

from dynaweb.types import Action
from dynaweb.web.chromium.pool import BrowserPool
from dynaweb.web.chromium.session import ChromiumSession

pytestmark = pytest.mark.asyncio(loop_scope="module")

HAND = "style='cursor:pointer;display:inline-block;width:16px;height:16px'"
TELL = "<script>l.onclick = event => document.title = event.target.dataset.n || event.target.textContent</script>"
TELL_ALL = TELL.replace("l.onclick", "document.onclick")
CELLS = "<style>.c {width: 30px; height: 30px} .r {display: flex}</style>"
SHADOW = f"""<div id=h></div><script>h.attachShadow({{mode: 'open'}}).innerHTML =
`<ul id=u><li>One<li>Two</ul><i class=bin data-n=bin {HAND}></i>`;
h.shadowRoot.addEventListener("click", event => document.title = event.target.dataset.n || event.target.textContent);
h.shadowRoot.getElementById('u').onclick = () => 0</script>"""
FRAMED = f"""<iframe srcdoc="<ul id=u><li>One<li>Two</ul><i class=bin data-n=bin {HAND}></i>
<script>onclick = event => parent.document.title = event.target.dataset.n || event.target.textContent;
u.onclick = () => 0</script>"></iframe>"""

# Each element that is clicked by its name, and what it then was; those that are there in all.
ITEMS = {
    "a list": ("<ul id=l><li>Red<li>Green<li>Blue</ul>", {"Red": "Red", "Green": "Green", "Blue": "Blue"}),
    "a long list": (f"<ol id=l>{''.join(f'<li>Entry number {n}' for n in range(30))}</ol>", {"Entry number 7": ""}),
    "a list that shows a hand": ("<ul id=l style=cursor:pointer><li>Red<li>Green</ul>", {"Red": "", "Green": ""}),
    "a list with a title": (
        "<div id=l><h3>Menu</h3><div><div class=m>Open</div><div class=m>Save</div></div></div>",
        {"Open": "", "Save": ""},
    ),
    "pieces of a line": ("<div id=l><span>Red</span><span>Green</span> <b>Blue</b></div>", {"Red": "", "Blue": ""}),
    "pieces of a sentence": (
        "<p id=l>Sizes: <span class=s>Small</span> <span class=s>Large</span></p>",
        {"Small": "", "Large": ""},
    ),
    "a table": ("<table id=l><tr><td>a<td>b<tr><td>c<td>d</table>", {"a": "", "c": "", "d": ""}),
    "definitions": ("<dl id=l><dt>Tea<dd>green<dt>Coffee<dd>black</dl>", {"Tea": "", "black": ""}),
    "a board": (
        f"{CELLS}<div id=l><div class=r><div class=c>1</div><div class=c>2</div></div>"
        "<div class=r><div class=c id=c3 data-n=third></div><div class=c id=c4 data-n=fourth></div></div></div>",
        {"1": "", "c3": "third", "c4": "fourth"},
    ),
    "a map": (
        "<svg id=l width=100 height=50><path class=land id=france data-n=F d='M0 0h40v40h-40z'/>"
        "<path class=land id=spain data-n=S d='M50 0h40v40h-40z'/></svg>",
        {"france": "F", "spain": "S"},
    ),
    "roles": (
        "<div id=l role=list><div role=listitem>Red</div><div role=listitem>Green</div></div>",
        {"Red": "", "Green": ""},
    ),
    "a card": (
        "<div id=l data-n=clicked><h3 data-n=clicked>Tea</h3><p data-n=clicked>3 euros</p></div>",
        {"Tea 3 euros": "clicked"},
    ),
    "a card that shows a hand": (
        "<div id=l data-n=x style=cursor:pointer><div data-n=x>Tea</div><div data-n=x>3 euros</div></div>",
        {"Tea 3 euros": "x"},
    ),
    "a drawing": (
        "<svg id=l data-n=d width=20 height=20><path data-n=d d='M0 0h9v9z'/><path data-n=d d='M9 9h9v9z'/></svg>",
        {"l": "d"},
    ),
}
HANDS = {
    "an icon font": (f"<p>Mail <i class='fa fa-trash' data-n=x {HAND}></i> and more</p>", {"trash": "x"}),
    "an icon that is hidden from readers": (f"<i class='bi bi-x' aria-hidden=true data-n=x {HAND}></i>", {"x": "x"}),
    "a drawing": ("<svg class=icon-star width=20 height=20 style=cursor:pointer data-n=s></svg>", {"star": "s"}),
    "a sprite": (
        "<svg width=20 height=20 style=cursor:pointer data-n=s><use href='/sprite.svg#icon-heart'/></svg>",
        {"heart": "s"},
    ),
    "a picture": ("<img src='/x/bin.png' alt='' width=20 height=20 style=cursor:pointer data-n=i>", {"bin": "i"}),
    "a label": (f"<i title='Delete mail' class=fa data-n=x {HAND}></i>", {"Delete mail": "x"}),
    "two icons": (
        f"<i class=fa-up data-n=u {HAND}></i><i class=fa-down data-n=d {HAND}></i>",
        {"up": "u", "down": "d"},
    ),
    "a word": ("<p>Click <span style=cursor:pointer>here <b>now</b></span> to go on</p>", {"here now": "here now"}),
    "a sign": ("<p>Filter: tea <span style=cursor:pointer>&times;</span></p>", {"×": ""}),
    "an anchor without an address": ("<a style=cursor:pointer>More</a>", {"More": ""}),
    "a block": ("<div style=cursor:pointer><p>Tea</p></div><p>text", {"Tea": ""}),
    "a shadow root": (SHADOW, {"One": "", "Two": "", "bin": "bin"}),
    "a frame": (FRAMED, {"One": "", "Two": "", "bin": "bin"}),
}
NOTHING = {
    "in a control": f"<button style=cursor:pointer>Go <i {HAND}></i></button>",
    "in a label": f"<label style=cursor:pointer><input type=checkbox> Gift <i {HAND}></i></label>",
    "in a link": f"<a href=/x>Home <i class=fa {HAND}></i></a>",
    "hidden": f"<i {HAND.replace('cursor', 'visibility:hidden;cursor')}></i><b style='cursor:pointer;display:none'>x",
    "without a size": "<i class=fa style=cursor:pointer></i>",
    "a backdrop": "<div style='cursor:pointer;position:fixed;inset:0;z-index:-1'></div>",
    "the page": "<style>body {cursor: pointer}</style>",
    "an application": "<div id=l><a href=/x>Home</a><p>one</p><p>two</p><table><tr><td>1<td>2</table></div>" + TELL,
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browsing() -> AsyncIterator[tuple[ChromiumSession, PageServer]]:
    with serving() as server:
        async with BrowserPool(timeout=2.0) as pool:
            session = await pool.session()
            await session.reset()
            yield session, server
            await session.close()


@pytest.mark.parametrize(("html", "clicks"), ITEMS.values(), ids=ITEMS)
async def test_items_of_something_that_listens_are_clicked_one_by_one(
    browsing: tuple[ChromiumSession, PageServer], html: str, clicks: dict[str, str]
) -> None:
    await _click_all(browsing, html + TELL, clicks)


@pytest.mark.parametrize(("html", "clicks"), HANDS.values(), ids=HANDS)
async def test_what_shows_a_hand_is_there_to_be_clicked(
    browsing: tuple[ChromiumSession, PageServer], html: str, clicks: dict[str, str]
) -> None:
    await _click_all(browsing, html + ("" if "onclick" in html else TELL_ALL), clicks)


async def _click_all(browsing: tuple[ChromiumSession, PageServer], html: str, clicks: dict[str, str]) -> None:
    session, server = browsing
    server.pages["/"] = html
    for name, title in clicks.items():
        await session.goto(server.url())
        page = await session.observe()
        nodes = [node for node in page.nodes if node.name == name and node.role not in ("text", "heading")]
        assert len(nodes) == 1, page.nodes
        assert await session.act(Action("click", nodes[0].id)) == ""
        assert await session.evaluate("last", "document.title") == (title or name)


@pytest.mark.parametrize("html", NOTHING.values(), ids=NOTHING)
async def test_a_hand_alone_makes_no_further_elements_of_controls_and_of_what_nobody_sees(
    browsing: tuple[ChromiumSession, PageServer], html: str
) -> None:
    session, server = browsing
    server.pages["/"] = f"{html}<p>Text</p><script>0</script>"
    await session.goto(server.url())
    page = await session.observe()
    assert {node.role for node in page.nodes} <= {"text", "button", "link", "checkbox"}


async def test_what_is_added_stands_where_the_page_has_it(browsing: tuple[ChromiumSession, PageServer]) -> None:
    session, server = browsing
    rows = "".join(f"<li><b>Mail {n}</b> <i class=fa-bin id=b{n} {HAND}></i><a href=/{n}>open</a>" for n in range(3))
    server.pages["/"] = f"<ul>{rows}</ul><p>end <i class=fa-top {HAND}></i></p><script>0</script>"
    await session.goto(server.url())
    page = await session.observe()
    expected = [name for n in range(3) for name in (f"Mail {n}", f"b{n}", "open")]
    assert [node.name for node in page.nodes] == [*expected, "end", "top"]
