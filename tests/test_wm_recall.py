"""What exploration has seen is recalled, not imagined."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from dynaweb.loop.fidelity import transitions_of
from dynaweb.loop.verdicts import lacking
from dynaweb.types import Action, Node, Observation, Prediction, Step, StepResult, Task, Trajectory
from dynaweb.worldmodels.recall import Recalling
from dynaweb_env_dream.dream import DreamEnvironment

TASK = Task("t", "Open the product 'Wool Scarf'.", "http://shop.localhost/")


def page(path: str, *names: str) -> Observation:
    return Observation(f"http://shop.localhost/{path}", tuple(Node(i, "link", name) for i, name in enumerate(names, 1)))


HOME, LIST, ITEM = page("", "Scarves", "Hats"), page("scarves", "Wool Scarf", "Next"), page("wool", "Buy")
IMAGINED = page("imagined", "Scarves", "Hats")
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
    assert [dict(result.info) for result in results] == [{"recalled": True}] * 2
    assert below.asked == []


@pytest.mark.parametrize("action", [Action("click", 2), Action("goto", text="http://x/")])
def test_everything_else_is_imagined(action: Action) -> None:
    (result,), below = dreamed(action)
    assert below.asked == [(HOME, action)]
    assert result.observation == IMAGINED
    assert result.info["dreamed"] and "recalled" not in result.info


def test_a_page_that_differs_in_one_element_is_not_the_known_one() -> None:
    below = Imagination()
    memory = Recalling(below, transitions_of(EXPLORED))
    assert len(memory) == 2, "refused steps teach nothing, and the second of two next pages is not kept"
    other = replace(HOME, nodes=(*HOME.nodes, Node(3, "text", "Sale")))
    found = asyncio.run(memory.predict(other, FIRST, seed=0))
    assert not found.recalled and below.asked == [(other, FIRST)]


def test_the_end_of_an_episode_is_recalled_too() -> None:
    seen = transitions_of([walk((HOME, FIRST), final=LIST, end="terminal")])
    assert asyncio.run(Recalling(Imagination(), seen).predict(HOME, FIRST, seed=0)).done


TYPED = replace(HOME, nodes=(*HOME.nodes, Node(3, "textbox", "Search", value="x")))
D, R, CODE = {"dreamed": True}, {"recalled": True}, {}


@pytest.mark.parametrize(
    ("ways", "excused"),
    [
        ([(D, IMAGINED)], True),
        ([(R, LIST)], False),
        ([(CODE, TYPED)], False),
        ([(R, ITEM), (CODE, TYPED)], False),
        ([(D, IMAGINED), (CODE, TYPED)], True),
        ([(R, ITEM), (D, IMAGINED)], True),
        ([(D, IMAGINED), (CODE, HOME)], False),
        ([(R, ITEM), (D, IMAGINED), (CODE, ITEM)], False),
    ],
)
def test_only_an_imagined_page_is_an_excuse_for_lacking_a_name(
    ways: list[tuple[dict[str, bool], Observation]], excused: bool
) -> None:
    goal = replace(TASK, intent="Open the product 'Silk Scarf'.")
    pages = [HOME, *(after for _, after in ways)]
    steps = [Step(seen, FIRST, info=info) for seen, (info, _) in zip(pages, ways, strict=False)]
    last = Step(pages[-1], None, reply="click 'Silk Scarf' [7]", error="no element [7]")
    trajectory = Trajectory("d", goal, (*steps, last), pages[-1], "dream", "invalid")
    assert bool(lacking(trajectory)) is excused
