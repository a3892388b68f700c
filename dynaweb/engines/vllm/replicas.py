"""Replicas of one vLLM: requests go to the one with the least to do, new weights to all of them.

A replica that dies is left out with a warning, and its requests go to those that live; the last one's death is an
error. Which replica answers changes no probability, since all have the same weights, which the probe of each confirms.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from dynaweb.errors import EngineError

_log = logging.getLogger("dynaweb")

REQUESTS = frozenset({"generate", "choices", "score"})
"""The calls that one replica answers; all others are for every replica."""


class Replica(Protocol):
    """One vLLM: a process of the run (`dynaweb.engines.vllm.process`) or a server (`dynaweb.engines.vllm.remote`)."""

    name: str
    """What errors call it."""

    @property
    def dead(self) -> bool:
        """Whether it will never answer again."""
        ...

    @property
    def folder(self) -> Path:
        """Where files for it may be written."""
        ...

    async def call(self, call: str, **arguments: Any) -> Any:
        """What a coroutine of `dynaweb.engines.vllm.host.Host` returns. Raises `EngineError` when it fails."""
        ...

    def end(self) -> None:
        """End it now, or let go of it."""
        ...

    async def close(self) -> None:
        """End it in order, or let go of it."""
        ...

    def last_errors(self) -> list[str]:
        """What it said last of errors."""
        ...


class Replicas:
    """Several vLLMs with the same weights, called as one."""

    def __init__(self, members: Sequence[Replica]) -> None:
        self._members = list(members)
        self._loads = dict.fromkeys(range(len(members)), 0)
        self._left_out: set[int] = set()

    @property
    def live(self) -> list[Replica]:
        """Those that answer."""
        return [self._members[number] for number in self._numbers()]

    @property
    def folder(self) -> Path:
        """Where files may be written that all of them see."""
        return self._members[0].folder

    async def call(self, call: str, **arguments: Any) -> Any:
        """The answer of one replica to a request; to other calls, that of the first one when all have answered."""
        if call not in REQUESTS:
            return next(iter((await self.each(call, **arguments)).values()))
        while True:
            number = min(self._numbers(), key=self._loads.__getitem__)
            member = self._members[number]
            self._loads[number] += 1
            try:
                return await member.call(call, **arguments)
            except EngineError as error:
                if not member.dead:
                    raise
                self.leave_out(member, error)
            finally:
                self._loads[number] -= 1

    async def start(self, **arguments: Any) -> list[Any]:
        """What all replicas answer to `start`. Raises `EngineError` where one of them does not start."""
        each = [arguments] * len(self._members)
        if arguments.get("place") and len(each) > 1:  # they must not compile into one folder at the same time
            each = [{**arguments, "place": f"{arguments['place']}-{number}"} for number in range(len(each))]
        starting = (member.call("start", **own) for member, own in zip(self._members, each, strict=True))
        answers = await asyncio.gather(*starting, return_exceptions=True)
        for member, answer in zip(self._members, answers, strict=True):
            if isinstance(answer, EngineError) and len(self._members) > 1:
                raise EngineError(f"{member.name}: {answer}") from answer
            if isinstance(answer, BaseException):
                raise answer
        return answers

    async def each(self, call: str, **arguments: Any) -> Mapping[str, Any]:
        """The answers of all replicas that live, by name."""
        numbers = self._numbers()
        answers = await asyncio.gather(
            *(self._members[number].call(call, **arguments) for number in numbers), return_exceptions=True
        )
        replies: dict[str, Any] = {}
        for number, answer in zip(numbers, answers, strict=True):
            member = self._members[number]
            if isinstance(answer, EngineError) and member.dead:
                self.leave_out(member, answer)
            elif isinstance(answer, EngineError) and len(self._members) > 1:
                raise EngineError(f"{member.name}: {answer}") from answer
            elif isinstance(answer, BaseException):
                raise answer
            else:
                replies[member.name] = answer
        return replies

    def leave_out(self, replica: Replica, error: EngineError) -> None:
        """Go on without a replica that died. Raises its error where it was the last one."""
        number = self._members.index(replica)
        if number in self._left_out:
            return
        if len(self._numbers()) == 1:
            if len(self._members) == 1:
                raise error
            raise EngineError(f"the last of {len(self._members)} replicas of vLLM ended: {error}") from error
        self._left_out.add(number)
        name, left = self._members[number].name, len(self._numbers())
        _log.warning("%s ended and is left out, %d of %d replicas go on: %s", name, left, len(self._members), error)

    def end(self) -> None:
        """End all of them now."""
        for member in self._members:
            member.end()

    async def close(self) -> None:
        """End all of them in order."""
        await asyncio.gather(*(member.close() for member in self._members))

    def last_errors(self) -> list[str]:
        """What they said last of errors."""
        return [line for member in self._members for line in member.last_errors()]

    def _numbers(self) -> list[int]:
        return [number for number in range(len(self._members)) if number not in self._left_out]
