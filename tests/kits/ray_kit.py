"""A stand-in for Ray in one process: actors are objects here, and what they start are real processes.

It has of Ray what `dynaweb.commands.cluster` uses, with room that is counted, and nodes that can be lost.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from dynaweb.runs.child import Child


class RayError(Exception):
    """Base of its errors."""


class GetTimeoutError(RayError):
    """No answer in time."""


class ActorDiedError(RayError):
    """The actor is gone."""

    actor_init_failed = False


class FailedInit(ActorDiedError):
    """It never came to be."""

    actor_init_failed = True


@dataclass(eq=False)
class Actor:
    """A handle: `actor.method.remote(...)` gives a call that `get` does."""

    made: Callable[[], Child]
    child: Child | None = None
    lost: bool = False
    failure: str = ""

    def __post_init__(self) -> None:
        try:
            self.child = self.made()
        except OSError as error:
            self.failure = f"{type(error).__name__}: {error}"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return SimpleNamespace(remote=lambda *args: (self, name, args))

    def call(self, name: str, arguments: Sequence[Any]) -> Any:
        if self.failure:
            raise FailedInit(f"a long account\n{self.failure}")
        if self.lost:
            raise ActorDiedError("a long account\nits node has died")
        assert self.child is not None
        return getattr(self.child, name)(*arguments)

    def lose(self) -> None:
        """Its node goes away, with all that runs there."""
        self.lost = True
        if self.child is not None:
            self.child._stopping.set()
            self.child._end_group()


@dataclass
class LocalRay:
    """`ray`, with so many CPUs and GPUs on each node."""

    nodes_cpus: Sequence[float] = (2.0, 2.0)
    gpus: float = 0.0
    actors: list[Actor] = field(default_factory=list)
    bundles: list[Mapping[str, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.exceptions = SimpleNamespace(
            RayError=RayError, GetTimeoutError=GetTimeoutError, ActorDiedError=ActorDiedError
        )
        self.util = SimpleNamespace(
            scheduling_strategies=SimpleNamespace(PlacementGroupSchedulingStrategy=lambda group, **at: at),
            placement_group=self._placement_group,
            remove_placement_group=lambda group: self.bundles.clear(),
            placement_group_table=lambda group: {"bundles_to_node_id": {0: "a", 1: "b"}},
        )

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": sum(self.nodes_cpus), **({"GPU": self.gpus} if self.gpus else {})}

    available_resources = cluster_resources

    def nodes(self) -> list[dict[str, bool]]:
        return [{"Alive": True} for _ in self.nodes_cpus]

    def _placement_group(self, bundles: list[Mapping[str, float]], strategy: str) -> Any:
        self.bundles = list(bundles)
        room = list(self.nodes_cpus)
        fits = sum(one.get("GPU", 0.0) for one in bundles) <= self.gpus
        for bundle in bundles:
            at = next((at for at, free in enumerate(room) if free >= bundle["CPU"]), None)
            fits = fits and at is not None
            room[at or 0] -= bundle["CPU"]
        return SimpleNamespace(wait=lambda timeout_seconds: fits)

    def remote(self, kind: type[Child]) -> Any:
        # What the class adds to `Child` is Ray's.
        assert issubclass(kind, Child) and set(vars(kind)) & set(vars(Child)) <= {"__init__", "__doc__", "__module__"}

        def make(*arguments: Any, **named: Any) -> Actor:
            inspect.signature(kind).bind(*arguments, **named)
            self.actors.append(Actor(lambda: Child(*arguments, **named)))
            return self.actors[-1]

        return SimpleNamespace(options=lambda **options: SimpleNamespace(remote=make))

    def get(self, calls: Any, timeout: float = 0.0) -> Any:
        if isinstance(calls, list):
            return [self.get(one) for one in calls]
        actor, name, arguments = calls
        return actor.call(name, arguments)

    def kill(self, actor: Actor) -> None:
        with suppress(RayError):
            actor.lose()
