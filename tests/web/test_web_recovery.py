"""Browsers that are killed, crash, hang or do not let go: an episode is lost at most, and no process stays."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from web_pages import PageServer, serving, text_of

from dynaweb.errors import InfrastructureError
from dynaweb.types import Action
from dynaweb.web.chromium import context as context_module
from dynaweb.web.chromium import pool as browser_module
from dynaweb.web.chromium.pool import BrowserPool

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def server() -> Iterator[PageServer]:
    with serving() as running:
        running.pages["/"] = "<p>home</p><a href=/next>next</a>"
        running.pages["/spin"] = "<button onclick='setTimeout(() => { while (1); }, 0)'>Spin</button>"
        yield running


async def test_a_killed_browser_is_started_again(server: PageServer) -> None:
    async with BrowserPool() as pool:
        session, other = await pool.session(), await pool.session()
        for one in (session, other):
            await one.reset()
            await one.goto(server.url())
        await session.observe()
        _kill_browsers_of(pool)
        with pytest.raises(InfrastructureError):
            for _ in range(50):
                await session.act(Action("wait"))
                await asyncio.sleep(0.02)
        with pytest.raises(InfrastructureError):
            await other.observe()
        start = time.perf_counter()
        for one in (session, other):
            await one.reset()
            await one.goto(server.url())
            assert "home" in await text_of(one)
        assert pool.launches == 2
        assert time.perf_counter() - start < 25


async def test_a_script_that_does_not_end_is_stopped(server: PageServer) -> None:
    async with BrowserPool(timeout=0.2, deadline=1.0) as pool:
        session = await pool.session()
        await session.reset()
        await session.goto(server.url("/spin"))
        page = await session.observe()
        start = time.perf_counter()
        await session.act(Action("click", page.nodes[0].id))
        page = await session.observe()
        assert page.nodes[0].name == "Spin"
        assert "did not end within 1 s and was stopped" in page.notice
        assert (await session.observe()).notice == ""
        assert time.perf_counter() - start < 15
        assert not session._open.dirty  # type: ignore[union-attr]


async def test_a_page_that_hangs_while_it_loads_is_stopped(server: PageServer) -> None:
    server.pages["/stuck"] = "<p>before</p><script>while (1);</script><p>after</p>"
    async with BrowserPool(timeout=0.3, deadline=1.0) as pool:
        session = await pool.session()
        await session.reset()
        start = time.perf_counter()
        await session.goto(server.url("/stuck"))
        page = await session.observe()
        assert page.nodes[0].name == "before"
        assert "was stopped" in page.notice
        assert time.perf_counter() - start < 15


async def test_a_page_that_spins_for_ever_costs_one_episode(server: PageServer) -> None:
    server.pages["/spins"] = "<button onclick='setInterval(() => { while (1); }, 0)'>Spin</button>"
    async with BrowserPool(timeout=0.2, deadline=1.0) as pool:
        session, other = await pool.session(), await pool.session()
        for one in (session, other):
            await one.reset()
            await one.goto(server.url("/spins"))
        page = await session.observe()
        start = time.perf_counter()
        with pytest.raises(InfrastructureError):
            await session.act(Action("click", page.nodes[0].id))
            await session.observe()
        await session.reset()
        await session.goto(server.url())
        assert "home" in await text_of(session)
        assert time.perf_counter() - start < 30
        assert "Spin" in await text_of(other)
        assert pool.launches == 1


async def test_a_browser_that_does_not_let_go_is_ended(server: PageServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context_module, "_CLOSE_SECONDS", 0.5)
    async with BrowserPool() as pool:
        session = await pool.session()
        await session.reset()
        await session.goto(server.url())
        opened = session._open
        assert opened is not None

        async def hang() -> None:
            await asyncio.sleep(60)

        monkeypatch.setattr(opened.context, "close", hang)
        opened.spoil()
        await session.reset()
        await session.goto(server.url())
        assert "home" in await text_of(session)
        assert pool.launches == 2


FORGETFUL = """
import asyncio, sys
from dynaweb.web.chromium.pool import BrowserPool
pool = BrowserPool()

async def play():
    session = await pool.session()
    await session.reset()
    await session.goto(sys.argv[1])
    return pool._seats[0].running.browser_pid

pids = [asyncio.run(play()) for _ in range(2)]
asyncio.run(pool.close())
print(*pids)
"""


async def test_a_pool_that_was_not_closed_leaves_no_browser(server: PageServer) -> None:
    command = [sys.executable, "-c", FORGETFUL, server.url()]
    done = await asyncio.to_thread(
        lambda: subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    )
    pids = {int(word) for word in done.stdout.split()}
    assert len(pids) == 2
    for _ in range(100):
        if not pids & set(dict(filter(None, map(_parent_of, Path("/proc").iterdir())))):
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"browsers are still running: {pids}")


DRIVERLESS = """
import asyncio, gc, os, signal, sys
from pathlib import Path
from dynaweb.errors import BrowserError
from dynaweb.web.chromium.pool import BrowserPool

def driver():
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            name, _, rest = (folder / "stat").read_text().partition("(")[2].rpartition(")")
        except OSError:
            continue
        if rest.split()[0] != "Z" and int(rest.split()[1]) == os.getpid() and name.startswith("node"):
            return int(folder.name)

async def browse(session):
    try:
        while True:
            await session.goto(sys.argv[1])
    except BrowserError:
        return "lost"

async def main():
    async with BrowserPool(timeout=1) as pool:
        session = await pool.session()
        for turn in range(2):
            await session.reset()
            await session.goto(sys.argv[1])
            work = asyncio.create_task(browse(session))
            await asyncio.sleep(0.1)
            os.kill(driver(), signal.SIGKILL)
            print(await work)
        await session.reset()
        await session.goto(sys.argv[1])
        print("home" if "home" in (await session.observe()).nodes[0].name else "elsewhere", pool.launches)
    gc.collect()

asyncio.run(main())
"""


async def test_a_driver_that_dies_twice_costs_two_episodes_and_nothing_is_said(server: PageServer) -> None:
    command = [sys.executable, "-c", DRIVERLESS, server.url()]
    done = await asyncio.to_thread(lambda: subprocess.run(command, capture_output=True, text=True, timeout=120))
    assert (done.stdout.split(), done.stderr) == (["lost", "lost", "home", "3"], "")


def _kill_browsers_of(pool: BrowserPool) -> None:
    """Kill the browser processes below this one, and nothing else."""
    assert sys.platform == "linux"
    assert pool.launches == 1
    parents = dict(filter(None, map(_parent_of, Path("/proc").iterdir())))
    mine = {os.getpid()}
    for pid in sorted(parents):
        if parents[pid][0] in mine:
            mine.add(pid)
    for pid in mine - {os.getpid()}:
        if "chrom" in parents[pid][1]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _parent_of(folder: Path) -> tuple[int, tuple[int, str]] | None:
    """(pid, (parent's pid, name)) of a folder of /proc."""
    with suppress(OSError, ValueError):
        stat = (folder / "stat").read_text()
        name, _, rest = stat.partition("(")[2].rpartition(")")
        if rest.split()[0] != "Z":
            return int(folder.name), (int(rest.split()[1]), name)
    return None


async def test_an_interrupt_right_after_the_launch_ends_the_browser(monkeypatch: pytest.MonkeyPatch) -> None:
    started = []
    pid_of = browser_module._browser_pid

    async def interrupted(browser: object) -> int:
        started.append(await pid_of(browser))  # type: ignore[arg-type]
        raise asyncio.CancelledError

    monkeypatch.setattr(browser_module, "_browser_pid", interrupted)
    session = await BrowserPool().session()
    with pytest.raises(asyncio.CancelledError):
        await session.reset()
    assert started[0] > 0
    for _ in range(100):
        if not Path(f"/proc/{started[0]}").exists():
            return
        await asyncio.sleep(0.05)
    raise AssertionError("the browser is still running")
