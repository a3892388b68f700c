"""The outcome reward model of WebRL (arXiv 2411.02337, section 2.3): intent, actions, final page -> YES or NO.

The score is P(YES) / (P(YES) + P(NO)) of the next token, from the difference of log-probabilities, so nothing
overflows; then it is calibrated. The decision leaves out how frequent success is (`Platt.evidence`). The prompt layer
cuts the middle of a long page, never the task or the place where the answer stands.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dynaweb.judges.calibration import Platt
from dynaweb.judges.pictures import seeing_prompt
from dynaweb.types import Judgement, Prompt, Trajectory

if TYPE_CHECKING:
    from dynaweb.protocols import JudgeContext
    from dynaweb_rm_orm import OrmConfig


class OutcomeRewardModel:
    """`--reward orm`. Judges with the engine of `context`, whose weights were fitted for it."""

    def __init__(self, config: OrmConfig, context: JudgeContext) -> None:
        if context.engine is None or context.format is None:
            raise ValueError("the outcome reward model needs an engine and a prompt format: create it through a recipe")
        self.config = config
        self.engine = context.engine
        self.format = context.format
        self.calibration = context.calibration or Platt()

    async def score(self, trajectory: Trajectory) -> Judgement:
        """Score in {0, 1}, or P(YES) when `soft`; None when the episode broke down or the model gave no number."""
        if trajectory.end == "infrastructure" or trajectory.final is None:
            return Judgement(score=None, why="the environment broke down")
        if trajectory.end in ("max-steps", "invalid"):
            return Judgement(score=0.0, why=f"not finished ({trajectory.end})")
        odds = await self.log_odds(trajectory)
        if math.isnan(odds):
            return Judgement(score=None, why="the model gave no usable probability of YES and NO")
        if self.calibration.slope == 0:
            return Judgement(score=None, why="the judge orders the episodes that calibrate it no better than chance")
        probability = self.calibration.probability(odds)
        evidence = self.calibration.evidence(odds)
        score = probability if self.config.soft else float(evidence >= self.config.threshold)
        why = f"P(YES) = {probability:.3f}, {evidence:.3f} at even odds"
        return Judgement(score=score, probability=probability, why=why)

    async def log_odds(self, trajectory: Trajectory) -> float:
        """log P(YES) - log P(NO) before calibration; nan when the model gives no number."""
        prompt = seeing_prompt(self.format, trajectory, self.config.pictures)
        yes, no = await self.engine.choice_logprobs(prompt, (self.format.yes_id, self.format.no_id))
        return yes - no if math.isfinite(yes) and math.isfinite(no) else math.nan

    def examples(
        self, trajectories: Sequence[Trajectory], labels: Sequence[bool]
    ) -> list[tuple[Prompt, tuple[int, ...]]]:
        """Supervised pairs: the prompt of each episode, and the token of YES or NO."""
        return [
            (
                seeing_prompt(self.format, trajectory, self.config.pictures),
                (self.format.yes_id if label else self.format.no_id,),
            )
            for trajectory, label in zip(trajectories, labels, strict=True)
        ]
