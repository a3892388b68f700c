"""What exploration has seen is recalled, not imagined."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from dynaweb.judges.reward import lacking
from dynaweb.types import Action, Node, Observation, Prediction, Step, StepFacts, StepResult, Task, Trajectory
from dynaweb.worldmodels.fidelity import transitions_of
from dynaweb.worldmodels.memory import Recalling
from dynaweb_env_dream.dream import DreamEnvironment

TASK = Task("t", "Open the product 'Wool Scarf'.", "http://shop.localhost/")


def page(path: str, *names: str) -> Observation:
    return Observation(f"http://shop.localhost/{path}", tuple(Node(i, "link", name) for i, name in enumerate(names, 1)))


HOME, LIST, ITEM = page("", "Scarves", "Hats"), page("scarves", "Wool Scarf", "Next"), page("wool", "Buy")
IMAGINED = replace(page("imagined", "Scarves", "Hats"), nodes=(*HOME.nodes, Node(3, "textbox", "Q")))
FIRST, SECOND = Action("click", 1, target_role="link", target_name="Scarves"), Action("click", 1)


class Imagination:
    """Always the same page, and what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[Observation, Action]] = []

    async def predict(
        self, observation: Observation, action: Action, *, seed: int, history: Sequence[Action] = (), goal: str = ""
    ) -> Prediction:
        self.asked.append((observation, action))
        return Prediction(IMAGINED, tokens=9)


def walk(*steps: tuple[Observation, Action | None], final: Observation, end: str = "max-steps") -> Trajectory:
    return Trajectory("e", TASK, tuple(Step(seen, action) for seen, action in steps), final, "real", end)  # type: ignore[arg-type]


EXPLORED = [
    walk((HOME, FIRST), (LIST, SECOND), final=ITEM),
    walk((HOME, FIRST), final=page("another")),
    Trajectory("r", TASK, (Step(HOME, Action("click", 2), error="refused"),), HOME, "real", "invalid"),
]


def dreamed(*actions: Action) -> tuple[list[StepResult], Imagination]:
    """Results of the actions in a dream that recalls what was explored, and what had to be imagined."""
    below = Imagination()

    async def run() -> list[StepResult]:
        environment = DreamEnvironment(Recalling(below, transitions_of(EXPLORED)), lambda task: HOME)
        await environment.reset(TASK, 0)
        return [await environment.step(action) for action in actions]

    return asyncio.run(run()), below


def test_a_known_step_leads_where_it_led_and_costs_nothing() -> None:
    results, below = dreamed(FIRST, replace(SECOND, target_name="Wool Scarf"))
    assert [result.observation for result in results] == [LIST, ITEM], "of two next pages the first counts"
    assert [result.facts for result in results] == [StepFacts(recalled=True)] * 2
    assert below.asked == []


@pytest.mark.parametrize("action", [Action("click", 2), Action("goto", text="http://x/")])
def test_everything_else_is_imagined(action: Action) -> None:
    (result,), below = dreamed(action)
    assert below.asked == [(HOME, action)]
    assert result.observation == IMAGINED
    assert result.facts.dreamed and not result.facts.recalled


def test_a_page_that_differs_in_one_element_is_not_the_known_one() -> None:
    below = Imagination()
    memory = Recalling(below, transitions_of(EXPLORED))
    other = replace(HOME, nodes=(*HOME.nodes, Node(3, "text", "Sale")))
    found = asyncio.run(memory.predict(other, FIRST, seed=0))
    assert not found.recalled and below.asked == [(other, FIRST)]


def test_refused_steps_teach_nothing() -> None:
    below = Imagination()
    found = asyncio.run(Recalling(below, transitions_of(EXPLORED)).predict(HOME, Action("click", 2), seed=0))
    assert not found.recalled and len(below.asked) == 1


def test_what_an_earlier_action_said_does_not_make_another_page() -> None:
    memory = Recalling(Imagination(), transitions_of(EXPLORED))
    told = replace(HOME, notice="no element [9]")
    found = asyncio.run(memory.predict(told, replace(FIRST, target_name=""), seed=0))
    assert found.recalled and found.next_observation == LIST


def test_the_end_of_an_episode_is_recalled_too() -> None:
    seen = transitions_of([walk((HOME, FIRST), final=LIST, end="terminal")])
    assert asyncio.run(Recalling(Imagination(), seen).predict(HOME, FIRST, seed=0)).done


CLICK, BACK, SEARCH = Action("click", 2), Action("go_back"), replace(HOME, nodes=(*HOME.nodes, Node(3, "textbox", "Q")))
TYPE, ENTER = Action("type", 3, text="x"), Action("type", 3, text="x", enter=True)


@pytest.mark.parametrize(
    ("actions", "excused"),
    [
        ([], False),
        ([CLICK], True),
        ([FIRST], False),
        ([TYPE], False),
        ([FIRST, CLICK], True),
        ([CLICK, BACK], False),
        ([TYPE, CLICK, BACK], False),
        ([FIRST, CLICK, BACK], False),
        ([CLICK, BACK, Action("go_forward")], True),
        ([CLICK, Action("new_tab")], False),
        ([CLICK, Action("new_tab"), Action("tab_focus", index=0)], True),
        ([CLICK, Action("click", 99)], True),
        ([BACK], False),
        ([ENTER, TYPE], True),
    ],
)
def test_only_an_imagined_page_is_an_excuse_for_lacking_a_name(actions: list[Action], excused: bool) -> None:
    """Whatever led to it: the history, tabs, refused actions and what code decides keep what a page is."""
    below = Imagination()
    seen = [walk((SEARCH, FIRST), final=LIST)]

    async def run() -> tuple[Step, ...]:
        environment = DreamEnvironment(Recalling(below, transitions_of(seen)), lambda task: SEARCH)
        steps, page = [], await environment.reset(TASK, 0)
        for action in actions:
            result = await environment.step(action)
            steps.append(Step(page, action, error=result.error, facts=result.facts))
            page = result.observation
        lost = Step(page, None, reply="click 'Silk Scarf' [7]", error="no element [7]")
        return (*steps, lost)

    steps = asyncio.run(run())
    goal = replace(TASK, intent="Open the product 'Silk Scarf'.")
    assert bool(lacking(Trajectory("d", goal, steps, steps[-1].observation, "dream", "invalid"))) is excused
