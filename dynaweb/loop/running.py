"""Coroutines for callers that are not asynchronous, or that run an event loop already; and the other ranks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from dynaweb.backends.team import Team

T = TypeVar("T")


def run_async(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end, also where an event loop is running already (a notebook): then in a thread.

    Ctrl-C cancels the coroutine, so that it can save its state, and is raised as `KeyboardInterrupt` afterwards.
    """
    # Nothing is run inside `except`: every later error would name this one as its cause.
    try:
        asyncio.get_running_loop()
        inside = True
    except RuntimeError:
        inside = False
    return _in_thread(work) if inside else asyncio.run(work)


def _in_thread(work: Coroutine[Any, Any, T]) -> T:
    loop = asyncio.new_event_loop()
    task = loop.create_task(work)
    thread = threading.Thread(target=lambda: loop.run_until_complete(asyncio.wait([task])), name="dynaweb-run")
    thread.start()
    try:
        thread.join()
    except KeyboardInterrupt:
        loop.call_soon_threadsafe(task.cancel)
        thread.join()
    finally:
        loop.close()
    return task.result()


def joined_team() -> Team | None:
    """The other ranks, where a launcher started several processes."""
    import os

    if int(os.environ.get("WORLD_SIZE", "1")) < 2:
        return None
    from dynaweb.backends.team import Team

    return Team.join()
