"""The weighted mean of other judges' scores."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING

from dynaweb.judges.scores import checked
from dynaweb.plugin.contracts import judgement
from dynaweb.types import Judgement, Trajectory

if TYPE_CHECKING:
    from dynaweb.protocols import JudgeContext
    from dynaweb_rm_weighted import WeightedConfig


class WeightedJudge:
    """`--reward weighted`. `context.judges` makes a judge from its name and settings."""

    def __init__(self, config: WeightedConfig, context: JudgeContext) -> None:
        make = context.judges
        if make is None:
            raise ValueError("a combination is made of other judges: create it through a recipe")
        self.config = config
        self.judges = {name: make(name, part.settings) for name, part in config.judges.items()}

    async def score(self, trajectory: Trajectory) -> Judgement:
        """sum of weight x score / sum of weights; None as `missing` says. The probability is combined in the same
        way."""
        answers = await asyncio.gather(*(judge.score(trajectory) for judge in self.judges.values()))
        said = {
            name: checked(judgement(judge, answer))
            for (name, judge), answer in zip(self.judges.items(), answers, strict=True)
        }
        why = ", ".join(
            f"{name} {one.score if one.score is not None else '-'} ({one.why})" for name, one in said.items()
        )
        known = {name: one for name, one in said.items() if one.score is not None}
        if not known or (self.config.missing == "none" and len(known) < len(said)):
            return Judgement(None, why=f"not every judge gave a score: {why}")
        mean = self._mean({name: one.score for name, one in known.items() if one.score is not None})
        threshold = self.config.threshold
        score = float(mean >= threshold) if threshold > 0 else mean
        chances = {n: one.probability if one.probability is not None else one.score for n, one in known.items()}
        probability = self._mean({name: chance for name, chance in chances.items() if chance is not None})
        return Judgement(score, probability, why)

    def _mean(self, values: dict[str, float]) -> float:
        total = math.fsum(self.config.judges[name].weight for name in values)
        return math.fsum(self.config.judges[name].weight * value for name, value in values.items()) / total
