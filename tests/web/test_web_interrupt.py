"""Ctrl-C while a browser is open: a terminal interrupts the whole group, so also Playwright's driver."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from web_pages import PageServer, serving

PLAYING = """
import asyncio, sys
from dynaweb.web.chromium.pool import BrowserPool

async def play(url):
    async with BrowserPool() as pool:
        session = await pool.session()
        await session.reset()
        print("browser", pool._seats[0].running.browser_pid, flush=True)
        while True:
            await session.goto(url)
            await session.observe()
            await session.reset()

try:
    asyncio.run(play(sys.argv[1]))
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@pytest.fixture(scope="module")
def server() -> Iterator[PageServer]:
    with serving() as running:
        running.pages["/"] = "<p>home</p><script>document.title = 'Home'</script>"
        yield running


@pytest.mark.parametrize("delay", [0.0, 0.2])
def test_an_interrupted_program_closes_its_browser_and_says_nothing(server: PageServer, delay: float) -> None:
    code, out, err, seconds = _interrupted([sys.executable, "-c", PLAYING, server.url()], "browser", delay)
    assert (code, out.split()[-1], err) == (0, "interrupted", "")
    assert seconds < 8
    browser = int(out.split()[1])
    assert _is_gone(browser), f"browser {browser} is still running"


def test_an_interrupted_evaluation_says_only_what_it_has_to_say(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "dynaweb", "eval", "--env", "sites", "--policy", "expert", "--episodes", "500"]
    chromium = ("--set", "env.driver=chromium", "--out", str(tmp_path / "run"))
    code, _, err, _ = _interrupted([*command, *chromium], cache=tmp_path / "cache")
    assert code == 130, err
    assert not any(word in err for word in ("Traceback", "driver", "never retrieved", "Event loop")), err


def _interrupted(
    command: Sequence[str], word: str = "", delay: float = 0.0, cache: Path | None = None
) -> tuple[int, str, str, float]:
    """Exit code, stdout, stderr, and seconds that a program needed to end after an interrupt of its whole group.

    It comes `delay` seconds after a line with `word`, or once an evaluation has kept episodes in its cache.
    """
    variables = {**os.environ, **({"DYNAWEB_CACHE": str(cache)} if cache else {})}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, **pipes, text=True, start_new_session=True, env=variables) as process:  # type: ignore[call-overload]
        output = process.stdout.readline() if word else ""
        assert word in output
        while cache is not None and process.poll() is None and not _has_entries(cache):
            time.sleep(0.05)
        time.sleep(delay)
        start = time.monotonic()
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=30)
        return process.returncode, output + out, err, time.monotonic() - start


def _has_entries(cache: Path) -> bool:
    return any(path.stat().st_size > 2000 for path in cache.rglob("episodes.jsonl.gz"))


def _is_gone(pid: int) -> bool:
    for _ in range(100):
        state = Path(f"/proc/{pid}/stat")
        if not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z":
            return True
        time.sleep(0.05)
    return False
