"""vLLM's transfer of weights between GPUs (`nccl`), the trainer's end: a group with the workers of each replica.

Each replica has a group of its own, so that one which dies takes no other's weights with it. A transfer is two things
at once: the replica's `transfer` call and the trainer's broadcasts, tensor by tensor, as vLLM's workers receive them.
A broadcast whose receiver has died stays on the GPU for good: nothing here waits for the whole GPU, and a group whose
transfer failed is aborted, which ends what it has left there.
Source: `NCCLWeightTransferEngine` of `vllm.distributed.weight_transfer.nccl_engine`, 0.24 and later.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, TypeVar
from urllib.parse import urlsplit

import torch

from dynaweb.engines.vllm.replicas import Replica
from dynaweb.errors import EngineError, MissingError
from dynaweb.runs.processes import free_port

T = TypeVar("T")
Weights = Sequence[tuple[str, torch.Tensor]]
MOST_SECONDS = 1800.0
"""A transfer that takes so long never ends."""
ABORT_SECONDS = 10.0
"""How long the end of a group is waited for."""


class NcclGroup:
    """The trainer, rank 0, with the workers of one replica."""

    def __init__(self, replica: Replica, communicator: Any, device: torch.device) -> None:
        self._replica, self._communicator, self._device = replica, communicator, device
        self._aborted = False
        self._sending = threading.Lock()

    @classmethod
    async def join(cls, replica: Replica, device: torch.device) -> NcclGroup:
        """Meet a replica's workers. Raises `EngineError` where the replica cannot."""
        try:
            with _quiet():  # vLLM's own, which its workers meet
                from vllm.distributed.device_communicators.pynccl import PyNcclCommunicator
                from vllm.distributed.utils import StatelessProcessGroup
        except ImportError as error:
            raise MissingError(
                f"weights go to {replica.name} by vLLM's transfer nccl, for which the trainer needs the package vllm "
                f"too ({error}); run: pip install 'dynaweb[vllm]'"
            ) from error
        workers = await replica.call("workers")
        host = own_address(getattr(replica, "address", ""))
        port = free_port(host)

        def meet() -> Any:
            # vLLM tries the group out at once: on a stream of its own, where a replica that dies then stops nobody.
            with torch.cuda.device(device), torch.cuda.stream(torch.cuda.Stream()):  # type: ignore[no-untyped-call]
                group = StatelessProcessGroup.create(host=host, port=port, rank=0, world_size=workers + 1)
                return PyNcclCommunicator(group, device=device)

        init = {"master_address": host, "master_port": port, "rank_offset": 1, "world_size": workers + 1}
        communicator = await _both(meet, replica, "join", init=init)
        if getattr(communicator, "disabled", False):
            raise EngineError("vLLM finds no NCCL library in the trainer's process, so weights cannot be sent by nccl")
        return cls(replica, communicator, device)

    async def send(self, weights: Weights) -> None:
        """Send all weights, which are on the trainer's GPU. Raises `EngineError` where they do not arrive.

        A group that could not send is aborted: its workers may have some of the tensors, and wait for others.
        """
        # What was asked of the GPU so far: the optimizer may still write what is sent.
        written = torch.cuda.current_stream(self._device).record_event()

        def broadcast() -> None:
            with torch.cuda.device(self._device):
                stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
                stream.wait_event(written)
                for _, tensor in weights:
                    with self._sending:
                        if self._aborted:
                            return
                        self._communicator.broadcast(tensor, src=0, stream=stream)
                stream.synchronize()

        try:
            await self._replica.call("workers")  # a replica that has died says so before anything is on the GPU
            await _both(broadcast, self._replica, "transfer", update=update_of(weights))
        except BaseException:
            await self.abort()
            raise

    async def abort(self) -> None:
        """Give the group up. What it has left on the GPU ends, and with it the thread that waits for that."""
        self._aborted = True

        def destroy() -> None:
            # A call that does not return is one that the abort ends; beside any other it would free what that one uses.
            free = self._sending.acquire(timeout=1.0)
            try:
                self._communicator.destroy()
            finally:
                if free:
                    self._sending.release()

        await asyncio.wait([_in_thread(destroy, "abort")], timeout=ABORT_SECONDS)


def update_of(weights: Weights) -> dict[str, list[Any]]:
    """What a replica is told of weights that come one by one."""
    return {
        "names": [name for name, _ in weights],
        "dtype_names": [str(tensor.dtype).removeprefix("torch.") for _, tensor in weights],
        "shapes": [list(tensor.shape) for _, tensor in weights],
    }


def own_address(address: str) -> str:
    """This machine's IPv4 address as a server at `address` sees it; the loopback for a server on this machine, or none.

    Raises `EngineError` where there is none.
    """
    host = urlsplit(address).hostname or "127.0.0.1"
    if host in ("localhost", "127.0.0.1", "::1"):
        return "127.0.0.1"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, 9))  # sends nothing; the system chooses the way
        except OSError as error:
            raise EngineError(
                f"weights cannot go to {address} by nccl: there is no way to it by IPv4 ({error}), and vLLM's transfer "
                "knows no other; name the server by an IPv4 address"
            ) from error
        return str(probe.getsockname()[0])


async def _both(work: Callable[[], T], replica: Replica, call: str, **arguments: Any) -> T:
    """What `work` gives in a thread, while the replica does its part; the first that fails ends the wait for both."""
    ours = _in_thread(work, call)
    theirs = asyncio.ensure_future(replica.call(call, **arguments))
    try:
        async with asyncio.timeout(MOST_SECONDS) as limit:
            await asyncio.gather(ours, theirs)
        return ours.result()
    except (RuntimeError, ValueError, OSError) as error:
        why = f"no end of it in {MOST_SECONDS:.0f} s" if limit.expired() else f"{type(error).__name__}: {error}"
        raise EngineError(f"weights did not reach {replica.name} by nccl: {why}") from error
    finally:
        for one in (ours, theirs):
            one.cancel()


def _in_thread(work: Callable[[], T], name: str) -> asyncio.Future[T]:
    """What `work` gives in a daemon thread: one that waits for a replica that has gone must not keep the run."""
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()  # who no longer waits cancels the wait, not the thread

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name=f"nccl-{name}", daemon=True).start()
    waiting = asyncio.wrap_future(future)
    waiting.add_done_callback(lambda done: done.cancelled() or done.exception())  # nobody may wait any more
    return waiting


@contextmanager
def _quiet() -> Iterator[None]:
    """Import vLLM so that it logs to stderr: stdout belongs to the run's results. It reads this once."""
    wanted = {"VLLM_LOGGING_LEVEL": os.environ.get("VLLM_LOGGING_LEVEL", "WARNING")}
    wanted["VLLM_LOGGING_STREAM"] = "ext://sys.stderr"
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
