"""Which tasks an update plays: in turn, or more often where groups are mixed."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dynaweb.config import resolve
from dynaweb.config.sections import Rl
from dynaweb.rollout.curriculum import FLOOR, Curriculum, outcomes_of, weights
from dynaweb.rollout.tasks import rotation
from dynaweb.runs.seeding import derive
from dynaweb.stages.demos import MOST, pool_key, rl_tasks
from dynaweb.types import Task, Trajectory

if TYPE_CHECKING:
    from dynaweb.pipeline.context import RunContext

TASKS = [Task(f"{name}/{k}", "Do it.", "http://shop.localhost/", template=name) for name in "abcdef" for k in range(4)]


def curriculum(**settings: object) -> Curriculum:
    return Curriculum(Rl(updates=40, tasks=3, **settings), TASKS, [], seed=7)  # type: ignore[arg-type]


def test_in_rotation_outcomes_change_nothing() -> None:
    plan = curriculum()
    seen = Counter(task.template for update in range(40) for task in plan.of_update(update, [[("a", 0.5)]]))
    assert set(seen.values()) == {20}
    assert plan.of_update(3, []) == plan.of_update(3, [[("a", 0.5)]] * 9)


def test_mixed_groups_come_back_more_often_and_none_is_forgotten() -> None:
    plan = curriculum(sampling="adaptive")
    known = [[("a", 0.5), ("b", 1.0), ("c", 0.0), ("d", 1.0), ("e", 0.0), ("f", 0.5)]] * 20
    seen = Counter(task.template for update in range(40) for task in plan.of_update(update, known))
    assert min(seen["a"], seen["f"]) > 2 * max(seen[name] for name in "bcde")
    assert min(seen.values()) > 0
    for update in range(40):
        chosen = plan.of_update(update, known)
        assert len({task.template for task in chosen}) == 3, "without replacement"


def test_a_draw_depends_on_seed_update_and_outcomes_alone() -> None:
    one, two = curriculum(sampling="adaptive"), curriculum(sampling="adaptive")
    known = [[("a", 0.25)], [("b", 1.0)]]
    assert one.of_update(5, known) == two.of_update(5, known)
    assert one.of_update(5, known) != one.of_update(6, known)
    other = Curriculum(one.rl, TASKS, [], seed=8)
    assert [other.of_update(u, known) for u in range(5)] != [one.of_update(u, known) for u in range(5)]


def test_more_tasks_than_templates_start_over() -> None:
    plan = Curriculum(Rl(updates=2, tasks=15, sampling="adaptive"), TASKS, [], seed=1)
    assert max(Counter(task.template for task in plan.of_update(0, [])).values()) == 3


def test_the_weight_is_the_variance_of_the_estimated_reward() -> None:
    found = weights([[("a", 1.0)], [("a", 1.0), ("b", 0.0)]])
    assert found["a"] == pytest.approx(0.82 * 0.18)
    assert found["b"] == pytest.approx(0.3 * 0.7)
    assert weights([[("a", 1.0)]] * 30) == {"a": FLOOR}


def test_the_places_of_demonstrated_tasks_stay_when_experts_are_mixed_in() -> None:
    rl = Rl(updates=10, tasks=4, sampling="adaptive", expert_share=0.5)
    plan = Curriculum(rl, TASKS, TASKS[:2], seed=3)
    for update in range(10):
        chosen = plan.of_update(update, [[("f", 0.5)]])
        assert [task in TASKS[:2] for task in chosen][::2] == [True, True]


def test_outcomes_leave_out_experts_and_ungraded_rollouts() -> None:
    def rollout(reward: float | None, group: str, source: str = "dream") -> Trajectory:
        return Trajectory("", TASKS[0], (), None, source, "stop", reward=reward, group=group)  # type: ignore[arg-type]

    found = outcomes_of([rollout(1, "x"), rollout(0, "x"), rollout(None, "x"), rollout(1, "x", "expert")])
    assert found == [("a", 0.5)]
    assert outcomes_of([rollout(None, "y")]) == []


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, len(TASKS) - 1), unique=True), st.integers(0, 30), st.integers(0, 3))
def test_further_tasks_of_an_update_are_new_and_each_comes_once(taken: list[int], count: int, turn: int) -> None:
    """Also where some templates have run out of tasks that were not played yet."""
    plan, played = curriculum(), [TASKS[i] for i in taken]
    found = plan.others(5, turn, played, count)
    assert len(found) == min(count, len(TASKS) - len(taken))
    assert len({task.id for task in [*found, *played]}) == len(found) + len(played)
    assert found == plan.others(5, turn, played, count)
    left = {task.template for task in TASKS if task not in played}
    assert {task.template for task in found} == left or count < len(left)


def test_further_tasks_differ_from_update_to_update() -> None:
    plan = curriculum()
    assert len({tuple(task.id for task in plan.others(u, 0, [], 4)) for u in range(6)}) > 3


@pytest.mark.parametrize(
    ("share", "known"),
    [
        (0.0, ["e/3 c/0 f/1", "b/1 d/0 a/3", "c/0 e/3 a/3", "b/0 c/3 f/2"]),
        (0.5, ["a/1 e/3 a/0", "c/0 a/1 f/1", "c/0 a/1 f/1", "e/1 a/0 b/3"]),
    ],
)
def test_the_tasks_of_a_seed_stay_what_they_are(share: float, known: list[str]) -> None:
    """What cached stages were made of: other tasks need another `pipeline.context.VERSION`."""
    plan = Curriculum(Rl(updates=40, tasks=3, expert_share=share), TASKS, TASKS[:2], seed=7)
    assert [" ".join(task.id for task in plan.of_update(update, [])) for update in (0, 1, 17, 39)] == known


@given(
    st.integers(1, 9),
    st.integers(0, 200),
    st.integers(0, 5),
    st.sampled_from([0.0, 0.5]),
    st.integers(1, len(TASKS)),
)
def test_updates_cut_one_long_rotation_wherever_they_lie(
    tasks: int, update: int, shown: int, share: float, pool: int
) -> None:
    known, seed = TASKS[:shown], 5
    plan = Curriculum(Rl(updates=10**9, tasks=tasks, expert_share=share), TASKS[:pool], known, seed=seed)
    count = (update + 1) * tasks
    whole = rotation(TASKS[:pool], count, seed=seed)
    if share and known:
        experts = rotation(known, count, seed=derive(seed, "demonstrated"))
        whole = [experts[i // 2] if i % 2 == 0 else whole[i // 2] for i in range(count)]
    assert plan.of_update(update, []) == whole[-tasks:]


def test_a_run_of_many_updates_draws_its_tasks_by_and_by() -> None:
    """Made and asked without work that grows with the number of updates."""
    asked: list[int] = []

    class Few:
        recipe = resolve(overrides=["rl.updates=1000000000", "rl.tasks=64"])

        @property
        def envs(self) -> Few:
            return self

        def tasks(self, split: str, count: int, *, enough: int) -> list[Task]:
            asked.append(count)
            return TASKS

    ctx = cast("RunContext", Few())
    plan = Curriculum(ctx.recipe.rl, rl_tasks(ctx), [], seed=1)
    assert asked == [MOST]
    assert len(plan.of_update(999_999_999, [])) == 64
    assert pool_key(ctx) and not pool_key(cast("RunContext", SimpleNamespace(recipe=resolve())))
