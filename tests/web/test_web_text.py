"""Observations as text and back; replies parsed to actions and printed back."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dynaweb.types import ACTION_KINDS, TARGETED, Action, Node, Observation, Tab
from dynaweb.web import observation_formats
from dynaweb.web.actions.grammar import format_action, parse_action, resolve, split_reply
from dynaweb.web.page.text import format_node, parse_compact, parse_node, parse_page, render
from dynaweb.web.quoting import quote, unquote

SHOP = Observation(
    "http://shop.localhost/search?q=x",
    (
        Node(1, "link", "Home"),
        Node(2, "textbox", "Search", "abc"),
        Node(3, "combobox", "Sort", "Newest", (("options", "Newest|Price"),)),
        Node(4, "checkbox", "Gift wrap", None, (("checked", "true"),)),
        Node(5, "heading", "Wool Scarf"),
        Node(6, "text", "Price: 12.50"),
    ),
    notice="message",
)

TEXT = st.text(max_size=30) | st.sampled_from(
    ["link 'x' [9]", "a\nlink 'x' [9]", 'it\'s "q" [1]', "\\", "\\'", "...", "羊毛 🧣"]
)
ROLE = st.sampled_from(["link", "textbox", "combobox", "text", "heading", "notice", "title", "tab", "of", "none"])
KEY = st.sampled_from(["checked", "disabled", "options", "of", "level", "x-y"])
NODES = st.builds(
    Node,
    id=st.integers(0, 500),
    role=ROLE,
    name=TEXT,
    value=st.none() | TEXT,
    props=st.lists(st.tuples(KEY, TEXT | st.just("true")), max_size=3).map(tuple),
    depth=st.integers(0, 4),
)
URL = TEXT | st.sampled_from(
    ["http://a.localhost/x?q=1", "https://a/b", "about:blank", "http://a", "a.b/c", "http://", "http://a b/", "a:80/"]
)
OBSERVATIONS = st.builds(
    Observation,
    url=URL,
    nodes=st.lists(NODES, max_size=6).map(tuple),
    title=TEXT,
    tabs=st.lists(st.builds(Tab, title=TEXT, url=TEXT, current=st.booleans()), max_size=3).map(tuple),
    notice=TEXT,
    truncated=st.booleans(),
)


def test_compact_looks_as_documented() -> None:
    assert render(SHOP).split("\n") == [
        "shop.localhost/search?q=x",
        "link 'Home' [1]",
        "textbox 'Search' [2] = 'abc'",
        "combobox 'Sort' [3] = 'Newest' of 'Newest' 'Price'",
        "checkbox 'Gift wrap' [4] checked",
        "heading 'Wool Scarf' [5]",
        "text 'Price: 12.50' [6]",
        "notice 'message'",
    ]


def test_webarena_looks_as_documented() -> None:
    page = Observation("http://a/", (Node(7, "link", "It's", None, (("focused", "true"),), depth=1),), "T")
    assert render(page, "webarena") == 'Tab 0 (current): T\n\n\t[7] link "It\'s" focused: True'


@settings(max_examples=300, deadline=None)
@given(OBSERVATIONS)
def test_compact_comes_back_exactly(observation: Observation) -> None:
    text = render(observation)
    assert parse_compact(text) == observation
    head = 1 + bool(observation.title) + len(observation.tabs)
    tail = bool(observation.truncated) + bool(observation.notice)
    assert len(text.splitlines()) == len(text.split("\n")) == head + len(observation.nodes) + tail


@settings(max_examples=200, deadline=None)
@given(OBSERVATIONS)
def test_webarena_nodes_come_back_exactly(observation: Observation) -> None:
    parsed = parse_page(render(observation, "webarena"), "webarena", observation.url)
    assert (parsed.url, parsed.nodes, parsed.notice) == (observation.url, observation.nodes, observation.notice)
    assert parsed.truncated == observation.truncated


def numbered(observation: Observation) -> Observation:
    """The same page with its elements numbered 1..N, as observations have them."""
    nodes = (replace(node, id=number) for number, node in enumerate(observation.nodes, start=1))
    return replace(observation, nodes=tuple(nodes))


@settings(max_examples=200, deadline=None)
@given(OBSERVATIONS)
def test_browsergym_nodes_come_back_exactly(observation: Observation) -> None:
    page = numbered(observation)
    parsed = parse_page(render(page, "browsergym"), "browsergym", page.url)
    assert (parsed.url, parsed.nodes, parsed.notice) == (page.url, page.nodes, page.notice)
    assert parsed.truncated == page.truncated


@settings(max_examples=300, deadline=None)
@given(OBSERVATIONS)
def test_html_comes_back_exactly(observation: Observation) -> None:
    assert parse_page(render(observation, "html"), "html") == observation


@settings(max_examples=200, deadline=None)
@given(OBSERVATIONS, st.sampled_from(observation_formats.names("dialect")))
def test_page_text_can_never_forge_a_line(observation: Observation, dialect: str) -> None:
    plain = replace(
        observation,
        url="http://a/",
        title=observation.title and "T",
        nodes=tuple(replace(node, name="x", value=None, props=()) for node in observation.nodes),
        tabs=tuple(replace(tab, title="T", url="u") for tab in observation.tabs),
        notice=observation.notice and "n",
    )
    assert len(render(observation, dialect).splitlines()) == len(render(plain, dialect).splitlines())


def test_browsergym_and_html_look_as_documented() -> None:
    page = replace(SHOP, nodes=(*SHOP.nodes, Node(7, "StaticText", "a < b", depth=1), Node(8, "generic")))
    focused = replace(page.nodes[1], props=(("focused", "true"), ("disabled", "true"), ("checked", "mixed")))
    page = replace(page, nodes=(page.nodes[0], focused, *page.nodes[2:]))
    assert render(page, "browsergym").split("\n") == [
        "[1] link 'Home'",
        "[2] textbox 'Search' value='abc', focused, disabled=True, checked='mixed'",
        "[3] combobox 'Sort' value='Newest', options='Newest|Price'",
        "[4] checkbox 'Gift wrap', checked='true'",
        "[5] heading 'Wool Scarf'",
        "[6] text 'Price: 12.50'",
        "\tStaticText 'a < b'",
        "[8] generic",
        "notice: 'message'",
    ]
    assert render(page, "html").split("\n") == [
        '<html url="http://shop.localhost/search?q=x">',
        '<a id="1">Home</a>',
        '<input id="2" type="text" title="Search" value="abc" focused disabled checked="mixed">',
        '<select id="3" title="Sort" value="Newest"><option>Newest</option><option>Price</option></select>',
        '<input id="4" type="checkbox" title="Gift wrap" checked>',
        '<h1 id="5">Wool Scarf</h1>',
        '<p id="6">Price: 12.50</p>',
        ' <span id="7">a &lt; b</span>',
        '<div id="8" role="generic"></div>',
        "<notice>message</notice>",
        "</html>",
    ]


@pytest.mark.parametrize(
    ("dialect", "text"),
    [
        ("browsergym", "[1] link 'a"),
        ("browsergym", "[1] link 'a' focused"),
        ("browsergym", "[1] 'a'"),
        ("browsergym", "[1] link 'a\\x'"),
        ("webarena", "Tab 0: T\n\n[1] link"),
        ("webarena", "[1] link 'a'"),
        ("html", "<a id='1'>"),
        ("html", '<html url="x">\n<a id="1">x'),
        ("html", '<html url="x">\n<a>x</a>'),
        ("html", '<html url="x">\n<blink id="1">x</blink>'),
    ],
)
def test_a_broken_page_is_an_error(dialect: str, text: str) -> None:
    with pytest.raises(ValueError, match=r"expected|missing|number|no element|not a Python"):
        parse_page(text, dialect)


@given(TEXT)
def test_quoting_is_exact_and_one_line(text: str) -> None:
    assert unquote(quote(text)) == text
    assert len(quote(text).splitlines()) == 1
    quote(text).encode("utf-8")


@given(NODES)
def test_a_node_line_without_number_comes_back(node: Node) -> None:
    parsed = parse_node(format_node(node, with_id=False), with_id=False)
    assert (parsed.id, parsed.role, parsed.name, parsed.value, parsed.props, parsed.depth) == (
        0, node.role, node.name, node.value, node.props, node.depth,
    )  # fmt: skip


@pytest.mark.parametrize(
    "line", ["link Home [1]", "link 'Home'", "link 'Home' [1] = abc", "'Home' [1]", "link 'a' [1] 'b'", ""]
)
def test_a_broken_line_is_named(line: str) -> None:
    with pytest.raises(ValueError, match="line 2 of a compact page"):
        parse_compact(f"shop.localhost/\n{line}")


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ("click 'Home' [1]", Action("click", 1, target_role="link", target_name="Home")),
        ("The page has a link.\nclick 'Home' [1]\n", Action("click", 1, target_role="link", target_name="Home")),
        (
            "type 'Search' [2] 'wool' enter",
            Action("type", 2, "wool", enter=True, target_role="textbox", target_name="Search"),
        ),
        ("select 'Sort' [3] 'Price'", Action("select", 3, "Price", target_role="combobox", target_name="Sort")),
        ("press 'Enter'", Action("press", text="Enter")),
        ("scroll down", Action("scroll", text="down")),
        ("goto 'shop.localhost/x'", Action("goto", text="shop.localhost/x")),
        ("tab_focus 1", Action("tab_focus", index=1)),
        ("go_back", Action("go_back")),
        ("stop 'it\\'s 羊毛\\n'", Action("stop", text="it's 羊毛\n")),
        ("stop", Action("stop")),
    ],
)
def test_compact_replies(reply: str, expected: Action) -> None:
    assert parse_action(reply, SHOP) == expected


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        ("", "the reply is empty"),
        ("click 'Home' [9]", "there is no element [9] on this page; its elements are [1] to [6]"),
        ("click 'Cart' [1]", "element [1] is link 'Home', not 'Cart'"),
        ("click [1]", "write click 'Name' [12]"),
        ("type 'Home' [1] 'x'", "takes no text"),
        ("select 'Sort' [3] 'Oldest'", "it has 'Newest' 'Price'"),
        ("select 'Home' [1] 'x'", "select needs a combobox"),
        ("clik 'Home' [1]", "did you mean click?"),
        ("scroll sideways", "the direction is up or down"),
        ("click 'Home' [1] twice", "unexpected 'twice'"),
        ("tab_focus one", "tab number"),
        ("click 'Home' [1]\nI hope it works", "not an action"),
    ],
)
def test_compact_refusals_say_what_is_valid(reply: str, reason: str) -> None:
    refusal = parse_action(reply, SHOP)
    assert isinstance(refusal, str)
    assert reason in refusal


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ("In summary, the next action I will perform is ```click [1]```", Action("click", 1)),
        ("click[1]", Action("click", 1)),
        ("type [2] [羊毛\nx] [0]", Action("type", 2, "羊毛\nx")),
        ("type [2] [x] [press_enter_after=0]", Action("type", 2, "x")),
        ("type [2] [x]", Action("type", 2, "x", enter=True)),
        ("type [2] [] [1]", Action("type", 2, "", enter=True)),
        ("stop [a [b] c]", Action("stop", text="a [b] c")),
        ("```stop [two\nlines]```", Action("stop", text="two\nlines")),
        ("scroll [direction=down]", Action("scroll", text="down")),
        ("select [3] [Price]", Action("select", 3, "Price")),
    ],
)
def test_webarena_replies(reply: str, expected: Action) -> None:
    parsed = parse_action(reply, SHOP, "webarena")
    assert parsed == resolve(expected, SHOP)


@pytest.mark.parametrize("reply", ["", "click [12] then click [13]", "click [x]", "```", "click", "[1]", "type [2]"])
def test_webarena_refusals_are_texts(reply: str) -> None:
    assert isinstance(parse_action(reply, SHOP, "webarena"), str)


@settings(max_examples=200, deadline=None)
@given(kind=st.sampled_from(ACTION_KINDS), text=TEXT, enter=st.booleans(), name=TEXT)
def test_actions_come_back_exactly(kind: str, text: str, enter: bool, name: str) -> None:
    page = Observation("http://a/", (Node(1, "textbox", name), Node(2, "combobox", name)))
    action = _action(kind, text, enter)
    resolved = resolve(action, page)
    assert isinstance(resolved, Action)
    assert parse_action(format_action(resolved), page) == resolved
    assert parse_action("Some reasoning\n" + format_action(resolved), page) == resolved
    assert parse_action(format_action(resolved, "webarena"), page, "webarena") == resolved


def _action(kind: str, text: str, enter: bool) -> Action:
    if kind in TARGETED:
        has_text = kind in ("type", "select")
        return Action(kind, 2 if kind == "select" else 1, text if has_text else "", enter and kind == "type")  # type: ignore[arg-type]
    if kind == "tab_focus":
        return Action("tab_focus", index=len(text))
    if kind == "scroll":
        return Action("scroll", text="up" if enter else "down")
    return Action(kind, text=text if kind in ("press", "goto", "stop") else "")  # type: ignore[arg-type]


def test_history_lines_have_no_numbers() -> None:
    click = parse_action("click 'Home' [1]", SHOP)
    typed = parse_action("type 'Search' [2] 'wool' enter", SHOP)
    assert isinstance(click, Action)
    assert isinstance(typed, Action)
    assert format_action(click, with_id=False) == "click 'Home'"
    assert format_action(typed, with_id=False) == "type 'Search' 'wool' enter"
    assert format_action(click, "webarena", with_id=False) == "click [link 'Home']"


def test_the_last_line_is_the_action() -> None:
    assert split_reply("a\nb\n\n  stop 'x' \n") == ("a\nb", "stop 'x'")
