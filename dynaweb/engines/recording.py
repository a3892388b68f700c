"""Decoding steps of fixed shape, recorded once and replayed.

On a GPU, launching the hundreds of small kernels of a decoding step takes longer than computing them. A step whose
tensors keep their shapes and addresses is recorded as a CUDA graph at its first use and launched as one from then on.
Shapes are rounded up, so that a few recordings serve all batches.

`[policy.engine] static = false` (or `wm.engine`, `reward.engine`) turns it off; it changes results by float noise only.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable
from typing import Any

import torch

Step = Callable[[], torch.Tensor]
"""Reads and writes tensors at fixed addresses and returns its result at a fixed address. Twice is like once."""
Record = Callable[[Step], Step]
"""Turns a step into one that does the same faster."""


class Recording:
    """A step and what `record` made of it, called in its stead.

    A recording knows addresses and owns nothing: the tensors that the step reads have to live as long as it does.
    """

    def __init__(self, step: Step, record: Record) -> None:
        self._owner = step
        self._replay = record(step)

    def __call__(self) -> torch.Tensor:
        """The step's result."""
        return self._replay()


COLUMNS = 256
"""Caches are as long as a multiple of this."""
MAX_RECORDINGS = 96
"""Recordings of one model; some megabytes each."""

_log = logging.getLogger(__name__)


def rounded_rows(rows: int) -> int:
    """Rows of the fixed shape that serves so many: 1, 2, 3, 4, 6, 8, 12, 16, 24, ..., at most half as many again."""
    grain = 1 << max(0, (rows - 1).bit_length() - 2)
    return -(-rows // grain) * grain


def rounded_columns(columns: int) -> int:
    """Columns of the fixed shape that serves so many."""
    return -(-columns // COLUMNS) * COLUMNS


class CudaGraphs:
    """A `Record` for one GPU. A step that cannot be recorded is used as it is, and no other is tried after it."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._graphs: weakref.WeakSet[Any] = weakref.WeakSet()
        self._pool: Any = None
        self._refused = False

    def __call__(self, step: Step) -> Step:
        """The step as a graph."""
        if self._refused:
            return step
        try:
            return self._recorded(step)
        except RuntimeError as error:
            self._refused = True
            _log.warning("decoding steps cannot be recorded and are launched one by one: %s", str(error).split("\n")[0])
            return step

    def _recorded(self, step: Step) -> Step:
        graph = torch.cuda.CUDAGraph()
        pool = self._shared_pool()
        with torch.cuda.device(self._device):
            # Libraries set themselves up at their first call, which must not be part of a recording.
            side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                step()
            torch.cuda.current_stream().wait_stream(side)
            with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
                result = step()
        self._graphs.add(graph)

        def replay() -> torch.Tensor:
            graph.replay()
            return result

        return replay

    def _shared_pool(self) -> Any:
        """One pool for all: what a recording needs for itself is dead between two launches. It ends with the last
        recording that is kept, and another has to be made then."""
        if not self._graphs:
            self._pool = torch.cuda.graph_pool_handle()
        return self._pool


def recorder_for(device: torch.device) -> Record | None:
    """What records steps on this device; None where there is nothing to gain."""
    return CudaGraphs(device) if device.type == "cuda" else None


Recorders = Callable[[torch.device], Record | None]
"""What records the decoding steps on a device, if anything."""


def no_recorder(device: torch.device) -> None:
    """Steps are launched one by one."""
