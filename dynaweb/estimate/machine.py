"""What a machine has: memory, accelerators, and how fast it multiplies matrices. This one (`look`), or one of a name.

named("8xh100")     eight of the makers' H100, whatever there is here: for `dynaweb run --dry-run --on 8xh100`
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace

from dynaweb.errors import ConfigError, hint
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


@dataclass(frozen=True, slots=True)
class Accelerator:
    """A GPU by its maker's data sheet, in the data sheet's units."""

    title: str
    memory: int
    """GB, which are sold as GiB."""
    tflops: float
    """BF16 with float32 sums, without sparsity: half of what a data sheet tells "with sparsity"."""
    bandwidth: float
    """GB/s of its memory."""
    host: int
    """GiB of host memory that usual servers have for each: the maker's (DGX), or a cloud's (EC2 g5, g6, g6e)."""
    most: int = 8
    """How many one host has at most."""
    source: str = ""


ACCELERATORS: Mapping[str, Accelerator] = {
    "b200": Accelerator("NVIDIA B200", 180, 2250, 8000, 256, source="data sheet of NVIDIA DGX B200"),
    "h200": Accelerator("NVIDIA H200", 141, 989, 4800, 256, source="data sheet of NVIDIA H200 SXM"),
    "h100": Accelerator("NVIDIA H100", 80, 989, 3350, 256, source="data sheet of NVIDIA H100 SXM"),
    "a100": Accelerator("NVIDIA A100", 80, 312, 2039, 128, source="data sheet of NVIDIA A100 80GB SXM"),
    "a100-40gb": Accelerator("NVIDIA A100", 40, 312, 1555, 128, source="data sheet of NVIDIA A100 40GB SXM"),
    "l40s": Accelerator("NVIDIA L40S", 48, 362, 864, 96, source="data sheet of NVIDIA L40S"),
    "l4": Accelerator("NVIDIA L4", 24, 121, 300, 48, source="data sheet of NVIDIA L4"),
    "a10": Accelerator("NVIDIA A10", 24, 125, 600, 48, source="data sheet of NVIDIA A10"),
    "rtx4090": Accelerator("NVIDIA GeForce RTX 4090", 24, 165, 1008, 64, 2, "NVIDIA's Ada GPU architecture paper"),
    "rtx3090": Accelerator("NVIDIA GeForce RTX 3090", 24, 71, 936, 64, 2, "NVIDIA's Ampere GA102 architecture paper"),
}
"""Machines that can be named, one GPU each, of the SXM kinds where there are several: figures of the sources they name,
which were looked up. HGX B200, with 7.7 TB/s where DGX B200 has 8, is the same here."""
LAPTOP_FLOPS = 0.25e12
"""Of eight cores at 2 GHz, of whose 16 float32 operations a cycle (eight lanes, multiply and add) all are done."""
LAPTOP = "laptop"
_NAME = re.compile(r"(?:(\d{1,2})x)?([a-z][a-z0-9-]*)")

PUBLISHED: tuple[tuple[str, float], ...] = (
    *(("B200", 2250), ("H200 NVL", 0), ("H200", 989), ("H100 NVL", 0), ("H100 PCIe", 756), ("H100", 989)),
    *(("A100", 312), ("A40", 150), ("A10", 125), ("L40S", 362), ("L40", 181), ("L4", 121)),
    *(("RTX 4090 Laptop", 0), ("RTX 4090 D", 147), ("RTX 4090", 165), ("RTX 3090 Ti", 80), ("RTX 3090", 71)),
)
"""TFLOP/s in bfloat16 with float32 sums, without sparsity, of the first whose words are all in the name of a GPU, as
`nvidia-smi` tells it; 0 = not known. A name without PCIe or NVL is that of the SXM kind."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Memory in bytes, of one GPU or of all CPUs; `flops` are operations per second of one device (0 = not known)."""

    device: str
    devices: int
    memory: int
    host_memory: int
    flops: float
    """Of matrix products: measured on a CPU, published for a GPU."""
    bandwidth: float = 0.0
    """Bytes per second of a device's memory (0 = not known)."""

    @property
    def is_cpu(self) -> bool:
        """Whether all processes share one memory and the cores of a CPU."""
        return self.device.startswith("CPU")

    @property
    def words(self) -> str:
        """One line."""
        speed = f", {self.flops / 1e12:.3g} TFLOP/s" if self.flops else ""
        memory = self.memory / (self.devices if self.is_cpu else 1)
        return f"{self.devices} x {self.device}, {memory / GIB:.1f} GiB each{speed}"


def look(device: str = "auto") -> Machine:
    """The machine at hand; `device` as `model.device` says it."""
    gpus = [] if device == "cpu" else _gpus()
    host = _host_memory()
    if not gpus:
        return Machine(f"CPU of {os.cpu_count() or 1} cores", 1, host, host, _measured())
    name, memory = gpus[0]
    return Machine(name, len(gpus), memory, host, published(name))


def several(machine: Machine, ranks: int) -> Machine:
    """As many machines of a kind as `ranks` processes need for a device each: on a CPU, one for each."""
    count = -(-ranks // machine.devices)
    memory = machine.memory * (count if machine.is_cpu else 1)
    return replace(machine, devices=count * machine.devices, memory=memory, host_memory=count * machine.host_memory)


def published(name: str) -> float:
    """Operations per second of a GPU by its name; 0 for one that is not known."""
    words = set(re.split(r"[\s-]+", name))
    return next((speed * 1e12 for title, speed in PUBLISHED if words.issuperset(title.split())), 0.0)


def named(name: str) -> Machine:
    """A machine by its name: `laptop`, or GPUs of one host such as `8xh100`, `h200` or `2xa100-40gb`.

    Raises `ConfigError` for any other name, and for more GPUs than a host of them has.
    """
    text = name.strip().lower().replace("_", "-")
    if text == LAPTOP:
        return Machine("CPU of 8 cores", 1, 16 * GIB, 16 * GIB, LAPTOP_FLOPS)
    match = _NAME.fullmatch(text)
    kind = ACCELERATORS.get(match[2]) if match is not None else None
    if match is None or kind is None:
        valid = hint(match[2] if match else text, [LAPTOP, *ACCELERATORS])
        raise ConfigError(
            f"--on {name} is no machine that is known here; {valid}; with the number of GPUs before it, such as 8xh100"
        )
    count = int(match[1] or 1)
    if not 1 <= count <= kind.most:
        raise ConfigError(f"--on {name}: hosts have 1 to {kind.most} of {kind.title}; docs/scale.md tells of several")
    memory, host = kind.memory * GIB, kind.host * count * GIB
    return Machine(kind.title, count, memory, host, kind.tflops * 1e12, kind.bandwidth * 1e9)


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
