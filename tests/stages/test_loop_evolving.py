"""The self-evolving curriculum: failed tasks, proposals, filters, and what happens when nothing is left."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from judge_kit import episode
from judge_server import judge_server

from dynaweb.config.server import Server
from dynaweb.engines.server import OpenAIEngine
from dynaweb.errors import InfrastructureError
from dynaweb.protocols import EnvironmentContext, MakesVariants
from dynaweb.stages.curriculum import (
    _can_be_done,
    _of_site,
    by_environment,
    entities,
    failed_tasks,
    in_band,
    new_tasks,
    proposed,
)
from dynaweb.types import Task, Trajectory
from dynaweb_env_sites import SitesConfig
from dynaweb_env_sites.env import SitesSource


def played(name: str, reward: float | None) -> Trajectory:
    return replace(episode(name), reward=reward)


def tasks(count: int) -> list[Task]:
    return [replace(episode().task, id=f"t{k}", intent=f"Open {k}.") for k in range(count)]


def test_a_task_has_failed_when_most_of_its_graded_rollouts_did() -> None:
    rollouts = [played("a", 0.0), played("b", 1.0), played("a", 1.0), played("a", 0.0), played("c", None)]
    failed, notes = failed_tasks([*rollouts, replace(played("d", 0.0), source="expert")])
    assert [task.id for task in failed] == ["ta"] and notes == []


def test_without_failures_all_tasks_count_and_that_is_said() -> None:
    failed, notes = failed_tasks([played("a", 1.0), played("b", 1.0)])
    assert [task.id for task in failed] == ["ta", "tb"]
    assert notes == ["no task of the phase before failed: all of its tasks are varied"]


def test_what_was_played_or_is_proposed_twice_is_not_new() -> None:
    one, two, three = tasks(3)
    again = replace(two, id="other", intent="  OPEN   1. ")
    elsewhere = replace(two, id="else", meta={"site_seed": 9})
    assert new_tasks([one, two, again, elsewhere, three], [one]) == [two, elsewhere, three]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20), st.integers(1, 20))
def test_the_band_keeps_what_lies_in_it_and_never_nothing(values: list[float], wanted: int) -> None:
    found = tasks(len(values))
    kept, notes = in_band(found, values, (0.4, 0.6), wanted)
    inside = [task for task, value in zip(found, values, strict=True) if 0.4 <= value <= 0.6]
    assert 1 <= len(kept) <= wanted
    if inside:
        assert kept == inside[:wanted] and notes == []
        return
    distance = {task.id: max(0.4 - value, value - 0.6) for task, value in zip(found, values, strict=True)}
    others = [distance[task.id] for task in found if task not in kept]
    assert max(distance[task.id] for task in kept) <= min(others, default=1.0)
    assert len(notes) == 1 and "nearest to it are kept" in notes[0]


def test_without_a_critic_nothing_is_filtered_and_that_is_said() -> None:
    kept, notes = in_band(tasks(5), None, (0.05, 0.75), 3)
    assert len(kept) == 3 and "there is no critic" in notes[0]


def test_variants_of_the_embedded_sites_are_checked_tasks_of_the_same_template() -> None:
    source = SitesSource(SitesConfig(driver="static"), EnvironmentContext())
    assert isinstance(source, MakesVariants)
    failed = source.tasks("train", count=6, seed=4)
    made = by_environment(source, failed, count=18, seed=7)
    assert made == by_environment(source, failed, count=18, seed=7)
    assert made != by_environment(source, failed, count=18, seed=8)
    by_template = {task.template: task for task in failed}
    for task in made.tasks:
        like = by_template[task.template]
        assert task.split == "train" and task.evaluation and task.best_steps
        assert (task.intent, task.meta["site_seed"]) != (like.intent, like.meta["site_seed"])
    assert {task.template for task in made.tasks} == set(by_template)


# Proposals of a language model


def test_tasks_stand_between_back_ticks_each_once_and_none_that_is_known() -> None:
    reply = "1. `Buy a lamp.`\n- `buy a lamp.`\nnot this\n`Open 'Home'.` and `" + "x" * 500 + "`\n`Sort the list.`"
    assert proposed(reply, ["open 'home'."]) == ["Buy a lamp.", "Sort the list."]
    assert proposed("I would rather not.", []) == []


def engine(url: str) -> OpenAIEngine:
    return OpenAIEngine(Server(model="m", base_url=url, retries=0, timeout=0.5))


async def test_a_model_sees_the_site_the_failures_and_its_names_and_its_tasks_have_no_check() -> None:
    with judge_server("`Find 'Home' twice.`") as server:
        found = await _of_site(engine(server.url), [episode().task], entities([episode()], "shop"), 5, 2)
    (task,) = found.tasks
    assert task.intent == "Find 'Home' twice." and not task.evaluation and task.start_url == episode().task.start_url
    question = server.requests[0]["messages"][1]["content"]
    assert "Open 'Home'." in question and "Names on its pages:\n<<<\nHome\n>>>" in question


@pytest.mark.parametrize(
    ("reply", "answer"), [("Yes. [YES]", True), ("[YES] at first, but [NO]", False), ("sure", None)]
)
async def test_feasibility_is_the_last_bracketed_word_and_anything_else_is_no_answer(reply: str, answer: Any) -> None:
    with judge_server(reply) as server:
        assert await _can_be_done(engine(server.url), episode().task, [episode()]) is answer


async def test_a_server_that_is_not_there_is_a_clear_error() -> None:
    with pytest.raises(InfrastructureError, match=r"127\.0\.0\.1:9/v1.* failed once"):
        await _of_site(engine("http://127.0.0.1:9/v1"), [episode().task], [], 5, 2)


def test_names_are_those_of_the_site_most_frequent_first() -> None:
    assert entities([episode(steps=3)], "shop") == ["Home"]
    assert entities([episode()], "forum") == []
    assert cast("Any", entities)([], "shop") == []
