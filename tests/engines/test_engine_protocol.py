"""The whole protocol of engines: what a plugin of two methods gets, and what of its own is kept."""

from __future__ import annotations

import asyncio
import inspect

import pytest

from dynaweb.errors import EngineError
from dynaweb.pipeline.models import completed
from dynaweb.protocols import BaseEngine, Completion, Engine, EngineStats, GenerateRequest
from dynaweb.types import Prompt


class Small:
    """Two methods, as the documentation asks for."""

    async def generate(self, request: GenerateRequest) -> Completion:
        return Completion(request.prompt.ids, (-1.0,) * len(request.prompt), True)

    async def choice_logprobs(self, prompt: Prompt, choices: tuple[int, ...]) -> tuple[float, ...]:
        return tuple(-float(choice) for choice in choices)


class Large(Small):
    """Some of the others, with a `close` that waits for nothing."""

    def __init__(self) -> None:
        self.stats, self.correction, self.mismatch = EngineStats(new_tokens=5), 2.0, {"engine.probe_mean": 0.1}
        self.calls: list[str] = []

    def weights_changed(self) -> None:
        self.calls.append("weights")
        self.mismatch = {"engine.probe_mean": 0.2}

    async def rest(self) -> None:
        self.calls.append("rest")

    def close(self) -> None:
        self.calls.append("close")


async def test_two_methods_are_an_engine() -> None:
    engine = completed(Small())
    assert isinstance(engine, Engine)
    assert (await engine.generate(GenerateRequest(Prompt((1, 2)), 4))).token_ids == (1, 2)
    assert await engine.choice_logprobs(Prompt((1,)), (3,)) == (-3.0,)
    assert (engine.correction, dict(engine.mismatch), engine.stats) == (0, {}, EngineStats())
    await engine.rest()
    await engine.close()
    engine.require()
    engine.weights_changed()
    assert engine.weights_version is None, "nobody has begun to count"


async def test_what_a_plugin_has_is_its_own() -> None:
    plugin = Large()
    engine = completed(plugin)
    engine.weights_version = 7
    engine.weights_changed()
    await engine.rest()
    await engine.close()
    assert plugin.calls == ["weights", "rest", "close"] and engine.weights_version == 8
    assert (engine.correction, engine.mismatch["engine.probe_mean"], engine.stats.new_tokens) == (2.0, 0.2, 5)


OPTIONAL = sorted(
    name
    for name, member in vars(Engine).items()
    if inspect.isfunction(member) and not name.startswith("_") and name not in ("generate", "choice_logprobs")
)


@pytest.mark.parametrize("name", OPTIONAL)
async def test_every_method_that_a_plugin_has_is_called(name: str) -> None:
    """Also of a plugin that has no other: one that the wrapper did not know would be skipped in silence."""
    assert {"start", "rest", "close", "detach", "take_weights", "weights_changed"} <= {*OPTIONAL}
    called: list[str] = []

    async def later(self: object) -> None:
        called.append(name)

    def now(self: object) -> None:
        called.append(name)

    kind = type("One", (Small,), {name: later if inspect.iscoroutinefunction(vars(Engine)[name]) else now})
    done = getattr(completed(kind()), name)()
    if inspect.isawaitable(done):
        await done
    assert called == [name]


async def test_a_version_counts_when_the_plugin_has_the_weights() -> None:
    """Requests that are answered meanwhile, or after a push that fails, are those of the old weights."""
    taken = asyncio.Event()
    failing = False

    class Detached(Small):
        async def take_weights(self) -> None:
            await taken.wait()
            if failing:
                raise EngineError("lost")

    engine = completed(Detached())
    engine.weights_version = 3
    taking = asyncio.ensure_future(engine.take_weights())
    await asyncio.sleep(0)
    assert engine.weights_version == 3
    taken.set()
    await taking
    assert engine.weights_version == 4
    failing = True
    with pytest.raises(EngineError, match="lost"):
        await engine.take_weights()
    assert engine.weights_version == 4


def test_a_whole_engine_is_left_as_it_is() -> None:
    class Whole(Small, BaseEngine):
        pass

    engine = Whole()
    assert completed(engine) is engine and engine.stats is engine.stats is not Whole().stats
