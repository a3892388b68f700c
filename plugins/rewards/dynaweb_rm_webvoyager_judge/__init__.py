"""WebVoyager's judge (`--reward webvoyager-judge`): a model behind a server looks at the answer and the last pages."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from dynaweb.config.sections import Section
from dynaweb.config.server import Server
from dynaweb.hookspecs import PluginSpec, hookimpl


class WebvoyagerJudgeConfig(Section):
    """Settings of the judge."""

    server: Server = Field(default_factory=Server)
    """The model that judges, and where it is."""
    pages: int = Field(default=1, ge=0)
    """How many of the last pages it is shown as text (WebVoyager's text-only agents keep one)."""
    pictures: int = Field(default=3, ge=0)
    """How many of the last screenshots it is shown, where pages have some (`observation.modality`) or the environment
    has taken them for judges; 0 for text-only models."""
    page_chars: int = Field(default=8000, ge=200)
    """Longest text of one page, in characters."""
    tokens: int = Field(default=1000, ge=16)
    """Longest reply, in tokens."""
    asks: int = Field(default=2, ge=1)
    """How often it is asked when its reply holds no verdict."""
    stream: bool = False
    """Read the reply as a stream, for servers that close slow connections otherwise."""


@hookimpl
def dynaweb_rewards() -> Sequence[PluginSpec]:
    """The judge `webvoyager-judge`."""
    return [
        PluginSpec(
            name="webvoyager-judge",
            target="dynaweb_rm_webvoyager_judge.judge:WebvoyagerJudge",
            config=WebvoyagerJudgeConfig,
            summary="A model behind a server says SUCCESS or NOT SUCCESS, from the answer and the last pages",
            extra="server",
        )
    ]
