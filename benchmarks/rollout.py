"""Dream steps per second, end to end, and where the time goes: generation, judge, training, everything else.

    python benchmarks/rollout.py [--model FOLDER|NAME] [--dreams 8,64,256] [--updates 3] [--engine local|vllm]

It runs the reinforcement learning of the recipe `dynaweb` (demonstrations, SFT and world model are made first, short)
with 8, 64 and 256 dreams at once and prints one JSON object for each: dream steps per second of rollout and of the
whole update, new tokens per second, and the shares of time. `generation` (policy and world model) and `judge` are the
time in which an engine works on such requests (vLLM: on at least one; both at once count for both), `training`
everything after the rollouts, `other` the rest. `idle` is the share of rollouts in which no engine has anything
to do. `plain_tokens_per_second` is what an engine of this kind gives when all requests of the last update are there at
once, each with as many new tokens as it had. Medians over `--updates` updates after the first. With `--engine vllm`
policy, world model and judge have a vLLM each (`--set policy.engine.share=true`, and so on: one in turn).
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
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from dynaweb.config import resolve
from dynaweb.events import Update
from dynaweb.hookspecs import hookimpl
from dynaweb.plugin.registry import current
from dynaweb.protocols import EngineContext, GenerateRequest

ROLES = ("policy", "wm", "reward")
VLLM = {"extra.max_num_seqs": 512, "extra.max_num_batched_tokens": 16_384}
"""What makes vLLM fastest here, in dreams and on its own."""


class Clock:
    """Adds up the time in which engines work by what they do, and keeps requests and the metrics of updates."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.updates: list[dict[str, float]] = []
        self.marks: list[dict[str, float]] = []
        self.requests: list[tuple[GenerateRequest, int]] = []
        """The requests of the update in progress, with the number of tokens that each got."""
        self.last: list[tuple[GenerateRequest, int]] = []
        self._open: dict[str, int] = {}
        self._since: dict[str, float] = {}

    @hookimpl
    def dynaweb_update(self, event: Update) -> None:
        """One update is done."""
        if event.stage == "rl":
            self.updates.append(dict(event.metrics))
            self.marks.append(dict(self.seconds))
            self.last, self.requests = self.requests, []

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
                    self.seconds[name] = self.seconds.get(name, 0.0) + spent

    def _batches(self, what: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def batch(engine: Any, requests: Any) -> Any:
            with self.working(what):
                results = method(engine, requests)
            if what == "generation":
                self.requests += [(one, len(got.token_ids)) for one, got in zip(requests, results, strict=True)]
            return results

        return batch

    def _calls(self, what: str, method: Callable[..., Any]) -> Callable[..., Any]:
        async def call(engine: Any, request: Any, *more: Any) -> Any:
            with self.working(what):
                result = await method(engine, request, *more)
            if what == "generation":
                self.requests.append((request, len(result.token_ids)))
            return result

        return call


def engine_settings(given: argparse.Namespace) -> dict[str, Any]:
    """The same engine for every role."""
    if given.engine != "vllm":
        return {f"{role}.engine.name": given.engine for role in ROLES}
    chosen = {"name": "vllm", "share": False, **VLLM}
    return {f"{role}.engine.{name}": value for role in ROLES for name, value in chosen.items()}


def plain_rate(given: argparse.Namespace, requests: Sequence[tuple[GenerateRequest, int]]) -> float:
    """New tokens a second of an engine that has all requests at once, each with as many new tokens as it had."""
    from dynaweb.engines.local.engine import TransformersEngine
    from dynaweb.engines.plugin import VllmConfig
    from dynaweb.engines.scheduler import Lockstep
    from dynaweb.engines.vllm.engine import VllmEngine
    from dynaweb.trainer.models import load_model, pick_device, resolve

    model = load_model(resolve(given.model), given.dtype, str(pick_device("auto")))
    fixed = [replace(one, max_new_tokens=count, stop_ids=(), stop=()) for one, count in requests if count]
    tokens = sum(one.max_new_tokens for one in fixed)
    if given.engine != "vllm":
        engine = TransformersEngine(model, Lockstep())
        engine.generate_batch(fixed[:4])
        start = time.perf_counter()
        engine.generate_batch(fixed)
        return tokens / (time.perf_counter() - start)

    async def all_at_once() -> float:
        weights: Any = SimpleNamespace(model=model, tokenizer=None, vision=None)
        extra = {name.removeprefix("extra."): value for name, value in VLLM.items() if name.startswith("extra.")}
        vllm = VllmEngine(VllmConfig(extra=extra), EngineContext(weights=weights, batching=Lockstep()))
        try:
            await asyncio.gather(*map(vllm.generate, fixed[:4]))
            start = time.perf_counter()
            await asyncio.gather(*map(vllm.generate, fixed))
            return tokens / (time.perf_counter() - start)
        finally:
            await vllm.close()

    return asyncio.run(all_at_once())


def settings(given: argparse.Namespace, dreams: int) -> dict[str, Any]:
    """A short run whose updates play so many dreams."""
    n = min(8, dreams)
    return {
        "rl.updates": given.updates + 1,
        "rl.tasks": max(1, dreams // n),
        "rl.n": n,
        "rl.checkpoint_every": given.updates + 1,
        "sft.steps": given.sft_steps,
        "wm_fit.steps": given.wm_steps,
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


def measured(given: argparse.Namespace, dreams: int, folder: Path) -> dict[str, Any]:
    """The run, and medians over its updates."""
    from dynaweb.api import run

    clock = Clock()
    recipe = resolve("dynaweb", overrides=settings(given, dreams))
    with clock.counting(), current().observing(clock):
        run(recipe, out=folder / f"run-{dreams}")
    shares = [_shares(*pair) for pair in zip(clock.marks, clock.marks[1:], clock.updates[1:], strict=False)]
    rows = [{**row, **_rates(update)} for row, update in zip(shares, clock.updates[1:], strict=False)]
    medians = {name: statistics.median(row[name] for row in rows) for name in rows[0]}
    if given.plain:
        medians["plain_tokens_per_second"] = plain_rate(given, clock.last)
    return {name: round(value, 4) for name, value in medians.items()}


def _shares(before: dict[str, float], after: dict[str, float], update: dict[str, float]) -> dict[str, float]:
    """Shares of an update's time; the judge is what asks for the probabilities of choices."""
    rollout, training = update["time.rollout"], update["time.update"]
    whole = rollout + training
    spent = {key: value - before.get(key, 0.0) for key, value in after.items()}
    return {
        "generation": spent.get("generation", 0.0) / whole,
        "judge": spent.get("judge", 0.0) / whole,
        "training": training / whole,
        "other": max(0.0, rollout - spent.get("any", 0.0)) / whole,
        "idle": max(0.0, rollout - spent.get("any", 0.0)) / rollout,
    }


def _rates(update: dict[str, float]) -> dict[str, float]:
    rollout, whole = update["time.rollout"], update["time.rollout"] + update["time.update"]
    tokens = update.get("policy_tokens", 0.0) + update.get("world_model_tokens", 0.0)
    return {
        "dream_steps_per_second_of_rollout": update["dreamed_steps"] / rollout,
        "dream_steps_per_second": update["dreamed_steps"] / whole,
        "new_tokens_per_second_of_rollout": tokens / rollout,
        "seconds_per_update": whole,
    }


def main() -> None:
    """Measure every number of dreams."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--engine", default="local", choices=["local", "transformers", "vllm"])
    parser.add_argument("--dreams", default="8,64,256", help="how many at once, with commas between")
    parser.add_argument("--no-plain", dest="plain", action="store_false", help="without the engine on its own")
    parser.add_argument("--updates", type=int, default=3)
    parser.add_argument("--sft-steps", type=int, default=30)
    parser.add_argument("--wm-steps", type=int, default=60)
    parser.add_argument("--explore", type=int, default=60)
    parser.add_argument("--set", nargs="*", default=[], metavar="PATH=JSON")
    given = parser.parse_args()
    given.engine = "transformers" if given.engine == "local" else given.engine
    with tempfile.TemporaryDirectory(prefix="dynaweb-rollout-") as name:
        os.environ.setdefault("DYNAWEB_CACHE", f"{name}/cache")
        for dreams in map(int, given.dreams.split(",")):
            line = {
                "dreams": dreams,
                "model": given.model,
                "engine": given.engine,
                **measured(given, dreams, Path(name)),
            }
            sys.stdout.write(json.dumps(line) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
