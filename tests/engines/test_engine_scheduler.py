"""Lockstep: batches depend on the episodes, not on timing."""

from __future__ import annotations

import asyncio
import logging
import random

import pytest

from dynaweb.engines.scheduler import Lockstep, Queue


class Recorder:
    """An engine that doubles numbers and remembers its batches."""

    def __init__(self, lockstep: Lockstep) -> None:
        self.batches: list[list[int]] = []
        self.queue: Queue[int, int] = lockstep.queue(self._run)

    def _run(self, requests: list[int]) -> list[int]:
        self.batches.append(sorted(requests))
        return [2 * request for request in requests]


async def _jitter(rng: random.Random) -> None:
    await asyncio.sleep(rng.choice([0, 0, 0.001, 0.003]))


async def _play(lockstep: Lockstep, engine: Recorder, name: int, steps: int, rng: random.Random) -> int:
    total = 0
    async with lockstep.episode():
        for step in range(steps):
            await _jitter(rng)
            total += await engine.queue.ask(100 * name + step)
        await _jitter(rng)
    return total


@pytest.mark.parametrize("seed", range(5))
async def test_batches_do_not_depend_on_timing(seed: int) -> None:
    lockstep = Lockstep()
    engine = Recorder(lockstep)
    rng = random.Random(seed)
    totals = await asyncio.gather(*(_play(lockstep, engine, name, 2 + name, rng) for name in range(3)))
    assert engine.batches == [[0, 100, 200], [1, 101, 201], [102, 202], [203]]
    assert totals == [2, 2 * 303, 2 * 806]
    assert lockstep.live == 0


async def test_where_a_server_answers_too_nobody_waits_for_an_episode_that_asks_it() -> None:
    lockstep = Lockstep(free=True)
    engine = Recorder(lockstep)
    server = asyncio.Event()

    async def slow() -> int:
        async with lockstep.episode():
            await server.wait()
            return await engine.queue.ask(1)

    waiting = asyncio.ensure_future(slow())
    assert await asyncio.wait_for(_play(lockstep, engine, 1, 3, random.Random(0)), 30) == 2 * 303
    assert engine.batches == [[100], [101], [102]] and not waiting.done()
    server.set()
    assert await waiting == 2


async def test_a_free_batch_is_run_while_news_come_all_the_time() -> None:
    lockstep = Lockstep(free=True)
    engine = Recorder(lockstep)
    done = asyncio.Event()

    async def news() -> None:
        while not done.is_set():
            async with lockstep.episode():
                await asyncio.sleep(0)

    noisy = asyncio.ensure_future(news())
    assert await asyncio.wait_for(engine.queue.ask(4), 30) == 8
    done.set()
    await noisy


@pytest.mark.parametrize("seed", range(5))
async def test_a_freed_place_is_taken_before_the_next_batch(seed: int) -> None:
    lockstep = Lockstep()
    engine = Recorder(lockstep)
    rng = random.Random(seed)
    places = asyncio.Semaphore(2)

    async def limited(name: int) -> None:
        async with places:
            await _play(lockstep, engine, name, 1 + name % 2, rng)

    await asyncio.gather(*(limited(name) for name in range(4)))
    assert engine.batches == [[0, 100], [101, 200], [300], [301]]


async def test_works_without_any_episode() -> None:
    engine = Recorder(Lockstep())
    assert await asyncio.gather(*(engine.queue.ask(i) for i in range(4))) == [0, 2, 4, 6]
    assert engine.batches == [[0, 1, 2, 3]]


async def test_requests_from_outside_join_the_batch() -> None:
    lockstep = Lockstep()
    engine = Recorder(lockstep)
    await asyncio.gather(engine.queue.ask(7), _play(lockstep, engine, 0, 1, random.Random(0)))
    assert engine.batches == [[0, 7]]


async def test_a_call_from_a_helper_inside_an_episode_counts_as_its_own() -> None:
    lockstep = Lockstep()
    engine = Recorder(lockstep)
    judge = Recorder(lockstep)

    async def judged() -> None:
        async with lockstep.episode():
            await engine.queue.ask(1)
            await asyncio.gather(judge.queue.ask(2), judge.queue.ask(3))

    await asyncio.gather(judged(), _play(lockstep, engine, 1, 2, random.Random(0)))
    assert engine.batches == [[1, 100], [101]]
    assert judge.batches == [[2, 3]]


async def test_an_inner_episode_counts_as_waiting() -> None:
    lockstep = Lockstep()
    engine = Recorder(lockstep)

    async def planner() -> None:
        async with lockstep.episode():
            await asyncio.gather(*(_play(lockstep, engine, name, 2, random.Random(0)) for name in (1, 2)))
            await engine.queue.ask(9)

    await asyncio.wait_for(planner(), 5)
    assert engine.batches == [[100, 200], [101, 201], [9]]


async def test_an_episode_that_raises_or_is_cancelled_leaves() -> None:
    lockstep = Lockstep()
    engine = Recorder(lockstep)

    async def fails() -> None:
        async with lockstep.episode():
            await engine.queue.ask(5)
            raise ValueError("broken page")

    async def hangs() -> None:
        async with lockstep.episode():
            await asyncio.sleep(60)

    hanging = asyncio.create_task(hangs())
    player = asyncio.create_task(_play(lockstep, engine, 1, 2, random.Random(0)))
    failing = asyncio.create_task(fails())
    await asyncio.sleep(0.02)
    assert engine.batches == []
    hanging.cancel()
    assert await asyncio.wait_for(player, 5) == 2 * 201
    with pytest.raises(ValueError, match="broken page"):
        await failing
    assert engine.batches == [[5, 100], [101]]
    assert lockstep.live == 0


async def test_a_cancelled_request_is_not_computed() -> None:
    lockstep = Lockstep()
    engine = Recorder(lockstep)

    async def waiting() -> None:
        async with lockstep.episode():
            await asyncio.sleep(0.03)
            await engine.queue.ask(2)

    async def impatient() -> None:
        async with lockstep.episode():
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(engine.queue.ask(1), 0.005)

    await asyncio.gather(waiting(), impatient())
    assert engine.batches == [[2]]


@pytest.mark.parametrize("fails", [False, True])
async def test_an_episode_may_be_cancelled_while_its_batch_is_computed(fails: bool) -> None:
    """As by Ctrl-C, whose handler runs between two instructions of the batch."""
    lockstep, trouble = Lockstep(), []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: trouble.append(context["message"]))
    tasks: list[asyncio.Task[int]] = []

    def run(requests: list[int]) -> list[int]:
        tasks[0].cancel()
        if fails:
            raise ValueError("no batch")
        return [2 * request for request in requests]

    queue = lockstep.queue(run)
    tasks += [asyncio.create_task(queue.ask(number)) for number in range(3)]
    found = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 10)
    assert isinstance(found[0], asyncio.CancelledError)
    assert found[1:] == [2, 4] if not fails else [str(error) for error in found[1:]] == ["no batch"] * 2
    assert trouble == []


async def test_an_engine_error_reaches_every_caller_and_the_next_batch_works() -> None:
    lockstep = Lockstep()

    def run(requests: list[int]) -> list[int]:
        if 13 in requests:
            raise RuntimeError("out of memory")
        return requests

    queue: Queue[int, int] = lockstep.queue(run)
    found = await asyncio.gather(queue.ask(1), queue.ask(13), return_exceptions=True)
    assert [str(error) for error in found] == ["out of memory", "out of memory"]
    assert await queue.ask(2) == 2


async def test_a_stall_is_told_and_broken(caplog: pytest.LogCaptureFixture) -> None:
    lockstep = Lockstep(stall_seconds=0.05)
    engine = Recorder(lockstep)
    lock = asyncio.Lock()

    async def one(number: int) -> int:
        async with lockstep.episode(), lock:
            return await engine.queue.ask(number)

    with caplog.at_level(logging.WARNING):
        assert await asyncio.wait_for(asyncio.gather(one(1), one(2)), 5) == [2, 4]
    assert "1 of 2 episodes did not reach the engine" in caplog.text


def test_serves_one_event_loop_after_another() -> None:
    lockstep = Lockstep()
    engine = Recorder(lockstep)

    async def abandoned() -> None:
        async def stuck() -> None:
            async with lockstep.episode():
                await asyncio.sleep(60)

        task = asyncio.create_task(stuck())
        request = asyncio.create_task(engine.queue.ask(1))
        await asyncio.sleep(0.01)
        del task, request

    asyncio.run(abandoned())
    assert asyncio.run(_play(lockstep, engine, 1, 1, random.Random(0))) == 200
    assert engine.batches == [[100]]
