"""Reward judge `llm-judge`: any model behind an OpenAI-compatible server gives a verdict in a strict form."""

from __future__ import annotations

from pydantic import Field

from dynaweb.config.sections import Section, Temperature
from dynaweb.config.server import Server
from dynaweb.hookspecs import PluginSpec, hookimpl


class LlmJudgeConfig(Section):
    """Settings of the judge."""

    server: Server = Field(default_factory=Server)
    """The model that judges, and where it is."""
    page_chars: int = Field(default=12000, ge=200)
    """Longest text of the final page, in characters; the middle of a longer one is left out."""
    pictures: int = Field(default=0, ge=0)
    """How many of the last screenshots it is shown besides, where pages have some (`observation.modality`)."""
    tokens: int = Field(default=512, ge=8)
    """Longest reply, in tokens."""
    asks: int = Field(default=2, ge=1)
    """How often it is asked when its reply holds no verdict."""
    votes: int = Field(default=1, ge=1)
    """Verdicts that are asked for; the reward is the share of YES, or 1 where that reaches `threshold`."""
    temperature: Temperature = 0.0
    """Sampling temperature; several votes need one above 0 to differ."""
    threshold: float = Field(default=0.5, ge=0, le=1)
    """Share of YES from which the reward is 1; ignored when `soft`."""
    soft: bool = False
    """The reward is the share of YES itself."""


@hookimpl
def dynaweb_rewards() -> list[PluginSpec]:
    """Offer `--reward llm-judge`."""
    return [
        PluginSpec(
            name="llm-judge",
            target="dynaweb_rm_llm_judge.judge:LlmJudge",
            config=LlmJudgeConfig,
            summary="a model behind any OpenAI-compatible server; the last line of its reply is the verdict",
            extra="server",
            capabilities=frozenset({"dream", "real"}),
        )
    ]
