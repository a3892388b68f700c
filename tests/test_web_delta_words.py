"""The sentence of a change, and the fidelity of a predicted page."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dynaweb.types import Action, Node, Observation
from dynaweb.web.delta import describe, fidelity

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
    said = replace(HOME, nodes=(*HOME.nodes, Node(6, "status", "Added")))
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
        (HOME, said, CLICK, "The page says 'Added'."),
        (said, HOME, CLICK, "The page removes the status 'Added'."),
        (HOME, turned, CLICK, "The elements of the page change their order."),
    ]
    for before, after, action, sentence in cases:
        assert describe(before, action, after) == sentence


def test_a_sentence_is_one_short_line() -> None:
    after = page(("heading", "long\nname " * 40))
    assert "\n" not in describe(HOME, None, after)
    assert len(describe(HOME, None, after)) < 90


def test_a_perfect_prediction_scores_one_everywhere() -> None:
    after = page(("link", "Cart"), ("heading", "Cart"), url="http://shop.localhost/cart")
    assert set(fidelity(after, after, HOME).values()) == {1.0}
    assert set(fidelity(HOME, HOME, HOME).values()) == {1.0}


def test_no_prediction_scores_zero() -> None:
    assert set(fidelity(None, HOME, HOME).values()) == {0.0}
    assert fidelity(None, HOME, HOME).keys() == fidelity(HOME, HOME, HOME).keys()


def test_unchanged_prediction_of_a_changed_page() -> None:
    after = page(*[(n.role, n.name, n.value) for n in HOME.nodes], ("text", "a"), ("text", "a"), ("text", "b"))
    scores = fidelity(HOME, after, HOME)
    assert scores["precision"] == 1.0
    assert scores["recall"] == pytest.approx(5 / 8)
    assert scores["changed_recall"] == scores["changed_precision"] == scores["changed_f1"] == 0.0
    assert (scores["exact"], scores["url"], scores["heading"]) == (0.0, 1.0, 1.0)


def test_changed_elements_count_what_came_and_what_went() -> None:
    after = page(("link", "Cart"), ("heading", "Cart"), url="http://shop.localhost/cart")
    guess = page(("link", "Cart"), ("heading", "Basket"), url="http://shop.localhost/cart")
    scores = fidelity(guess, after, HOME)
    assert scores["changed_precision"] == scores["changed_recall"] == pytest.approx(4 / 5)
    assert scores["f1"] == pytest.approx(1 / 2)
    assert (scores["exact"], scores["url"], scores["heading"]) == (0.0, 1.0, 0.0)


def test_an_invented_change_costs_precision() -> None:
    scores = fidelity(with_node(2, value="abc"), HOME, HOME)
    assert scores["changed_precision"] == 0.0
    assert scores["changed_recall"] == 0.0
