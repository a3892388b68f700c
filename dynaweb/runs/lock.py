"""One process at a time. The lock belongs to the operating system, so that a killed process leaves no stale one."""

from __future__ import annotations

import fcntl
import logging
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

log = logging.getLogger("dynaweb")

LOOKING_SECONDS = 0.2
"""How long a lock may be kept from its taker by those who look whether it is held (`is_locked`)."""


@contextmanager
def locked(path: Path, *, what: str, wait: bool) -> Iterator[bool]:
    """Hold an exclusive lock on `path` inside a `with` block.

    With `wait`, waits for the other process and yields True. Without, yields False at once when it is taken, and does
    not take those for its holder who only look.
    `what` names the locked thing in the log. Ctrl-C ends the waiting at once with `KeyboardInterrupt`, also inside an
    event loop.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # Without close-on-exec a browser that outlives a killed run would keep its lock; Python sets it.
    with path.open("a+", encoding="utf-8") as file:
        taken = _try(file.fileno()) or _try_beside_lookers(file.fileno())
        if not taken and wait:
            log.info("%s is being made by process %s; waiting for it", what, holder(path) or "?")
            with _interruptible():
                while not (taken := _try(file.fileno())):
                    time.sleep(0.05)
        if taken:
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
        yield taken


@contextmanager
def _interruptible() -> Iterator[None]:
    """Let SIGINT raise here: an event loop would only mark its task as cancelled, and this wait blocks the loop."""
    handler = signal.getsignal(signal.SIGINT)
    # Only the main thread may change handlers; a shell's background job ignores the signal on purpose.
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


def is_locked(path: Path) -> bool:
    """Whether a process holds the lock; nothing is written, so that whoever looks hinders nobody."""
    try:
        with path.open(encoding="utf-8") as file:
            fcntl.flock(file.fileno(), fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # no lock was ever taken, or nobody may look
        return False
    return False


def holder(path: Path) -> str:
    """The process id that a lock file names, or ''."""
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def _try(handle: int, kind: int = fcntl.LOCK_EX) -> bool:
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _try_beside_lookers(handle: int) -> bool:
    """Try again for as long as nobody holds the lock but those who look, each for a moment."""
    deadline = time.monotonic() + LOOKING_SECONDS
    # They share it, and with a holder it cannot be shared.
    while time.monotonic() < deadline and _try(handle, fcntl.LOCK_SH):
        fcntl.flock(handle, fcntl.LOCK_UN)
        if _try(handle):
            return True
        time.sleep(0.002 * (1 + random.random()))  # two that start at once must not meet at every turn
    return False
