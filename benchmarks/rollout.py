"""Dream steps per second, end to end, and where the time goes: generation, judge, training, everything else.

    python benchmarks/rollout.py [--model FOLDER|NAME] [--dreams 8,64,256] [--updates 3] [--engine local|vllm]
    python benchmarks/rollout.py --engine vllm --dreams 64 --set rl.max_staleness=1 policy.engine.sleep=false

It is one run of the recipe `dynaweb` to its end, with short demonstrations, SFT and world model. Reinforcement learning
plays 8 dreams at once, then 64, then 256. It prints one JSON object for each number of dreams, and one for the run.

Rates are `..._of_rollout`, or of the whole loop: rollouts, judge, training and new weights, by the clock. `rows` are
steps of the policy, which it is trained on. `generation` (policy and world model) and `judge` are the shares of time in
which an engine works on such requests (vLLM: on at least one; both at once count for both), `training` that of
everything after the rollouts, `other` the rest. `waited` is the share in which the trainer waits for rollouts. `idle`
is the share of rollouts in which no engine has anything to do; with `rl.max_staleness` rollouts take all the time.
`plain_tokens_per_second` is what the engine gives when all requests of the last update are there at once, each with as
many new tokens as it had. Medians over `--updates` updates after one of the same number of dreams, without the first k
of them with `rl.max_staleness = k`. Each update has a line of its own when it is done.

With `--engine vllm` policy, world model and judge have a vLLM each (`--set policy.engine.share=true`, and so on: one in
turn). `starts` says how many there were. `--keep FOLDER` leaves the run there, world model and SFT policy in it.
`--stand-in` tries that out without vLLM: servers of tests answer, on a CPU.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from dynaweb.config import resolve
from dynaweb.events import Update
from dynaweb.hookspecs import hookimpl
from dynaweb.plugin.registry import current
from dynaweb.protocols import GenerateRequest

ROLES = ("policy", "wm", "reward")


@dataclass(frozen=True, slots=True)
class Done:
    """An update that is done: when, its metrics, and the seconds in which engines had worked by then."""

    at: float
    metrics: dict[str, float]
    worked: dict[str, float]
    requests: list[tuple[GenerateRequest, int]]
    """What was asked for it, with the number of tokens that each got."""


class Clock:
    """Adds up the time in which engines work by what they do, and keeps requests and the metrics of updates.

    `told` is called with each update and the one before it, so that what was measured is not lost with a run that
    does not come to its end. After the last of `updates` updates vLLM is asked everything at once that it was asked
    for the updates in `again`.
    """

    def __init__(
        self, updates: int, again: Sequence[int], told: Callable[[int, Done, Done], None] = lambda *of: None
    ) -> None:
        self.updates: list[Done] = []
        self._told = told
        self.plain: list[float] = []
        """New tokens a second of vLLM for each update in `again`."""
        self._most, self._again = updates, again
        self._seconds: dict[str, float] = {}
        self._requests: list[tuple[GenerateRequest, int]] = []
        self._open: dict[str, int] = {}
        self._since: dict[str, float] = {}
        self._asking: asyncio.Task[None] | None = None

    @hookimpl
    def dynaweb_update(self, event: Update) -> None:
        """One update is done."""
        if event.stage == "rl":
            now = time.perf_counter()
            going = {name: now - self._since[name] for name, count in self._open.items() if count}
            worked = {name: spent + going.get(name, 0.0) for name, spent in self._seconds.items()}
            self.updates.append(Done(now, dict(event.metrics), going | worked, self._requests))
            self._requests = []
            if len(self.updates) > 1:
                self._told(len(self.updates) - 1, *self.updates[-2:])

    @contextmanager
    def counting(self) -> Iterator[Clock]:
        """Wrap the engines' work for the time of a `with` block."""
        from dynaweb.engines.local.engine import TransformersEngine
        from dynaweb.engines.vllm.engine import VllmEngine

        plain = [
            (kind, name, getattr(kind, name))
            for kind, names in (
                (TransformersEngine, ("generate_batch", "choice_batch")),
                (VllmEngine, ("generate", "choice_logprobs")),
            )
            for name in names
        ]
        for kind, name, method in plain:
            what = "generation" if name.startswith("generate") else "judge"
            setattr(kind, name, (self._batches if kind is TransformersEngine else self._calls)(what, method))
        try:
            yield self
        finally:
            for kind, name, method in plain:
                setattr(kind, name, method)

    @contextmanager
    def working(self, what: str) -> Iterator[None]:
        """An engine has something to do inside."""
        for name in (what, "any"):
            if not self._open.get(name):
                self._since[name] = time.perf_counter()
            self._open[name] = self._open.get(name, 0) + 1
        try:
            yield
        finally:
            for name in (what, "any"):
                self._open[name] -= 1
                if not self._open[name]:
                    spent = time.perf_counter() - self._since[name]
                    self._seconds[name] = self._seconds.get(name, 0.0) + spent

    def _batches(self, what: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def batch(engine: Any, requests: Any) -> Any:
            with self.working(what):
                results = method(engine, requests)
            if what == "generation":
                self._requests += [(one, len(got.token_ids)) for one, got in zip(requests, results, strict=True)]
            return results

        return batch

    def _calls(self, what: str, method: Callable[..., Any]) -> Callable[..., Any]:
        async def call(engine: Any, request: Any, *more: Any) -> Any:
            if what == "generation" and self._again and len(self.updates) == self._most:
                if self._asking is None:
                    self._asking = asyncio.ensure_future(self._ask_again(engine, method))
                await self._asking
            with self.working(what):
                result = await method(engine, request, *more)
            if what == "generation":
                self._requests.append((request, len(result.token_ids)))
            return result

        return call

    async def _ask_again(self, engine: Any, generate: Callable[..., Any]) -> None:
        """Of the vLLM that is there: to start another one takes longer than all of this."""
        for number in self._again:
            asked, tokens = whole(self.updates[number].requests)
            await generate(engine, asked[0])
            started = time.perf_counter()
            await asyncio.gather(*(generate(engine, one) for one in asked))
            self.plain.append(tokens / (time.perf_counter() - started))


def whole(requests: Sequence[tuple[GenerateRequest, int]]) -> tuple[list[GenerateRequest], int]:
    """Requests that end when they have as many tokens as before, and how many these are."""
    asked = [replace(one, max_new_tokens=count, stop_ids=(), stop=()) for one, count in requests if count]
    return asked, sum(one.max_new_tokens for one in asked)


def engine_settings(given: argparse.Namespace) -> dict[str, Any]:
    """The same engine for every role."""
    if given.engine != "vllm":
        return {f"{role}.engine.name": given.engine for role in ROLES}
    chosen = {"name": "vllm", "share": False}
    return {f"{role}.engine.{name}": value for role in ROLES for name, value in chosen.items()}


@contextmanager
def stand_ins(given: argparse.Namespace) -> Iterator[None]:
    """A server of tests for each role."""
    sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "kits"))
    from vllm_server_kit import serving

    from dynaweb.trainer.models import load_model

    with serving(*(load_model(given.model, "float32", "cpu") for _ in ROLES)) as servers:
        for role, server in zip(ROLES, servers, strict=True):
            given.set.append(f"{role}.engine.servers={json.dumps([server.address])}")
        yield


def local_rate(given: argparse.Namespace, requests: Sequence[tuple[GenerateRequest, int]]) -> float:
    """New tokens a second of the engine in this process that has all requests at once."""
    from dynaweb.engines.local.engine import TransformersEngine
    from dynaweb.engines.scheduler import Lockstep
    from dynaweb.trainer.models import load_model, pick_device, resolve

    engine = TransformersEngine(load_model(resolve(given.model), given.dtype, str(pick_device("auto"))), Lockstep())
    asked, tokens = whole(requests)
    engine.generate_batch(asked[:4])
    start = time.perf_counter()
    engine.generate_batch(asked)
    return tokens / (time.perf_counter() - start)


def sizes(given: argparse.Namespace) -> list[int]:
    """Dreams of each update: one to warm up and `--updates` of each number."""
    return [int(dreams) for dreams in given.dreams.split(",") for _ in range(given.updates + 1)]


def group_size(given: argparse.Namespace) -> int:
    """Dreams of one task: 8, or as many as there are."""
    return min(8, *sizes(given))


def settings(given: argparse.Namespace) -> dict[str, Any]:
    """A short run whose updates play as many dreams as the largest number."""
    n = group_size(given)
    return {
        "rl.updates": len(sizes(given)),
        "rl.tasks": max(sizes(given)) // n,
        "rl.n": n,
        "rl.checkpoint_every": len(sizes(given)),
        "sft.steps": given.sft_steps,
        "wm_fit.steps": given.wm_steps,
        "wm_fit.open_loop": 0,
        "wm_fit.fidelity_steps": 0,
        "explore.episodes": given.explore,
        "controls.sft_steps": [],
        "eval.episodes": 1,
        "model.path": given.model,
        "model.dtype": given.dtype,
        **engine_settings(given),
        "env.task_settings.driver": "static",
        # What is recalled costs nothing.
        "dream.recall": False,
        **{name: json.loads(value) for name, _, value in (text.partition("=") for text in given.set)},
    }


@contextmanager
def fewer_tasks(given: argparse.Namespace) -> Iterator[None]:
    """Each update plays so many tasks as it needs for its number of dreams."""
    from dynaweb.rollout.curriculum import Curriculum

    whole_update, dreams, n = Curriculum.of_update, sizes(given), group_size(given)

    def of_update(self: Curriculum, update: int, outcomes: Any) -> Any:
        return whole_update(self, update, outcomes)[: max(1, dreams[update] // n)]

    Curriculum.of_update = of_update  # type: ignore[method-assign]
    try:
        yield
    finally:
        Curriculum.of_update = whole_update  # type: ignore[method-assign]


def measured(given: argparse.Namespace, out: Path) -> Iterator[dict[str, Any]]:
    """The run, medians over its updates for each number of dreams, and what there is to say of the whole run."""
    from dynaweb.api import run
    from dynaweb.observers import read_metrics

    each, counts = given.updates + 1, [int(dreams) for dreams in given.dreams.split(",")]
    lasts = [each * (number + 1) - 1 for number in range(len(counts))]
    on_vllm = given.engine == "vllm"
    recipe = resolve("dynaweb", overrides=settings(given))
    ahead = recipe.rl.max_staleness

    def told(number: int, before: Done, after: Done) -> None:
        row = {name: round(value, 4) for name, value in _measures(before, after, ahead=ahead > 0).items()}
        sys.stdout.write(json.dumps({"update": number, "dreams": sizes(given)[number], **row}) + "\n")
        sys.stdout.flush()

    clock = Clock(len(sizes(given)), lasts if given.plain and on_vllm else (), told)
    started = time.perf_counter()
    with clock.counting(), current().observing(clock), fewer_tasks(given):
        run(recipe, out=out)
    seconds = time.perf_counter() - started
    plain = clock.plain or [local_rate(given, clock.updates[last].requests) for last in lasts if given.plain]
    for number, dreams in enumerate(counts):
        own = clock.updates[each * number : each * (number + 1)]
        # Rollouts that run ahead have played the first ones while the update before them compiled.
        pairs = [*pairwise(own)][ahead:]
        rows = [_measures(before, after, ahead=ahead > 0) for before, after in pairs]
        medians = {name: statistics.median(row[name] for row in rows) for name in rows[0]}
        if plain:
            medians["plain_tokens_per_second"] = plain[number]
        yield {"dreams": dreams, **{name: round(value, 4) for name, value in medians.items()}}
    stages = [row for row in read_metrics(out / "metrics.jsonl") if row["event"] == "stage"]
    # What a stage of the cache has cost, it has cost another run.
    starts = sum(row["metrics"].get("engine_starts", 0) for row in stages if row["time.status"] == "done")
    yield {"what": "the run", "stages": len(stages), "starts": starts, "seconds": round(seconds, 1)}


def _measures(before: Done, after: Done, *, ahead: bool) -> dict[str, float]:
    """Of one update, which began when the one `before` was done; the judge asks for the probabilities of choices."""
    whole, metrics = after.at - before.at, after.metrics
    rollout = whole if ahead else metrics["time.rollout"]
    spent = {name: worked - before.worked.get(name, 0.0) for name, worked in after.worked.items()}
    lost = max(0.0, rollout - spent.get("any", 0.0))
    tokens = metrics["policy_tokens"] + metrics.get("world_model_tokens", 0.0)
    return {
        "dream_steps_per_second_of_rollout": metrics["dreamed_steps"] / rollout,
        "new_tokens_per_second_of_rollout": tokens / rollout,
        "seconds_per_update": whole,
        "dream_steps_per_second": metrics["dreamed_steps"] / whole,
        "new_tokens_per_second": tokens / whole,
        "policy_tokens_per_second": metrics["policy_tokens"] / whole,
        "rows_per_second": metrics["steps"] / whole,
        "rows": metrics["steps"],
        "generation": spent.get("generation", 0.0) / whole,
        "judge": spent.get("judge", 0.0) / whole,
        "training": metrics["time.update"] / whole,
        "other": lost / whole,
        "idle": lost / rollout,
        "waited": metrics["time.rollout"] / whole,
    }


def main() -> None:
    """Measure every number of dreams in one run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--engine", default="local", choices=["local", "transformers", "vllm"])
    parser.add_argument("--dreams", default="8,64,256", help="how many at once, one number after the other")
    parser.add_argument("--no-plain", dest="plain", action="store_false", help="without the engine on its own")
    parser.add_argument("--updates", type=int, default=3)
    parser.add_argument("--sft-steps", type=int, default=30)
    parser.add_argument("--wm-steps", type=int, default=60)
    parser.add_argument("--explore", type=int, default=60)
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="where the run is left")
    parser.add_argument("--stand-in", action="store_true", help="with --engine vllm: without vLLM")
    parser.add_argument("--set", nargs="*", default=[], metavar="PATH=JSON")
    given = parser.parse_args()
    given.engine = "transformers" if given.engine == "local" else given.engine
    if given.updates <= (late := resolve("dynaweb", overrides=settings(given)).rl.max_staleness):
        parser.error(f"--updates {given.updates} leaves none to measure with rl.max_staleness = {late}")
    with tempfile.TemporaryDirectory(prefix="dynaweb-rollout-") as name:
        os.environ.setdefault("DYNAWEB_CACHE", f"{name}/cache")
        with stand_ins(given) if given.stand_in else nullcontext():
            for line in measured(given, given.keep or Path(name) / "run"):
                sys.stdout.write(json.dumps({"model": given.model, "engine": given.engine, **line}) + "\n")
                sys.stdout.flush()


if __name__ == "__main__":
    main()
