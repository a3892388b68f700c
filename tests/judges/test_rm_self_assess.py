"""The self-assessing judge over a fixed engine."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynaweb.judges.scores import bent
from dynaweb.policy.prompt_formats import CompactFormat
from dynaweb.policy.tokenizer import build_tokenizer
from dynaweb.protocols import Completion, GenerateRequest, JudgeContext
from dynaweb.types import Action, EndReason, Node, Observation, Prompt, Step, Task, Trajectory
from dynaweb_rm_self_assess import SelfAssessConfig
from dynaweb_rm_self_assess.judge import SelfAssessJudge

PAGE = Observation("http://shop.localhost/", (Node(1, "link", "Home"),))
PROMPTS = CompactFormat(build_tokenizer(["Home"], vocab_size=900))


class FixedEngine:
    def __init__(self, yes: float, no: float) -> None:
        self.values = {PROMPTS.yes_id: yes, PROMPTS.no_id: no}
        self.prompts: list[tuple[int, ...]] = []

    async def generate(self, request: GenerateRequest) -> Completion:
        raise AssertionError("a verdict needs no generation")

    async def choice_logprobs(self, prompt: Prompt, choices: tuple[int, ...]) -> tuple[float, ...]:
        self.prompts.append(prompt)
        return tuple(self.values[choice] for choice in choices)


def judge(yes: float, no: float, **settings: object) -> tuple[SelfAssessJudge, FixedEngine]:
    engine = FixedEngine(yes, no)
    config = SelfAssessConfig.model_validate(settings)
    return SelfAssessJudge(config, JudgeContext(engine=engine, format=PROMPTS)), engine


def episode(end: EndReason = "stop", final: Observation | None = PAGE) -> Trajectory:
    steps = (Step(PAGE, Action("stop") if end == "stop" else Action("go_back")),)
    return Trajectory("e", Task("t", "Open 'Home'.", ""), steps, final, "dream", end)


@pytest.mark.parametrize(("p", "score"), [(0.9, 1.0), (0.81, 1.0), (0.79, 0.0), (0.1, 0.0)])
async def test_the_threshold_decides(p: float, score: float) -> None:
    # Both words may be unlikely among all tokens: only their ratio counts.
    one, engine = judge(math.log(p) - 30, math.log(1 - p) - 30)
    found = await one.score(episode())
    assert found.score == score
    assert found.probability == pytest.approx(p)
    assert len(engine.prompts) == 1


@given(st.floats(0, 1), st.floats(0, 1), st.floats(0.01, 0.99))
def test_a_bent_probability_keeps_its_order_and_its_ends(one: float, other: float, middle: float) -> None:
    low, high = sorted((one, other))
    assert 0.0 <= bent(low, middle) <= bent(high, middle) + 1e-12 and bent(high, middle) <= 1.0
    assert bent(0.0, middle) == 0.0 and bent(1.0, middle) == 1.0
    assert bent(middle, middle) == pytest.approx(0.5) and bent(one, 0.5) == one
    assert (bent(one, middle) >= 0.5) == (one >= middle) or one == pytest.approx(middle)


@pytest.mark.parametrize(
    ("chance", "settings", "want"),
    [
        (0.86, {"soft": True, "threshold": 0.95}, 0.244),
        (0.99, {"soft": True, "threshold": 0.95}, 0.839),
        (0.3, {"soft": True}, 0.3),
        (0.3, {"soft": True, "threshold": 0.5}, 0.3),
        (0.3, {"soft": True, "threshold": 0.0}, 1.0),
        (0.3, {"soft": True, "threshold": 1.0}, 0.0),
        (0.85, {}, 1.0),
        (0.75, {}, 0.0),
        (0.75, {"threshold": 0.7}, 1.0),
    ],
)
async def test_the_threshold_of_hard_rewards_is_the_middle_of_soft_ones(
    chance: float, settings: dict[str, object], want: float
) -> None:
    found = await judge(math.log(chance), math.log(1 - chance), **settings)[0].score(episode())
    assert found.score == pytest.approx(want, abs=1e-3) and found.probability == pytest.approx(chance)


async def test_soft_reward_is_the_probability() -> None:
    found = await judge(math.log(0.3), math.log(0.7), soft=True)[0].score(episode())
    assert found.score == pytest.approx(0.3)


@pytest.mark.parametrize("end", ["max-steps", "invalid"])
async def test_unfinished_episodes_score_zero_and_nothing_is_asked(end: EndReason) -> None:
    one, engine = judge(0.0, -9.0)
    found = await one.score(episode(end))
    assert (found.score, found.probability) == (0.0, None)
    assert engine.prompts == []


async def test_an_episode_that_its_environment_ended_is_judged() -> None:
    one, engine = judge(math.log(0.9), math.log(0.1))
    assert (await one.score(episode("terminal"))).score == 1.0
    assert len(engine.prompts) == 1


async def test_a_broken_episode_has_no_score() -> None:
    assert (await judge(0.0, -9.0)[0].score(episode("infrastructure"))).score is None


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
async def test_numbers_that_mean_nothing_are_no_score(value: float) -> None:
    found = await judge(value, -1.0)[0].score(episode())
    assert found.score is None
    assert "no usable probability" in found.why


async def test_a_vote_that_was_cut_is_no_vote() -> None:
    """What would have followed may have said the contrary."""

    class Voting(FixedEngine):
        async def generate(self, request: GenerateRequest) -> Completion:
            return Completion((PROMPTS.yes_id,), (-0.1,), finished=request.seed % 2 == 0)

    one = SelfAssessJudge(SelfAssessConfig(votes=16), JudgeContext(engine=Voting(0, 0), format=PROMPTS))
    found = await one.score(episode())
    counted = int(found.why.split(" of ")[1].split()[0])
    assert 0 < counted < 16 and found.score == 1.0
