"""Calibrated confidence, dreams that end by it, and open-loop drift."""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from dynaweb.errors import ConfigError, EngineError
from dynaweb.judges.reward import judge_one
from dynaweb.types import Action, Node, Observation, Prediction, Step, StepFacts, Task, Trajectory, Transition
from dynaweb.worldmodels.calibration import Calibration, Case, Trusted, calibrate, is_sound, reliability
from dynaweb.worldmodels.open_loop import chains, drift, on_page
from dynaweb_env_dream.dream import DreamEnvironment


def cases(count: int, *, slope: float, seed: int = 0, known: bool = True) -> list[Case]:
    """Pages whose soundness follows from the log-probability by a logistic curve."""
    rng = random.Random(seed)
    found = []
    for at in range(count):
        logprob = rng.uniform(-2, 0)
        sound = rng.random() < 1 / (1 + math.exp(-slope * (logprob + 1)))
        found.append(Case(logprob if known else None, rng.randint(5, 60), sound, f"site {at % 8}"))
    return found


def page(name: str) -> Observation:
    return Observation(f"http://shop.localhost/{name}", (Node(1, "link", "Next"), Node(2, "heading", name)))


GO = Action("click", 1, target_role="link", target_name="Next")
TASK = Task(id="t", intent="", start_url="")


def answered(logprob: float | None, tokens: int = 20) -> Prediction:
    return Prediction(page("x"), tokens=tokens, logprob=logprob)


def test_confidence_follows_what_the_model_says_of_itself() -> None:
    found = calibrate(cases(400, slope=6))
    sure, unsure = found.confidence(answered(-0.05)), found.confidence(answered(-1.9))
    assert sure > 0.9 and unsure < 0.1
    assert found.brier < 0.5 * found.brier_of_base_rate
    assert found.confidence(Prediction(None, error="?")) == 0.0
    # Reliable: in each bin, what was expected came true about as often.
    assert all(abs(one.expected - one.sound) < 0.15 for one in found.reliability)
    assert sum(one.n for one in found.reliability) == found.n == 400
    assert Calibration.of_data(found.data()) == found


def test_a_model_that_knows_nothing_of_itself_gets_the_base_rate() -> None:
    noise = cases(400, slope=0)
    found = calibrate(noise)
    assert found.brier == pytest.approx(found.brier_of_base_rate, abs=0.02)
    assert found.confidence(answered(-0.1)) == pytest.approx(found.base_rate, abs=0.15)
    silent = calibrate(cases(200, slope=6, known=False))
    assert silent.confidence(answered(None)) == pytest.approx(silent.base_rate, abs=0.1)


def test_all_sound_is_no_certainty_and_too_few_pages_are_an_error() -> None:
    found = calibrate([Case(-0.1, 10, True, str(at)) for at in range(40)])
    assert 0.9 < found.confidence(answered(-0.1, 10)) < 1.0
    assert math.isfinite(found.brier)
    with pytest.raises(ConfigError, match="at least 20 held-out pages"):
        calibrate(cases(19, slope=6))


def test_bins_are_equal_in_size_and_ordered() -> None:
    bins = reliability([0.9, 0.1, 0.5, 0.7, 0.3], [1, 0, 1, 1, 0], bins=2)
    assert [one.n for one in bins] == [2, 3] and bins[0].expected == pytest.approx(0.2)
    assert bins[1].sound == 1.0 and bins[0].sound == 0.0


def test_a_sound_page_is_of_the_right_kind_and_made_of_the_right_elements() -> None:
    def sound(kind: float, roles: float, elements: float, fidelity: Any = "structure") -> bool:
        return is_sound({"page_kind": kind, "role_f1": roles, "element_f1": elements}, fidelity)

    assert sound(1.0, 0.9, 0.0) and not sound(0.0, 1.0, 1.0) and not sound(1.0, 0.89, 1.0)
    assert sound(1.0, 0.9, 0.8, "content") and not sound(1.0, 1.0, 0.79, "content")


class Walker:
    """Dreams page 2 after page 1 and so on; from `lost_at` on something else, or an error."""

    def __init__(self, *, lost_at: int = 99, confidence: float | None = None, error: str = "") -> None:
        self.lost_at, self.confidence, self.error = lost_at, confidence, error

    async def predict(
        self, observation: Observation, action: Action, *, seed: int, history: Sequence[Action] = (), goal: str = ""
    ) -> Prediction:
        number = int(observation.url.rpartition("/")[2]) + 1
        if number >= self.lost_at:
            if self.error == "raise":
                raise EngineError("the page is too long")
            wrong = Observation("http://shop.localhost/0", (Node(1, "heading", "Lost"),))
            return Prediction(None if self.error else wrong, error=self.error)
        return Prediction(page(str(number)), tokens=7, confidence=self.confidence)


def dream(model: Any, steps: int, floor: float) -> tuple[list[Any], list[str]]:
    async def run() -> list[Any]:
        environment = DreamEnvironment(model, lambda task: page("1"), floor)
        await environment.reset(TASK, 0)
        found = []
        for _ in range(steps):
            found.append(await environment.step(GO))
            if found[-1].done:
                break
        return found

    results = asyncio.run(run())
    return results, [result.facts.untrusted for result in results]


def test_a_dream_ends_where_its_expected_fidelity_falls_below_the_floor() -> None:
    results, why = dream(Walker(confidence=0.8), 9, 0.5)
    # 0.8, 0.64, 0.512, 0.41: the fourth page is not shown any more.
    assert len(results) == 4 and why[:3] == ["", "", ""]
    assert "0.410, below 0.5" in why[3] and results[3].observation == page("4")
    assert results[0].facts.confidence == 0.8
    assert not any(dream(Walker(confidence=0.8), 9, 0.0)[1])
    assert not any(dream(Walker(), 9, 0.9)[1])


def test_trust_is_whole_again_in_the_next_dream() -> None:
    async def run() -> list[bool]:
        environment = DreamEnvironment(Walker(confidence=0.6), lambda task: page("1"), 0.5)
        ended = []
        for _ in range(2):
            await environment.reset(TASK, 0)
            ended.append((await environment.step(GO)).done)
        return ended

    assert asyncio.run(run()) == [False, False]


def test_a_dream_that_could_not_be_trusted_says_nothing_of_the_policy() -> None:
    class Yes:
        async def score(self, trajectory: Trajectory) -> Any:
            raise AssertionError("the judge is not asked")

    step = Step(page("1"), GO, facts=StepFacts(untrusted="the expected fidelity fell"))
    judged = asyncio.run(judge_one(Yes(), Trajectory("x", TASK, (step,), page("1"), "dream", "terminal")))
    assert judged.reward is None and judged.judgement is not None and "fidelity" in judged.judgement.why


async def test_a_trusted_model_adds_its_confidence_to_every_prediction() -> None:
    calibration = calibrate(cases(200, slope=6))
    trusted = Trusted(Walker(), calibration)
    prediction = await trusted.predict(page("1"), GO, seed=0)
    assert prediction.confidence == calibration.confidence(prediction)
    assert prediction.next_observation == page("2")


def walk(count: int, *, task: str = "t", episode: str = "e") -> list[Transition]:
    return [Transition(page(str(at)), GO, page(str(at + 1)), task, info={"episode": episode}) for at in range(1, count)]


def run_drift(model: Any, chain: list[Transition]) -> list[dict[str, float | None]]:
    def dreams(steps: Sequence[Transition]) -> DreamEnvironment:
        return DreamEnvironment(model, lambda task: steps[0].observation)

    return asyncio.run(drift(dreams, [chain], seed=0, live=contextlib.nullcontext))[0]


def test_drift_follows_a_real_episode_and_counts_what_is_lost_as_wrong() -> None:
    chain = walk(6)
    assert [step["exact"] for step in run_drift(Walker(), chain)] == [1.0] * 5
    lost = run_drift(Walker(lost_at=4), chain)
    assert [step["exact"] for step in lost] == [1.0, 1.0, 0.0, 0.0, 0.0]
    # The lost page has no link: the dream is alive there, and not from the next step on.
    assert [step["alive"] for step in lost] == [1.0, 1.0, 1.0, 0.0, 0.0]
    assert [step["next_action"] for step in lost] == [1.0, 1.0, 0.0, 0.0, None]
    assert [step["tokens"] for step in lost] == [7, 7, 0, 0, 0]
    for error in ("no page", "raise"):
        unread = run_drift(Walker(lost_at=3, error=error), chain)
        assert [step["alive"] for step in unread] == [1.0, 0.0, 0.0, 0.0, 0.0]


def test_an_action_means_the_same_element_by_place_among_equals() -> None:
    links = tuple(Node(at, "link", "Open") for at in (1, 2, 3))
    real = Observation("u", links)
    second = Action("click", 2, target_role="link", target_name="Open")
    dreamed = Observation("u", (Node(1, "heading", "x"), Node(2, "link", "Open"), Node(3, "link", "Open")))
    found = on_page(second, real, dreamed)
    assert found is not None and found.target == 3
    last = on_page(replace(second, target=3), real, dreamed)
    assert last is not None and last.target == 3
    assert on_page(second, real, Observation("u", (Node(1, "heading", "Open"),))) is None
    assert on_page(Action("go_back"), real, dreamed) == Action("go_back")


def test_transitions_are_cut_into_runs_without_gaps() -> None:
    first, second = walk(6), walk(3, episode="f")
    assert chains([*first, *second], longest=9) == [first, second]
    assert [len(part) for part in chains(first, longest=2)] == [2, 2, 1]
    gap = [first[0], *first[2:]]
    assert [len(part) for part in chains(gap, longest=9)] == [1, 3]
    noticed = [first[0], replace(first[1], observation=replace(first[1].observation, notice="hm"))]
    assert len(chains(noticed, longest=9)) == 1
