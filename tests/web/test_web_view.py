"""The accessibility tree of real pages, and the compact and full views of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio
from hypothesis import given, settings
from hypothesis import strategies as st
from web_pages import PageServer, serving

from dynaweb.types import Node, Observation
from dynaweb.web.chromium.pool import BrowserPool
from dynaweb.web.chromium.session import ChromiumSession
from dynaweb.web.page.text import render
from dynaweb.web.page.tree import iframes, read_page, read_tree, subtree_ends
from dynaweb.web.page.view import INTERACTIVE, compact_view, full_view

pytestmark = pytest.mark.asyncio(loop_scope="module")

SHOP = """<title>Wool shop</title><body>
<header><nav aria-label=Main><a href=/>Home</a> <a href=/cart>Cart (2)</a></nav>
<form action=/search><label for=q>Search</label><input id=q name=q value=scarf><button>\u00bb</button></form></header>
<aside><h3>Categories</h3><ul><li><a href=/c/1>Wool</a></li><li><a href=/c/2>Silk</a> (7)</li></ul></aside>
<main><h1>Results</h1><p role=status>Found <b>2</b> items</p><p role=status></p>
<ul><li><h2><a href=/p/1>Red scarf</a></h2><p>Price: <strong>12.50</strong> <em>new</em> only<br>today</p></li>
<li><h2>Sold out</h2><div>Price: <span>9.90</span><p>was 12</p>each</div></li></ul>
<table><tr><th>Colour</th><td>dark <small>red</small></td></tr></table><dl><dt>Size</dt><dd>Large</dd></dl>
<img src=x alt="A scarf"><form><label for=s>Sort</label><select id=s><option>Newest<option selected>Price | up</select>
<label><input type=checkbox checked> Gift <b>wrap</b></label><label for=t>Note</label><textarea id=t required>a
b</textarea><input type=number aria-label=Qty value=3><input type=radio name=r id=r checked><label for=r>Red</label>
<input type=search placeholder=Find><input type=text><button disabled>Buy</button><input type=submit value=Go></form>
<a href=/all><h3>All</h3><p>our scarves</p></a></main>
<dialog open aria-label=Hint><p>Hello</p><button>OK</button></dialog>
<footer>Made by <a href=/about>us</a>, 2024</footer>"""

COMPACT = """link 'Home' [1]
link 'Cart (2)' [2]
textbox 'Search' [3] = 'scarf'
button '\u00bb' [4]
heading 'Categories' [5]
link 'Wool' [6]
link 'Silk' [7]
text '(7)' [8]
heading 'Results' [9]
status 'Found 2 items' [10]
link 'Red scarf' [11]
text 'Price: 12.50 new only today' [12]
heading 'Sold out' [13]
text 'Price: 9.90' [14]
text 'was 12' [15]
text 'each' [16]
text 'Colour' [17]
text 'dark red' [18]
text 'Size' [19]
text 'Large' [20]
combobox 'Sort' [21] = 'Price / up' of 'Newest' 'Price / up'
checkbox 'Gift wrap' [22] checked
textbox 'Note' [23] = 'a\\nb' required
textbox 'Qty' [24] = '3'
radio 'Red' [25] checked
textbox 'Find' [26]
textbox '' [27]
button 'Buy' [28] disabled
button 'Go' [29]
link 'All our scarves' [30]
dialog 'Hint' [31]
text 'Hello' [32]
button 'OK' [33]
text 'Made by' [34]
link 'us' [35]
text ', 2024' [36]"""

FULL_PART = """\t[12] heading 'Results'
\t[13] status ''
\t\t[14] StaticText 'Found'
\t\t[15] StaticText '2'
\t\t[16] StaticText 'items'
\t[17] status ''
\t[18] heading 'Red scarf'
\t\t[19] link 'Red scarf'
"""


@pytest.fixture(scope="module")
def server() -> Iterator[PageServer]:
    with serving() as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["compact", "full"])
async def session(request: pytest.FixtureRequest) -> AsyncIterator[ChromiumSession]:
    async with BrowserPool(view=request.param) as pool:
        session = await pool.session()
        await session.reset()
        yield session


async def test_views_of_a_realistic_page(session: ChromiumSession, server: PageServer) -> None:
    server.pages["/"] = SHOP
    await session.goto(server.url())
    page = await session.observe()
    assert [node.id for node in page.nodes] == list(range(1, len(page.nodes) + 1))
    if page.title:
        text = render(page, "webarena")
        assert text.startswith("Tab 0 (current): Wool shop\n\n[1] RootWebArea 'Wool shop'")
        assert FULL_PART in text
        assert "combobox 'Sort' value: 'Price / up' options: 'Newest|Price / up'" in text
        assert [tab.title for tab in page.tabs] == ["Wool shop"]
    else:
        assert render(page).split("\n", 1)[1] == COMPACT
        assert all(node.depth == 0 and node.ref for node in page.nodes)


async def test_controls_beyond_plain_html(session: ChromiumSession, server: PageServer) -> None:
    server.pages[
        "/"
    ] = """<details><summary>More</summary><p>secret</p></details><div contenteditable aria-label=Body>text</div>
    <button aria-expanded=false>Menu</button><button aria-pressed=true>Bold</button><div tabindex=0>Box</div>
    <ul role=listbox><li role=option aria-selected=true>One</ul>
    <select multiple aria-label=Many><option>A<option>B</select>
    <input type=password aria-label=Secret value=abc>"""
    await session.goto(server.url())
    page = await session.observe()
    if page.title or page.tabs:
        assert "[2] DisclosureTriangle 'More' expanded: False" in render(page, "webarena")
        return
    assert render(page).split("\n")[1:] == [
        "button 'More' [1]",
        "textbox 'Body' [2] = 'text'",
        "button 'Menu' [3]",
        "button 'Bold' [4] pressed",
        "generic 'Box' [5]",
        "listbox '' [6]",
        "option 'One' [7] selected",
        "listbox 'Many' [8] of 'A' 'B'",
        "textbox 'Secret' [9] = '\u2022\u2022\u2022'",
    ]


def raw(*items: tuple[int, str, str]) -> list[Node]:
    """A raw tree of (depth, role, name)."""
    return [Node(0, role, name, depth=depth) for depth, role, name in items]


def compact(*items: tuple[int, str, str]) -> list[str]:
    return render(Observation("http://a/", compact_view(raw(*items)).nodes)).split("\n")[1:]


async def test_text_is_cut_by_blocks_and_by_elements() -> None:
    assert compact(
        (0, "RootWebArea", "T"),
        (1, "paragraph", ""),
        (2, "StaticText", "a "),
        (2, "strong", ""),
        (3, "StaticText", " b\n c"),
        (2, "generic", ""),
        (3, "StaticText", "d"),
        (2, "link", "l"),
        (3, "StaticText", "l"),
        (2, "StaticText", "e"),
        (1, "generic", ""),
        (2, "StaticText", "f"),
        (2, "generic", ""),
        (3, "StaticText", "g"),
        (2, "StaticText", "h"),
    ) == ["text 'a b c d' [1]", "link 'l' [2]", "text 'e' [3]", "text 'f' [4]", "text 'g' [5]", "text 'h' [6]"]


async def test_names_are_cut() -> None:
    (line,) = compact((0, "button", "x" * 119 + " yz"))
    assert line == f"button '{'x' * 119}' [1]"


ROLES = st.sampled_from(["RootWebArea", "none", "generic", "paragraph", "StaticText", "LabelText", "heading", "status",
                         "dialog", "MenuListPopup", "strong", *sorted(INTERACTIVE)])  # fmt: skip
TREES = st.lists(st.tuples(st.integers(0, 6), ROLES, st.text(max_size=5)), max_size=40)


@settings(max_examples=200, deadline=None)
@given(TREES, st.integers(0, 10))
async def test_any_tree_has_views(items: list[tuple[int, str, str]], budget: int) -> None:
    nodes = raw(*items)
    for view in (compact_view, full_view):
        whole, cut = view(nodes), view(nodes, max_nodes=budget)
        assert [node.id for node in whole.nodes] == list(range(1, len(whole.nodes) + 1))
        assert cut.nodes == whole.nodes[:budget]
        assert cut.truncated == (len(whole.nodes) > budget)
    assert all(node.depth == 0 for node in compact_view(nodes).nodes)


async def test_a_tree_that_is_2000_deep_and_one_that_loops() -> None:
    deep = [
        {"nodeId": str(i), "role": {"value": "generic"}, "childIds": [str(i + 1)], "backendDOMNodeId": i}
        for i in range(2000)
    ]
    deep.append({"nodeId": "2000", "role": {"value": "button"}, "name": {"value": "Go"}, "childIds": ["0"]})
    tree = read_tree(deep)
    assert (len(tree), tree[-1].depth) == (2001, 2000)
    assert subtree_ends(tree) == [2001] * 2001
    assert [node.name for node in compact_view(tree).nodes] == ["Go"]


async def test_an_empty_answer_is_an_empty_page() -> None:
    page = read_page([])
    assert (page.url, page.title, page.nodes) == ("", "", ())


async def test_trees_of_frames_go_below_their_element() -> None:
    payload = [
        {"nodeId": "1", "role": {"value": "RootWebArea"}, "childIds": ["2", "3"], "backendDOMNodeId": 1},
        {"nodeId": "2", "role": {"value": "Iframe"}, "backendDOMNodeId": 7, "childIds": []},
        {"nodeId": "3", "role": {"value": "button"}, "name": {"value": "After"}, "backendDOMNodeId": 8},
    ]
    assert iframes(payload) == [7]
    inner = read_tree(
        [{"nodeId": "1", "role": {"value": "button"}, "name": {"value": "In"}, "backendDOMNodeId": 3}], frame="F"
    )
    tree = read_tree(payload, inner={7: inner})
    assert [(node.name, node.depth, node.ref) for node in tree[2:]] == [("In", 2, "F:3"), ("After", 1, ":8")]
