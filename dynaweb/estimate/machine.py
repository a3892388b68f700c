"""What this machine has: memory, accelerators, and how fast it multiplies matrices."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass

from dynaweb.runs.processes import python_options

GIB = 2**30

MEASURE = """
import time, numpy
a = numpy.ones((512, 512), "float32")
a @ a
start, count = time.process_time(), 0
while time.process_time() - start < 0.1:
    a @ a
    count += 1
print(2 * 512**3 * count / (time.process_time() - start))
"""
"""Operations per second of a core on matrix products in float32, counted in its own time, so that other work on the
machine does not matter; in a process of its own, since numpy takes its time to load."""

PUBLISHED = {"H200": 989e12, "H100": 989e12, "H800": 989e12, "A100": 312e12, "L40S": 362e12, "4090": 165e12}
"""Operations per second in bfloat16 with float32 sums, without sparsity, by what is in the name of a GPU: the makers'
data sheets."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Memory in bytes; `flops` are operations per second of one device (0 = not known)."""

    device: str
    devices: int
    memory: int
    host_memory: int
    flops: float
    """Of matrix products: measured on a CPU, published for a GPU."""

    @property
    def is_cpu(self) -> bool:
        """Whether all processes share one memory and the cores of a CPU."""
        return self.device.startswith("CPU")

    @property
    def words(self) -> str:
        """One line."""
        speed = f", {self.flops / 1e12:.3g} TFLOP/s" if self.flops else ""
        return f"{self.devices} x {self.device}, {self.memory / GIB:.1f} GiB each{speed}"


def look(device: str = "auto") -> Machine:
    """The machine at hand; `device` as `model.device` says it."""
    gpus = [] if device == "cpu" else _gpus()
    host = _host_memory()
    if not gpus:
        return Machine(f"CPU of {os.cpu_count() or 1} cores", 1, host, host, _measured())
    name, memory = gpus[0]
    flops = next((speed for part, speed in PUBLISHED.items() if part in name), 0.0)
    return Machine(name, len(gpus), memory, host, flops)


def _gpus() -> list[tuple[str, int]]:
    """Name and bytes of each GPU that may be used."""
    ask = ["nvidia-smi", "--query-gpu=index,name,memory.total", "--format=csv,noheader,nounits"]
    try:
        listing = subprocess.run(ask, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    rows = [[part.strip() for part in line.split(",")] for line in listing.splitlines() if line.count(",") == 2]
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    allowed = None if chosen is None else {part.strip() for part in chosen.split(",")}
    return [(name, int(memory) * 2**20) for index, name, memory in rows if allowed is None or index in allowed]


def _host_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _measured() -> float:
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
    alone = {**os.environ, **dict.fromkeys(names, "1")}
    command = [sys.executable, *python_options(), "-c", MEASURE]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True, env=alone)
        return float(done.stdout) * (os.cpu_count() or 1)
    except (OSError, subprocess.SubprocessError, ValueError):
        return 0.0
