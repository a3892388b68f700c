"""Rollouts that run ahead of training: in which order, by which weights, what ratios are, and what a restart keeps."""

from __future__ import annotations

import asyncio
import math
import re
import shutil
import signal
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from judge_kit import episode
from stage_kit import SMALL, killed, rows
from warm_kit import exit_code

import dynaweb
from dynaweb.config.resolving import resolve
from dynaweb.config.sections import Rl
from dynaweb.data.store import TrajectoryStore
from dynaweb.errors import CheckpointError, ConfigError, TrainingError
from dynaweb.pipeline.context import RunContext
from dynaweb.plugin.registry import current
from dynaweb.protocols import Wants
from dynaweb.rl.ahead import RunAhead, order_of_work
from dynaweb.rl.importance import (
    Correction,
    correction_of,
    effective_share,
    refuse_stale,
    sampler_logprobs,
    staleness,
)
from dynaweb.rl.replay import GROUP
from dynaweb.runs import StageCache
from dynaweb.stages.preflight import check_staleness, check_together
from dynaweb.types import Prompt, Step, Trajectory

# Which rollouts, and when


def rollout(update: int, k: int = 0, reward: float = 1.0) -> Trajectory:
    return replace(episode("t"), id=f"{update}/0/{k}", group=f"{update}/0", source="dream", reward=reward)


class Played:
    """Notes what was played: the update, how many were done by then, and the outcomes that were known."""

    def __init__(self) -> None:
        self.done = 0
        self.calls: list[tuple[int, int, int]] = []

    async def __call__(self, update: int, outcomes: Sequence[Any]) -> list[Trajectory]:
        self.calls.append((update, self.done, len(outcomes)))
        return [rollout(update)]


@pytest.mark.parametrize(
    ("most", "order"),
    [
        (0, [(0, 0), (1, 1), (2, 2), (3, 3)]),
        (1, [(0, 0), (1, 0), (2, 1), (3, 2)]),
        (2, [(0, 0), (1, 0), (2, 0), (3, 1)]),
        (9, [(0, 0), (1, 0), (2, 0), (3, 0)]),
    ],
)
async def test_in_order_every_update_learns_from_as_old_rollouts_as_it_may(
    most: int, order: list[tuple[int, int]]
) -> None:
    """And nothing is played beyond the last update; outcomes of all earlier updates are known, learned from or not."""
    play, outcomes = Played(), list[Any]()
    ahead = RunAhead(play, most=most, last=4, outcomes=outcomes)
    for update in range(4):
        assert [t.id for t in await ahead.of_update(update)] == [f"{update}/0/0"]
        assert await ahead.compute(threading.current_thread) is threading.current_thread()
        outcomes.append([("t", 1.0)])
        ahead.advance()
        play.done = update + 1
    await ahead.close()
    assert play.calls == [(update, done, update) for update, done in order]


@pytest.mark.parametrize("most", [1, 2])
async def test_at_once_the_next_rollouts_are_played_while_the_trainer_works(most: int) -> None:
    play, outcomes, busy = Played(), list[Any](), threading.Event()
    ahead = RunAhead(play, most=most, last=5, outcomes=outcomes, at_once=True)

    def work() -> str:
        assert busy.wait(20), "nobody played meanwhile"
        return threading.current_thread().name

    for update in range(5):
        assert (await ahead.of_update(update))[0].id == f"{update}/0/0"
        busy.clear()
        working = asyncio.ensure_future(ahead.compute(work))
        async with asyncio.timeout(20):
            while len(play.calls) < min(update + most + 1, 5):
                await asyncio.sleep(0.001)
        busy.set()
        assert (await working).startswith("trainer")
        outcomes.append([("t", 1.0)])
        ahead.advance()
        play.done = update + 1
    await ahead.close()
    assert [update for update, _, _ in play.calls] == [0, 1, 2, 3, 4]
    assert all(update - most <= done for update, done, _ in play.calls), "never older than it may be"
    assert [known for _, _, known in play.calls] == [0, 1, 2, 3, 4]


async def test_what_stops_the_player_stops_the_updates() -> None:
    async def play(update: int, outcomes: Any) -> list[Trajectory]:
        if update == 2:
            raise TrainingError("lost")
        return [rollout(update)]

    outcomes: list[Any] = []
    ahead = RunAhead(play, most=1, last=9, outcomes=outcomes, at_once=True)
    for update in (0, 1):
        await ahead.of_update(update)
        outcomes.append([])
        ahead.advance()
    with pytest.raises(TrainingError, match="lost"):
        await ahead.of_update(2)
    await ahead.close()


async def test_the_next_rollouts_begin_while_the_last_long_ones_are_played() -> None:
    """Those of an update that ends first wait for it. Nobody is told of outcomes that are not known yet."""
    long, known = asyncio.Event(), dict[int, int]()

    async def play(update: int, outcomes: Any) -> list[Trajectory]:
        known[update] = len(outcomes)
        if update == 1:
            await long.wait()
        return [rollout(update)]

    outcomes: list[Any] = []
    ahead = RunAhead(play, most=2, last=9, outcomes=outcomes, at_once=True)
    await ahead.of_update(0)
    outcomes.append([])
    ahead.advance()
    waiting = asyncio.ensure_future(ahead.of_update(1))
    async with asyncio.timeout(20):
        while 3 not in ahead._batches:
            await asyncio.sleep(0.001)
    assert not waiting.done() and 1 not in ahead._batches
    long.set()
    assert [t.id for t in await waiting] == ["1/0/0"]
    await ahead.close()
    assert [known[update] for update in range(4)] == [0, 1, 1, 1], "of update 2 nothing is told before 1"


async def test_nothing_is_played_while_the_world_model_is_fitted() -> None:
    """What is being played is finished first."""
    gate, order = asyncio.Event(), list[str]()

    async def play(update: int, outcomes: Any) -> list[Trajectory]:
        order.append(f"begun {update}")
        if update == 1:
            await gate.wait()
        order.append(f"played {update}")
        return [rollout(update)]

    ahead = RunAhead(play, most=1, last=5, outcomes=[[], [], [], []], at_once=True)
    await ahead.of_update(0)

    async def fit() -> None:
        async with ahead.paused():
            order.append("fit")
            ahead.advance()
            await asyncio.sleep(0.01)
            order.append("fitted")

    fitting = asyncio.ensure_future(fit())
    await asyncio.sleep(0.01)
    gate.set()
    await fitting
    await ahead.of_update(1)
    await asyncio.sleep(0.01)
    await ahead.close()
    assert order[:6] == ["begun 0", "played 0", "begun 1", "played 1", "fit", "fitted"], order
    assert "begun 2" in order[6:]


async def test_a_cancelled_update_leaves_no_thread_that_moves_weights() -> None:
    ended, begun, go = threading.Event(), threading.Event(), threading.Event()
    ahead = RunAhead(Played(), most=1, last=4, at_once=True)

    def work() -> None:
        begun.set()
        go.wait(20)
        ended.set()

    working = asyncio.ensure_future(ahead.compute(work))
    while not begun.is_set():
        await asyncio.sleep(0.001)
    working.cancel()
    asyncio.get_running_loop().call_later(0.05, go.set)
    with pytest.raises(asyncio.CancelledError):
        await working
    assert ended.is_set()
    await ahead.close()


async def test_a_restart_finds_the_rollouts_that_waited(tmp_path: Path) -> None:
    ahead = RunAhead(Played(), most=2, last=9, outcomes=[[("t", 1.0)]] * 2)
    await ahead.of_update(2)
    assert sorted(ahead._batches) == [2, 3, 4]
    ahead.save(tmp_path, 3)
    play = Played()
    again = RunAhead(play, most=2, last=9, outcomes=[[("t", 1.0)]] * 3)
    again.load(tmp_path, 3)
    assert [t.id for t in await again.of_update(3)] == ["3/0/0"] and play.calls == [(5, 0, 5)]
    assert sorted(again._batches) == [3, 4, 5]
    again.prune(tmp_path, {4})
    with pytest.raises(CheckpointError, match="no rollouts that ran ahead of update 3"):
        again.load(tmp_path, 3)


async def test_a_restart_plays_what_was_not_played_to_its_end(tmp_path: Path) -> None:
    """Also where later rollouts were there before."""
    ahead = RunAhead(Played(), most=2, last=6)
    ahead._batches = {2: [rollout(2)], 4: [rollout(4)]}
    ahead.save(tmp_path, 2)
    for at_once in (False, True):
        play = Played()
        again = RunAhead(play, most=2, last=6, outcomes=[[("t", 1.0)]] * 2, at_once=at_once)
        again.load(tmp_path, 2)
        for update in range(2, 6):
            assert [t.id for t in await again.of_update(update)] == [f"{update}/0/0"]
            again.advance()
        await again.close()
        assert [update for update, _, _ in play.calls] == [3, 5]


# Ratios


def said(*versions: int | None, source: Any = "dream", group: str = "g", tokens: int = 2, logp: float = -1.0) -> Any:
    one = episode("t")
    page = one.steps[0].observation
    steps = tuple(
        Step(page, None, prompt=Prompt((1,)), response_ids=(3,) * tokens, logprobs=(logp,) * tokens, policy_version=v)
        for v in versions
    )
    return replace(one, steps=steps, source=source, group=group)


@pytest.mark.parametrize(
    ("versions", "most", "refused"),
    [((3,), 0, False), ((2,), 0, True), ((2, 3), 1, False), ((1,), 1, True), ((4,), 1, True), ((None,), 2, True)],
)
def test_rollouts_are_no_older_than_they_may_be_and_never_newer(versions: Any, most: int, refused: bool) -> None:
    rollouts = [said(*versions), said(0, source="expert"), said(0, group=f"{GROUP}t")]
    if not refused:
        return refuse_stale(rollouts, 3, most)
    bound = rf"not on-policy with rl\.max_staleness = {most}" if most else "not on-policy: step 0"
    with pytest.raises(TrainingError, match=bound):
        refuse_stale(rollouts, 3, most)


def test_staleness_is_counted_by_token() -> None:
    rollouts = [said(3, tokens=6), said(1, tokens=2), said(0, source="expert", tokens=50)]
    assert staleness(rollouts, 3) == {"staleness.mean": 0.5, "staleness.max": 2.0, "staleness.share": 0.25}
    assert staleness([said(None)], 3) == staleness([], 3) == staleness([said(1)], None) == {}


def test_the_effective_sample_size_is_the_share_of_equal_weights_that_tell_as_much() -> None:
    assert effective_share([0.7] * 5) == pytest.approx(1.0)
    assert effective_share([0.0, -800.0, -800.0, -800.0]) == pytest.approx(0.25)
    assert effective_share([math.log(3.0), 0.0]) == pytest.approx(16 / 20)
    assert effective_share([900.0, 900.0]) == pytest.approx(1.0), "no overflow"
    assert math.isnan(effective_share([]))


@pytest.mark.parametrize(
    ("stale", "way", "off_policy", "expected"),
    [
        (0, "sampler", "ratio", Correction(1.5)),
        (1, "sampler", "ratio", Correction(sampler_is_old=True)),
        (1, "decoupled", "ratio", Correction(3.0)),
        (1, "sampler", "weights", Correction(3.0)),
        (1, "decoupled", "any", Correction()),
    ],
)
def test_each_kind_of_loss_has_one_correction_and_none_has_two(
    stale: int, way: Any, off_policy: Any, expected: Correction
) -> None:
    engine: Any = SimpleNamespace(correction=1.5)
    rl = Rl(max_staleness=stale, stale_ratio=way, stale_cap=3.0)
    assert correction_of(rl, engine, Wants(off_policy=off_policy)) == expected
    assert correction_of(rl, engine, Wants(off_policy=off_policy), on_policy=False) == Correction()


def test_tokens_without_the_probability_they_were_drawn_with_are_refused() -> None:
    whole, expert = said(1), said(None, source="expert")
    bare = replace(whole, steps=tuple(replace(step, logprobs=()) for step in whole.steps))
    assert sampler_logprobs([whole, expert]) == [(-1.0, -1.0), ()]
    with pytest.raises(TrainingError, match="without the log-probabilities that they were drawn with"):
        sampler_logprobs([whole, bare])


# Settings


def context(tmp_path: Path, *sets: str, **flags: Any) -> RunContext:
    return RunContext(resolve("dynaweb", overrides=sets, **flags), current(), StageCache(tmp_path))


def test_who_learns_from_the_policy_in_training_alone_is_refused(tmp_path: Path) -> None:
    ctx = context(tmp_path, "rl.max_staleness=2")
    check_together(ctx)
    with pytest.raises(ConfigError, match=r"rl\.max_staleness = 2 .* opt 'gspo' says .* set rl\.max_staleness = 0"):
        check_staleness(ctx, Wants(off_policy="never"))
    with pytest.raises(ConfigError, match=r"rl\.max_staleness = 1 .* offline\.episodes"):
        check_together(context(tmp_path, "rl.max_staleness=1", "offline.episodes=4", env="sites", reward="checker"))


@pytest.mark.parametrize(
    ("sets", "words"),
    [
        ((), ""),
        (("rl.max_staleness=1", "rl.updates=0"), ""),
        (("rl.max_staleness=2",), "at most 2 updates earlier, played in order"),
        (("rl.max_staleness=1", "policy.engine.name=vllm"), "while the trainer works"),
        (
            ("rl.max_staleness=1", "rl.stale_ratio=decoupled", "rl.stale_cap=5"),
            "policy before the update.* up to 5",
        ),
    ],
)
def test_the_order_of_work_in_words(sets: tuple[str, ...], words: str) -> None:
    text = order_of_work(resolve("dynaweb", overrides=sets))
    assert bool(text) == bool(words)
    if words:
        assert re.search(words, text), text


# Whole runs

ALL = (
    *SMALL,
    "opt.name=grpo",
    "opt.dynamic_sampling=true",
    "opt.refills=1",
    "rl.sampling=adaptive",
    "rl.expert_share=0.5",
    "rl.updates=3",
    "rl.n=2",
    "rl.validate_every=2",
    "controls.sft_validation=1",
    "controls.sft_steps=[]",
    "wm_fit.refresh_every=1",
    "wm_fit.refresh_episodes=2",
    "wm_fit.refresh_steps=1",
    "wm_fit.open_loop=0",
    "wm_fit.fidelity_steps=0",
    "eval.episodes=1",
)
"""Curriculum, experts, dropped groups and their refills, validation, and a world model that is refreshed."""


def run(out: Path, *sets: str, **more: Any) -> Any:
    return dynaweb.run("dynaweb", overrides=[*ALL, *sets], out=out, seed=0, **more)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with all stages before reinforcement learning."""
    folder = tmp_path_factory.mktemp("ahead")
    cache = folder / "cache"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DYNAWEB_CACHE", str(cache))
        run(folder / "run", "rl.updates=0")
    return cache


def weights(folder: Path) -> bytes:
    return (folder / "checkpoints" / "dynaweb" / "model.safetensors").read_bytes()


def updates(folder: Path) -> list[dict[str, float]]:
    return [row["metrics"] for row in rows(folder, "update") if row["stage"] == "rl"]


@pytest.mark.parametrize(("most", "count"), [(1, 12), (2, 7)])
def test_a_killed_run_whose_rollouts_ran_ahead_goes_on_to_the_same_bits(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int, count: int
) -> None:
    sets = (f"rl.max_staleness={most}",)
    for name in ("whole", "killed"):
        shutil.copytree(prepared, tmp_path / f"cache-{name}")
    ended = exit_code(killed, tmp_path / "killed", str(tmp_path / "cache-killed"), "rl", count, *ALL, *sets)
    assert ended == -signal.SIGKILL
    monkeypatch.setenv("DYNAWEB_CACHE", str(tmp_path / "cache-killed"))
    run(tmp_path / "killed", *sets, resume=True)
    monkeypatch.setenv("DYNAWEB_CACHE", str(tmp_path / "cache-whole"))
    run(tmp_path / "whole", *sets)
    assert weights(tmp_path / "killed") == weights(tmp_path / "whole")
    assert updates(tmp_path / "killed") == updates(tmp_path / "whole")
    names = [f"staleness.{name}" for name in ("mean", "max", "share")]
    ages = [[metrics[name] for name in names] for metrics in updates(tmp_path / "whole")]
    assert ages == [[float(age := min(update, most)), float(age), float(age > 0)] for update in range(3)]
    assert all(metrics["updated"] for metrics in updates(tmp_path / "whole")), "no two versions are the same"
    kept = list(TrajectoryStore(tmp_path / "whole" / "trajectories" / "dreams.jsonl.gz"))
    ages_kept = {t.facts.update: {t.facts.update - step.policy_version for step in t.steps} for t in kept}  # type: ignore
    assert all(found <= {min(update, most)} for update, found in ages_kept.items() if update is not None)
    assert not list((tmp_path / "cache-whole" / "rl").rglob("*ahead*")), "nothing of it stays behind"
