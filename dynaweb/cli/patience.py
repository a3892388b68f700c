"""Word to who has asked a command to end, when it does not: a second signal ends it at once.

The first Ctrl-C lets a stage save its state. A plugin that blocks never lets it get there, and then nothing in Python's
own thread can say so; the bytes that the interpreter writes for each signal reach another thread all the same.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

WAIT = 2.0
"""Seconds after a signal without which an end is too slow."""
STILL = "still saving what is done, or waiting for something that does not answer; a second Ctrl-C ends it at once"

_told_of: list[int] = []


def tell_of_signals(wait: float = WAIT) -> None:
    """From now on say `STILL` on stderr once, `wait` seconds after the first SIGINT or SIGTERM. Twice is allowed."""
    if _told_of:
        return
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    _told_of.extend((reading, writing))
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    threading.Thread(target=_wait, args=(reading, wait), name="dynaweb-signals", daemon=True).start()


def _wait(reading: int, wait: float) -> None:
    while os.read(reading, 1)[0] not in (signal.SIGINT, signal.SIGTERM):
        continue
    # An end of the process ends this thread too.
    threading.Event().wait(wait)
    sys.stderr.write(f"{STILL}\n")
