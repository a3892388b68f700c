"""Several processes that work as one: rank 0 runs the program, the others do what it tells them.

A launcher (`dynaweb run --nproc`, torchrun, the deepspeed launcher, srun) starts the processes. Rank 0 owns the run
folder, the browser and every decision. Models, trainers and shares of engines exist on all ranks under a number; what
rank 0 makes or calls, every rank makes or calls, so that collective operations meet.

A failure never hangs. A rank that raises tells rank 0 at once, through the store of the process group; if rank 0 then
waits in a collective that cannot end, it is ended with the failing rank's words. A rank that dies breaks the
connection, and the launcher ends the others.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from importlib import import_module
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from dynaweb.errors import EXIT_FAILED, ConfigError, DynawebError, TrainingError
from dynaweb.trainer.ranks import Ranks

PATIENCE = timedelta(days=30)
"""How long ranks wait for the next order: evaluations in a browser take hours."""
GRACE = 15.0
"""Seconds in which rank 0 may find out by itself that another rank has failed."""
SILENCE = 120.0
"""Seconds without a sign of life after which a rank counts as dead."""
_BEAT = 5.0
_ERROR, _ALIVE = "dynaweb/error", "dynaweb/alive/{}"

_log = logging.getLogger("dynaweb")


__all__ = ["Ref", "Team", "launched", "rank", "serve", "split", "wants_team"]


@dataclass(frozen=True, slots=True)
class Ref:
    """An object that every rank has, in the arguments of an order."""

    number: int


class Team:
    """This process among the others. Make it with `join`; on rank 0 call `make` and `call`, on the others `serve`."""

    def __init__(self, ranks: Ranks, control: Any) -> None:
        self.ranks = ranks
        self._control = control
        self._objects: dict[int, Any] = {}
        self._numbers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._gone: list[int] = []
        self._next = 0
        self._closed = False
        self._turn = threading.RLock()
        """One order at a time: a trainer may work in a thread of its own while a judge asks its share of an engine."""
        self._watch = _Watch(ranks)

    @classmethod
    def join(cls) -> Team:
        """Meet the other ranks, as the launcher's environment says. Blocks until all are there."""
        local = int(os.environ.get("LOCAL_RANK", "0"))
        cuda = torch.cuda.is_available()
        if cuda:
            if local >= torch.cuda.device_count():
                raise ConfigError(
                    f"rank {os.environ['RANK']} wants GPU {local}, but this machine shows {torch.cuda.device_count()};"
                    " lower --nproc"
                )
            torch.cuda.set_device(local)
        if not dist.is_initialized():
            dist.init_process_group("nccl" if cuda else "gloo")
        control = dist.new_group(backend="gloo", timeout=PATIENCE)
        return cls(Ranks.of_group(), control)

    # Rank 0

    def make(self, target: str, *arguments: Any, **named: Any) -> Any:
        """Call `"module:function"` on all ranks and keep the results as one object; returns rank 0's."""
        with self._turn:
            number, self._next = self._next, self._next + 1
            handle = self._together(("make", number, target, self._outgoing(arguments), self._outgoing(named)))
            self._numbers[handle] = number
            weakref.finalize(handle, self._gone.append, number)
            return handle

    def knows(self, handle: object) -> bool:
        """Whether all ranks have this object."""
        return handle in self._numbers

    def call(self, handle: object, method: str, *arguments: Any, **named: Any) -> Any:
        """Call a method of an object that all ranks have, on all ranks; returns rank 0's result."""
        order = ("call", self._numbers[handle], method, self._outgoing(arguments), self._outgoing(named))
        return self._together(order, handle)

    def apply(self, target: str, *arguments: Any, **named: Any) -> Any:
        """Call `"module:function"` on all ranks; returns rank 0's result."""
        return self._together(("apply", 0, target, self._outgoing(arguments), self._outgoing(named)))

    def gather(self, value: Any) -> list[Any]:
        """Inside an order: the values of all ranks, in order."""
        out: list[Any] = [None] * self.ranks.size
        dist.all_gather_object(out, value, group=self._control)
        return out

    def close(self) -> None:
        """Send the other ranks home."""
        if self._closed:
            return
        self._closed = True
        self._watch.stop()
        if self.ranks.rank == 0:
            try:
                self._send(("stop",))
            except RuntimeError as error:
                _log.debug("the other ranks are gone already: %s", error)
        _leave()

    def _outgoing(self, values: Any) -> Any:
        if isinstance(values, tuple):
            return tuple(self._as_ref(value) for value in values)
        return {name: self._as_ref(value) for name, value in values.items()}

    def _as_ref(self, value: Any) -> Any:
        try:
            return Ref(self._numbers[value]) if value in self._numbers else value
        except TypeError:  # not hashable, or without weak references: plain data
            return value

    def _together(self, order: tuple[Any, ...], handle: object = None) -> Any:
        """Give an order, do it here too, and hear how the others fared."""
        with self._turn:
            return self._in_turn(order, handle)

    def _in_turn(self, order: tuple[Any, ...], handle: object) -> Any:
        if self._closed:
            raise TrainingError("the other ranks have gone; start the run again with --resume")
        gone, self._gone[:] = list(self._gone), []
        failure: BaseException | None = None
        result = None
        with self._watch.expecting():
            try:
                self._send((*order, gone))
                try:
                    result = self._do(order, handle)
                except Exception as error:
                    failure = error
                    self._watch.tell(error)
                words = self.gather("" if failure is None else _words(failure))
            except RuntimeError as error:
                self._closed = True
                raise self._lost(failure or error) from (failure or error)
        if any(words):
            self._watch.clear()
        if failure is not None:
            raise failure
        broken = [f"rank {rank} failed: {text}" for rank, text in enumerate(words) if text]
        if broken:
            raise TrainingError(broken[0])
        return result

    def _lost(self, error: BaseException) -> Exception:
        reason = self._watch.heard()
        if reason:
            return TrainingError(reason)
        return TrainingError(
            f"another rank has gone without a word (killed, or out of memory?): {_words(error)}. Go on with --resume"
        )

    def _send(self, order: tuple[Any, ...]) -> None:
        dist.broadcast_object_list([order], src=0, group=self._control)

    # Every rank

    def _do(self, order: tuple[Any, ...], handle: object = None) -> Any:
        kind, number, what, arguments, named = order
        arguments = tuple(self._real(value, handle) for value in arguments)
        named = {name: self._real(value, handle) for name, value in named.items()}
        if kind == "call":
            target = handle if handle is not None else self._objects[number]
            return getattr(target, what)(*arguments, **named)
        function = _imported(what)
        first = (self,) if getattr(function, "wants_team", False) else ()
        result = function(*first, *arguments, **named)
        if kind == "make" and self.ranks.rank > 0:
            self._objects[number] = result
        return result

    def _real(self, value: Any, handle: object) -> Any:
        if not isinstance(value, Ref):
            return value
        if self.ranks.rank > 0:
            return self._objects[value.number]
        return next(known for known, number in self._numbers.items() if number == value.number)

    # The other ranks

    def serve(self) -> int:
        """Do what rank 0 says until it is done; returns the exit code. Signals are rank 0's business."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True:
            box: list[Any] = [None]
            try:
                dist.broadcast_object_list(box, src=0, group=self._control)
            except RuntimeError:  # rank 0 has gone, and says why itself
                return EXIT_FAILED
            order = box[0]
            if order[0] == "stop":
                self._watch.stop()
                _leave()
                return 0
            for number in order[-1]:
                self._objects.pop(number, None)
            words = ""
            try:
                self._do(order[:-1])
            except Exception as error:
                words = _words(error)
                self._watch.tell(error)
            try:
                self.gather(words)
            except RuntimeError:
                return EXIT_FAILED


def wants_team(function: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a function whose first argument is the team of the rank that it runs on."""
    function.wants_team = True  # type: ignore[attr-defined]
    return function


def launched() -> bool:
    """Whether a launcher started this process as one of several."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def rank() -> int:
    """This process's number among all; 0 when it is alone."""
    return int(os.environ.get("RANK", "0")) if launched() else 0


def serve() -> int:
    """The whole life of a rank other than 0."""
    return Team.join().serve()


def _imported(target: str) -> Callable[..., Any]:
    module, _, name = target.partition(":")
    function: Callable[..., Any] = getattr(import_module(module), name)
    return function


def _words(error: BaseException) -> str:
    return str(error) if isinstance(error, DynawebError) else f"{type(error).__name__}: {error}"


def _leave() -> None:
    if dist.is_initialized():
        try:
            dist.destroy_process_group()
        except RuntimeError as error:
            _log.debug("the process group did not end in order: %s", error)


class _Watch:
    """Word of failures and signs of life between ranks, beside the collectives: through the store they met at."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._store = _store()
        self._stopped = threading.Event()
        self._busy_since: float | None = None
        if self._store is not None:
            threading.Thread(target=self._run, name="dynaweb-watch", daemon=True).start()

    def tell(self, error: BaseException) -> None:
        """Tell everybody that this rank has failed."""
        trace = "".join(traceback.format_exception(error)).strip()
        text = f"rank {self._ranks.rank} failed: {_words(error)}"
        if self._ranks.rank > 0 and not isinstance(error, DynawebError):
            sys.stderr.write(f"{text}\n{trace}\n")
            sys.stderr.flush()
        if self._store is not None and self._ranks.rank > 0:
            self._store.set(_ERROR, text)

    def clear(self) -> None:
        """The failure is known to everybody: it was the same on all ranks, or rank 0 raises it."""
        if self._store is not None:
            self._store.delete_key(_ERROR)

    def heard(self) -> str:
        """What a rank told, or ''."""
        if self._store is None or not self._store.check([_ERROR]):
            return ""
        return str(self._store.get(_ERROR).decode())

    def expecting(self) -> _Watch:
        """A context for the time in which rank 0 waits for the others."""
        return self

    def __enter__(self) -> None:
        self._busy_since = time.monotonic()

    def __exit__(self, *error: object) -> None:
        self._busy_since = None

    def stop(self) -> None:
        """No more looking."""
        self._stopped.set()

    def _run(self) -> None:
        store = _store()  # a connection of its own: those of a store must not be shared between threads
        seen = {rank: ("", time.monotonic()) for rank in range(self._ranks.size) if rank != self._ranks.rank}
        failed_at: float | None = None
        beats = 0
        while store is not None and not self._stopped.wait(_BEAT):
            beats += 1
            try:
                store.set(_ALIVE.format(self._ranks.rank), str(beats))
                if self._ranks.rank > 0:
                    continue
                words = str(store.get(_ERROR).decode()) if store.check([_ERROR]) else _silent(store, seen)
            except Exception:  # the store has gone with the process that held it
                return
            failed_at = (failed_at or time.monotonic()) if words else None
            if failed_at is not None and self._stuck(failed_at):
                _die(words)

    def _stuck(self, failed_at: float) -> bool:
        """Whether rank 0 has been waiting for the others ever since one failed."""
        since = self._busy_since
        return since is not None and time.monotonic() - max(failed_at, since) > GRACE


def _silent(store: Any, seen: dict[int, tuple[str, float]]) -> str:
    now = time.monotonic()
    for rank, (last, since) in seen.items():
        key = _ALIVE.format(rank)
        beat = str(store.get(key).decode()) if store.check([key]) else ""
        if beat != last:
            seen[rank] = (beat, now)
        elif now - since > SILENCE:
            return f"rank {rank} has given no sign of life for {SILENCE:.0f} s"
    return ""


def _die(words: str) -> None:
    """End rank 0, which waits in a collective operation that no exception can reach."""
    sys.stderr.write(f"error: {words}. Another rank waits for it in vain; go on with --resume\n")
    sys.stderr.flush()
    os._exit(EXIT_FAILED)


def _store() -> Any:
    host, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")
    if not host or not port:
        return None
    make: Any = dist.TCPStore  # type: ignore[attr-defined]
    return make(host, int(port), is_master=False, wait_for_workers=False, timeout=timedelta(seconds=60))


def split(count: int, size: int) -> list[slice]:
    """`count` things in `size` neighbouring shares, as even as can be."""
    edges = [count * part // size for part in range(size + 1)]
    return [slice(a, b) for a, b in pairwise(edges)]


# Low-rank adapters on all ranks. Rank 0 alone puts them into its model. What ranks then make of theirs (a share of the
# engine, a trainer) is chosen by the layers that it has at that moment, so the adapters are shared before anything is
# made.


def share_adapters(team: Team, model: nn.Module) -> None:
    """Low-rank adapters that rank 0 has put into its model, into the models of the others; again, where they were."""
    layers: dict[str, Any] = {name: m for name, m in model.named_modules() if hasattr(m, "lora_A")}
    if not layers:
        return
    one = next(iter(layers.values()))
    rank, alpha = next(iter(one.r.values())), int(next(iter(one.lora_alpha.values())))
    tensors = {name: p.detach().cpu() for name, p in model.named_parameters() if ".lora_" in name}
    learns = [name for name, p in model.named_parameters() if p.requires_grad]
    team.apply("dynaweb.trainer.distributed.team:adopt_adapters", model, rank, alpha, list(layers), tensors, learns)


@wants_team
def adopt_adapters(
    team: Team,
    model: nn.Module,
    rank: int,
    alpha: int,
    layers: list[str],
    tensors: dict[str, torch.Tensor],
    learns: list[str],
) -> None:
    """Give a rank's model the adapters that rank 0 has, and the same trained parameters."""
    from peft import LoraConfig, inject_adapter_in_model

    if not any(hasattr(module, "lora_A") for module in model.modules()):
        inject_adapter_in_model(LoraConfig(r=rank, lora_alpha=alpha, target_modules=layers, lora_dropout=0.0), model)
    chosen = set(learns)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name in chosen)
            if name in tensors:
                parameter.copy_(tensors[name])
