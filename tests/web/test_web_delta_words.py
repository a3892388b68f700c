"""The sentence of a change."""

from __future__ import annotations

from dataclasses import replace

from dynaweb.types import Action, Node, Observation
from dynaweb.web.delta import describe

CHECKED = (("checked", "true"),)


def page(*nodes: tuple[object, ...], url: str = "http://shop.localhost/", notice: str = "") -> Observation:
    items = tuple(Node(index, *item) for index, item in enumerate(nodes, start=1))  # type: ignore[arg-type]
    return Observation(url, items, notice=notice)


HOME = page(
    ("link", "Cart"), ("textbox", "Search"), ("combobox", "Sort", "New"), ("checkbox", "Gift"), ("heading", "Shop")
)
CLICK = Action("click", target=1)


def with_node(number: int, **changes: object) -> Observation:
    nodes = list(HOME.nodes)
    nodes[number - 1] = replace(nodes[number - 1], **changes)  # type: ignore[arg-type]
    return replace(HOME, nodes=tuple(nodes))


def test_sentences() -> None:
    cart = page(("link", "Cart"), ("heading", "Cart"), url="http://shop.localhost/cart")
    with_status = replace(HOME, nodes=(*HOME.nodes, Node(6, "status", "Added")))
    turned = page(*[(node.role, node.name, node.value) for node in reversed(HOME.nodes)])
    cases = [
        (HOME, HOME, CLICK, "Nothing changes."),
        (HOME, replace(HOME, notice="Covered by 'OK'"), CLICK, r"The page says 'Covered by \'OK\''."),
        (HOME, cart, CLICK, "Opens 'Cart'."),
        (cart, HOME, Action("go_back"), "Goes back to 'Shop'."),
        (HOME, replace(HOME, url="http://shop.localhost/?page=2"), CLICK, "Shows another part of 'Shop'."),
        (HOME, with_node(2, value="abc"), CLICK, "The field 'Search' now holds 'abc'."),
        (with_node(2, value="abc"), HOME, CLICK, "The field 'Search' is now empty."),
        (HOME, with_node(3, value="Old"), CLICK, "The list 'Sort' now shows 'Old'."),
        (HOME, with_node(4, props=CHECKED), CLICK, "The checkbox 'Gift' is now checked."),
        (with_node(4, props=CHECKED), HOME, CLICK, "The checkbox 'Gift' is no longer checked."),
        (HOME, with_status, CLICK, "The page says 'Added'."),
        (with_status, HOME, CLICK, "The page removes the status 'Added'."),
        (HOME, turned, CLICK, "The elements of the page change their order."),
    ]
    for before, after, action, sentence in cases:
        assert describe(before, action, after) == sentence


def test_a_sentence_is_one_short_line() -> None:
    after = page(("heading", "long\nname " * 40))
    assert "\n" not in describe(HOME, None, after)
    assert len(describe(HOME, None, after)) < 90
