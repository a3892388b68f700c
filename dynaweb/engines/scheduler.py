"""Lockstep: gather the model calls of concurrent episodes into batches that are the same in every run.

A batch is run when every live episode waits for an engine. An episode that still waits for a browser therefore keeps
the batch waiting, whatever the browser's speed, so that which requests share a batch depends on the episodes alone and
not on timing. Requests from outside any episode are run when the event loop has nothing else to do.

Where vLLM or a server answers some of the calls, nothing repeats bit for bit anyway, and an episode that waits for
a long reply would keep all others waiting. `free` then runs whatever is pending as soon as the loop has settled.

Rules for callers: take scarce things (a browser context, a semaphore) before entering `episode()`, never inside, since
a live episode that waits for another one would keep the batch waiting. Should that happen, the batch is run after
`stall_seconds` with a warning.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any, Generic, TypeVar

Request = TypeVar("Request")
Result = TypeVar("Result")

SETTLE_TURNS = 16
"""Turns of the event loop without news before a batch is run: a finished episode hands its place to the next."""

_log = logging.getLogger(__name__)


class _Life:
    """One live episode: how many engine requests and inner episodes it waits for."""

    __slots__ = ("waits",)

    def __init__(self) -> None:
        self.waits = 0


_current: ContextVar[_Life | None] = ContextVar("dynaweb_episode", default=None)


class Queue(Generic[Request, Result]):
    """The pending requests of one kind of engine call; made by `Lockstep.queue`."""

    def __init__(self, lockstep: Lockstep, run: Callable[[list[Request]], Sequence[Result]]) -> None:
        self._lockstep = lockstep
        self._run = run
        self._pending: list[tuple[Request, asyncio.Future[Result]]] = []

    def __len__(self) -> int:
        return len(self._pending)

    async def ask(self, request: Request) -> Result:
        """Wait for the batch that holds this request; raises what the batch raised."""
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._lockstep._enter_loop()
        entry = (request, future)
        self._pending.append(entry)
        life = _current.get()
        self._lockstep._count(life, +1)
        try:
            return await future
        finally:
            self._lockstep._count(life, -1)
            if entry in self._pending:
                self._pending.remove(entry)

    def flush(self) -> None:
        """Run all pending requests as one batch; its error, if any, goes to every caller."""
        entries = [entry for entry in self._pending if not entry[1].done()]
        self._pending.clear()
        if not entries:
            return
        try:
            results = self._run([request for request, _ in entries])
        except Exception as error:
            for _, future in entries:
                if not future.done():
                    future.set_exception(error)
            return
        # Ctrl-C cancels who waits while the batch is computed.
        for (_, future), result in zip(entries, results, strict=True):
            if not future.done():
                future.set_result(result)

    def drop(self) -> None:
        """Forget requests that belong to an event loop which is gone."""
        self._pending.clear()


class Lockstep:
    """Counts live episodes and those that wait for an engine; runs the batches when all of them wait.

    One object serves any number of engines and any number of `asyncio.run` calls, one loop at a time. `free` makes it
    wait for no episode: whatever is pending is a batch.
    """

    def __init__(self, *, free: bool = False, settle_turns: int = SETTLE_TURNS, stall_seconds: float = 120.0) -> None:
        self.free = free
        self._settle_turns = settle_turns
        self._stall_seconds = stall_seconds
        self._queues: list[Queue[Any, Any]] = []
        self._lives: set[_Life] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._news = 0
        self._checking = False
        self._stall: asyncio.TimerHandle | None = None
        self.batches = 0

    @property
    def live(self) -> int:
        """Number of registered episodes."""
        return len(self._lives)

    def queue(self, run: Callable[[list[Request]], Sequence[Result]]) -> Queue[Request, Result]:
        """A queue whose batches are computed by `run` (one result for each request, in order)."""
        queue: Queue[Request, Result] = Queue(self, run)
        self._queues.append(queue)
        return queue

    @asynccontextmanager
    async def episode(self) -> AsyncIterator[None]:
        """`async with lockstep.episode(): ...` around everything that one episode does.

        An episode inside an episode (a planner that dreams) counts as waiting for the outer one. Leaving it by an
        exception or by cancellation unregisters it.
        """
        self._enter_loop()
        outer, life = _current.get(), _Life()
        if outer not in self._lives:
            outer = None
        self._count(outer, +1)
        self._register(life)
        token = _current.set(life)
        try:
            yield
        finally:
            _current.reset(token)
            self._unregister(life)
            self._count(outer, -1)

    def _enter_loop(self) -> None:
        """Start clean when a new event loop is in use: requests of a dead loop can never be answered."""
        loop = asyncio.get_running_loop()
        if loop is self._loop:
            return
        self._loop = loop
        self._lives.clear()
        self._checking = False
        self._stall = None
        for queue in self._queues:
            queue.drop()

    def _count(self, life: _Life | None, change: int) -> None:
        if life is not None:
            life.waits += change
        self._notice()

    def _register(self, life: _Life) -> None:
        self._enter_loop()
        self._lives.add(life)
        self._notice()

    def _unregister(self, life: _Life) -> None:
        self._lives.discard(life)
        self._notice()

    def _notice(self) -> None:
        """Something changed: look again once the loop has settled."""
        self._news += 1
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None
        if not self._checking and self._loop is not None and any(map(len, self._queues)):
            self._checking = True
            self._loop.call_soon(self._settle, self._news, self._settle_turns)

    def _settle(self, news: int, turns: int) -> None:
        assert self._loop is not None
        # Replies of a server are news all the time: they put off nothing where no episode is waited for.
        if news != self._news and not self.free:
            news, turns = self._news, self._settle_turns
        if turns > 0:
            self._loop.call_soon(self._settle, news, turns - 1)
            return
        self._checking = False
        if self.free or all(life.waits > 0 for life in self._lives):
            self._run()
        elif any(map(len, self._queues)):
            self._stall = self._loop.call_later(self._stall_seconds, self._run_stalled)

    def _run(self) -> None:
        for queue in self._queues:
            if len(queue):
                self.batches += 1
                queue.flush()

    def _run_stalled(self) -> None:
        self._stall = None
        busy = sum(life.waits == 0 for life in self._lives)
        _log.warning(
            "%d of %d episodes did not reach the engine for %.0f s; running the batch without them",
            busy,
            len(self._lives),
            self._stall_seconds,
        )
        self._run()
