"""Dream steps per second against the number of dreams at once: python benchmarks/dream.py --help

Real pages and actions are collected without a browser; each is dreamed in the dream environment, by the chosen world
model with the chosen weights, 1, 4, 16... dreams at a time. Each page is dreamed `--group` times with other seeds, as
the rollouts of one task begin; with `--group 1` all differ. One JSON line a size, then how many times faster the
largest is than one by one. Each size dreams the same, sizes take turns, times are the medians of their rounds. Rates
are also given by processor time: with `--threads 1` other processes of a busy machine hardly change it.
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dynaweb
from dynaweb.config import resolve
from dynaweb.data.store import TransitionStore
from dynaweb.pipeline.context import RunContext
from dynaweb.plugin.registry import current
from dynaweb.rollout.episode import together
from dynaweb.runs import StageCache
from dynaweb.stages.world_model import to_predict
from dynaweb.types import Task, Transition
from dynaweb.worldmodels.change import goal_of

WITHOUT_BROWSER = "env.task_settings.driver=static"


def transitions(count: int, sets: list[str]) -> list[Transition]:
    """Real transitions of random actions on the embedded sites that need a world model."""
    sets = [*sets, "explore.player=random", f"explore.episodes={max(8, count)}"]
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "real.jsonl.gz"
        dynaweb.collect("dynaweb", overrides=sets, out=Path(folder) / "run", store=store)
        found = to_predict(list(TransitionStore(store)))
    if len(found) < count:
        raise SystemExit(f"only {len(found)} of {count} transitions need a world model; give fewer --steps")
    return found[:count]


@dataclass(frozen=True)
class Times:
    """Seconds of wall-clock and of processor time."""

    wall: float
    cpu: float


class Bench:
    """The questions and what dreams them."""

    def __init__(self, ctx: RunContext, world_model: Any, distinct: list[Transition], group: int) -> None:
        self.ctx = ctx
        self.items = [item for item in distinct for _ in range(group)]
        starts = {str(at): item.observation for at, item in enumerate(self.items)}
        self.make: Callable[[], Any] = ctx.envs.dream(world_model, lambda task: starts[task.id])

    async def one(self, at: int) -> None:
        """One dream step."""
        item = self.items[at]
        async with self.ctx.models.lockstep.episode():
            environment = self.make()
            task = Task(str(at), goal_of(item), item.observation.url)
            await environment.reset(task, at)
            await environment.step(item.action)

    async def seconds(self, size: int) -> Times:
        """Time for all questions, `size` of them at a time."""
        wall, cpu = time.perf_counter(), time.process_time()
        for start in range(0, len(self.items), size):
            await together([self.one(at) for at in range(start, min(start + size, len(self.items)))])
        return Times(time.perf_counter() - wall, time.process_time() - cpu)


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
    ctx = RunContext(recipe, current(), StageCache(notify=current().notify))
    model = ctx.models.load(given.weights) if given.weights else ctx.models.base
    world_model = ctx.models.world_model(model, temperature=recipe.dream.temperature, held_out=frozenset())
    bench = Bench(ctx, world_model, transitions(given.steps // given.group, sets), given.group)
    times: dict[int, list[Times]] = {size: [] for size in given.sizes}

    async def rounds() -> None:
        await bench.seconds(max(given.sizes))
        for _ in range(given.rounds):
            for size, found in times.items():
                found.append(await bench.seconds(size))

    asyncio.run(rounds())
    report(times, len(bench.items), wm=given.wm, group=given.group)


def report(times: dict[int, list[Times]], steps: int, **told: Any) -> None:
    """A line for each size, and one for the largest against the smallest."""
    wall = {size: steps / statistics.median(one.wall for one in found) for size, found in times.items()}
    cpu = {size: steps / statistics.median(one.cpu for one in found) for size, found in times.items()}
    for size, found in times.items():
        rates = {"steps_per_second": round(wall[size], 1), "steps_per_cpu_second": round(cpu[size], 1)}
        write({**told, "dreams": size, **rates, "n": steps * len(found)})
    least, most = min(times), max(times)
    faster = {"faster": round(wall[most] / wall[least], 2), "faster_by_cpu": round(cpu[most] / cpu[least], 2)}
    write({**faster, "dreams": [least, most]})


def write(line: dict[str, Any]) -> None:
    """One JSON line."""
    sys.stdout.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
