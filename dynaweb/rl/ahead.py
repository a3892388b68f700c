"""Asynchronous training: rollouts run ahead of the updates that learn from them, by at most `rl.max_staleness` updates.

The rollouts of update n are played with the weights after update n - k or later, so that no token of a batch is older
than k updates when it is learned from (the bound of AReaL, arXiv 2505.24298, section 5.1, which there is called eta;
TRL's asynchronous trainer calls it `max_staleness` too, and throws older samples away). Two orders of work:

In order   An engine that computes with the trainer's own weights cannot go on while these change. Before update n it
           plays the rollouts of update n + k, with the weights that are there; the first k updates learn from those of
           the first policy. What is played, and with which weights, is the same in every run, bit for bit. This gains
           no time: it shows what staleness costs.
At once    An engine with weights of its own (`Engine.detach`) plays on while the trainer works, in a thread of its own.
           The rollouts of update n begin as soon as update n - k is done, also while the last long ones of update n - 1
           are still being played, as far as there are places. New weights reach the engine between two requests, so
           that an episode may see several versions. Each of its steps carries its own.

Rollouts that wait are saved with every checkpoint: the weights that played them are gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from dynaweb.errors import CheckpointError
from dynaweb.rollout.curriculum import Outcome, outcomes_of
from dynaweb.types import Trajectory

if TYPE_CHECKING:
    from dynaweb.config import Recipe

T = TypeVar("T")
Outcomes = Sequence[Sequence[Outcome]]
Play = Callable[[int, Outcomes], Awaitable[list[Trajectory]]]
"""Plays and judges the rollouts of an update; it is told the outcomes of the first updates, as far as they are known:
in order of all before it, at once maybe not of the last ones."""

BATCHES = "ahead.jsonl.gz"


class RunAhead:
    """The rollouts of the updates of an RL stage, and those that wait for theirs; a partner of its checkpoints.

    `play` plays those of one update; in order one update after the other. `most` is `rl.max_staleness`, `last` the
    number of updates, beyond which nothing is played, `outcomes` are those of the updates that are done. `at_once` is
    set before the first rollouts: playing goes on while updates are made, and `play` is called again before it is done,
    so it has to keep to the places that there are. Close it when the updates are over.
    """

    def __init__(self, play: Play, *, most: int, last: int, outcomes: Outcomes = (), at_once: bool = False) -> None:
        self.most, self.last, self.at_once = most, last, at_once
        self._play, self._outcomes = play, outcomes
        self._batches: dict[int, list[Trajectory]] = {}
        self._done = 0
        self._player: asyncio.Task[None] | None = None
        self._starting = asyncio.Lock()
        self._playing: set[asyncio.Task[None]] = set()
        self._played, self._advanced = asyncio.Event(), asyncio.Event()
        self._thread: ThreadPoolExecutor | None = None

    async def of_update(self, update: int) -> list[Trajectory]:
        """The rollouts of an update, all those before it being done. Raises what stopped the playing."""
        self._done = update
        for number in [number for number in self._batches if number < update]:
            del self._batches[number]
        if self.at_once:
            await self._waited_for(update)
        else:
            for number in self._missing(min(update + self.most + 1, self.last)):
                await self._add(number)
        return self._batches[update]

    async def compute(self, work: Callable[[], T]) -> T:
        """What `work` returns, which changes the trainer's weights; with `at_once` playing goes on meanwhile."""
        if not self.at_once:
            return work()
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "trainer")
        working = asyncio.get_running_loop().run_in_executor(self._thread, work)
        try:
            return await asyncio.shield(working)
        except asyncio.CancelledError:
            # A thread cannot be stopped, and nobody may save or free weights that it moves.
            await asyncio.wait([working])
            if not working.cancelled():
                working.exception()  # nobody asks for it any more
            raise

    def advance(self) -> None:
        """One more update is done, and the engine has its weights."""
        self._done += 1
        self._advanced.set()

    @asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        """Nothing is played while inside: what is being played is finished first."""
        async with self._starting:
            if self._playing:
                await asyncio.wait(self._playing)
            yield

    async def close(self) -> None:
        """End the playing."""
        player, self._player = self._player, None
        if player is not None:
            player.cancel()
            await asyncio.gather(player, return_exceptions=True)
        if self._thread is not None:
            self._thread.shutdown()

    # A partner of checkpoints

    def save(self, folder: Path, updates: int) -> None:
        """Write all rollouts that wait for their update; older files stay until `prune`."""
        from dynaweb.data.store import TrajectoryStore

        waiting = [t for number in sorted(self._batches) if number >= updates for t in self._batches[number]]
        TrajectoryStore.write(self._file(folder, updates), waiting)

    def load(self, folder: Path, updates: int) -> None:
        """Go on from the file for so many updates. Raises `CheckpointError` when it is not there."""
        from dynaweb.data.store import TrajectoryStore

        path = self._file(folder, updates)
        if not path.is_file():
            raise CheckpointError(f"there are no rollouts that ran ahead of update {updates} in {folder}")
        self._done, self._batches = updates, {}
        for trajectory in TrajectoryStore(path):
            self._batches.setdefault(int(trajectory.id.partition("/")[0]), []).append(trajectory)

    def prune(self, folder: Path, checkpoints: Set[int]) -> None:
        """Remove the files but those for as many updates as one of the trainer's own checkpoints has."""
        for old in folder.glob(f"*-{BATCHES}"):
            if old not in {self._file(folder, done) for done in checkpoints}:
                old.unlink()

    def finish(self, folder: Path, updates: int) -> None:
        """Leaves nothing: after the last update no rollouts wait."""

    @staticmethod
    def _file(folder: Path, updates: int) -> Path:
        return folder / f"{updates:06d}-{BATCHES}"

    # Playing

    def _missing(self, end: int) -> list[int]:
        """The updates before `end` whose rollouts are yet to be played, in order: a long one may be played to its end
        after the next one is."""
        return [number for number in range(self._done, end) if number not in self._batches]

    async def _add(self, number: int) -> None:
        """Play the rollouts of an update, and tell of the outcomes before it as far as they are known."""
        known = [*self._outcomes]
        while len(known) in self._batches and len(known) < number:
            known.append(outcomes_of(self._batches[len(known)]))
        self._batches[number] = await self._play(number, known)
        self._played.set()

    async def _waited_for(self, update: int) -> None:
        if self._player is None:
            self._player = asyncio.get_running_loop().create_task(self._play_on())
        while update not in self._batches:
            if self._player.done():
                self._player.result()  # raises what stopped it
            self._played.clear()
            played = asyncio.ensure_future(self._played.wait())
            try:
                await asyncio.wait((self._player, played), return_when=asyncio.FIRST_COMPLETED)
            finally:
                played.cancel()

    async def _play_on(self) -> None:
        """Play all that is missing. Raises what stopped the first that was stopped."""
        try:
            async with asyncio.TaskGroup() as group:
                for number in self._missing(self.last):
                    while number > self._done + self.most:
                        self._advanced.clear()
                        await self._advanced.wait()
                    async with self._starting:
                        playing = group.create_task(self._add(number))
                        self._playing.add(playing)
                        playing.add_done_callback(self._playing.discard)
        except BaseExceptionGroup as stopped:
            raise stopped.exceptions[0] from None


def order_of_work(recipe: Recipe) -> str:
    """What a recipe's `rl.max_staleness` means, in words; '' where training is on-policy."""
    most, cap, engine = recipe.rl.max_staleness, recipe.rl.stale_cap, recipe.policy.engine
    if not most or not recipe.rl.updates:
        return ""
    how = (
        "played in order, before the update that they run ahead of (the engine uses the trainer's own weights)"
        if engine.name == "transformers"
        else f"played while the trainer works, where the engine {engine.name} has weights and memory of its own"
    )
    ratio = {
        "sampler": "ratios are taken against the log-probabilities of the sampler",
        "decoupled": f"ratios are taken against the policy before the update, tokens weighed up to {cap:g}",
    }[recipe.rl.stale_ratio]
    return f"Asynchronous: rollouts of at most {most} updates earlier, {how}; {ratio}"
