"""WebRL's replay buffer: what is remembered, what comes back, and what a restart may not change."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from judge_kit import episode
from pydantic import ValidationError

from dynaweb.config.sections import Phases, Replay
from dynaweb.data.store import TrajectoryStore
from dynaweb.errors import CheckpointError
from dynaweb.pipeline.artifacts import BUFFER
from dynaweb.rl.replay import GROUP, ReplayBuffer, keep_of, perplexity, read_buffer
from dynaweb.types import Prompt, Trajectory


def played(name: str, reward: float | None, *, steps: int = 2, task: str = "") -> Trajectory:
    one = episode(name, steps=steps)
    rows = tuple(replace(step, prompt=Prompt((1, 2)), response_ids=(3, 4)) for step in one.steps)
    return replace(one, steps=rows, reward=reward, task=replace(one.task, id=task or f"t{name}"))


def buffer(**settings: Any) -> ReplayBuffer:
    return ReplayBuffer(Replay(**{"capacity": 6, **settings}), seed=1)


def test_only_successes_are_remembered_the_first_of_each_task_and_the_newest_over_time() -> None:
    one = buffer()
    one.add([played("a", 1.0, task="x"), played("b", 1.0, task="x"), played("c", 0.0), played("d", None)])
    assert [t.id for t in one.episodes] == ["a"]
    one.add([played("e", 1.0, task="x"), replace(played("f", 1.0), source="expert")])
    assert [t.id for t in one.episodes] == ["e"]


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 5)), max_size=12), st.integers(1, 8))
def test_the_buffer_never_holds_more_steps_than_its_capacity_and_drops_the_oldest(
    found: list[tuple[int, int]], capacity: int
) -> None:
    one = buffer(capacity=capacity)
    for at, (steps, task) in enumerate(found):
        one.add([played(str(at), 1.0, steps=steps, task=str(task))])
        assert one.steps <= capacity
    assert [int(t.id) for t in one.episodes] == sorted(int(t.id) for t in one.episodes)


def test_a_draw_keeps_to_the_ratio_leaves_out_the_tasks_in_play_and_is_repeatable() -> None:
    one = buffer(capacity=100, ratio=2.0)
    one.add([played(str(k), 1.0) for k in range(10)])
    fresh = [played("0", 0.0), played("new", 1.0)]
    drawn = one.drawn(3, fresh)
    assert sum(len(t.steps) for t in drawn) == 2 * 4
    assert all(t.group.startswith(GROUP) and t.id != "0" for t in drawn)
    assert [t.id for t in one.drawn(3, fresh)] == [t.id for t in drawn]
    assert [t.id for t in one.drawn(4, fresh)] != [t.id for t in drawn]
    assert buffer().drawn(0, fresh) == []


class Scores:
    """A trainer whose log-probabilities are given, row by row."""

    def __init__(self, rows: list[list[float]]) -> None:
        self.rows = rows

    def logprobs(self, rows: Any) -> list[Any]:
        return [np.asarray(values) for values in self.rows[: len(rows)]]


@pytest.mark.parametrize(("p", "fits"), [(0.96, False), (0.95, True), (0.7, True), (0.5, True), (0.49, False)])
def test_a_step_comes_back_when_its_perplexity_lies_in_the_band(p: float, fits: bool) -> None:
    # Means are of log-probabilities: one likely and one unlikely token count as their geometric mean.
    row = [math.log(p) - 0.01, math.log(p) + 0.01]
    trainer = cast("Any", Scores([row, row]))
    one = buffer()
    keep = keep_of(one, trainer, [played("a", 1.0), played("b", None)], [played("c", 1.0)])
    assert keep == [True, True, fits, fits]


def test_perplexity_of_nothing_fits_no_band() -> None:
    assert perplexity([]) == math.inf and perplexity([0.0]) == 1.0


def test_a_restart_finds_the_buffer_of_its_update_and_no_other(tmp_path: Path) -> None:
    one = buffer(capacity=50)
    one.add([played("a", 1.0)])
    one.save(tmp_path, 1)
    one.add([played("b", 1.0)])
    one.save(tmp_path, 2)
    # The kill came before the trainer's own file: both are there, and update 1 counts.
    other = buffer(capacity=50)
    other.load(tmp_path, 1)
    assert [t.id for t in other.episodes] == ["a"] and other.episodes[0] == one.episodes[0]
    one.prune(tmp_path, {2})
    with pytest.raises(CheckpointError, match="no replay buffer for 1 updates"):
        other.load(tmp_path, 1)
    other.load(tmp_path, 2)
    assert [t.id for t in other.episodes] == ["a", "b"]


def test_a_buffer_without_a_success_is_written_like_any_other(tmp_path: Path) -> None:
    one = buffer()
    one.add([played("a", 0.0)])
    one.save(tmp_path, 1)
    one.load(tmp_path, 1)
    one.write(tmp_path / BUFFER)
    assert one.episodes == read_buffer(tmp_path / BUFFER) == []
    assert {path.name for path in tmp_path.iterdir()} == {BUFFER, f"000001-{BUFFER}"}


def test_a_store_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    def stopped() -> Iterator[Trajectory]:
        yield played("b", 1.0)
        raise KeyboardInterrupt

    path = tmp_path / "store.jsonl.gz"
    TrajectoryStore.write(path, [played("a", 1.0)])
    with pytest.raises(KeyboardInterrupt):
        TrajectoryStore.write(path, stopped())
    assert [t.id for t in TrajectoryStore(path)] == ["a"]
    TrajectoryStore.write(path, [played("c", 1.0)])
    assert [t.id for t in TrajectoryStore(path)] == ["c"]


@pytest.mark.parametrize("band", [(2.0, 1.5), (0.5, 2.0), (1.5, 1.5)])
def test_a_band_that_is_none_is_refused(band: tuple[float, float]) -> None:
    with pytest.raises(ValidationError, match="band"):
        Replay(perplexity=band)
    with pytest.raises(ValidationError, match="band"):
        Phases(value=(band[0] - 1, band[1] - 1) if band[0] < 1 else (0.9, 0.1))
