"""Which training tasks are played after SFT: all, or those without a demonstration (`data.practice`)."""

from __future__ import annotations

from pathlib import Path

import pytest
from stage_kit import SMALL, run

from dynaweb.config import resolve
from dynaweb.data.store import TrajectoryStore
from dynaweb.errors import ConfigError
from dynaweb.pipeline.context import RunContext
from dynaweb.plugin.registry import current
from dynaweb.runs import StageCache
from dynaweb.stages.demos import practice_key, practice_tasks, rl_tasks, training_tasks
from dynaweb.types import Action, Node, Observation, Step, Task, Trajectory

MANY = ("data.demos=60", "data.practice=new")


def context(folder: Path, *sets: str) -> RunContext:
    return RunContext(resolve("dynaweb", overrides=[*SMALL, *sets]), current(), StageCache(folder / "cache"))


def store(folder: Path, name: str) -> list[str]:
    return [episode.task.id for episode in TrajectoryStore(folder / "trajectories" / f"{name}.jsonl.gz")]


@pytest.mark.timeout(300)
def test_nothing_that_is_demonstrated_is_practised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exploration, graded episodes, dreams and the tasks of a refreshed world model, from end to end; and experts among
    the rollouts are those of demonstrated tasks still."""
    monkeypatch.setenv("DYNAWEB_CACHE", str(tmp_path / "cache"))
    judge = (
        "reward.name=orm",
        "judge_fit.episodes=40",
        "judge_fit.steps=2",
        "judge_fit.batch=8",
        "judge_fit.contrast=true",
    )
    refresh = ("wm_fit.refresh_every=2", "wm_fit.refresh_episodes=4", "wm_fit.refresh_steps=1")
    folder = run(tmp_path / "out", *MANY, *judge, *refresh, "rl.updates=3").folder
    shown = set(store(folder, "demos"))
    assert len(shown) == 60
    for name in ("explore", "graded", "dreams"):
        played = store(folder, name)
        assert played and not shown & set(played), name


def test_all_tasks_begin_with_the_demonstrated_ones(tmp_path: Path) -> None:
    ctx, new = context(tmp_path, "data.demos=60"), context(tmp_path, *MANY)
    shown = {task.id for task in training_tasks(ctx, 60)[:60]}
    assert practice_tasks(ctx, 300) == training_tasks(ctx, 300)
    left = practice_tasks(new, 300)
    assert len(left) >= 300 and not shown & {task.id for task in left}
    assert rl_tasks(new) == practice_tasks(new, 8)


def test_keys_hold_what_is_left_out_and_only_then(tmp_path: Path) -> None:
    assert practice_key(context(tmp_path, "data.demos=60")) == {}
    new = practice_key(context(tmp_path, *MANY))
    assert new and new == practice_key(context(tmp_path, *MANY))
    assert new != practice_key(context(tmp_path, *MANY, "data.demos=59"))


def test_where_every_task_is_demonstrated_the_error_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ctx = context(tmp_path, *MANY)
    few = training_tasks(ctx, 60)[:10]
    monkeypatch.setattr(type(ctx.envs), "tasks", lambda self, split, count, **more: list(few))
    with pytest.raises(ConfigError, match=r'data\.practice = "new": all 10 training tasks are demonstrated'):
        practice_tasks(ctx, 4)


def test_tasks_of_a_file_are_left_out_too(tmp_path: Path) -> None:
    page = Observation("http://shop.test/", (Node(1, "link", "Cart"),), "Shop")
    ctx = context(tmp_path)
    mine: list[Task] = training_tasks(ctx, 8)[:3]
    steps = (Step(page, Action("stop", text="done"), "Done.", "raw"),)
    path = tmp_path / "mine.jsonl.gz"
    TrajectoryStore.write(path, [Trajectory(f"t{k}", task, steps, page, "real", "stop") for k, task in enumerate(mine)])
    new = context(tmp_path, f"data.demos={path}", "data.practice=new")
    assert not {task.id for task in mine} & {task.id for task in practice_tasks(new, 300)}
    assert {task.id for task in mine} <= {
        task.id for task in practice_tasks(context(tmp_path, f"data.demos={path}"), 300)
    }
