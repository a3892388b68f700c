"""Locks of the operating system: one holder, and no one kept from it by those who only look."""

from __future__ import annotations

import fcntl
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from dynaweb.runs.lock import LOOKING_SECONDS, holder, is_locked, locked

LOOKS = """
import sys
from pathlib import Path
from dynaweb.runs.lock import is_locked

while True:
    is_locked(Path(sys.argv[1]))
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A lock that was taken once, and is free."""
    lock = tmp_path / ".lock"
    with locked(lock, what="", wait=False) as taken:
        assert taken and is_locked(lock)
    assert not is_locked(lock)
    return lock


def test_a_lock_is_taken_while_another_process_looks_all_the_time(path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", LOOKS, str(path)]) as process:
        try:
            time.sleep(0.5)
            for _ in range(500):
                with locked(path, what="", wait=False) as taken:
                    assert taken
        finally:
            process.kill()


def test_one_who_looks_for_a_moment_keeps_nobody_out(path: Path) -> None:
    with path.open() as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        threading.Timer(LOOKING_SECONDS / 4, lambda: fcntl.flock(looking, fcntl.LOCK_UN)).start()
        with locked(path, what="", wait=False) as taken:
            assert taken and is_locked(path)


def test_one_who_shares_the_lock_for_good_has_it(path: Path) -> None:
    with path.open() as shared:
        fcntl.flock(shared, fcntl.LOCK_SH)
        with locked(path, what="", wait=False) as taken:
            assert not taken


def test_a_lock_that_is_held_is_refused_at_once(path: Path) -> None:
    with locked(path, what="", wait=False) as taken:
        started, written = time.monotonic(), holder(path)
        with locked(path, what="", wait=False) as again:
            assert taken and not again and time.monotonic() - started < LOOKING_SECONDS / 2
        assert holder(path) == written and is_locked(path)


def test_of_many_that_start_at_once_one_gets_the_lock(path: Path) -> None:
    start, end, taken = threading.Barrier(8), threading.Barrier(8), list[bool]()

    def take() -> None:
        start.wait()
        with locked(path, what="", wait=False) as mine:
            taken.append(mine)
            end.wait(20)

    threads = [threading.Thread(target=take) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(taken) == 1
