"""Dream steps per second against the number of dreams at once: python benchmarks/dream.py --help

Real pages and actions are collected without a browser; each is dreamed in the dream environment, by the chosen world
model with the chosen weights, 1, 4, 16... dreams at a time. Each page is dreamed `--group` times with other seeds, as
the rollouts of one task begin; with `--group 1` all differ. One JSON line a size, then how many times faster the
largest is than one by one. Each size dreams the same, sizes take turns, times are the medians of their rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dynaweb
from dynaweb.config import resolve
from dynaweb.data.store import TransitionStore
from dynaweb.loop.rollout import together
from dynaweb.loop.workspace import Workspace
from dynaweb.loop.worldmodel import asked
from dynaweb.plugins import current
from dynaweb.runs import StageCache
from dynaweb.types import Task, Transition
from dynaweb.worldmodels.change import goal_of

WITHOUT_BROWSER = "env.task_settings.driver=static"


def transitions(count: int, sets: list[str]) -> list[Transition]:
    """Real transitions of random actions on the embedded sites that need a world model."""
    sets = [*sets, "explore.player=random", f"explore.episodes={max(8, count)}"]
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "real.jsonl.gz"
        dynaweb.collect("dynaweb", overrides=sets, out=Path(folder) / "run", store=store)
        found = asked(list(TransitionStore(store)))
    if len(found) < count:
        raise SystemExit(f"only {len(found)} of {count} transitions need a world model; give fewer --steps")
    return found[:count]


class Bench:
    """The questions and what dreams them."""

    def __init__(self, ws: Workspace, world_model: Any, distinct: list[Transition], group: int) -> None:
        self.ws = ws
        self.items = [item for item in distinct for _ in range(group)]
        starts = {str(at): item.observation for at, item in enumerate(self.items)}
        self.make: Callable[[], Any] = ws.dream_environment(world_model, lambda task: starts[task.id])

    async def one(self, at: int) -> None:
        """One dream step."""
        item = self.items[at]
        async with self.ws.lockstep.episode():
            environment = self.make()
            task = Task(str(at), goal_of(item), item.observation.url)
            await environment.reset(task, at)
            await environment.step(item.action)

    async def seconds(self, size: int) -> float:
        """Seconds for all questions, `size` of them at a time."""
        started = time.perf_counter()
        for start in range(0, len(self.items), size):
            await together([self.one(at) for at in range(start, min(start + size, len(self.items)))])
        return time.perf_counter() - started


def main() -> None:
    """Measure all sizes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wm", default="delta")
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--weights", type=Path, help="weights of a fitted world model (default: the base model)")
    parser.add_argument("--steps", type=int, default=64, help="dream steps of one round")
    parser.add_argument("--group", type=int, default=8, help="dreams of one page (rollouts of one task)")
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 4, 16, 64])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=0)
    given = parser.parse_args()
    sets = [f"model.threads={given.threads}", WITHOUT_BROWSER]
    recipe = resolve("dynaweb", overrides=sets, wm=given.wm, model=given.model)
    ws = Workspace(recipe, current(), StageCache(notify=current().notify))
    model = ws.load(given.weights) if given.weights else ws.base
    world_model = ws.world_model(model, temperature=recipe.dream.temperature)
    bench = Bench(ws, world_model, transitions(given.steps // given.group, sets), given.group)
    times: dict[int, list[float]] = {size: [] for size in given.sizes}

    async def rounds() -> None:
        await bench.seconds(max(given.sizes))
        for _ in range(given.rounds):
            for size, found in times.items():
                found.append(await bench.seconds(size))

    asyncio.run(rounds())
    rates = {size: len(bench.items) / statistics.median(found) for size, found in times.items()}
    for size, rate in rates.items():
        line = {"wm": given.wm, "group": given.group, "dreams": size, "steps_per_second": round(rate, 1)}
        sys.stdout.write(json.dumps({**line, "n": len(bench.items) * given.rounds}) + "\n")
    ratio = rates[max(rates)] / rates[min(rates)]
    sys.stdout.write(json.dumps({"faster": round(ratio, 2), "dreams": [min(rates), max(rates)]}) + "\n")


if __name__ == "__main__":
    main()
