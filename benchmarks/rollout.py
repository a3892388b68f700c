"""Dream steps per second, end to end, and where the time goes: generation, judge, training, everything else.

    python benchmarks/rollout.py [--model FOLDER|NAME] [--dreams 8 64 256] [--updates 3] [--engine transformers]

It runs the reinforcement learning of the recipe `dynaweb` (demonstrations, SFT and world model are made first, short)
with 8, 64 and 256 dreams at once and prints one JSON object for each: dream steps per second of rollout and of the
whole update, new tokens per second, and the shares of time. `generation` (policy and world model) and `judge` are the
time in which the engine of transformers works, `training` everything after the rollouts, `other` Python between model
calls, in which the accelerator idles. Medians over `--updates` updates after the first. With `--engine vllm` the
policy's generation is in `other`, since vLLM works beside this process.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dynaweb.config import resolve
from dynaweb.events import Update
from dynaweb.hookspecs import hookimpl
from dynaweb.plugin.registry import current


class Clock:
    """Adds up the time of engine batches by what they do, and keeps the metrics of updates."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.updates: list[dict[str, float]] = []
        self.marks: list[dict[str, float]] = []

    @hookimpl
    def dynaweb_update(self, event: Update) -> None:
        """One update is done."""
        if event.stage == "rl":
            self.updates.append(dict(event.metrics))
            self.marks.append(dict(self.seconds))

    @contextmanager
    def counting(self) -> Any:
        """Wrap the engine's batches for the time of a `with` block."""
        from dynaweb.engines.local.engine import TransformersEngine

        plain = TransformersEngine.generate_batch, TransformersEngine.choice_batch
        for name, method in (("generate_batch", plain[0]), ("choice_batch", plain[1])):
            setattr(TransformersEngine, name, self._timed(name, method))
        try:
            yield self
        finally:
            TransformersEngine.generate_batch, TransformersEngine.choice_batch = plain  # type: ignore[method-assign]

    def _timed(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        clock = self

        def timed(engine: Any, requests: Any) -> Any:
            start = time.perf_counter()
            try:
                return method(engine, requests)
            finally:
                key = f"{name} {id(engine.model)}"
                clock.seconds[key] = clock.seconds.get(key, 0.0) + time.perf_counter() - start

        return timed


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
        "policy.engine.name": given.engine,
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
    return {name: round(statistics.median(row[name] for row in rows), 4) for name in rows[0]}


def _shares(before: dict[str, float], after: dict[str, float], update: dict[str, float]) -> dict[str, float]:
    """Shares of an update's time; the judge is what asks for the probabilities of choices."""
    whole = update["time.rollout"] + update["time.update"]
    spent = {key: value - before.get(key, 0.0) for key, value in after.items()}
    judge = sum(value for key, value in spent.items() if key.startswith("choice_batch"))
    generation = sum(value for key, value in spent.items() if key.startswith("generate_batch"))
    training = update["time.update"]
    return {
        "generation": generation / whole,
        "judge": judge / whole,
        "training": training / whole,
        "other": max(0.0, update["time.rollout"] - generation - judge) / whole,
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
    parser.add_argument("--engine", default="transformers")
    parser.add_argument("--dreams", type=int, nargs="+", default=[8, 64, 256])
    parser.add_argument("--updates", type=int, default=3)
    parser.add_argument("--sft-steps", type=int, default=30)
    parser.add_argument("--wm-steps", type=int, default=60)
    parser.add_argument("--explore", type=int, default=60)
    parser.add_argument("--set", nargs="*", default=[], metavar="PATH=JSON")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dynaweb-rollout-") as name:
        os.environ.setdefault("DYNAWEB_CACHE", f"{name}/cache")
        for dreams in given.dreams:
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
