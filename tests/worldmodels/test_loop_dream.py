"""What code decides in a dream, and what only the world model may."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Any, cast

import pytest

from dynaweb.config.sections import ObservationSettings
from dynaweb.errors import MissingError, PluginError
from dynaweb.plugin.contracts import CheckedWorldModel
from dynaweb.protocols import DreamContext, Environment, EnvironmentContext, TaskSource
from dynaweb.types import Action, Image, Node, Observation, Prediction, Screenshot, StepResult, Task, Transition
from dynaweb.web.page.text import render
from dynaweb.worldmodels.dynamics import PageRules, needs_prediction
from dynaweb.worldmodels.fidelity import rules_hold
from dynaweb.worldmodels.memory import Recalling
from dynaweb_env_dream import DreamConfig
from dynaweb_env_dream.dream import DreamEnvironment, DreamSource

HOME = Observation(
    url="http://shop.localhost/",
    nodes=(
        Node(1, "link", "Cart"),
        Node(2, "textbox", "Search"),
        Node(3, "combobox", "Sort", value="Newest", props=(("options", "Newest|Price"),)),
        Node(4, "checkbox", "Gift wrap", props=(("required", "true"),)),
        Node(5, "radio", "Small", props=(("checked", "true"),)),
        Node(6, "radio", "Large"),
        Node(7, "button", "Sold out", props=(("disabled", "true"),)),
        Node(8, "text", "Price: 12.50"),
    ),
    notice="Welcome",
)
CART = Observation(url="http://shop.localhost/cart", nodes=(Node(1, "heading", "Cart"), Node(2, "link", "Home")))
TASK = Task(id="t", intent="Open the cart.", start_url="http://shop.localhost/")


class Model:
    """A world model that always writes the same page, and counts how often it is asked."""

    def __init__(self, page: Observation | None = CART) -> None:
        self.page = page
        self.asked: list[Action] = []

    async def predict(
        self, observation: Observation, action: Action, *, seed: int, history: Sequence[Action] = (), goal: str = ""
    ) -> Prediction:
        self.asked.append(action)
        return Prediction(self.page, error="" if self.page else "line 2 is not a script line", tokens=7)


def dream(*actions: Action, model: Model | None = None) -> list[StepResult]:
    """The results of the actions, from the home page."""

    async def run() -> list[StepResult]:
        environment = DreamEnvironment(model or Model(), lambda task: HOME)
        await environment.reset(TASK, 0)
        return [await environment.step(action) for action in actions]

    return asyncio.run(run())


def on(kind: str, target: int, text: str = "", **more: object) -> Action:
    return Action(kind, target, text, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("action", "why"),
    [
        (on("click", 9), "no element"),
        (on("click", 7), "disabled"),
        (on("type", 1, "x"), "textbox"),
        (on("select", 3, "Oldest"), "Oldest"),
        (on("click", 1, target_name="Basket"), "not 'Basket'"),
        (Action("go_back"), "no page to go back to"),
        (Action("go_forward"), "no page to go forward to"),
    ],
)
def test_refused_actions_are_decided_by_code(action: Action, why: str) -> None:
    model = Model()
    (result,) = dream(action, model=model)
    assert why in result.error
    assert not result.done
    assert result.observation.notice == result.error
    assert result.observation.nodes == HOME.nodes
    assert model.asked == []
    assert not needs_prediction(HOME, action)


@pytest.mark.parametrize(
    ("action", "node"),
    [
        (on("type", 2, "wool"), Node(2, "textbox", "Search", value="wool")),
        (on("type", 2, ""), Node(2, "textbox", "Search")),
        (on("select", 3, "Price"), Node(3, "combobox", "Sort", value="Price", props=(("options", "Newest|Price"),))),
        (on("click", 4), Node(4, "checkbox", "Gift wrap", props=(("checked", "true"), ("required", "true")))),
        (on("click", 6), Node(6, "radio", "Large", props=(("checked", "true"),))),
    ],
)
def test_changes_inside_the_page_touch_one_element(action: Action, node: Node) -> None:
    model = Model()
    (result,) = dream(action, model=model)
    assert result.observation.node(node.id) == node
    changed = [i for i, (a, b) in enumerate(zip(HOME.nodes, result.observation.nodes, strict=True), 1) if a != b]
    assert set(changed) <= {node.id, 5}
    assert result.observation.notice == ""
    assert model.asked == []


def test_choosing_a_radio_button_clears_its_neighbour_and_a_second_click_clears_a_checkbox() -> None:
    chosen, ticked, cleared = dream(on("click", 6), on("click", 4), on("click", 4))
    assert chosen.observation.node(5) == Node(5, "radio", "Small")
    assert ("checked", "true") in ticked.observation.nodes[3].props
    assert ("checked", "true") not in cleared.observation.nodes[3].props


@pytest.mark.parametrize(
    "action",
    [
        Action("wait"),
        Action("scroll", text="down"),
        on("hover", 1),
        on("click", 8),
        on("click", 2),
        Action("press", text="Enter"),
        Action("press", text="Tab"),
    ],
)
def test_actions_without_effect_leave_the_page(action: Action) -> None:
    model = Model()
    (result,) = dream(action, model=model)
    assert (result.observation.nodes, result.error, result.done) == (HOME.nodes, "", False)
    assert model.asked == []


def test_links_and_enter_are_dreamed() -> None:
    for action in (on("click", 1), on("type", 2, "wool", enter=True), Action("goto", text="http://shop.localhost/x")):
        model = Model()
        (result,) = dream(action, model=model)
        assert result.observation == CART
        assert result.facts.tokens == 7
        assert model.asked == [action]
        assert needs_prediction(HOME, action)


def test_enter_after_typing_is_dreamed() -> None:
    model = Model()
    results = dream(on("type", 2, "wool"), Action("press", text="Enter"), model=model)
    assert results[-1].observation == CART
    assert len(model.asked) == 1


def test_history_returns_the_very_pages_of_the_dream() -> None:
    model = Model()
    typed, away, back, forward = dream(
        on("type", 2, "wool"), on("click", 1), Action("go_back"), Action("go_forward"), model=model
    )
    assert away.observation == CART
    assert back.observation == typed.observation
    assert forward.observation == CART
    assert len(model.asked) == 1


def test_tabs_are_kept_apart() -> None:
    close = Action("close_tab")
    results = dream(on("click", 1), Action("new_tab"), Action("tab_focus", index=0), close, close)
    assert results[1].observation.url == "about:blank"
    assert results[2].observation == CART
    assert results[3].observation.url == "about:blank"
    assert "last tab" in results[4].error
    (unknown,) = dream(Action("tab_focus", index=3))
    assert "no tab 3" in unknown.error


def test_stop_ends_and_an_unreadable_page_ends_with_the_reason() -> None:
    (stopped,) = dream(Action("stop", text="12.50"))
    assert (stopped.done, stopped.error) == (True, "")
    (broken,) = dream(on("click", 1), model=Model(None))
    assert (broken.done, broken.error) == (True, "line 2 is not a script line")
    assert broken.facts.world_model_error == broken.error


def test_where_scripts_break_a_rule_the_world_model_is_asked() -> None:
    """A click into a field opens a calendar on one page, and types plainly on another."""
    form = Observation("http://shop.localhost/date/1?x=2", (Node(1, "textbox", "Date"), Node(2, "textbox", "Name")))
    other = replace(form, url="http://shop.localhost/name")
    calendar = replace(form, nodes=(*form.nodes, Node(3, "link", "24")))
    click, types = Action("click", 1, target_role="textbox", target_name="Date"), Action("type", 1, "today")
    typed = replace(form, nodes=(replace(form.nodes[0], value="today"), form.nodes[1]))
    steps = [Transition(form, click, calendar), Transition(form, types, typed), Transition(other, click, other)]
    rules = PageRules.measured(steps)
    elsewhere = replace(form, url="http://shop.localhost/date/2")
    assert rules.in_page(form, click) is None and rules.in_page(elsewhere, click) is None
    assert rules.in_page(form, types) == typed and rules.in_page(other, click) == other
    assert [rules.needs_prediction(one.observation, one.action) for one in steps] == [True, False, False]
    assert rules_hold(steps) == [0.0, 1.0, 1.0] and rules_hold(steps, rules) == [1.0, 1.0]
    # An episode that ended came out otherwise than by any rule, though its page is the one that the rule gives.
    ended = PageRules.measured([Transition(other, click, other, info={"done": True})])
    assert ended.in_page(other, click) is None
    # One odd step among many does not make a rule wrong.
    assert PageRules.measured([*[steps[1]] * 9, Transition(form, types, calendar)]).in_page(form, types) == typed
    assert PageRules.measured([]).in_page(form, click) == form

    async def clicked(rules: PageRules) -> StepResult:
        environment = DreamEnvironment(Model(calendar), lambda task: form, rules=rules.in_page)
        await environment.reset(TASK, 0)
        return await environment.step(click)

    by_rule, asked = (asyncio.run(clicked(one)) for one in (PageRules(), rules))
    assert by_rule.observation == form and not by_rule.facts.dreamed
    assert asked.observation == calendar and asked.facts.dreamed


def test_a_task_without_a_start_page_is_refused() -> None:
    environment = DreamEnvironment(Model(), lambda task: None)
    with pytest.raises(MissingError, match="start page"):
        asyncio.run(environment.reset(TASK, 0))


def test_the_plugin_object_offers_what_every_task_source_offers() -> None:
    real = cast("TaskSource", None)
    context = DreamContext(world_model=Model(), start_page=lambda task: HOME, tasks=real)
    source = DreamSource(DreamConfig(), context)
    assert isinstance(source, TaskSource)
    environment = source.environment()
    assert isinstance(environment, Environment)
    assert asyncio.run(environment.reset(TASK, 0)) == HOME
    with pytest.raises(MissingError, match="world_model"):
        DreamSource(DreamConfig(), EnvironmentContext()).environment()


def test_dreams_of_one_seed_are_the_same_world() -> None:
    """The seed of a prediction follows from world, page and action: not from the order in which they were met."""

    class Seeds(Model):
        async def predict(
            self, observation: Observation, action: Action, *, seed: int, history: Sequence[Action] = (), goal: str = ""
        ) -> Prediction:
            self.asked.append(action)
            seeds.append(seed)
            return Prediction(CART if observation.url == HOME.url else HOME)

    seeds: list[int] = []

    async def walk(world: int, *actions: Action) -> list[int]:
        seeds.clear()
        environment = DreamEnvironment(Seeds(), lambda task: HOME)
        await environment.reset(TASK, world)
        for action in actions:
            await environment.step(action)
        return list(seeds)

    cart, home, search = on("click", 1), on("click", 2), on("type", 2, "wool", enter=True)
    first = asyncio.run(walk(1, cart, home, cart))
    assert first[0] == first[2] != first[1]
    assert asyncio.run(walk(1, cart)) == [first[0]]
    assert asyncio.run(walk(2, cart)) != [first[0]]
    assert asyncio.run(walk(1, search)) != [first[0]]


# --- Pictures, by a world model that draws.

SEEING = ObservationSettings(modality="both", width=800, height=600, marks=True)


def named(page: Observation) -> Image:
    """A picture's name that stands for what the page shows; a notice is no part of it."""
    return Image(sha256(render(replace(page, notice="")).encode()).hexdigest(), 400, 300)


class Drawing(Model):
    """A world model that also draws, and remembers what it was asked to draw."""

    def __init__(self) -> None:
        super().__init__()
        self.drawn: list[Observation] = []

    async def predict(self, observation: Observation, action: Action, **question: Any) -> Prediction:
        prediction = await super().predict(observation, action, **question)
        return replace(prediction, image=named(CART))

    async def draw(self, page: Observation) -> Image | None:
        self.drawn.append(page)
        return named(page)


def seen(model: Any, *actions: Action, start: Observation = HOME, pictures: Any = SEEING) -> list[Observation]:
    """The pages of a dream, the first one included."""

    async def run() -> list[Observation]:
        environment = DreamEnvironment(model, lambda task: start, pictures=pictures)
        first = await environment.reset(TASK, 0)
        return [first, *[(await environment.step(action)).observation for action in actions]]

    return asyncio.run(run())


def test_every_page_of_a_dream_has_the_picture_of_itself() -> None:
    actions = (on("type", 2, "tea"), on("click", 99), on("click", 1), Action("go_back"), Action("new_tab"))
    wrapped = Recalling(CheckedWorldModel(Drawing()), ())
    pages = seen(wrapped, *actions)
    assert [page.screenshot for page in pages] == [
        Screenshot(named(replace(page, screenshot=None)), (800, 600), 0.5, marks=True) for page in pages
    ]
    assert pages[0].screenshot != pages[1].screenshot, "a typed value shows"


def test_a_predicted_page_is_not_drawn_twice_and_real_pictures_stay() -> None:
    model, real = Drawing(), Screenshot(Image("0" * 64, 1280, 720), (1280, 720))
    pages = seen(model, on("click", 1), Action("go_back"), start=replace(HOME, screenshot=real))
    assert [page.url for page in model.drawn] == [] and pages[0].screenshot == pages[2].screenshot == real
    assert pages[1].screenshot == Screenshot(named(CART), (800, 600), 0.5, marks=True)


@pytest.mark.parametrize("pictures", [None, ObservationSettings()])
def test_without_a_wish_for_pictures_nothing_is_drawn(pictures: Any) -> None:
    model = Drawing()
    pages = seen(model, on("type", 2, "tea"), on("click", 1), pictures=pictures)
    assert not model.drawn and not any(page.screenshot for page in pages)


def test_a_world_model_of_text_leaves_dreams_in_text_and_no_old_picture() -> None:
    real = Screenshot(Image("0" * 64, 1280, 720), (1280, 720))
    pages = seen(Model(), on("type", 2, "tea"), on("click", 1), start=replace(HOME, screenshot=real))
    assert [page.screenshot for page in pages] == [real, None, None], "what was typed is not in the real picture"


@pytest.mark.parametrize(("answer", "error"), [("a.png", "Image"), (b"png", "Image")])
def test_what_is_no_image_is_the_plugins_fault(answer: Any, error: str) -> None:
    class Wrong(Drawing):
        async def draw(self, page: Observation) -> Image | None:
            return answer  # type: ignore[no-any-return]

    with pytest.raises(PluginError, match=error):
        seen(Wrong())

    class WrongPrediction(Model):
        async def predict(self, observation: Observation, action: Action, **question: Any) -> Prediction:
            return Prediction(CART, image=answer)

    with pytest.raises(PluginError, match=r"Prediction\.image"):
        seen(CheckedWorldModel(WrongPrediction()), on("click", 1))


def test_a_page_that_cannot_be_drawn_is_a_notice() -> None:
    class Full(Drawing):
        async def draw(self, page: Observation) -> Image | None:
            raise OSError(28, "No space left on device")

    (page,) = seen(Full())
    assert page.screenshot is None and page.notice.startswith("Welcome; this page is not drawn: ")
