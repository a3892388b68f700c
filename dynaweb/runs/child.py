"""One process of a run on a node of a cluster: started, watched, and ended with whoever holds it.

`Child` is an ordinary class. Ray makes actors of it (`dynaweb.commands.cluster`), and its methods may be called from
several threads.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from dynaweb.errors import output_end
from dynaweb.runs.processes import free_port

GUARD = "import os, signal, sys; sys.stdin.read(); os.killpg(0, signal.SIGKILL)"
"""The leader of a process group: when the process that holds its stdin ends, however that ends, it kills the group."""
LAST_LINES = 40
"""Lines of output that an error's reason is looked for in."""
END_SECONDS = 10.0
"""Seconds that a process has to end in order."""
LONGEST_PAUSE = 60.0
"""Most seconds before a server that keeps ending is started again."""
NOT_STARTED = 127
"""Exit code of a program that is not there, as in a shell."""


@dataclass(frozen=True, slots=True)
class News:
    """What a process has done since it was asked last."""

    lines: tuple[tuple[str, str], ...]
    """(`stdout` or `stderr`, line) of its output."""
    code: int | None
    """Exit code, negative for a signal; None while it runs, or while a server is started again."""
    address: str
    """Where a server answers; empty while it does not."""
    ends: int
    """How often it has ended."""
    reason: str
    """What it said last, once it has ended for good."""


class Child:
    """A Python process with `arguments`, on the node of this process; its group ends with this process.

    With `path` it is a server: started at once, asked for this path until it answers, and started again when it ends
    after that. `{host}` and `{port}` in its arguments become the node's address and a free port, with `same_port` the
    same one each time. `environment` goes over the node's own. `python` is another Python than this one (an
    environment with vLLM). With `log` its output goes to this process's too, as Ray keeps it.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        folder: str,
        *,
        host: str = "127.0.0.1",
        python: str = "",
        path: str = "",
        same_port: bool = True,
        log: bool = False,
    ) -> None:
        if not Path(folder).is_dir():
            raise FileNotFoundError(
                f"{folder} is not on node {socket.gethostname()}; all nodes must see the same file system"
            )
        self.host, self.port = host, free_port()
        self._command = [python or sys.executable, *arguments]
        self._environment, self._folder, self._path = dict(environment), folder, path
        self._same_port, self._log = same_port, log
        self._lines: deque[tuple[str, str]] = deque(maxlen=10_000)
        self._last: deque[str] = deque(maxlen=LAST_LINES)
        self._process: subprocess.Popen[str] | None = None
        self._guard: subprocess.Popen[bytes] | None = None
        self._stopping = threading.Event()
        self._code: int | None = None
        self._address, self._ends = "", 0
        if path:
            self.start({})

    def place(self) -> tuple[str, int]:
        """Address of this node and a free port of it."""
        return self.host, self.port

    def start(self, environment: Mapping[str, str]) -> None:
        """Start the process with these variables besides."""
        self._environment |= environment
        # The thread lives as long as what it starts.
        threading.Thread(target=self._live, daemon=True).start()

    def news(self) -> News:
        """What there is to tell; each line once."""
        lines = []
        code = self._code  # first: with a code, all lines are there
        while self._lines:
            lines.append(self._lines.popleft())
        reason = "" if code is None else output_end("\n".join(self._last))
        return News(tuple(lines), code, self._address, self._ends, reason)

    def signal(self, number: int) -> None:
        """Send the process a signal."""
        if (process := self._process) is not None:
            with suppress(ProcessLookupError):
                process.send_signal(number)

    def stop(self) -> None:
        """End it, in order if it can, and all that it has started."""
        self._stopping.set()
        process = self._process
        if process is not None and process.poll() is None:
            self.signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=END_SECONDS)
        self._end_group()

    def _live(self) -> None:
        """Start the process, wait for its end, and start a server again."""
        pause, code = 1.0, NOT_STARTED
        while not self._stopping.is_set():
            try:
                code = self._once()
            except OSError as error:
                self._note("stderr", f"{self._command[0]} cannot be started: {error.strerror}\n")
            self._ends += 1
            answered, self._address = bool(self._address), ""
            if not answered:  # no server, or one that never served
                break
            self._stopping.wait(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
            if not self._same_port:
                self.port = free_port()
        self._code = code

    def _once(self) -> int:
        """One process from its start to its end; its exit code."""
        self._guard = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", GUARD], stdin=subprocess.PIPE, process_group=0
        )
        # Ray's processes block it, and what they start would never hear of a Ctrl-C. This thread is nobody else's.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        command = [word.replace("{host}", self.host).replace("{port}", str(self.port)) for word in self._command]
        try:
            process = self._process = subprocess.Popen(
                command,
                env={**os.environ, **self._environment, "PYTHONUNBUFFERED": "1"},
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                process_group=self._guard.pid,
            )
            assert process.stdout is not None and process.stderr is not None
            streams = {"stdout": process.stdout, "stderr": process.stderr}
            pumps = [threading.Thread(target=self._pump, args=item, daemon=True) for item in streams.items()]
            for pump in pumps:
                pump.start()
            if self._path:
                threading.Thread(target=self._ask, args=(process,), daemon=True).start()
            process.wait()
        finally:
            # What it started may outlive it, and holds its pipes.
            self._end_group()
        for pump in pumps:
            pump.join(timeout=END_SECONDS)
        return process.returncode

    def _end_group(self) -> None:
        guard = self._guard
        if guard is not None and guard.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(guard.pid, signal.SIGKILL)
            # It is the guard's stdin that is closed, too.
            guard.communicate()

    def _ask(self, process: subprocess.Popen[str]) -> None:
        """Know where a server answers once it does."""
        address = f"http://{self.host}:{self.port}"
        while process.poll() is None:
            if answers(f"{address}{self._path}"):
                self._address = address
                return
            self._stopping.wait(0.5)

    def _pump(self, name: str, stream: IO[str]) -> None:
        with stream:
            for line in stream:
                self._note(name, line)

    def _note(self, name: str, line: str) -> None:
        self._lines.append((name, line))
        self._last.append(line)
        if self._log:
            sys.stdout.write(line)
            sys.stdout.flush()


def answers(url: str) -> bool:
    """Whether a server answers there, if only to ask for a token."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=5):
            return True
    except urllib.error.HTTPError as error:
        return error.code < 500
    except (OSError, ValueError):
        return False
