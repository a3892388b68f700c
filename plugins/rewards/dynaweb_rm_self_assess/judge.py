"""Self-assessment: P(YES) / (P(YES) + P(NO)) at the answer position, thresholded (DynaWeb, section 3.3).

A trajectory that did not finish (too many steps, an invalid action) gets 0 without asking, one that broke down in its
environment gets no score.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from dynaweb.types import Judgement, Trajectory

if TYPE_CHECKING:
    from dynaweb.protocols import PluginContext
    from dynaweb_rm_self_assess import SelfAssessConfig


class SelfAssessJudge:
    """Judges with the engine of `context`: the frozen base model or the policy, as configured."""

    def __init__(self, config: SelfAssessConfig, context: PluginContext) -> None:
        if context.engine is None or context.format is None:
            raise ValueError("the self-assess judge needs an engine and a prompt format: create it through a recipe")
        self.config = config
        self.engine = context.engine
        self.format = context.format

    async def score(self, trajectory: Trajectory) -> Judgement:
        """Score in {0, 1}, or P(YES) when `soft`; None when the episode broke down or the model gave no number."""
        if trajectory.end == "infrastructure" or trajectory.final is None:
            return Judgement(score=None, why="the environment broke down")
        if trajectory.end in ("max-steps", "invalid"):
            return Judgement(score=0.0, why=f"not finished ({trajectory.end})")
        prompt = self.format.judge_prompt(trajectory)
        yes, no = await self.engine.choice_logprobs(prompt, (self.format.yes_id, self.format.no_id))
        return self._verdict(yes, no)

    def _verdict(self, yes: float, no: float) -> Judgement:
        if not (math.isfinite(yes) and math.isfinite(no)):
            return Judgement(score=None, why=f"the model gave no usable probability (log P: YES {yes}, NO {no})")
        probability = 1.0 / (1.0 + math.exp(min(50.0, no - yes)))
        score = probability if self.config.soft else float(probability >= self.config.threshold)
        return Judgement(score=score, probability=probability, why=f"P(YES) = {probability:.3f}")
