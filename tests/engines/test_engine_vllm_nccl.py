"""Weights on their way to replicas that die: nobody waits for them, and what they leave on the GPU is ended.

GPU and communicators are stand-ins: work that waits for a dead peer stays on its stream until it is aborted.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from dynaweb.engines.vllm import nccl
from dynaweb.engines.vllm.engine import VllmEngine
from dynaweb.engines.vllm.nccl import NcclGroup, own_address
from dynaweb.errors import EngineError

WEIGHTS = [("a", torch.zeros(2)), ("b", torch.zeros(3)), ("c", torch.zeros(1))]


class _Stream:
    """What was asked of it, and has not ended."""

    def __init__(self) -> None:
        self.work: list[threading.Event] = []
        self.waits: list[Any] = []

    def record_event(self) -> str:
        return "all that was written"

    def wait_event(self, event: Any) -> None:
        self.waits.append(event)

    def synchronize(self) -> None:
        for one in self.work:
            assert one.wait(20), "what waits for a dead peer was never aborted"


class _Gpu:
    """The streams of a GPU; a wait for all of them never ends while one has work that never ends."""

    def __init__(self) -> None:
        self.streams: list[_Stream] = []

    def stream(self) -> _Stream:
        self.streams.append(_Stream())
        return self.streams[-1]

    def synchronize(self, device: Any = None) -> None:
        assert all(one.is_set() for stream in self.streams for one in stream.work), "the run would hang here"

    @contextmanager
    def device(self, device: Any) -> Iterator[None]:
        yield


class _Communicator:
    """Hands tensors to a replica that lives; those for one that has died stay on their stream until `destroy`."""

    def __init__(self, replica: _Replica, *, blocks: bool = False) -> None:
        self.replica, self.blocks = replica, blocks
        self.sent = 0
        self.destroyed = threading.Event()

    def broadcast(self, tensor: torch.Tensor, *, src: int, stream: _Stream) -> None:
        assert not self.destroyed.is_set(), "memory that was freed"
        assert stream.waits == ["all that was written"]
        self.sent += 1
        if self.replica.takes:
            self.replica.received += 1
        else:
            stream.work.append(self.destroyed)
        if self.blocks:
            self.destroyed.wait(20)

    def destroy(self) -> None:
        self.destroyed.set()


class _Replica:
    """A replica that takes its weights, or dies, or says nothing: while it takes them (`transfer`) or before."""

    folder, address = Path(), ""

    def __init__(self, name: str, fails: str = "", *, silent: bool = False) -> None:
        self.name, self.fails, self.silent = name, fails, silent
        self.takes, self.dead, self.received = not fails, False, 0

    async def call(self, call: str, **arguments: Any) -> Any:
        if call != self.fails:
            return 1
        if self.silent:
            await asyncio.sleep(60)
        await asyncio.sleep(0.05)
        self.dead = True
        raise EngineError(f"{self.name} ended")


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[_Gpu]:
    """A GPU on which every thread of a transfer ends."""
    one, default = _Gpu(), _Stream()
    monkeypatch.setattr(torch.cuda, "Stream", one.stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: default)
    monkeypatch.setattr(torch.cuda, "synchronize", one.synchronize)
    monkeypatch.setattr(torch.cuda, "device", one.device)
    yield one
    one.synchronize()
    deadline = time.monotonic() + 5
    while left := [thread.name for thread in threading.enumerate() if thread.name.startswith("nccl-")]:
        assert time.monotonic() < deadline, f"{left} wait for good"
        time.sleep(0.01)


async def send(replicas: list[_Replica], communicators: dict[str, _Communicator], groups: dict[str, Any]) -> list[str]:
    """Send the weights to all replicas; the names of those that are left out."""
    left_out: list[str] = []

    async def join(replica: _Replica, device: torch.device) -> NcclGroup:
        communicator = communicators.setdefault(replica.name, _Communicator(replica))
        return NcclGroup(cast("Any", replica), communicator, device)

    vllm = SimpleNamespace(
        live=[one for one in replicas if not one.dead],
        groups=groups,
        leave_out=lambda replica, error: left_out.append(replica.name),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(NcclGroup, "join", join)
        await VllmEngine._send(cast("Any", None), cast("Any", vllm), WEIGHTS)
    return left_out


@pytest.mark.parametrize("blocks", [False, True])
@pytest.mark.parametrize("moment", ["workers", "transfer"])
async def test_a_replica_that_dies_stops_no_other(moment: str, blocks: bool) -> None:
    replicas = [_Replica("first"), _Replica("dies", moment), _Replica("last")]
    communicators = {"dies": _Communicator(replicas[1], blocks=blocks)}
    groups: dict[str, Any] = {}
    assert await send(replicas, communicators, groups) == ["dies"]
    assert [one.received for one in replicas] == [3, 0, 3] and set(groups) == {"first", "last"}
    assert [one.destroyed.is_set() for one in communicators.values()] == [True, False, False]
    # Where it was dead before, nothing was begun; a call that blocks is the last one of its thread.
    assert communicators["dies"].sent == (0 if moment == "workers" else 1 if blocks else 3)
    assert await send(replicas, communicators, groups) == []
    assert [one.received for one in replicas] == [6, 0, 6]


async def test_the_group_of_a_replica_that_died_in_a_request_is_given_up() -> None:
    replicas, communicators = [_Replica("dies"), _Replica("lives")], dict[str, _Communicator]()
    groups: dict[str, Any] = {}
    await send(replicas, communicators, groups)
    replicas[0].dead = True
    assert await send(replicas, communicators, groups) == []
    assert communicators["dies"].destroyed.is_set() and set(groups) == {"lives"}


async def test_a_replica_that_lives_and_says_nothing_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl, "MOST_SECONDS", 0.1)
    replicas, communicators = [_Replica("silent", "transfer", silent=True)], dict[str, _Communicator]()
    groups: dict[str, Any] = {}
    with pytest.raises(EngineError, match="weights did not reach silent by nccl: no end of it in 0 s"):
        await send(replicas, communicators, groups)
    assert communicators["silent"].destroyed.is_set() and not groups


async def test_a_transfer_that_is_given_up_leaves_nothing_on_the_gpu() -> None:
    replicas, communicators = [_Replica("silent", "transfer", silent=True)], dict[str, _Communicator]()
    sending = asyncio.ensure_future(send(replicas, communicators, {}))
    await asyncio.sleep(0.1)
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    assert communicators["silent"].destroyed.is_set()


@pytest.mark.parametrize("address", ["http://[2001:db8::1]:8000", "http://no-such-host.invalid:8000"])
def test_a_server_without_an_address_for_nccl_is_refused_in_one_line(address: str) -> None:
    with pytest.raises(EngineError, match="name the server by an IPv4 address") as error:
        own_address(address)
    assert address in str(error.value) and "\n" not in str(error.value)
