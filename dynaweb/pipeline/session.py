"""A session: one job in one run folder, with lock, observers, event loop, signals, errors and closing.

May be started from a program or from a notebook with a running event loop. Ctrl-C (or a cancellation) lets the running
stage save its state and raises `Interrupted`; `resume=True` goes on.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from dynaweb import events
from dynaweb.config.agreement import used_plugins
from dynaweb.errors import Interrupted, StorageError, TrainingError
from dynaweb.observers import MetricsFile
from dynaweb.observers.chosen import chosen_observers
from dynaweb.observers.progress import showing_progress
from dynaweb.pipeline.context import RunContext
from dynaweb.plugin.registry import Plugins, current
from dynaweb.runs import StageCache, open_run
from dynaweb.runs.cache import default_root
from dynaweb.runs.folder import choose_folder
from dynaweb.runs.space import out_of_space, storage_error

if TYPE_CHECKING:
    from dynaweb.config import Recipe
    from dynaweb.runs import RunFolder
    from dynaweb.trainer.distributed.team import Team

T = TypeVar("T")
Job = Callable[[RunContext], Awaitable[T]]
Check = Callable[[RunContext], None]
Closing = Callable[[Path], dict[str, Any]]


def in_folder(
    recipe: Recipe,
    job: Job[T],
    *,
    out: Path | None,
    resume: bool = False,
    command: str = "run",
    subject: str = "",
    closing: Closing = lambda path: {},
    check: Check = lambda ctx: None,
    progress: bool = False,
) -> T:
    """Do a job in a run folder of its own, with its metrics file, its status, and word to the observers.

    `subject` is what the command is about beside its recipe: see `open_run`. What cannot be is said
    by `check` before there is a folder; `closing` gives the results that observers hear of.
    """
    plugins = current()
    with showing_progress(plugins, progress):
        ctx = RunContext(recipe, plugins, StageCache())
        try:
            # It costs nothing, and `check` may import torch.
            choose_folder(recipe, out=out, resume=resume, command=command, subject=subject)
            ctx.models.require()
            if recipe.web.endpoint:
                from dynaweb.web.chromium.pool import check_endpoints

                check_endpoints(recipe.web)
            check(ctx)
        except Exception:
            ctx.models.team = joined_team()  # who waits for this process is sent home when it closes
            raise
        finally:
            run_async(ctx.close())
        chosen = plugins.manifest(used_plugins(recipe, plugins))
        folder = open_run(recipe, out=out, resume=resume, plugins=chosen, command=command, subject=subject)
        with folder.lock():
            folder.begin()
            metrics = MetricsFile(folder.metrics)
            try:
                with plugins.observing(metrics), chosen_observers(recipe, plugins, folder.path):
                    plugins.notify(events.RunStart(folder.path, recipe.tree(), tuple(chosen), folder.resumed))
                    return _to_its_end(_work(recipe, job, folder, plugins), folder, plugins, closing)
            finally:
                metrics.close()


async def _work(recipe: Recipe, job: Job[T], folder: RunFolder, plugins: Plugins) -> T:
    cache = StageCache(notify=plugins.notify)
    ctx = RunContext(recipe, plugins, cache, folder)
    ctx.models.team = joined_team()
    if recipe.run.time_budget:
        ctx.deadline = time.monotonic() + 60 * recipe.run.time_budget
    try:
        return await job(ctx)
    finally:
        await ctx.close()
        cache.close()


def _to_its_end(work: Coroutine[Any, Any, T], folder: RunFolder, plugins: Plugins, closing: Closing) -> T:
    """Run the work; however it ends, the folder's status and the observers say how."""
    started = time.monotonic()

    def end(status: Any, error: BaseException | None = None) -> None:
        if error is not None and not isinstance(error, Interrupted):
            plugins.notify(events.Failure(where="run", error=f"{type(error).__name__}: {error}", fatal=True))
        folder.set_status(status, **({"error": str(error)} if error is not None else {}))
        results = closing(folder.path) if status == "done" else {}
        plugins.notify(events.RunEnd(folder.path, status, time.monotonic() - started, results))
        if status == "done":
            folder.finish()

    try:
        result = run_async(work)
    except (asyncio.CancelledError, KeyboardInterrupt) as error:
        stopped = Interrupted(f"interrupted; the state is saved, {folder.how_to_go_on}")
        end("interrupted", stopped)
        raise stopped from error
    except BaseException as error:
        full = storage_error(error, folder.path, default_root())
        cause = error if full is None else StorageError(f"{full}; when it can be written to, {folder.how_to_go_on}")
        if isinstance(error, SystemExit):
            cause = TrainingError(f"something in the run asked the process to exit: sys.exit({error.code!r})")
        # A full disk may not take the status either, and the reason is what has to be said.
        with suppress(*((OSError, StorageError) if out_of_space(error) else ())):
            end("failed", cause)
        if cause is error:
            raise
        raise cause from error
    end("done")
    return result


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
    if int(os.environ.get("WORLD_SIZE", "1")) < 2:
        return None
    from dynaweb.trainer.distributed.team import Team

    return Team.join()
