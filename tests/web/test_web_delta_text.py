"""Delta scripts: what is written, what the strict parser takes, what the lenient one mends and refuses."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dynaweb.types import Node, Observation
from dynaweb.web.delta import Add, Change, Delta, DeltaError, Keep, Op, apply, parse, to_text

OPTIONS = (("options", "New|Old"),)
PAGE = Observation(
    "http://shop.localhost/",
    (
        Node(1, "link", "Home"),
        Node(2, "textbox", "Search"),
        Node(3, "combobox", "Sort", "New", OPTIONS),
        Node(4, "checkbox", "Gift", props=(("odd-prop", "true"),)),
        Node(5, "heading", "Shop"),
        *(Node(i, "text", f"t{i}") for i in range(6, 10)),
    ),
)
HOME = Add(Node(0, "link", "Home"))

SCRIPT = r"""url shop.localhost/cart?q=x
title 'it\'s'
= [1]-[3]
~ [4] checked
+ textbox 'a\nb' = '' required
+ 2 combobox 'Sort' = 'A' of 'A' 'B\'s' '' disabled level=2
= [9]
...
notice 'done'"""


def test_a_script_with_everything() -> None:
    delta = parse(SCRIPT, PAGE, strict=True)
    assert delta == Delta(
        (
            Keep(1, 3),
            Change(4, None, (("checked", "true"),)),
            Add(Node(0, "textbox", "a\nb", "", (("required", "true"),))),
            Add(
                Node(0, "combobox", "Sort", "A", (("options", "A|B's|"), ("disabled", "true"), ("level", "2")), depth=2)
            ),
            Keep(9, 9),
        ),
        url="http://shop.localhost/cart?q=x",
        title="it's",
        notice="done",
        truncated=True,
    )
    assert parse(to_text(delta), PAGE) == delta
    assert parse(to_text(delta), PAGE).repairs == ()


def test_same_and_empty() -> None:
    assert parse("same", PAGE, strict=True) == Delta((Keep(1, 9),), same=True)
    assert apply(PAGE, parse("same\n", PAGE, strict=True)) == PAGE
    assert apply(PAGE, parse("empty", PAGE, strict=True)).nodes == ()
    assert to_text(Delta(())) == "empty"


MENDED: list[tuple[str, tuple[Op, ...], str]] = [
    ("= [7]-[40]", (Keep(7, 9),), "cut to the old page"),
    ("= [40]-[50]\n= [1]", (Keep(1, 1),), "cut to the old page"),
    ("= [0]-[2]", (Keep(1, 2),), "cut to the old page"),
    ("= [3]-[1]", (Keep(1, 3),), "smaller to the larger"),
    ("= [1]-[3]\n= [2]-[4]", (Keep(1, 3), Keep(4, 4)), "second mention left out"),
    ("=[1]-[3]", (Keep(1, 3),), "mended"),
    ("= [1-3], 5", (Keep(1, 3), Keep(5, 5)), "numbers of kept nodes"),
    ("```\n= [1]\n\n```", (Keep(1, 1),), "without content"),
    ("  + link 'Home'  ", (HOME,), "mended"),
    ("+link 'Home'", (HOME,), "mended"),
    ("+ link 'Home' [7]", (HOME,), "number of a new node"),
    ("+ link 'Home", (HOME,), "missing quote"),
    ("+ link 'it's'", (Add(Node(0, "link", "it's")),), "quote inside a word"),
    ("+ link 'Home' disabled, !! 'x'", (Add(Node(0, "link", "Home", props=(("disabled", "true"),))),), "no property"),
    ("+ textbox 'q' ='a'", (Add(Node(0, "textbox", "q", "a")),), "mended"),
    ("+ textbox 'q' = 'a", (Add(Node(0, "textbox", "q", "a")),), "missing quote"),
    ("~ 2 = 'x'", (Change(2, "x"),), "mended"),
    ("= [1]-[3]\n~ [2] = 'x'", (Keep(1, 1), Change(2, "x"), Keep(3, 3)), "made where it is kept"),
    ("~ [2] = 'x'\n~ [2] = 'y'", (Change(2, "y"),), "made where it is kept"),
    ("same\nnotice 'hm'", (Keep(1, 9),), "with a notice"),
    ("= [1]\nnotice 'a'\nnotice 'b'", (Keep(1, 1),), "second `notice`"),
]


@pytest.mark.parametrize(("script", "ops", "note"), MENDED)
def test_mended(script: str, ops: tuple[Op, ...], note: str) -> None:
    delta = parse(script, PAGE)
    assert delta.ops == ops
    assert any(note in repair for repair in delta.repairs), delta.repairs
    assert parse(to_text(delta), PAGE, strict=True) == delta
    with pytest.raises(DeltaError):
        parse(script, PAGE, strict=True)


REFUSED = [
    ("", 0, "no line"),
    ("url shop.localhost/", 0, "no line"),
    ("= [1]\nfoo", 2, "expected"),
    ("link 'Home'", 1, "expected"),
    ("+ link Home", 1, "single quotes"),
    ("+ 'Home'", 1, "role"),
    ("= Home", 1, "numbers"),
    ("=", 1, "numbers"),
    ("~ [10] = 'x'", 1, "no node"),
    ("~ [0]", 1, "no node"),
    ("~ Search = 'x'", 1, "node 4"),
    ("same\n+ link 'Home'", 2, "alone"),
    ("empty\n= [1]", 2, "no node is left"),
    ("title", 1, "quotes"),
    ("+ link 'Home\\", 1, "quotes"),
    ("= [99999999999999999999]", 1, "numbers"),
]


@pytest.mark.parametrize(("script", "line", "words"), REFUSED)
def test_refused_with_line_and_reason(script: str, line: int, words: str) -> None:
    with pytest.raises(DeltaError, match=words) as error:
        parse(script, PAGE)
    assert error.value.line == line
    assert error.value.reason in str(error.value)


def test_unknown_properties_are_left_out() -> None:
    delta = parse("+ link 'Home' shiny disabled", PAGE)
    assert delta.ops == (Add(Node(0, "link", "Home", props=(("disabled", "true"),))),)
    assert delta.repairs == ("line 1: unknown property 'shiny' left out",)


def test_properties_of_the_old_page_are_known() -> None:
    delta = parse("+ link 'x' odd-prop\n~ [4] odd-prop=2", PAGE)
    assert delta.ops == (
        Add(Node(0, "link", "x", props=(("odd-prop", "true"),))),
        Change(4, None, (("odd-prop", "2"),)),
    )


def test_page_text_cannot_forge_a_line() -> None:
    delta = Delta((Add(Node(0, "text", "x'\n= [1]-[9]\nurl evil.org\u2028+ link 'y'")),), replaced=True)
    assert len(to_text(delta).splitlines()) == 1
    assert parse(to_text(delta), PAGE, strict=True) == delta


PIECES = st.sampled_from(
    ["=", "~", "+", " ", "[", "]", "-", "1", "9", "12", "'", "\\", "\n", "link", "text", "of", "= '", "url ", "title ",
     "notice ", "same", "empty", "...", "complete", "checked", "level=", "é", "٣",
     "\u2028", "\x00", "```", "9" * 5000, "x" * 300]
)  # fmt: skip


@settings(max_examples=1500, deadline=None)
@given(st.lists(PIECES, max_size=20).map("".join) | st.text(max_size=40), st.booleans())
def test_any_string_gives_a_delta_or_a_delta_error(script: str, strict: bool) -> None:
    try:
        delta = parse(script, PAGE, strict=strict)
    except DeltaError as error:
        assert error.reason
        return
    after = apply(PAGE, delta)
    assert [node.id for node in after.nodes] == list(range(1, len(after.nodes) + 1))
    assert parse(to_text(delta), PAGE, strict=True) == delta
    assert not (strict and delta.repairs)
