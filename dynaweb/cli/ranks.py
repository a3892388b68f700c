"""Several processes for one run: starting them, and being one of them."""

from __future__ import annotations

import os
import sys
import uuid
from typing import Any

from dynaweb.errors import EXIT_FAILED, EXIT_INTERRUPTED, ConfigError


def launched() -> bool:
    """Whether a launcher (ours, torchrun, deepspeed, srun) started this process as one of several."""
    try:
        return int(os.environ.get("WORLD_SIZE", "1")) > 1
    except ValueError as error:
        raise ConfigError(f"WORLD_SIZE is {os.environ['WORLD_SIZE']!r}; a launcher sets it to a number") from error


def helper() -> bool:
    """Whether this process is a rank other than 0, which does what rank 0 says."""
    return launched() and os.environ.get("RANK", "0") != "0"


def serve() -> int:
    """The whole life of such a rank; returns its exit code."""
    from dynaweb.trainer.distributed.team import serve as serve_team

    return serve_team()


def start(count: int, arguments: list[str]) -> int:
    """Run `dynaweb ARGUMENTS` in `count` processes of this machine, as torchrun would; returns the run's exit code.

    When one fails, the others are ended, and the code is that of the first to fail.
    """
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    from dynaweb.runs.processes import own_command

    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=count,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
        monitor_interval=0.2,
    )
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // count)))
    _be_quiet()
    try:
        elastic_launch(config, sys.executable)(*own_command(*arguments))
    except ChildFailedError as error:
        return _code(error)
    except SignalException:
        return EXIT_INTERRUPTED
    return 0


def _code(error: Any) -> int:
    """The exit code of rank 0 if it ended by itself, else that of the first to fail."""
    codes = {rank: failure.exitcode for rank, failure in error.failures.items()}
    number, first = error.get_first_failure()
    own = codes.get(0, 0)
    if own > 0:
        return int(own)
    if first.exitcode < 0:
        sys.stderr.write(f"error: rank {number} was ended by signal {-first.exitcode}; go on with --resume\n")
    return int(first.exitcode) if first.exitcode > 0 else EXIT_FAILED


def _be_quiet() -> None:
    """The launcher's own account of a failure repeats what the failing rank has said."""
    import logging

    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
