"""The run's end of vLLM's process: it is started, called, and ended; `dynaweb.engines.vllm.host` is the other end.

Nothing here belongs to one event loop: a thread reads the answers, and any loop may wait for them.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections import deque
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any

from dynaweb.errors import EngineError

TAIL = 200
"""Lines of vLLM's log that are kept for an error's message."""
SHOWN = 12
END_WAIT = 10.0
"""Seconds that vLLM has to end in order, before its process group is killed."""


class VllmProcess:
    """A process group that runs vLLM. Ends with this process, however that ends.

    `takes_handles` says that weights will come as handles of tensors on its GPU; `gpus` are those that it may use, as
    CUDA_VISIBLE_DEVICES has them ('': all). Of vLLM's log, errors go to stderr, and all of it where
    `VLLM_LOGGING_LEVEL` is set.
    """

    def __init__(self, *, takes_handles: bool = False, gpus: str = "", name: str = "vLLM") -> None:
        self.name = name
        self.folder = Path(tempfile.mkdtemp(prefix="dynaweb-vllm-", dir=memory_folder()))
        """Where files for vLLM may be written; removed with the process."""
        ours, theirs = socket.socketpair()
        # vLLM forks or spawns; a process that already runs threads of torch must not be forked.
        environment = {"VLLM_WORKER_MULTIPROC_METHOD": "spawn", "VLLM_LOGGING_LEVEL": "WARNING"}
        environment |= {**os.environ, "TRITON_CACHE_DIR": kernels_folder()}
        # Said for the trainer; vLLM would take it for its own, and record no graphs either.
        environment.pop("TORCH_COMPILE_DISABLE", None)
        if takes_handles:
            # vLLM takes handles of the trainer's tensors as pickles, and only where it is told to trust them.
            environment["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"
        if gpus:
            environment["CUDA_VISIBLE_DEVICES"] = gpus
        self._show_all = "VLLM_LOGGING_LEVEL" in os.environ
        environment["VLLM_LOGGING_STREAM"] = "ext://sys.stderr"
        # Last, so that the package's neighbours hide nobody else's.
        own = str(Path(__file__).parents[3])
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [environment.get("PYTHONPATH"), own]))
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "dynaweb.engines.vllm.host", str(theirs.fileno()), str(self.folder)],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                env=environment,
                start_new_session=True,
            )
        self._link = ours
        self._sending = threading.Lock()
        self._numbers = itertools.count()
        self._waiting: dict[int, Future[Any]] = {}
        self._tail: deque[str] = deque(maxlen=TAIL)
        self._end = ""
        for work in (self._read, self._log):
            threading.Thread(target=work, name=f"vllm{work.__name__}", daemon=True).start()

    @property
    def pid(self) -> int:
        """Number of the process, and of its group."""
        return self._process.pid

    @property
    def dead(self) -> bool:
        """Whether it has ended."""
        return bool(self._end)

    async def call(self, call: str, **arguments: Any) -> Any:
        """What a coroutine of `Host` returns. Raises `EngineError` when it fails or vLLM ends."""
        number, future = next(self._numbers), Future[Any]()
        self._waiting[number] = future
        try:
            self._send({"id": number, "call": call, "arguments": arguments})
            if self._end:
                raise EngineError(self._end)
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            self._send({"id": number, "cancel": True})
            raise
        finally:
            self._waiting.pop(number, None)

    def end(self) -> None:
        """End the process group now; calls that wait fail."""
        self._end = self._end or "vLLM was ended"
        self._kill()
        self._process.wait()
        self._link.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    async def close(self) -> None:
        """Let vLLM end its workers in order, for as long as `END_WAIT`; then end the process group."""
        with suppress(EngineError, TimeoutError):
            await asyncio.wait_for(self.call("close"), END_WAIT)
        self.end()

    def last_errors(self) -> list[str]:
        """The last lines of vLLM's log that tell of an error: a cause, of which the call that failed may not know."""
        return [line for line in self._tail if "Error" in line or "error:" in line][-SHOWN:]

    def _kill(self) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def _send(self, message: dict[str, Any]) -> None:
        with suppress(OSError), self._sending:  # an end is told by the thread that reads
            self._link.sendall((json.dumps(message) + "\n").encode())

    def _read(self) -> None:
        with suppress(OSError), self._link.makefile("r", encoding="utf-8") as lines:
            for line in lines:
                answer = json.loads(line)
                # Who waited may have been cancelled.
                future = self._waiting.get(answer["id"])
                if future is None or future.done() or not future.set_running_or_notify_cancel():
                    continue
                if "error" in answer:
                    future.set_exception(EngineError(answer["error"]))
                else:
                    future.set_result(answer["result"])
        # Workers outlive a host that was killed.
        self._kill()
        code = self._process.wait()
        tail = self.last_errors() or list(self._tail)[-SHOWN:]
        self._end = self._end or "\n".join([f"vLLM's process ended (exit code {code})", *tail])
        for future in list(self._waiting.values()):
            if not future.done() and future.set_running_or_notify_cancel():
                future.set_exception(EngineError(self._end))

    def _log(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as lines:
            for line in lines:
                self._tail.append(line.rstrip())
                if not (self._show_all or "ERROR" in line):
                    continue
                # Whatever `sys.stderr` is at that moment: the progress display puts itself there.
                with suppress(ValueError, OSError):
                    sys.stderr.write(line)


def kernels_folder() -> str:
    """The folder of compiled kernels that the user names, or Triton's own.

    vLLM's compiler would keep them with what it makes for one configuration, and the vLLM of each other role would
    compile the same kernels again, which takes a minute. The trainer's names a folder within its own in this process.
    """
    named, compiler = os.environ.get("TRITON_CACHE_DIR"), os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    if named and not (compiler and Path(named).is_relative_to(compiler)):
        return named
    return os.path.join(os.environ.get("TRITON_HOME") or os.path.expanduser("~"), ".triton", "cache")


def compiled_folder() -> Path:
    """Where vLLM keeps what it has compiled."""
    return Path(
        os.environ.get("VLLM_CACHE_ROOT")
        or os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "vllm")
    )


def memory_folder() -> str | None:
    """A folder that lies in memory; None (the usual temporary place) where the system has none."""
    shared = "/dev/shm"
    return shared if os.path.isdir(shared) and os.access(shared, os.W_OK) else None
