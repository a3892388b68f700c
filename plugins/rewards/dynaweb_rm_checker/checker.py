"""A judge that repeats the verdict which the environment gave when a real episode ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dynaweb.types import Judgement, Trajectory

if TYPE_CHECKING:
    from dynaweb.protocols import JudgeContext
    from dynaweb_rm_checker import CheckerConfig


class Checker:
    """`--reward checker`. Scores 0 or 1 on real episodes, None (with the reason) on everything else."""

    def __init__(self, config: CheckerConfig, context: JudgeContext) -> None:
        self.config = config

    async def score(self, trajectory: Trajectory) -> Judgement:
        """The verdict recorded with the episode."""
        if trajectory.source == "dream":
            return Judgement(None, why="the checker cannot grade a dream: nothing real happened; use a judge")
        verdict = trajectory.facts.verdict
        if verdict is None:
            return Judgement(None, why="the episode carries no verdict: it failed, or it was not graded when it ended")
        return verdict
