"""One vLLM of a run: started once, and in turn with the weights of each model that asks.

Policy, world model and judge are of one architecture where they come from one base model. Then one vLLM serves them
all: requests of one model run together, and when another model's wait, they run as soon as those have ended, after its
weights were pushed. Between stages it sleeps or waits; the run ends it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

from dynaweb.engines.vllm.process import VllmProcess
from dynaweb.errors import EngineError
from dynaweb.protocols import EngineStats

_log = logging.getLogger("dynaweb")


class Tenant(Protocol):
    """A model whose weights a `SharedVllm` may have."""

    version: int
    """Grows with each change of the weights."""

    @property
    def stats(self) -> EngineStats:
        """Its counters."""
        ...

    async def push(self, vllm: SharedVllm, *, base: bool) -> None:
        """Send the weights that the model has now: all of them, or with `base` false only its adapters."""
        ...

    async def check(self, vllm: SharedVllm) -> None:
        """Raise `EngineError` unless vLLM answers as the model does."""
        ...


class SharedVllm:
    """A vLLM process that is started with its first request, and whose weights belong to one tenant at a time.

    `sleep_level` says how it gives GPU memory back: 0 not at all, 1 with its weights kept by the host, 2 without.
    """

    def __init__(self, config: Mapping[str, Any], arguments: Mapping[str, Any], sleep_level: int = 0) -> None:
        self.config, self.arguments, self.sleep_level = config, arguments, sleep_level
        self.starts = 0
        """How often vLLM was started."""
        self.pushes = 0
        """How often it got weights."""
        self.transfer = ""
        """How they came: `ipc`, as handles of tensors on its GPU, or as a `checkpoint` in memory."""
        self.adapter: tuple[str, int, str] | None = None
        """Name, number and folder of the adapters that it has."""
        self.starting = False
        self._process: VllmProcess | None = None
        self._failure: EngineError | None = None
        self._asleep = False
        self._base: Tenant | None = None
        self._holder: tuple[Tenant, int] | None = None
        self._checked = False
        self._enter_loop(None)

    # Calls

    async def call(self, call: str, **arguments: Any) -> Any:
        """A call of `dynaweb.engines.vllm.host.Host`, while it is one's turn."""
        assert self._process is not None
        return await self._process.call(call, **arguments)

    @property
    def folder(self) -> Path:
        """Where files for it may be written while it runs."""
        assert self._process is not None
        return self._process.folder

    @asynccontextmanager
    async def turn(self, tenant: Tenant) -> AsyncIterator[None]:
        """`async with vllm.turn(tenant): ...` around calls that want the tenant's weights, which are there then.

        Raises `EngineError` when vLLM cannot be started or does not get the weights.
        """
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._enter_loop(loop)
        await self._admission(tenant)
        try:
            if not self._is_ready_for(tenant):
                # A request that is given up must not leave weights half pushed.
                preparing = loop.create_task(self._prepare(tenant))
                preparing.add_done_callback(lambda task: task.cancelled() or task.exception())
                await asyncio.shield(preparing)
            yield
        finally:
            self._leave()

    def doubt(self) -> None:
        """Compare with the trainer again before the next request."""
        self._checked = False

    async def rest(self) -> None:
        """Give GPU memory back until the next turn."""
        if self._process is None or not self.sleep_level or self.starting or self._failure is not None:
            return
        async with self._lock:  # a push may go on for a request that was given up
            if self._asleep:
                return
            await self.call("sleep", level=self.sleep_level)
            self._asleep, self._holder = True, None
            if self.sleep_level > 1:
                self._base = None

    def leave(self, tenant: Tenant) -> None:
        """Forget a tenant that will not come again."""
        if self._base is tenant:
            self._base = None
        if self._holder is not None and self._holder[0] is tenant:
            self._holder = None

    async def close(self) -> None:
        """End vLLM, also while it starts. A later turn starts it anew."""
        process, self._process = self._process, None
        self._forget()
        if process is None:
            return
        if self.starting:
            process.end()
        else:
            await process.close()

    # Turns

    def _enter_loop(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """Start clean: requests of an event loop that has ended can never be answered."""
        self._loop, self._lock = loop, asyncio.Lock()
        self._guests = 0
        self._current: Tenant | None = None
        self._waiting: deque[tuple[Tenant, asyncio.Future[None]]] = deque()

    async def _admission(self, tenant: Tenant) -> None:
        """Wait until no request of another tenant runs; first come, first served."""
        if not self._guests or (self._current is tenant and not self._waiting):
            self._current, self._guests = tenant, self._guests + 1
            return
        place = asyncio.get_running_loop().create_future()
        self._waiting.append((tenant, place))
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():
                self._leave()  # it was its turn already
            raise

    def _leave(self) -> None:
        self._guests -= 1
        if self._guests:
            return
        # All that wait for the same weights as the first one come in together.
        waiting = [(tenant, place) for tenant, place in self._waiting if not place.done()]
        self._current = waiting[0][0] if waiting else None
        self._waiting = deque((tenant, place) for tenant, place in waiting if tenant is not self._current)
        for tenant, place in waiting:
            if tenant is self._current:
                self._guests += 1
                place.set_result(None)

    # Weights

    def _is_ready_for(self, tenant: Tenant) -> bool:
        running = self._process is not None and self._failure is None and not self._asleep
        return running and self._checked and self._holder == (tenant, tenant.version)

    async def _prepare(self, tenant: Tenant) -> None:
        async with self._lock:
            if self._process is None:
                tenant.stats.starts += 1
            await self._start()
            if self._asleep:
                await self.call("wake", tags=["weights"])
            if self._holder != (tenant, tenant.version):
                await self._push(tenant)
            if self._asleep:
                await self.call("wake", tags=["kv_cache"])
                self._asleep = False
            if not self._checked:
                await tenant.check(self)
                self._checked = True

    async def _push(self, tenant: Tenant) -> None:
        base, version = self._base is not tenant, tenant.version
        self._holder, self._checked = None, False
        if base:
            self._base = None
        self.pushes += 1
        await tenant.push(self, base=base)
        await self.call("drop_prefixes")
        self._base, self._holder = tenant, (tenant, version)

    async def _start(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._process is not None:
            return
        started = time.monotonic()
        self.starts += 1
        process = self._process = VllmProcess(takes_handles="weight_transfer_config" in self.arguments)
        self.starting = True
        try:
            reply = await process.call("start", config=self.config, arguments=self.arguments)
        except BaseException as error:
            process.end()
            if not isinstance(error, EngineError):
                self._process = None
                raise
            # Everybody who waits would try again, a minute each.
            self._failure = EngineError("\n".join([f"vLLM did not start: {error}", *process.last_errors()]))
            raise self._failure from error
        finally:
            self.starting = False
        _log.info("vLLM %s started in %.0f s", reply["version"], time.monotonic() - started)

    def _forget(self) -> None:
        self._failure = None
        self._asleep = self._checked = False
        self._base, self._holder, self.adapter = None, None, None
