"""How many of the dreams that a judge called a success are one on real pages, from the folders of finished runs:

    python benchmarks/true_dreams.py runs/with-memory runs/without --episodes 600

A dream's actions are done again in the task environment of its run, each on the element of the same role and name, and
the environment grades what comes of it, as audits do. Dreams are told apart by what they showed: real pages only, an
imagined page, and among these such with and without an element that the world model invented. Each share has its n and
its 95 % interval (dreams of one task are not independent, so the intervals are a little too narrow).
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from dynaweb.config import resolve
from dynaweb.data.store import TrajectoryStore
from dynaweb.judges.reward import SUCCESS, grading, success_of
from dynaweb.pipeline.context import RunContext
from dynaweb.plugin.registry import current
from dynaweb.rl.audit import Repeated
from dynaweb.rollout.episode import Episode, Rules, play_all
from dynaweb.runs import StageCache
from dynaweb.stats import wilson
from dynaweb.types import Trajectory

GROUPS: Mapping[str, Callable[[Trajectory], bool]] = {
    "all": lambda dream: True,
    "real pages only": lambda dream: not imagined(dream),
    "an imagined page": lambda dream: imagined(dream),
    "an imagined page, nothing invented": lambda dream: imagined(dream) and not invented(dream),
    "something invented": lambda dream: invented(dream),
}
"""What dreams are told apart by."""


def imagined(dream: Trajectory) -> bool:
    """Whether a dream showed a page that a world model wrote."""
    return any(step.facts.imagined for step in dream.steps)


def invented(dream: Trajectory) -> bool:
    """Whether a dream showed an element that the world model invented."""
    return any("i" in step.facts.origins for step in dream.steps)


def successes(folder: Path, count: int, seed: int) -> list[Trajectory]:
    """A sample of a run's dreams that were judged a success, `count` at most."""
    files = sorted(folder.rglob("dream*.jsonl.gz"))
    if not files:
        raise SystemExit(f"{folder} holds no dreams; name the folder of a run with --env dream")
    dreams = [dream for path in files for dream in TrajectoryStore(path)]
    kept = [dream for dream in dreams if dream.source == "dream" and (dream.reward or 0.0) >= SUCCESS]
    random.Random(seed).shuffle(kept)
    return kept[:count]


async def repeat(folder: Path, dreams: list[Trajectory], seed: int) -> list[float | None]:
    """What the environment says of each dream's actions on real pages; None where it broke down."""
    recipe = resolve(folder / "recipe.toml")
    ctx = RunContext(recipe, current(), StageCache(notify=current().notify))
    answers: list[float | None] = []
    for at, dream in enumerate(dreams):
        played = await play_all(
            [Episode(f"true/{at}", dream.task, seed)],
            ctx.envs.source.environment,
            lambda task, dream=dream: Repeated(dream),  # type: ignore[misc]
            rules=Rules(len(dream.steps), invalid_ends=True),
            slots=1,
            finish=grading(ctx.envs.source),
        )
        answers += [success_of(one) for one in played]
    await ctx.envs.close()
    return answers


def main() -> None:
    """A table for the runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, help="folders of finished runs")
    parser.add_argument("--episodes", type=int, default=600, help="dreams of each run that are repeated, at most")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    lines = ["| run | dreams judged a success | true on real pages |", "| --- | --- | --- |"]
    for folder in given.runs:
        dreams = successes(folder, given.episodes, given.seed)
        real = asyncio.run(repeat(folder, dreams, given.seed))
        for name, belongs in GROUPS.items():
            values = [value for dream, value in zip(dreams, real, strict=True) if value is not None and belongs(dream)]
            lines.append(f"| {folder.name} | {name} | {wilson(sum(v >= SUCCESS for v in values), len(values))} |")
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
