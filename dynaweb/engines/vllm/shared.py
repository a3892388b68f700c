"""One vLLM of a run: started once, and in turn with the weights of each model that asks.

Policy, world model and judge are of one architecture where they come from one base model. Then one vLLM serves them
all: requests of one model run together, and when another model's wait, they run as soon as those have ended, after its
weights were pushed. Between stages it sleeps or waits; the run ends it.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakKeyDictionary

import torch

from dynaweb.engines.vllm.process import VllmProcess, compiled_folder
from dynaweb.engines.vllm.remote import VllmServer
from dynaweb.engines.vllm.replicas import Replica, Replicas
from dynaweb.errors import EngineError
from dynaweb.protocols import EngineStats

if TYPE_CHECKING:
    from dynaweb.engines.vllm.nccl import NcclGroup

_log = logging.getLogger("dynaweb")

ROOM = "kv_cache_memory_bytes"
"""vLLM's argument for the bytes of its cache, which it measures where it is not there."""


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


@dataclass(frozen=True, slots=True)
class Layout:
    """Where vLLM is.

    `gpus` are those of each replica, as CUDA_VISIBLE_DEVICES has them ('': those of the trainer); `servers` are
    addresses of `vllm serve`, with a `folder` that they and this process see. Servers, if there are any, are all.
    """

    gpus: tuple[str, ...] = ("",)
    servers: tuple[str, ...] = ()
    folder: str = ""
    takes_handles: bool = False

    def __len__(self) -> int:
        return len(self.servers or self.gpus)

    def __str__(self) -> str:
        if self.servers:
            return f"servers {', '.join(self.servers)}"
        return f"{len(self)} replicas on the GPUs {', '.join(self.gpus)}" if self.apart else "beside the trainer"

    @property
    def apart(self) -> bool:
        """Whether it has GPUs of its own, or may be on another machine."""
        return bool(self.servers) or self.gpus != ("",)

    def replicas(self) -> list[Replica]:
        """The processes, which run from now on, or the servers."""
        if self.servers:
            return [VllmServer(address, self.folder) for address in self.servers]
        if not self.apart:
            return [VllmProcess(takes_handles=self.takes_handles)]
        return [VllmProcess(gpus=gpus, name=f"replica {number} of vLLM") for number, gpus in enumerate(self.gpus)]


_starting: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()


def _undisturbed(arguments: Mapping[str, Any]) -> AbstractAsyncContextManager[Any]:
    """`async with` around a start: alone, unless it is told how much room its cache has.

    vLLM measures the free memory of its GPU while it starts, and another one that starts there would spoil that.
    """
    if arguments.get(ROOM):
        return nullcontext()
    return _starting.setdefault(asyncio.get_running_loop(), asyncio.Lock())


class SharedVllm:
    """A vLLM process that is started with its first request, and whose weights belong to one tenant at a time.

    `sleep_level` says how it gives GPU memory back: 0 not at all, 1 with its weights kept by the host, 2 without.
    `layout` says where it is: one process beside the trainer, replicas on GPUs of their own, or servers.
    `processor` writes the model's processor into a folder, where it sees. `name` tells it from others of the same
    configuration, which must not compile into one folder at the same time.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        arguments: Mapping[str, Any],
        sleep_level: int = 0,
        layout: Layout = Layout(),
        processor: Callable[[Path], None] | None = None,
        name: str = "shared",
    ) -> None:
        self.layout = layout
        self._processor, self._name = processor, name
        self.groups: dict[str, NcclGroup] = {}
        """Of each replica by name, the group in which weights go to it."""
        self.config, self.arguments, self.sleep_level = config, arguments, sleep_level
        self.starts = 0
        """How often vLLM was started."""
        self.pushes = 0
        """How often it got weights."""
        self.transfer = ""
        """How they came: `ipc`, as handles of tensors on its GPU; `nccl`, to another GPU; or as a `checkpoint`."""
        self.adapter: tuple[str, int, str] | None = None
        """Name, number and folder of the adapters that it has."""
        self.starting = False
        self._vllms: Replicas | None = None
        self._failure: EngineError | None = None
        self._asleep = False
        self._base: Tenant | None = None
        self._holder: tuple[Tenant, int] | None = None
        self._checked = False
        self._enter_loop(None)

    # Calls

    async def call(self, call: str, **arguments: Any) -> Any:
        """A call of `dynaweb.engines.vllm.host.Host`, while it is one's turn."""
        assert self._vllms is not None
        return await self._vllms.call(call, **arguments)

    async def each(self, call: str, **arguments: Any) -> Mapping[str, Any]:
        """The answers of all replicas, by name."""
        assert self._vllms is not None
        return await self._vllms.each(call, **arguments)

    @property
    def live(self) -> list[Replica]:
        """The replicas that answer."""
        assert self._vllms is not None
        return self._vllms.live

    @property
    def folder(self) -> Path:
        """Where files for it may be written while it runs."""
        assert self._vllms is not None
        return self._vllms.folder

    @asynccontextmanager
    async def turn(self, tenant: Tenant) -> AsyncIterator[None]:
        """`async with vllm.turn(tenant): ...` around calls that want the tenant's weights, which are there then.

        Weights change between requests: those that run end with the old ones, and those that came later wait for the
        new ones (vLLM's pause mode `wait`), so that one request is answered by one version, and the version inside is
        `tenant.version`. Raises `EngineError` when vLLM cannot be started or does not get the weights.
        """
        loop = self._entered()
        await self._admission(tenant)
        try:
            while not self._is_ready_for(tenant):
                # A request that is given up must not leave weights half pushed.
                preparing = loop.create_task(self._prepare(tenant))
                preparing.add_done_callback(lambda task: task.cancelled() or task.exception())
                await asyncio.shield(preparing)
            self._running += 1
            try:
                yield
            finally:
                self._running -= 1
                self._ended.set()
        finally:
            self._leave()

    async def start(self, tenant: Tenant) -> None:
        """Start vLLM, if it is not there, and leave its weights to the first turn. Raises `EngineError`."""
        self._entered()
        async with self._lock:
            await self._started_by(tenant)

    @asynccontextmanager
    async def unread(self) -> AsyncIterator[None]:
        """No weights of any tenant are being pushed or compared while inside: they may be replaced."""
        self._entered()
        async with self._lock:
            yield

    def leave_out(self, replica: Replica, error: EngineError) -> None:
        """Go on without a replica that died. Raises its error where it was the last one."""
        assert self._vllms is not None
        self._vllms.leave_out(replica, error)

    def doubt(self) -> None:
        """Compare with the trainer again before the next request."""
        self._checked = False

    async def rest(self) -> None:
        """Give GPU memory back until the next turn."""
        if self._vllms is None or not self.sleep_level or self.starting or self._failure is not None:
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
        vllms, self._vllms = self._vllms, None
        self._forget()
        if vllms is None:
            return
        if self.starting:
            vllms.end()
        else:
            await vllms.close()

    # Turns

    def _entered(self) -> asyncio.AbstractEventLoop:
        """The event loop that runs, which may be another than before."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._enter_loop(loop)
        return loop

    def _enter_loop(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """Start clean: requests of an event loop that has ended can never be answered."""
        self._loop, self._lock = loop, asyncio.Lock()
        self._guests = 0
        self._running, self._ended = 0, asyncio.Event()
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
        running = self._vllms is not None and self._failure is None and not self._asleep
        return running and self._checked and self._holder == (tenant, tenant.version)

    async def _prepare(self, tenant: Tenant) -> None:
        async with self._lock:
            await self._started_by(tenant)
            if self._asleep:
                self._make_room()
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
        while self._running:  # they are answered with the weights that they began with
            self._ended.clear()
            await self._ended.wait()
        base, version = self._base is not tenant, tenant.version
        self._holder, self._checked = None, False
        if base:
            self._base = None
        self.pushes += 1
        await tenant.push(self, base=base)
        await self.call("drop_prefixes")
        self._base, self._holder = tenant, (tenant, version)

    async def _started_by(self, tenant: Tenant) -> None:
        if self._vllms is None:
            tenant.stats.starts += 1
        await self._start()

    async def _start(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._vllms is not None:
            return
        started = time.monotonic()
        self.starts += 1
        self._make_room()
        vllms = self._vllms = Replicas(self.layout.replicas())
        self.starting = True
        try:
            async with _undisturbed(self.arguments):
                replies = await vllms.start(config=self.config, arguments=self.arguments, **self._model(vllms.folder))
        except BaseException as error:
            vllms.end()
            if not isinstance(error, EngineError):
                self._vllms = None
                raise
            # Everybody who waits would try again, a minute each.
            self._failure = EngineError("\n".join([f"vLLM did not start: {error}", *vllms.last_errors()]))
            raise self._failure from error
        finally:
            self.starting = False
        versions = ", ".join(sorted({reply["version"] for reply in replies}))
        _log.info("vLLM %s (%s) started in %.0f s", versions, self.layout, time.monotonic() - started)

    def _make_room(self) -> None:
        """Let go of memory that the trainer has had and may need again: vLLM on the same GPU could not have it."""
        if not self.layout.apart and torch.cuda.is_available():
            torch.cuda.empty_cache()

    def _model(self, folder: Path) -> dict[str, str]:
        """What a start needs besides: the processor, where prompts have pictures, or where the model is to be, so that
        vLLM finds what it compiled for it once. Servers have both."""
        if self.layout.servers:
            return {}
        if self._processor is not None:
            self._processor(folder / "processor")
            return {"processor": str(folder / "processor")}
        if not torch.cuda.is_available():
            return {}  # nothing is compiled, or all of it anew
        laid_out = hashlib.sha256(json.dumps(self.config, sort_keys=True, default=str).encode()).hexdigest()[:16]
        return {"place": str(compiled_folder() / "dynaweb" / f"{laid_out}-{self._name}")}

    def _forget(self) -> None:
        self._failure = None
        self.groups.clear()
        self._asleep = self._checked = False
        self._base, self._holder, self.adapter = None, None, None
