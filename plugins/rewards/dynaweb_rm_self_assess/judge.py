"""Self-assessment: P(YES) / (P(YES) + P(NO)) at the answer position, thresholded (DynaWeb, section 3.3).

With several votes the model answers as often, each time sampled, and P(YES) is the share of YES. A reply counts by the
last of the two words that it says; one that says neither is no vote.

A trajectory that did not finish (too many steps, an invalid action) gets 0 without asking, and with `evidence` one
whose answer cannot be read on its final page; one that broke down in its environment gets no score.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dynaweb.judges.pictures import seeing_prompt
from dynaweb.judges.scores import bent
from dynaweb.protocols import GenerateRequest
from dynaweb.runs.seeding import derive
from dynaweb.types import Judgement, Observation, Prompt, Trajectory

if TYPE_CHECKING:
    from dynaweb.protocols import JudgeContext
    from dynaweb_rm_self_assess import SelfAssessConfig

_WORDS = re.compile(r"\b(YES|NO)\b")


def evident(answer: str | None, page: Observation) -> bool:
    """Whether an answer stands on a page as whole words and numbers, in whatever case.

    What says nothing needs no evidence, nor does `N/A`: how a page says that there is nothing is its own business.
    """
    said = (answer or "").strip()
    if said.lower() in ("", "n/a"):
        return True
    words = re.compile(rf"(?<![\w.,]){re.escape(said)}(?![.,]?\w)", re.IGNORECASE)
    return any(words.search(text or "") for node in page.nodes for text in (node.name, node.value))


class SelfAssessJudge:
    """Judges with the engine of `context`: the frozen base model or the policy, as configured."""

    def __init__(self, config: SelfAssessConfig, context: JudgeContext) -> None:
        if context.engine is None or context.format is None:
            raise ValueError("the self-assess judge needs an engine and a prompt format: create it through a recipe")
        self.config = config
        self.engine = context.engine
        self.format = context.format
        self.seed = context.seed

    async def score(self, trajectory: Trajectory) -> Judgement:
        """Score in {0, 1}, or by P(YES) when `soft`; None when the episode broke down or the model gave no number."""
        if trajectory.end == "infrastructure" or trajectory.final is None:
            return Judgement(score=None, why="the environment broke down")
        if trajectory.end in ("max-steps", "invalid"):
            return Judgement(score=0.0, why=f"not finished ({trajectory.end})")
        if self.config.evidence and not evident(trajectory.answer, trajectory.final):
            return Judgement(score=0.0, why="the answer does not stand on the final page", ruled=True)
        prompt = seeing_prompt(self.format, trajectory, self.config.pictures)
        if self.config.votes > 1:
            return self._counted(await asyncio.gather(*(self._vote(trajectory, prompt, k) for k in self._votes)))
        yes, no = await self.engine.choice_logprobs(prompt, (self.format.yes_id, self.format.no_id))
        return self._verdict(yes, no)

    def _verdict(self, yes: float, no: float) -> Judgement:
        if not (math.isfinite(yes) and math.isfinite(no)):
            return Judgement(score=None, why=f"the model gave no usable probability (log P: YES {yes}, NO {no})")
        probability = 1.0 / (1.0 + math.exp(min(50.0, no - yes)))
        return self._judgement(probability, f"P(YES) = {probability:.3f}")

    def _judgement(self, probability: float, why: str) -> Judgement:
        middle = self.config.from_here
        score = bent(probability, middle) if self.config.soft else float(probability >= middle)
        return Judgement(score=score, probability=probability, why=why)

    @property
    def _votes(self) -> range:
        return range(self.config.votes)

    async def _vote(self, trajectory: Trajectory, prompt: Prompt, vote: int) -> bool | None:
        """One sampled reply: whether its last verdict is YES; None when it has none."""
        reply = await self.engine.generate(
            GenerateRequest(
                prompt,
                self.config.vote_tokens,
                temperature=self.config.vote_temperature,
                seed=derive(self.seed, "vote", trajectory.id, vote),
                stop_ids=self.format.stop_ids,
            )
        )
        if not reply.finished:
            return None  # what would have followed may have said the contrary
        words = (self.format.yes_id, self.format.no_id)
        said = [token == words[0] for token in reply.token_ids if token in words]
        # Within a sentence the words have other tokens than at its beginning.
        said = said or [word == "YES" for word in _WORDS.findall(self.format.decode(reply.token_ids))]
        return said[-1] if said else None

    def _counted(self, votes: Sequence[bool | None]) -> Judgement:
        read = [vote for vote in votes if vote is not None]
        if not read:
            return Judgement(score=None, why=f"none of {len(votes)} votes said YES or NO")
        return self._judgement(sum(read) / len(read), f"{sum(read)} of {len(read)} votes for YES")
