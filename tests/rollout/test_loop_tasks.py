"""Drawing tasks: rotation, shares, start pages, and group-safe mixing."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynaweb.errors import ConfigError
from dynaweb.rollout.group import by_task, expert_rollout, replaced
from dynaweb.rollout.tasks import StartPages, draw, one_per_template, rotation
from dynaweb.types import EpisodeFacts, Judgement, Observation, Step, Task, Trajectory

TASKS = [
    Task(id=f"{t}:{k}", intent="", start_url=f"http://x/{t}", template=t, best_steps=k + 2, meta={"site_seed": k % 2})
    for k in range(4)
    for t in ("a", "b", "c")
]


class Source:
    """Gives the tasks above, as many as there are."""

    def tasks(self, split: str, *, count: int, seed: int) -> list[Task]:
        return TASKS[:count]


def test_drawing_leaves_out_long_tasks_and_says_when_there_are_too_few() -> None:
    drawn = draw(Source(), "train", count=6, seed=0, max_best_steps=3)  # type: ignore[arg-type]
    assert [task.id for task in drawn] == ["a:0", "b:0", "c:0", "a:1", "b:1", "c:1"]
    with pytest.raises(ConfigError, match="only 6 tasks of at most 3 steps, 7 are needed"):
        draw(Source(), "train", count=7, seed=0, max_best_steps=3)  # type: ignore[arg-type]


def test_demonstrations_take_one_of_each_template_first() -> None:
    assert [task.id for task in one_per_template(TASKS, 0)] == ["a:0", "b:0", "c:0"]
    assert [task.id for task in one_per_template(TASKS, 5)] == ["a:0", "b:0", "c:0", "a:1", "b:1"]


@given(st.integers(0, 60), st.integers(0, 10**9))
def test_a_rotation_gives_every_template_its_turn(count: int, seed: int) -> None:
    tasks = rotation(TASKS, count, seed=seed)
    assert len(tasks) == count
    uses = Counter(task.template for task in tasks)
    assert max(uses.values(), default=0) - min((uses[t] for t in "abc"), default=0) <= 1
    assert tasks == rotation(TASKS, count + 7, seed=seed)[:count]
    assert all(
        len({task.id for task in tasks[:12] if task.template == t}) == min(4, uses[t]) for t in "abc" if count <= 12
    )


def test_rotations_of_two_seeds_differ() -> None:
    assert rotation(TASKS, 12, seed=1) != rotation(TASKS, 12, seed=2)


@given(st.integers(2, 16), st.floats(0, 1), st.integers(0, 10**9))
def test_at_least_one_dream_of_a_group_stays(n: int, share: float, seed: int) -> None:
    chosen = replaced(n, share, seed=seed)
    assert chosen <= set(range(n))
    assert len(chosen) < n
    assert chosen == replaced(n, share, seed=seed)
    if share == 0:
        assert not chosen
    if share == 1:
        assert len(chosen) == n - 1


def test_the_share_is_what_was_asked_for() -> None:
    used = sum(len(replaced(8, 0.25, seed=seed)) for seed in range(500))
    assert 0.22 < used / 4000 < 0.28


PAGE = Observation(url="http://x/a", nodes=())


def expert(task: Task, score: float | None = 1.0, source: str = "expert") -> Trajectory:
    steps = (Step(PAGE, None),)
    return Trajectory(task.id, task, steps, PAGE, source, "stop", facts=EpisodeFacts(Judgement(score)))  # type: ignore[arg-type]


def test_only_successful_experts_stand_in_and_only_for_their_own_task() -> None:
    experts = by_task([expert(TASKS[0]), expert(TASKS[1], 0.0), expert(TASKS[2], None), expert(TASKS[3], 1.0, "real")])
    assert list(experts) == [TASKS[0].id]
    rollout = expert_rollout(experts, TASKS[0].id, group="0/a", k=3, seed=1)
    assert (rollout.task, rollout.group, rollout.reward, rollout.source) == (TASKS[0], "0/a", 1.0, "expert")
    with pytest.raises(KeyError):
        expert_rollout(experts, TASKS[1].id, group="0/a", k=3, seed=1)


def test_start_pages_are_shared_by_tasks_that_start_at_the_same_place() -> None:
    starts = StartPages([expert(TASKS[0])])
    same, other = TASKS[6], TASKS[3]
    assert starts(same) == PAGE and same.id != TASKS[0].id
    assert starts(other) is None
    assert starts(replace(TASKS[0], meta={})) is None
    assert len(starts) == 1
