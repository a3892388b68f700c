"""Plays every scripted MiniWoB++ expert on many seeds and prints how often the page's raw reward was 1.

python benchmarks/miniwob_experts.py --seeds 20 [--templates click-button,enter-text]
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time

from dynaweb.judges.reward import grading, success_of
from dynaweb.protocols import EnvironmentContext
from dynaweb.rollout.agents import ExpertPlayer
from dynaweb.rollout.episode import Episode, Rules, play_all
from dynaweb.types import Trajectory
from dynaweb_env_miniwob import MiniwobConfig
from dynaweb_env_miniwob.env import MiniwobSource

LONGEST = 30


async def prove(source: MiniwobSource, seeds: int, slots: int) -> list[Trajectory]:
    """One expert episode for each scripted task and seed."""
    tasks = source.tasks("train", count=seeds * len(source.names), seed=0)
    try:
        return await play_all(
            [Episode(task.id, task, 0) for task in tasks],
            source.environment,
            lambda task: ExpertPlayer(source.expert(task)),
            rules=Rules(LONGEST, source="expert"),
            slots=slots,
            finish=grading(source),
        )
    finally:
        await source.close()


def main() -> int:
    """Print one line per task and a last one; 1 when any expert failed on any seed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--slots", type=int, default=2)
    parser.add_argument("--templates", default="")
    options = parser.parse_args()
    names = tuple(filter(None, options.templates.split(",")))
    started = time.monotonic()
    source = MiniwobSource(MiniwobConfig(templates=names, pick="scripted"), EnvironmentContext())
    played = asyncio.run(prove(source, options.seeds, options.slots))
    solved: dict[str, list[bool]] = {}
    for trajectory in played:
        solved.setdefault(trajectory.task.template, []).append(success_of(trajectory) == 1.0)
    for name, outcomes in sorted(solved.items()):
        print(f"{name:32} {sum(outcomes)}/{len(outcomes)}")
    perfect = sum(all(outcomes) for outcomes in solved.values())
    print(f"{perfect} of {len(solved)} experts solve all {options.seeds} seeds ({time.monotonic() - started:.0f} s)")
    return int(perfect < len(solved))


if __name__ == "__main__":
    sys.exit(main())
