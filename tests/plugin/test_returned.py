"""What plugins return where it comes in: the wrong answers of each kind, through the calls that a run makes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trainer_kit
from core_kit import PackageMaker, toy_source

from dynaweb.errors import PluginError
from dynaweb.judges.reward import grading, judge_one
from dynaweb.plugin import contracts
from dynaweb.plugin import registry as plugins
from dynaweb.plugin.contracts import CheckedWorldModel
from dynaweb.protocols import Credit, CreditInput, CreditRow, LossOutput, TokenRow
from dynaweb.rollout.agents import Decision, ExpertPlayer
from dynaweb.rollout.episode import play
from dynaweb.rollout.tasks import draw
from dynaweb.stages.world_model import rows_for
from dynaweb.trainer.advantages import compute_advantages
from dynaweb.types import (
    Action,
    Judgement,
    Node,
    Observation,
    Prediction,
    Prompt,
    StepResult,
    Task,
    Trajectory,
    Transition,
)
from dynaweb.worldmodels.calibration import Calibration, Trusted
from dynaweb.worldmodels.fidelity import Probe, predictions

PAGE = Observation("http://x/", (Node(1, "button", "Go"),))
TASK = Task("t", "Do it.", "http://x/")
PLAYED = Trajectory("e", TASK, (), PAGE, "real", "stop")
NAN, INF = float("nan"), float("inf")


class Giving:
    """A plugin object of any kind whose calls all give one value."""

    deterministic = True
    needs_trajectory_ratio = False

    def __init__(self, value: Any) -> None:
        self.value = value

    async def predict(self, *args: Any, **named: Any) -> Any:
        return self.value

    score = evaluate = predict

    def act(self, *args: Any, **named: Any) -> Any:
        return self.value

    tasks = advantages = loss = examples = act


class Assigning(Giving):
    """An optimizer that gives credit itself."""

    def credit(self, batch: CreditInput) -> Any:
        return self.value


class Place:
    """An environment with chosen answers."""

    def __init__(self, first: Any = PAGE, then: Any = None) -> None:
        self.first, self.then = first, then

    async def reset(self, task: Task, seed: int) -> Any:
        return self.first

    async def step(self, action: Action) -> Any:
        return self.then


class Clicks:
    deterministic = True

    async def act(self, *args: Any, **named: Any) -> Decision:
        return Decision(action=Action("click", 1))


ROWS = (CreditRow(0, 0, 2), CreditRow(1, 0, 1))
BATCH = CreditInput([1.0, 0.0], ["a", "a"], ROWS)


def judged(value: Any) -> Any:
    return asyncio.run(judge_one(Giving(value), PLAYED))


def graded(value: Any) -> Any:
    return asyncio.run(grading(cast("Any", Giving(value)))(cast("Any", None), PLAYED))


def played(*answers: Any) -> Any:
    return asyncio.run(play(TASK, cast("Any", Place(*answers)), Clicks(), seed=0, max_steps=2))


def predicted(value: Any) -> Any:
    probe = Probe(Transition(PAGE, Action("click", 1), PAGE))
    return asyncio.run(predictions(Giving(value), [probe], seed=0))


def dreamed(value: Any) -> Any:
    return asyncio.run(CheckedWorldModel(Giving(value)).predict(PAGE, Action("click", 1), seed=0))


def trusted(value: Any) -> Any:
    model = Trusted(Giving(value), cast("Calibration", SimpleNamespace(confidence=lambda found: 1.0)))
    return asyncio.run(model.predict(PAGE, Action("click", 1), seed=0))


def drawn(value: Any) -> Any:
    return draw(cast("Any", Giving(value)), "train", count=1, seed=0, max_best_steps=5)


def shown(value: Any) -> Any:
    return asyncio.run(ExpertPlayer(Giving(value)).act(TASK, PAGE, [], seed=0))


def advised(value: Any) -> Any:
    return compute_advantages(cast("Any", Giving(value)), BATCH)


def credited(value: Any) -> Any:
    return compute_advantages(cast("Any", Assigning(value)), BATCH)


def fitted(value: Any) -> Any:
    return rows_for(Giving(value), [])


ODD: list[Any] = [None, 0, "text", [], {}, object()]
BAD_PAGES: list[Any] = ["page", replace(PAGE, nodes=None), replace(PAGE, nodes=("button",)), replace(PAGE, url=None)]
WRONG: dict[Callable[..., Any], list[Any]] = {
    judged: ODD,
    graded: [*ODD, *(Judgement(score) for score in (2, -0.1, NAN, INF, cast("Any", "1"), cast("Any", [1])))],
    played: [*ODD, *BAD_PAGES],
    lambda then: played(PAGE, then): [
        *ODD,
        *map(StepResult, [None, *BAD_PAGES]),
        StepResult(PAGE, info=cast("Any", None)),
        StepResult(PAGE, facts=cast("Any", {"reward": 1.0})),
        StepResult(PAGE, info={"step_reward": 1.0}),
    ],
    predicted: [*ODD, *map(Prediction, BAD_PAGES)],
    dreamed: [*ODD, *map(Prediction, BAD_PAGES)],
    trusted: [*ODD, *map(Prediction, BAD_PAGES)],
    drawn: [None, 0, "text", {}, [None], ["task"], [TASK, None], iter([TASK])],
    shown: ODD,
    advised: [
        None,
        0,
        "ab",
        {"a": 1.0, "b": 2.0},
        [],
        [1.0],
        [1.0] * 3,
        ["1", "2"],
        [1.0, None],
        [1.0, NAN],
        [INF, 0.0],
    ],
    credited: [
        *ODD,
        Credit([1.0]),
        Credit([1.0, NAN]),
        Credit(cast("Any", None)),
        Credit([1.0, 0.0], rows=[1.0]),
        Credit([1.0, 0.0], rows=[1.0, INF]),
        Credit([1.0, 0.0], tokens=[[1.0, 1.0]]),
        Credit([1.0, 0.0], row_mask=[True]),
        Credit([1.0, 0.0], targets=cast("Any", 3)),
    ],
    fitted: [None, 0, "text", {}, [None], [(1, 2, 3)], ["ab", 3]],
}


@pytest.mark.parametrize("call", WRONG)
def test_a_wrong_answer_is_an_error_that_says_what_came_and_what_is_expected(call: Callable[..., Any]) -> None:
    for value in WRONG[call]:
        with pytest.raises(PluginError, match=r"^\w.*: \w+\(\) returned .*; expected .") as caught:
            call(value)
        assert "test_returned" in str(caught.value), "without a package, the class is named"


def test_right_answers_pass() -> None:
    assert judged(Judgement(None)).reward is None
    assert judged(Judgement(NAN)).reward is None, "a score out of range is data"
    assert [graded(Judgement(score)).facts.verdict.score for score in (None, 0, 1, 0.5)] == [None, 0, 1, 0.5]
    assert played(PAGE, StepResult(PAGE, done=True)).end == "terminal"
    assert predicted(Prediction(None)) == [Prediction(None)] and dreamed(Prediction(PAGE)) == Prediction(PAGE)
    assert trusted(Prediction(PAGE)).confidence == 1.0
    assert drawn((TASK,)) == [TASK] and shown(Action("stop")).action == Action("stop")
    assert advised((1, 0.5)).advantages == [1, 0.5]
    whole = Credit(
        [1.0, 0.0], rows=[1.0, 0.0], tokens=[[1.0, 1.0], [0.0]], row_mask=[True, False], targets=[[None], [1.0]]
    )
    assert credited(whole) == whole
    import torch

    of_tensors = credited(Credit(cast("Any", torch.tensor([1.0, 0.0])), rows=cast("Any", torch.tensor([1.0, 0.5]))))
    assert [type(value) for value in (*of_tensors.advantages, *of_tensors.rows)] == [float] * 4
    assert fitted([(Prompt((1,)), (2,))]) == [TokenRow(Prompt((1,)), (2,))]


def detached(batch: Any) -> Any:
    return LossOutput(batch.logp_RT.sum().detach())


LOSSES: dict[str, Callable[[Any], Any]] = {
    "nothing": lambda batch: None,
    "a string": lambda batch: "0.5",
    "a bare tensor": lambda batch: batch.logp_RT.sum(),
    "a float": lambda batch: LossOutput(cast("Any", 0.5)),
    "a vector": lambda batch: LossOutput(batch.logp_RT.flatten()),
    "a detached loss": detached,
    "metrics that are text": lambda batch: LossOutput(batch.logp_RT.sum(), cast("Any", {"x": "1"})),
    "metrics that are none": lambda batch: LossOutput(batch.logp_RT.sum(), cast("Any", None)),
}


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_a_wrong_loss_is_an_error_and_moves_nothing(loss: Callable[[Any], Any]) -> None:
    trainer = trainer_kit.trainer_of()
    before = trainer_kit.weights(trainer.model)
    optimizer = Giving(None)
    optimizer.loss = loss  # type: ignore[method-assign]
    rows = [TokenRow(Prompt((1, 2, 3)), (4, 5), 0), TokenRow(Prompt((1, 2)), (6, 7), 1)]
    with pytest.raises(PluginError, match=r"loss\(\) returned .*; expected"):
        trainer.policy_step(rows, optimizer, [1.0, -1.0])
    after = trainer_kit.weights(trainer.model)
    assert all(bool((before[name] == after[name]).all()) for name in before)


def test_a_wrong_loss_of_a_critic_is_told_too() -> None:
    with pytest.raises(PluginError, match=r"critic_loss\(\) returned None; expected"):
        contracts.loss_output(Giving(None), None, "critic_loss")


def test_as_many_pairs_as_episodes() -> None:
    with pytest.raises(
        PluginError, match=r"examples\(\) returned '1 pairs' .*; expected one pair for each of 2 episodes"
    ):
        contracts.pairs("reward", Giving(None), [(Prompt((1,)), (2,))], count=2)


CODE = "class Judge:\n    pass\n\n\nclass Other:\n    pass\n\n\nclass Room:\n    pass\n"


def test_the_plugin_is_named_with_its_package(package: PackageMaker) -> None:
    source = toy_source("strict", hook="dynaweb_rewards", target="seam_classes:Judge")
    source += "\n\n@hookimpl\ndef dynaweb_environments():\n"
    source += '    return [PluginSpec(name="house", target="seam_classes:Other", config=Config, summary="a toy")]\n'
    package("seam-toys", source, modules={"seam_classes": CODE})
    plugins.load()
    import seam_classes  # type: ignore[import-not-found]

    assert contracts.title("reward", seam_classes.Judge()) == "reward judge 'strict' (package seam-toys 1.2)"
    # A class that an environment plugin makes besides its own is of that plugin.
    assert contracts.title("env", seam_classes.Room()) == "environment 'house' (package seam-toys 1.2)"
    assert contracts.title("env", Path()).startswith("environment of class pathlib")
