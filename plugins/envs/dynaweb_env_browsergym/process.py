"""The process on BrowserGym's side: started on first use, asked one question at a time, gone when it hangs."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from dynaweb.errors import InfrastructureError
from dynaweb.runs.sidecar import clean_variables

WORKER = Path(__file__).with_name("worker.py")
_LINE = 64 * 1024 * 1024
"""Longest answer in bytes: a page's whole tree."""
_LOG_LINES = 12
"""Lines of its log that an error message may quote from."""
_END_SECONDS = 10.0


class Worker:
    """Speaks to one `worker.py`."""

    def __init__(self, python: Path, *, chromium: str, variables: Mapping[str, str], timeout: float) -> None:
        self._command = [str(python), str(WORKER), chromium]
        self._variables = {**clean_variables(), **variables}
        self._timeout = timeout
        self._process: asyncio.subprocess.Process | None = None
        self._log: deque[str] = deque(maxlen=_LOG_LINES)
        self._reader: asyncio.Task[None] | None = None

    async def ask(self, op: str, **question: Any) -> dict[str, Any]:
        """One answer. Raises `InfrastructureError` when the process fails, dies or takes too long; it is ended then."""
        process = self._process or await self._start()
        assert process.stdin is not None and process.stdout is not None  # asked for at the start
        try:
            process.stdin.write((json.dumps({"op": op, **question}) + "\n").encode())
            await process.stdin.drain()
            line = await asyncio.wait_for(process.stdout.readline(), self._timeout)
            answer: dict[str, Any] = json.loads(line) if line else {}
        except TimeoutError:
            await self.end()
            raise InfrastructureError(f"BrowserGym did not answer {op!r} within {self._timeout:g} s") from None
        except asyncio.CancelledError:
            # Its answer would be taken for that of the next question.
            await self.end()
            raise
        except (OSError, ValueError) as error:
            await self.end()
            raise InfrastructureError(f"BrowserGym's process broke off ({error}): {self._last_words()}") from None
        if not line:
            await self.end()
            raise InfrastructureError(f"BrowserGym's process ended: {self._last_words()}")
        if "failed" in answer:
            raise InfrastructureError(f"BrowserGym could not {op}: {answer['failed']}")
        return answer

    async def end(self) -> None:
        """End the process and its browsers; calling it twice is allowed."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.stdin is not None:
            process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), _END_SECONDS)
        except TimeoutError:
            # Its browsers are in its group.
            with suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
        if self._reader is not None:
            await self._reader

    async def _start(self) -> asyncio.subprocess.Process:
        pipe = asyncio.subprocess.PIPE
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=pipe,
                stdout=pipe,
                stderr=pipe,
                env=self._variables,
                limit=_LINE,
                start_new_session=True,
            )
        except OSError as error:
            raise InfrastructureError(f"{self._command[0]} could not be started: {error}") from None
        self._reader = asyncio.create_task(self._listen(self._process))
        return self._process

    async def _listen(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None  # asked for at the start
        async for line in process.stderr:
            self._log.append(line.decode("utf-8", "replace").strip())

    def _last_words(self) -> str:
        return next((line for line in reversed(self._log) if line), "it said nothing")
