"""Processes that start at once: forked from one that has imported all that runs import, and computed nothing."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent


def warm() -> ForkServerContext:
    """The one of this process; whoever comes first starts it, so that it serves everybody."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["warm_imports"])
    # Before Python 3.13 it looks for the modules on a new interpreter's path, and is silent when they are not there.
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(HERE), prepend=os.pathsep)
        forkserver.ensure_running()
    return context


def start(job: Callable[..., None], *arguments: Any) -> ForkServerProcess:
    """A process that does the job."""
    process = warm().Process(target=job, args=arguments)
    process.start()
    return process


def exit_code(job: Callable[..., None], *arguments: Any, timeout: float = 120) -> int | None:
    """What a process that does the job ends with; below 0 for a signal, None when it takes too long."""
    return exit_codes([start(job, *arguments)], timeout=timeout)[0]


def exit_codes(processes: Sequence[ForkServerProcess], *, timeout: float = 120) -> list[int | None]:
    """What they end with; none is left."""
    try:
        for process in processes:
            process.join(timeout)
        return [process.exitcode for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.join()


def command_line(
    arguments: Sequence[str], *, cwd: Path, env: Mapping[str, str], timeout: float, typed: str = ""
) -> subprocess.CompletedProcess[str]:
    """`python -m dynaweb ARGUMENTS`, without the seconds that imports take; `typed` is what it reads from stdin."""
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, name) for name in ("in", "out", "err")]
        for file in files:
            file.write_text(typed if file.name == "in" else "", encoding="utf-8")
        code = exit_code(_command_line, list(arguments), cwd, dict(env), files, timeout=timeout)
        _, out, err = (file.read_text(encoding="utf-8") for file in files)
    if code is None:
        raise subprocess.TimeoutExpired(list(arguments), timeout, out, err)
    return subprocess.CompletedProcess(list(arguments), code, out, err)


def _command_line(arguments: list[str], cwd: Path, env: dict[str, str], files: list[Path]) -> None:
    for number, file in enumerate(files):
        os.dup2(os.open(file, os.O_WRONLY | os.O_APPEND if number else os.O_RDONLY), number)
    sys.stdin, sys.stdout, sys.stderr = (_stream(number, mode) for number, mode in enumerate("rww"))
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    sys.path[:0] = [str(cwd), *filter(None, env.get("PYTHONPATH", "").split(os.pathsep))]
    sys.argv = ["dynaweb", *arguments]
    from dynaweb.cli import main

    try:
        main()
    finally:
        # A forked process leaves them out.
        atexit._run_exitfuncs()


def _stream(number: int, mode: str) -> Any:
    return open(number, mode, encoding="utf-8", closefd=False)
