"""`diff` and `apply`: exact on any pair, deterministic, short, fast."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dynaweb.types import Node, Observation, Tab
from dynaweb.web.delta import Add, Change, Delta, DeltaError, Keep, apply, diff, parse, to_text

WORDS = st.from_regex(r"[A-Za-z_][A-Za-z0-9_-]{0,5}", fullmatch=True)
# A small alphabet makes duplicates the rule; the open one brings every character that a page may hold.
SMALL = st.builds(
    Node,
    id=st.just(0),
    role=st.sampled_from(["link", "text", "textbox", "combobox"]),
    name=st.sampled_from(["", "a", "b"]),
    value=st.sampled_from([None, "x"]),
    props=st.sampled_from([(), (("checked", "true"),), (("options", "A|B"), ("disabled", "true"))]),
    depth=st.sampled_from([0, 0, 0, 1]),
)
OPEN = st.builds(
    Node,
    id=st.just(0),
    role=st.from_regex(r"[A-Za-z][A-Za-z0-9_-]{0,5}", fullmatch=True),
    name=st.text(max_size=8),
    value=st.none() | st.text(max_size=5),
    props=st.lists(st.tuples(WORDS | st.sampled_from(["options", "of"]), st.text(max_size=5)), max_size=3).map(tuple),
    depth=st.integers(0, 12),
)


@st.composite
def observations(draw: st.DrawFn) -> Observation:
    """Any observation; numbers may be anything, as positions count."""
    nodes = draw(st.lists(SMALL | OPEN, max_size=14) | st.lists(SMALL, max_size=30))
    return Observation(
        url=draw(st.sampled_from(["http://shop.localhost/", "https://x.org/?q='"]) | st.text(max_size=12)),
        nodes=tuple(replace(node, id=index, ref=f"r{index}") for index, node in enumerate(nodes, start=1)),
        title=draw(st.sampled_from(["", "Cart"]) | st.text(max_size=5)),
        notice=draw(st.sampled_from(["", "it's\ndone"]) | st.text(max_size=5)),
        truncated=draw(st.booleans()),
    )


def page(*nodes: tuple[object, ...] | str, url: str = "http://shop.localhost/", **more: str) -> Observation:
    """A page from node tuples without ids; a bare string is a text."""
    items = [("text", node) if isinstance(node, str) else node for node in nodes]
    return Observation(url, tuple(Node(index, *item) for index, item in enumerate(items, start=1)), **more)  # type: ignore[arg-type]


def texts(names: str) -> Observation:
    return page(*names.split())


@settings(max_examples=250, deadline=None)
@given(observations(), observations())
def test_apply_gives_the_new_page_back(before: Observation, after: Observation) -> None:
    delta = diff(before, after)
    assert apply(before, delta) == after
    assert parse(to_text(delta), before, strict=True) == delta
    assert diff(before, after) == delta


@settings(max_examples=80, deadline=None)
@given(observations(), st.randoms(use_true_random=False))
def test_shuffled_pages_need_no_new_nodes(before: Observation, chance: random.Random) -> None:
    nodes = list(before.nodes)
    chance.shuffle(nodes)
    after = replace(before, nodes=tuple(replace(node, id=index) for index, node in enumerate(nodes, start=1)))
    delta = diff(before, after)
    assert not any(isinstance(op, Add | Change) for op in delta.ops)
    assert apply(before, delta) == after


@settings(max_examples=50, deadline=None)
@given(observations())
def test_the_same_page_is_same(before: Observation) -> None:
    before = replace(before, notice="")
    assert diff(before, before).same
    assert to_text(diff(before, before)) == "same"


def test_insertion_and_removal_keep_the_rest_in_runs() -> None:
    delta = diff(texts("a b c d e f"), texts("a b x d e f"))
    assert delta.ops == (Keep(1, 2), Add(Node(0, "text", "x")), Keep(4, 6))


def test_a_moved_block_costs_one_line() -> None:
    assert diff(texts("a b c d e f g"), texts("a e f b c d g")).ops == (Keep(1, 1), Keep(5, 6), Keep(2, 4), Keep(7, 7))


def test_duplicates_stay_in_order_and_in_long_runs() -> None:
    delta = diff(texts("t 1 2 t 3 4 5"), texts("t t 3 4 5"))
    assert delta.ops == (Keep(1, 1), Keep(4, 7))


def test_value_and_properties_change_in_place() -> None:
    options = (("options", "New|Old"),)
    before = page(("textbox", "q"), ("combobox", "Sort", "New", options), ("checkbox", "Gift"))
    after = page(
        ("textbox", "q", "wool"),
        ("combobox", "Sort", "Old", options),
        ("checkbox", "Gift", None, (("checked", "true"),)),
    )
    delta = diff(before, after)
    assert delta.ops == (Change(1, "wool"), Change(2, "Old"), Change(3, None, (("checked", "true"),)))
    assert to_text(delta) == "~ [1] = 'wool'\n~ [2] = 'Old'\n~ [3] checked"


def test_options_that_go_or_change_are_exact() -> None:
    before = page(("combobox", "Sort", "A", (("options", "A|B"), ("disabled", "true"))))
    gone = page(("combobox", "Sort", "A", (("disabled", "true"),)))
    other = page(("combobox", "Sort", "A", (("options", "A|C"),)))
    assert apply(before, diff(before, gone)) == gone
    assert isinstance(diff(before, gone).ops[0], Add)
    assert diff(before, other).ops == (Change(1, "A", (("options", "A|C"),)),)


def test_a_replaced_page_says_so() -> None:
    before = texts("home " + " ".join(f"a{i}" for i in range(20)))
    assert diff(before, texts("home " + " ".join(f"b{i}" for i in range(20)))).replaced
    assert not diff(before, texts("home " + " ".join(f"a{i}" for i in range(10)) + " z")).replaced
    assert not diff(before, before).replaced


def test_tabs_follow_and_handles_do_not() -> None:
    before = replace(
        page("a", title="Old"), tabs=(Tab("Other", "http://x.org/"), Tab("Old", "http://shop.localhost/", True))
    )
    before = replace(before, nodes=(replace(before.nodes[0], ref="17"),))
    after = apply(before, Delta((Keep(1, 1),), url="http://shop.localhost/cart", title="Cart"))
    assert after.tabs == (Tab("Other", "http://x.org/"), Tab("Cart", "http://shop.localhost/cart", True))
    assert after.nodes[0].ref is None


@pytest.mark.parametrize(
    ("ops", "words"),
    [
        ((Keep(2, 4),), "has \\[1\\]-\\[3\\]"),
        ((Keep(0, 1),), "no run"),
        ((Keep(3, 2),), "no run"),
        ((Change(9),), "no run"),
        ((Keep(1, 2), Change(2)), "used twice"),
        ((Keep(1, 10**9),), "no run"),
    ],
)
def test_a_delta_that_does_not_fit_is_refused(ops: tuple[Keep | Change, ...], words: str) -> None:
    with pytest.raises(DeltaError, match=words):
        apply(texts("a b c"), Delta(ops))


def big(size: int, seed: int) -> Observation:
    """A page like a long table: some unique texts, many equal controls."""
    chance = random.Random(seed)
    cells = [
        (f"item {chance.randrange(size)}", ("link", "Edit"), ("link", "Delete"), f"{chance.randrange(9)}.50")
        for _ in range(size // 4)
    ]
    return page(*(cell for row in cells for cell in row))


def milliseconds(before: Observation, after: Observation) -> float:
    times = []
    for _ in range(7):
        start = time.process_time()
        diff(before, after)
        times.append(time.process_time() - start)
    return min(times) * 1000


def test_speed() -> None:
    assert milliseconds(big(300, 1), big(300, 2)) < 5
    assert milliseconds(big(4000, 1), big(4000, 2)) < 100
    equal = page(*[("link", "Edit")] * 2000, *["x"] * 2000)
    alternating = page(*[("link", "Edit"), "x"] * 2000)
    assert milliseconds(equal, alternating) < 200
    assert milliseconds(alternating, equal) < 200


def test_the_module_is_light() -> None:
    code = "import sys, dynaweb.web.delta; print(*{'torch', 'playwright', 'lxml', 'flask', 'numpy'} & set(sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == ""
