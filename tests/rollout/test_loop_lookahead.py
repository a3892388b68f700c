"""The look-ahead agent over a scripted policy, dream and judge."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

import pytest

from dynaweb.config.sections import Agent
from dynaweb.rollout.agents import Decision
from dynaweb.rollout.lookahead import LookaheadPolicy
from dynaweb.types import Action, Judgement, Node, Observation, StepFacts, StepResult, Task, Trajectory

LINKS = ("Good", "Bad", "Odd")
START = Observation("http://a/", tuple(Node(i, "link", name) for i, name in enumerate(LINKS, 1)))
TASK = Task("t", "Open 'Good'.", "http://a/")


def click(name: str) -> Action:
    return Action("click", LINKS.index(name) + 1, target_role="link", target_name=name)


class Proposes:
    """Proposes the given actions in turn."""

    def __init__(self, *actions: Action | None) -> None:
        self.actions = list(actions)
        self.seeds: list[int] = []

    async def act(self, task: Task, page: Observation, history: Sequence[Action], *, seed: int) -> Decision:
        self.seeds.append(seed)
        return Decision(self.actions[(len(self.seeds) - 1) % len(self.actions)], reply=f"reply {len(self.seeds)}")


class Dream:
    """Leads each link to a page of its name; `broken` links to nothing."""

    def __init__(self, page: Observation, broken: frozenset[str]) -> None:
        self.page, self.broken = page, broken

    async def reset(self, task: Task, seed: int) -> Observation:
        return self.page

    async def step(self, action: Action) -> StepResult:
        if action.target_name in self.broken:
            return StepResult(self.page, done=True, error="?", facts=StepFacts(world_model_error="?"))
        return StepResult(Observation(f"http://a/{action.target_name}", START.nodes))


class Likes:
    """Values an imagined episode by the page that it ends on."""

    def __init__(self, values: dict[str, float | None]) -> None:
        self.values = values
        self.seen: list[Trajectory] = []

    async def score(self, trajectory: Trajectory) -> Judgement:
        self.seen.append(trajectory)
        page = trajectory.final
        assert page is not None
        value = self.values.get(page.url.rsplit("/", 1)[1])
        return Judgement(value, value)


def agent(proposals: Proposes, judge: Likes, broken: Sequence[str] = (), **settings: Any) -> LookaheadPolicy:
    goes_on = Proposes(Action("stop", text="done"))
    return LookaheadPolicy(
        cast("Any", proposals),
        cast("Any", goes_on),
        lambda page: cast("Any", Dream(page, frozenset(broken))),
        judge,
        Agent(kind="lookahead", **settings),
    )


async def test_the_best_imagined_outcome_decides_and_equal_actions_count_once() -> None:
    judge = Likes({"Good": 0.9, "Bad": 0.2})
    player = agent(Proposes(click("Bad"), click("Bad"), click("Good"), None), judge)
    decision = await player.act(TASK, START, (), seed=1)
    assert decision.action == click("Good") and decision.reply == "reply 3"
    assert decision.info["candidates"] == 2 and decision.info["value"] == pytest.approx(0.9)
    assert len(judge.seen) == 2
    assert [step.action for step in judge.seen[0].steps] == [click("Bad"), Action("stop", text="done")]


async def test_one_candidate_is_done_without_imagining() -> None:
    judge = Likes({})
    decision = await agent(Proposes(click("Odd")), judge).act(TASK, START, (), seed=1)
    assert decision.action == click("Odd") and judge.seen == []


async def test_without_values_the_most_proposed_action_is_done() -> None:
    player = agent(Proposes(click("Bad"), click("Odd"), click("Odd"), click("Good")), Likes({}), broken=["Bad"])
    assert (await player.act(TASK, START, (), seed=1)).action == click("Odd")


@pytest.mark.parametrize("value", [None, math.nan, 1.7])
async def test_a_value_that_is_none_loses_against_any_that_is_one(value: float | None) -> None:
    player = agent(Proposes(click("Odd"), click("Odd"), click("Good")), Likes({"Odd": value, "Good": 0.01}))
    assert (await player.act(TASK, START, (), seed=1)).action == click("Good")


async def test_nothing_that_can_be_done_leaves_the_first_reply_as_it_is() -> None:
    player = agent(Proposes(None, Action("click", 99)), Likes({}))
    decision = await player.act(TASK, START, (), seed=1)
    assert decision.action is None and decision.reply == "reply 1"


async def test_depth_bounds_what_is_imagined_and_history_is_shown_to_the_judge() -> None:
    judge = Likes({"Good": 0.5, "Bad": 0.4})
    player = agent(Proposes(click("Good"), click("Bad")), judge, depth=1, samples=2)
    await player.act(TASK, START, (click("Odd"),), seed=1)
    assert len(judge.seen) == 4
    assert {tuple(step.action for step in t.steps) for t in judge.seen} == {
        (click("Odd"), click("Good")),
        (click("Odd"), click("Bad")),
    }


async def test_a_proposed_stop_is_valued_on_the_page_as_it_is() -> None:
    judge = Likes({"": 0.8, "Good": 0.3})
    decision = await agent(Proposes(click("Good"), Action("stop", text="42")), judge).act(TASK, START, (), seed=1)
    assert decision.action == Action("stop", text="42")
