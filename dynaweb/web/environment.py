"""What environments of real pages share: the seeds of splits, episodes in a session, and work outside an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from dynaweb.errors import InfrastructureError
from dynaweb.types import Action, Observation, StepResult

if TYPE_CHECKING:
    from dynaweb.web.session import Session

T = TypeVar("T")

FIRST_SEED: Mapping[str, int] = {"pretrain": 0, "train": 10_000, "validation": 20_000, "test": 30_000}
"""Seeds of a split count from here."""
SEEDS_APART = 10_000
"""Most seeds that a split can have, so that splits share none."""


class SessionEnvironment:
    """Plays one episode at a time in a session. Sub-classes say how an episode starts, and end `reset` with `_look`."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._page: Observation | None = None

    async def step(self, action: Action) -> StepResult:
        """Act and look. `stop` ends the episode; a refused action gives `error` beside the page as it is then."""
        page = started(self._page)
        if action.kind == "stop":
            return StepResult(page, done=True)
        error = await self.session.act(action)
        return StepResult(await self._look(), error=error)

    async def close(self) -> None:
        """Close the session; calling it twice is allowed."""
        self._page = None
        await self.session.close()

    async def _look(self) -> Observation:
        self._page = await self.session.observe()
        return self._page


def started(page: Observation | None) -> Observation:
    """The page of an episode that has begun. Raises `InfrastructureError` for None."""
    if page is None:
        raise InfrastructureError("The environment was not reset: call reset(task, seed) before step(action).")
    return page


def run_apart(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in a thread with an event loop of its own, whether or not a loop is running here."""
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="dynaweb-apart") as thread:
        return thread.submit(asyncio.run, work).result()
