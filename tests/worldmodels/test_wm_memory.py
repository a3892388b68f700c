"""A world model with a memory of the site: what is remembered, how far it is trusted, and what a dream makes of it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from dynaweb.rollout.group import origin_shares
from dynaweb.types import (
    Action,
    Image,
    Node,
    Observation,
    Prediction,
    Prompt,
    Screenshot,
    Step,
    StepResult,
    Task,
    Trajectory,
    Transition,
)
from dynaweb.worldmodels.fidelity import Probe, predictions, transitions_of
from dynaweb.worldmodels.memory import episode_of, site_of_task, without_episode
from dynaweb.worldmodels.site_memory import Remembering, SiteMemory
from dynaweb_env_dream.dream import DreamEnvironment

SHOP = "http://shop.localhost"
TASK = Task("t", "Buy a scarf.", f"{SHOP}/", split="train", meta={"site_seed": 7})
OTHER = replace(TASK, id="o", meta={"site_seed": 8})


def link(name: str, path: str) -> Node:
    return Node(0, "link", name, address=f"{SHOP}{path}")


def page(path: str, *nodes: Node) -> Observation:
    return Observation(f"{SHOP}{path}", tuple(replace(node, id=at) for at, node in enumerate(nodes, 1)))


def click(name: str, number: int, role: str = "link") -> Action:
    return Action("click", number, target_role=role, target_name=name)


FIELD, BUY = Node(0, "textbox", "Search"), Node(0, "button", "Buy")
CART = link("Cart", "/cart")
HOME = page("/", link("Scarf", "/item/1"), CART, FIELD)
ITEM = page("/item/1", Node(0, "heading", "Scarf"), Node(0, "text", "12.50"), BUY, CART)
BOUGHT = page("/item/1", Node(0, "status", "Added."), Node(0, "heading", "Scarf"), Node(0, "text", "12.50"), BUY, CART)
EMPTY, FULL = page("/cart", Node(0, "text", "Nothing")), page("/cart", Node(0, "text", "1 x Scarf"))
HITS = page("/search?q=scarf", link("Scarf", "/item/1"), FIELD)
TO_ITEM, TO_CART, BUYS = click("Scarf", 1), click("Cart", 4), click("Buy", 3, "button")
SEARCHES = Action("type", 3, "scarf", True, target_role="textbox", target_name="Search")
IMAGINED = page("/imagined", CART, Node(0, "link", "Scarf"), Node(0, "text", "made up"))
CHANGED_BY_MODEL = page("/cart", Node(0, "text", "2 x Scarf"))


class Imagination:
    """Always the same page; keeps what it was asked, and makes one example of each transition."""

    def __init__(self, answer: Observation = IMAGINED) -> None:
        self.answer = answer
        self.questions: list[tuple[Observation, Action]] = []
        self.fitted: list[Transition] = []

    async def predict(
        self, observation: Observation, action: Action, *, seed: int, history: Sequence[Action] = (), goal: str = ""
    ) -> Prediction:
        self.questions.append((observation, action))
        return Prediction(self.answer, tokens=9)

    def examples(self, transitions: Sequence[Transition]) -> list[tuple[Prompt, tuple[int, ...]]]:
        self.fitted += transitions
        return [(Prompt((1,)), (2,)) for _ in transitions]


def walk(name: str, *steps: tuple[Observation, Action], final: Observation, task: Task = TASK) -> Trajectory:
    return Trajectory(name, task, tuple(Step(seen, action) for seen, action in steps), final, "real", "max-steps")


VISITS = [walk(f"visit {at}", (HOME, TO_ITEM), (ITEM, TO_CART), final=EMPTY) for at in range(8)]
BUYERS = [walk(f"buy {at}", (HOME, TO_ITEM), (ITEM, BUYS), (BOUGHT, click("Cart", 5)), final=FULL) for at in range(2)]
SEARCHERS = [walk(f"search {at}", (HOME, SEARCHES), final=HITS) for at in range(5)]
EXPLORED = [*VISITS, *BUYERS, *SEARCHERS]


def memory(*episodes: Trajectory) -> SiteMemory:
    return SiteMemory(transitions_of(episodes or EXPLORED))


def dreamed(
    *actions: Action, below: Any = None, known: SiteMemory | None = None, start: Observation = HOME, task: Task = TASK
) -> list[StepResult]:
    """Results of the actions in a dream with a memory."""

    async def run() -> list[StepResult]:
        model = Remembering(below or Imagination(), known or memory())
        environment = DreamEnvironment(model, lambda task: start)
        await environment.reset(task, 0)
        return [await environment.step(action) for action in actions]

    return asyncio.run(run())


def test_a_link_leads_to_the_page_at_its_address_from_a_page_that_nobody_has_seen() -> None:
    start = page("/never-seen", link("Buy one", "/item/1"))
    below = Imagination()
    (result,) = dreamed(click("Buy one", 1), below=below, start=start)
    assert result.observation == ITEM and result.facts.recalled and not result.facts.imagined
    assert below.questions == [] and result.facts.tokens == 0


@pytest.mark.parametrize(("fragment", "remembered"), [("#", False), ("#tab-2", False), ("#/help", True)])
def test_a_link_to_a_place_within_the_page_leads_to_no_remembered_page(fragment: str, remembered: bool) -> None:
    """Scripts hang on such links: many pages of one address are no single page."""
    there = Observation(f"{SHOP}/item/1{fragment}", ITEM.nodes)
    start = page("/item/1", Node(0, "text", "another"), link("Next", f"/item/1{fragment}"))
    seen = page("/item/1", link("Next", f"/item/1{fragment}"))
    known = memory(*EXPLORED, walk("f", (seen, click("Next", 1)), final=there))
    below = Imagination()
    (result,) = dreamed(click("Next", 2), below=below, start=start, known=known)
    assert (result.observation == there) == remembered == (not below.questions)


def test_another_site_is_not_remembered() -> None:
    below = Imagination()
    (result,) = dreamed(TO_ITEM, below=below, task=OTHER)
    assert result.observation == IMAGINED and len(below.questions) == 1


def test_a_link_that_was_imagined_leads_where_the_one_of_that_name_leads() -> None:
    """An imagined element has no address; the name of a link says where it leads as long as all of them lead there."""
    unknown = page("/new", Node(0, "link", "Nowhere"))
    results = dreamed(click("Nowhere", 1), click("Scarf", 2), start=unknown)
    assert [result.observation for result in results] == [IMAGINED, ITEM]
    ambiguous = memory(*EXPLORED, walk("x", (page("/y", link("Scarf", "/item/2")), Action("scroll")), final=HOME))
    results = dreamed(click("Nowhere", 1), click("Scarf", 2), start=unknown, known=ambiguous)
    assert results[1].observation == IMAGINED


def test_a_text_that_was_sent_leads_to_the_same_page_from_everywhere() -> None:
    elsewhere = page("/help", Node(0, "heading", "Help"), FIELD)
    (result,) = dreamed(replace(SEARCHES, target=2), start=elsewhere)
    assert result.observation == HITS and result.facts.recalled
    (result,) = dreamed(replace(SEARCHES, target=2, text="hat"), start=elsewhere)
    assert result.observation == IMAGINED


def test_of_several_pages_the_one_is_taken_before_which_the_same_forms_were_sent() -> None:
    *_, visited = dreamed(TO_ITEM, TO_CART)
    assert visited.observation == EMPTY
    *_, bought = dreamed(TO_ITEM, BUYS, click("Cart", 5))
    assert bought.observation == FULL


def test_the_same_button_with_another_amount_is_another_form() -> None:
    """What a form did follows from its fields and its page: `Buy` of another thing fills another cart."""
    two = replace(ITEM, nodes=(*ITEM.nodes, Node(5, "textbox", "Quantity", "2")))
    known = memory(*VISITS, *BUYERS, walk("two", (two, BUYS), (BOUGHT, click("Cart", 5)), final=CHANGED_BY_MODEL))
    results = dreamed(BUYS, click("Cart", 5), known=known, start=two)
    assert [result.observation for result in results] == [BOUGHT, CHANGED_BY_MODEL]
    results = dreamed(BUYS, click("Cart", 5), known=known, start=ITEM)
    assert [result.observation for result in results] == [BOUGHT, FULL]


def test_a_second_visit_does_not_repeat_what_was_said_about_the_last_action() -> None:
    """The only page that was seen at the address came of a form: its status belongs to that form."""
    buys = [replace(BUYS, target_name=f"Buy {at}") for at in range(6)]
    carts = [walk(f"b{at}", (ITEM, one), (BOUGHT, click("Cart", 5)), final=EMPTY) for at, one in enumerate(buys)]
    (result,) = dreamed(TO_ITEM, known=memory(*carts))
    assert result.observation == ITEM


def test_a_page_without_its_notice_is_shown_without_the_picture_of_it_and_its_old_numbers() -> None:
    shot = Screenshot(Image("0" * 64, 8, 6), (8, 6))
    buys = [replace(BUYS, target_name=f"Buy {at}") for at in range(6)]
    for after, left in ((BOUGHT, None), (ITEM, shot)):
        seen = replace(after, screenshot=shot)
        carts = [walk(f"b{at}", (HOME, one), (seen, click("Cart", 5)), final=EMPTY) for at, one in enumerate(buys)]
        known = memory(*carts)
        value = known.look_up(site_of_task(TASK), HOME, TO_ITEM, Counter())
        assert value is not None and value.seen.page == ITEM and value.seen.page.screenshot == left


def buy_something_else_and_see_the_cart(model: Remembering) -> Prediction:
    """What a dream of the site shows as the cart, after a form that nobody has sent."""
    dream, buys = model.on_site("train 7"), replace(BUYS, target_name="Buy 9")

    async def steps() -> Prediction:
        await dream.predict(ITEM, buys, seed=0)
        return await dream.predict(ITEM, TO_CART, seed=0, history=[buys])

    return asyncio.run(steps())


def test_a_page_that_changes_is_not_trusted_and_its_change_is_asked_for() -> None:
    """Everybody who bought something met another cart: the remembered one is the page whose change is written."""
    buyers = [
        walk(f"b{at}", (ITEM, replace(BUYS, target_name=f"Buy {at}")), (ITEM, TO_CART), final=cart)
        for at in range(6)
        for cart in [page("/cart", *(Node(0, "text", f"{at} {line}") for line in range(4)))]
    ]
    known = SiteMemory(transitions_of([*VISITS, *buyers]))
    below = Imagination(CHANGED_BY_MODEL)
    answer = buy_something_else_and_see_the_cart(Remembering(below, known, deltas=True))
    shown, action = below.questions[-1]
    assert shown.url == EMPTY.url and shown != ITEM and action == replace(TO_CART, target=0)
    assert answer.base == shown and not answer.recalled
    plain = Imagination()
    buy_something_else_and_see_the_cart(Remembering(plain, known))
    assert plain.questions[-1] == (ITEM, TO_CART)


def test_examples_are_made_as_the_model_is_asked() -> None:
    """A transition is not looked up in its own episode: the model learns of the pages that dreams will show it."""
    carts = [page("/cart", *(Node(0, "text", f"{at} {line}") for line in range(4))) for at in range(6)]
    buyers = [
        walk(f"b{at}", (ITEM, replace(BUYS, target_name=f"Buy {at}")), (ITEM, TO_CART), final=cart)
        for at, cart in enumerate(carts)
    ]
    transitions = transitions_of(buyers)
    below = Imagination()
    Remembering(below, SiteMemory(transitions), deltas=True).examples(transitions)
    asked_of_carts = [one for one in below.fitted if one.next_observation in carts]
    assert len(asked_of_carts) == 6
    for one in asked_of_carts:
        assert one.observation in carts and one.observation != one.next_observation and one.action.target == 0
    plain = Imagination()
    Remembering(plain, SiteMemory(transitions)).examples(transitions)
    assert plain.fitted == transitions


def test_a_dream_comes_back_to_the_page_that_it_has_changed() -> None:
    """The remembered page was seen before the form was sent; the dream has shown a later one at that address."""
    after = page("/item/1", Node(0, "status", "Added."), Node(0, "heading", "Scarf"), Node(0, "text", "sold"), CART)
    wish = Node(0, "button", "Wish")
    start = page("/item/1", *ITEM.nodes, wish, link("Here", "/item/1"))
    below = Imagination(after)
    results = dreamed(click("Wish", 5, "button"), click("Cart", 4), below=below, start=start)
    assert results[0].observation == after
    back = Remembering(Imagination(after), memory()).on_site("train 7")

    async def twice() -> Prediction:
        wishes = click("Wish", 5, "button")
        await back.predict(start, wishes, seed=0)
        return await back.predict(start, click("Here", 6), seed=0, history=[wishes])

    page_again = asyncio.run(twice()).next_observation
    assert page_again is not None and [node.name for node in page_again.nodes] == ["Scarf", "sold", "Cart"]


def test_an_episode_is_asked_about_without_itself() -> None:
    """Otherwise a measure on explored sites would be right by having seen the answer."""
    once = transitions_of([walk("only", (HOME, TO_ITEM), final=ITEM)])
    below = Imagination()
    answers = asyncio.run(predictions(Remembering(below, SiteMemory(once)), [Probe(once[0])], seed=0))
    assert answers[0].next_observation == IMAGINED
    again = transitions_of([walk("only", (HOME, TO_ITEM), final=ITEM), walk("other", (HOME, TO_ITEM), final=ITEM)])
    answers = asyncio.run(predictions(Remembering(below, SiteMemory(again)), [Probe(again[0])], seed=0))
    assert answers[0].recalled and answers[0].next_observation == ITEM
    assert episode_of(again[0]) != episode_of(again[1])
    assert without_episode(below, again[0]) is below


def test_a_memory_grows() -> None:
    known = memory(*SEARCHERS)
    assert dreamed(TO_ITEM, known=known)[0].observation == IMAGINED
    known.add(transitions_of(VISITS))
    assert dreamed(TO_ITEM, known=known)[0].observation == ITEM and len(known) == 21


def test_every_imagined_element_knows_its_origin() -> None:
    start = page("/new", CART, Node(0, "link", "Nowhere"))
    results = dreamed(click("Nowhere", 2), click("Scarf", 2), start=start)
    assert [result.facts.origins for result in results] == ["cii", ""]
    # What was invented stays so when the next page keeps it.
    keeps = dreamed(click("Nowhere", 2), click("made up", 3, "text"), Action("goto", text=f"{SHOP}/none"), start=start)
    assert keeps[-1].facts.origins == "cii"
    steps = tuple(
        Step(seen, click("x", 1), facts=result.facts)
        for seen, result in zip([start, results[0].observation], results, strict=True)
    )
    episode = Trajectory("d", TASK, steps, ITEM, "dream", "max-steps")
    assert origin_shares([episode]) == {
        "remembered_elements": pytest.approx(4 / 7),
        "copied_elements": pytest.approx(1 / 7),
        "invented_elements": pytest.approx(2 / 7),
    }
    assert origin_shares([]) == {}
