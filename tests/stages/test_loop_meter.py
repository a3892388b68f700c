"""Memory of a process and its children, counted once where they share it."""

from __future__ import annotations

import subprocess
import sys

import pytest

CHILD = """
import os, sys, time
from dynaweb.pipeline.costs import memory_mib
before = memory_mib()
block = bytearray(os.urandom(1024)) * (200 * 1024)
alone = memory_mib()
children = []
for _ in range(3):
    pid = os.fork()
    if not pid:
        total = sum(block[::4096])
        time.sleep(60)
        os._exit(0)
    children.append(pid)
time.sleep(0.5)
print(before, alone, memory_mib(), memory_mib(10 ** 9))
sys.stdout.flush()
for pid in children:
    os.kill(pid, 9)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="shares of memory are known on Linux alone")
def test_memory_that_children_share_counts_once() -> None:
    done = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, timeout=60, check=True)
    before, alone, shared, resident = (float(word) for word in done.stdout.split())
    assert 180 < alone - before < 260
    assert shared - alone < 100, "a forked child that only reads has next to no memory of its own"
    assert resident - alone > 500, "its resident size is that of its parent"


LARGE_CHILD = """
import subprocess, sys
from dynaweb.pipeline.costs import Meter, memory_mib
before = memory_mib()
code = "block = bytearray(b'x') * (150 * 1024 * 1024); print(len(block), flush=True); input()"
child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
assert int(child.stdout.readline()) == 150 * 1024 * 1024
during = memory_mib()
meter = Meter()
meter.count(3, browser=True, evaluation=False)
child.kill()
child.communicate()
print(before, during, memory_mib(), meter.memory, meter.cost()["peak_memory_mib"])
"""


def test_a_child_with_memory_of_its_own_counts() -> None:
    pytest.importorskip("psutil")
    # In a process of its own: that of the tests frees memory of earlier ones whenever it likes.
    done = subprocess.run([sys.executable, "-c", LARGE_CHILD], capture_output=True, text=True, timeout=60, check=True)
    before, during, after, sampled, peak = (float(word) for word in done.stdout.split())
    assert 140 < during - before < 250
    assert 140 < sampled - after < 250, "what was seen while the child lived stays"
    assert peak >= sampled
