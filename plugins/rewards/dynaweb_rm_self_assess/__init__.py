"""Reward judge `self-assess`: the language model itself says whether the final page fulfils the task."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from dynaweb.config.sections import COLDEST, Section
from dynaweb.hookspecs import PluginSpec, hookimpl


class SelfAssessConfig(Section):
    """Settings of the self-assessing judge."""

    model: Literal["base", "policy"] = "base"
    """`base`: the frozen base model judges. `policy`: the policy that is being trained does (DynaWeb)."""
    threshold: float | None = Field(default=None, ge=0, le=1)
    """P(YES) from which the reward is 1; of `soft` rewards the P(YES) whose reward is one half, which is above 0 and
    below 1. None = 0.8, and 0.5 of soft ones."""
    pictures: int = Field(default=0, ge=0)
    """How many of the last screenshots it is shown besides, where pages have some (`observation.modality`)."""
    soft: bool = False
    """The reward is P(YES), bent around `threshold`: its odds are those of P(YES) divided by those of `threshold`. 0.5
    leaves P(YES) as it is, and 0.95 tells 0.86, 0.93 and 0.99 apart, as 0.24, 0.41 and 0.84."""
    evidence: bool = False
    """An answer that cannot be read on the final page (as whole words; `N/A` and no answer aside) gets 0 without
    asking: for tasks whose answers are read off pages, where a small model takes a misspelt one for right."""
    votes: int = Field(default=1, ge=1)
    """1: P(YES) against P(NO) at the place of the answer. More: so many sampled replies, whose last YES or NO counts;
    P(YES) is then the share of YES among those that have one."""
    vote_tokens: int = Field(default=1, ge=1)
    """Longest reply of a vote, in tokens: 1 for the answer alone, more for chat models that think first."""
    vote_temperature: float = Field(default=1.0, ge=COLDEST)
    """Sampling temperature of votes."""

    @property
    def from_here(self) -> float:
        """The P(YES) from which an episode counts as a success."""
        return self.threshold if self.threshold is not None else (0.5 if self.soft else 0.8)


@hookimpl
def dynaweb_rewards() -> list[PluginSpec]:
    """Offer `self-assess`."""
    return [
        PluginSpec(
            name="self-assess",
            target="dynaweb_rm_self_assess.judge:SelfAssessJudge",
            config=SelfAssessConfig,
            summary="P(YES) of the model on task, actions and final page (DynaWeb, arXiv 2601.22149)",
            extra="train",
            capabilities=frozenset({"dream", "real"}),
        )
    ]
