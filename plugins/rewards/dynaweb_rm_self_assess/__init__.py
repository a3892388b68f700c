"""Reward judge `self-assess`: the language model itself says whether the final page fulfils the task."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from dynaweb.hookspecs import PluginSpec, hookimpl


class SelfAssessConfig(BaseModel):
    """Settings of the self-assessing judge."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: Literal["base", "policy"] = "base"
    """`base`: the frozen base model judges. `policy`: the policy that is being trained does (DynaWeb)."""
    threshold: float = Field(default=0.8, ge=0, le=1)
    """P(YES) from which the reward is 1; ignored when `soft`."""
    soft: bool = False
    """The reward is P(YES) itself."""
    votes: int = Field(default=1, ge=1)
    """1: P(YES) against P(NO) at the place of the answer. More: so many sampled replies, whose last YES or NO counts;
    P(YES) is then the share of YES among those that have one."""
    vote_tokens: int = Field(default=1, ge=1)
    """Longest reply of a vote, in tokens: 1 for the answer alone, more for chat models that think first."""
    vote_temperature: float = Field(default=1.0, gt=0)
    """Sampling temperature of votes."""


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
