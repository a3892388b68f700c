from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dynaweb import types
from dynaweb.data.codec import from_json, read, to_json
from dynaweb.types import (
    Action,
    Add,
    Change,
    Delta,
    EpisodeFacts,
    Judgement,
    Keep,
    Node,
    Observation,
    Step,
    StepFacts,
    Task,
    Trajectory,
)
from dynaweb.web.page.text import render

texts = st.text(max_size=8) | st.sampled_from(["</script>", "\u2028\n", "\ud800", "$", "@", "page"])
numbers = st.integers(-(2**70), 2**70) | st.floats()
scalars = st.none() | st.booleans() | numbers | texts


def free(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    keys = texts | st.integers() | st.none()
    return (
        st.lists(children, max_size=3)
        | st.lists(children, max_size=3).map(tuple)
        | st.dictionaries(keys, children, max_size=3)
    )


words = [cls for cls in vars(types).values() if isinstance(cls, type) and dataclasses.is_dataclass(cls)]
deltas = [Add, Change, Delta, Keep]


def instances(cls: type) -> st.SearchStrategy[Any]:
    """Any value of a class, free mappings filled with anything that can be written."""
    hints = {"evaluation", "meta", "info", "metrics"} & {item.name for item in dataclasses.fields(cls)}
    loose = st.dictionaries(texts, st.recursive(scalars | small, free, max_leaves=5), max_size=3)
    if cls is types.Prediction:
        return st.builds(cls, next_observation=st.none() | instances(Observation), delta=st.none() | instances(Delta))
    if cls is Trajectory:
        steps = st.lists(instances(Step), max_size=2).map(tuple)
        return st.builds(cls, task=instances(Task), steps=steps, info=loose)
    return st.builds(cls, **{name: loose for name in hints})


small = st.builds(Node, id=st.integers(0, 9), role=texts, name=texts) | st.builds(Delta, ops=st.just((Keep(1, 2),)))


@pytest.mark.parametrize("cls", [*words, *deltas], ids=lambda cls: cls.__name__)
def test_every_word_comes_back_exactly(cls: type) -> None:
    @settings(max_examples=12, deadline=None)
    @given(instances(cls))
    def check(value: Any) -> None:
        line = json.dumps(to_json(value), allow_nan=False)
        back = from_json(json.loads(line))
        assert type(back) is cls
        assert same(back, value)

    check()


def same(back: Any, value: Any) -> bool:
    """Equal in every field, also those that comparisons leave out, and in the types of numbers; NaN equals NaN."""
    if type(back) is not type(value):
        return False
    if dataclasses.is_dataclass(value):
        names = [item.name for item in dataclasses.fields(value) if item.name != "ref"]
        return all(same(getattr(back, name), getattr(value, name)) for name in names)
    if isinstance(value, tuple | list):
        return len(back) == len(value) and all(map(same, back, value))
    if isinstance(value, dict):
        return list(back) == list(value) and all(same(back[key], value[key]) for key in value)
    return repr(back) == repr(value)


def test_non_finite_numbers_are_strict_json() -> None:
    step = Step(Observation("http://a/", ()), None, logprobs=(-math.inf, 0.5), info={"x": math.nan})
    line = json.dumps(to_json(step), allow_nan=False)
    back = read(json.loads(line), Step)
    assert back.logprobs == (-math.inf, 0.5)
    assert math.isnan(back.info["x"])


def test_nodes_are_short_and_carry_no_browser_handle() -> None:
    page = Observation("http://a/", (Node(1, "link", "Home", ref="backend-12"), Node(2, "textbox", value="x")))
    data = to_json(page)
    assert data == {"$": "Observation", "url": "http://a/", "nodes": [[1, "link", "Home"], [2, "textbox", "", "x"]]}
    assert read(data, Observation).nodes[0].ref is None


def test_where_a_link_leads_is_kept_and_no_part_of_what_a_page_is() -> None:
    page = Observation("http://a/", (Node(1, "link", "Home", address="http://a/home"),))
    back = read(to_json(page), Observation)
    assert back.nodes[0].address == "http://a/home"
    assert back == replace(page, nodes=(Node(1, "link", "Home"),)) and "home" not in render(back)


def test_what_cannot_be_read_back_is_refused_when_it_is_written() -> None:
    with pytest.raises(TypeError, match="cannot write a set"):
        to_json(Task("t", "", "http://a/", meta={"sites": {1, 2}}))


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ({"$": "Nothing"}, "unknown class 'Nothing'"),
        ({"$": "Action", "kind": "click", "colour": "red"}, "colour"),
        ({"$": "Action"}, "incomplete"),
        ({"$": "Node", "v": [1, "link", "x", None, [], 0, "http://a/", 7]}, "at most 7"),
        ({"$": "Trajectory"}, "incomplete"),
    ],
)
def test_foreign_data_is_refused_with_the_reason(data: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        from_json(data)


def test_another_class_than_expected_is_refused() -> None:
    with pytest.raises(ValueError, match="expected Trajectory data, got Action"):
        read(to_json(Action("wait")), Trajectory)


def test_facts_of_version_0_1_are_read_out_of_info() -> None:
    page = {"url": "http://a/", "nodes": []}
    info = {"dreamed": True, "imagined": True, "tokens": 7, "logprob": -0.5, "confidence": 0.8, "untrusted": "it fell"}
    own = {"raw": 1.0, "player": "expert"}
    step = {"observation": page, "action": None, "info": {**info, **own}}
    old = {"$": "Step", **step}
    assert read(old, Step).facts == StepFacts(True, False, True, 7, -0.5, 0.8, untrusted="it fell")
    assert read(old, Step).info == own
    more = {
        "recalled": True,
        "world_model_error": "no page",
        "step_reward": 1,
        "blocked": "captcha",
        "screenshot": "1.png",
    }
    facts = StepFacts(False, True, world_model_error="no page", reward=1.0, blocked="captcha", screenshot="1.png")
    assert read({**old, "info": more}, Step).facts == facts
    verdict = {"score": 0.0, "probability": None, "why": "wrong"}
    episode = {"$": "Trajectory", "id": "t", "task": {"id": "t", "intent": "", "start_url": ""}, "steps": [step]}
    episode |= {"final": None, "source": "real", "end": "stop"}
    played = read({**episode, "info": {"verdict": verdict, "update": 3, "x": 1}}, Trajectory)
    assert played.facts == EpisodeFacts(Judgement(0.0, why="wrong"), update=3) and played.info == {"x": 1}
    assert played.steps[0] == read(old, Step)
    broken = read({**episode, "end": "infrastructure", "info": {"failure": "OSError: gone"}}, Trajectory)
    assert broken.facts == EpisodeFacts(failure="OSError: gone")
    assert same(read(to_json(played), Trajectory), played)


@pytest.mark.parametrize("reward", [None, 0, 0.0, -0.0, 1, 0.25])
def test_every_step_reward_comes_back_exactly(reward: float | None) -> None:
    step = Step(Observation("http://a/", ()), None, facts=StepFacts(reward=reward))
    assert same(read(json.loads(json.dumps(to_json(step))), Step), step)


def test_what_a_plugin_keeps_in_info_is_never_taken_for_a_fact() -> None:
    own: dict[str, Any] = {"tokens": "7", "dreamed": "no", "blocked": {"by": 1}, "screenshot": None, "step_reward": "1"}
    old = {"$": "Step", "observation": {"url": "", "nodes": []}, "action": None, "info": own}
    assert read(old, Step).info == own and read(old, Step).facts == StepFacts()
    own = {"verdict": {"guilty": True}, "update": "x", "screenshots": "abc", "failure": None}
    episode = {"id": "t", "task": {"id": "t", "intent": "", "start_url": ""}, "steps": [], "final": None}
    played = read({"$": "Trajectory", **episode, "source": "real", "end": "stop", "info": own}, Trajectory)
    assert played.info == own and played.facts == EpisodeFacts()
    for facts in (StepFacts(), StepFacts(tokens=3)):
        step = Step(Observation("http://a/", ()), None, info={"tokens": 5, "dreamed": True}, facts=facts)
        assert same(read(json.loads(json.dumps(to_json(step))), Step), step)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("reply", None),
        ("reply", 5),
        ("response_ids", [1, "2"]),
        ("response_ids", [1, 0.5]),
        ("response_ids", [1e999]),
        ("response_ids", [10**400]),
        ("response_ids", {"0": 1}),
        ("logprobs", [None]),
        ("policy_version", 0.5),
        ("policy_version", "1"),
        ("info", [1]),
        ("facts", {"confidence": "high"}),
        ("facts", {"dreamed": None}),
        ("action", {"kind": "fly"}),
        ("action", {"kind": ["click"]}),
    ],
)
def test_a_value_of_another_type_than_its_field_is_refused(key: str, value: Any) -> None:
    data = to_json(Step(Observation("u", ()), Action("stop"), response_ids=(1, 2), logprobs=(-1.0, -2)))
    assert from_json(data).logprobs == (-1.0, -2)
    with pytest.raises(ValueError, match=r"stands where|is none of|must be"):
        from_json({**data, key: value})
