"""WebVoyager: open questions on live sites (`--env webvoyager`), graded by a model that looks at the last pages.

`files` reads the task files or fetches them, `blocked` knows pages that keep agents out, `env` plays. The judge is the
reward plugin `webvoyager-judge`; the environment's own verdict is its verdict, with the settings in `judge`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from dynaweb.config.sections import PageView
from dynaweb.hookspecs import PluginSpec, hookimpl
from dynaweb.web.observation_formats import format_spec
from dynaweb_rm_webvoyager_judge import WebvoyagerJudgeConfig

UPSTREAM = "https://raw.githubusercontent.com/MinorJerry/WebVoyager/main/data"


class WebvoyagerConfig(PageView):
    """Settings of WebVoyager."""

    path: str = ""
    """Folder with `WebVoyager_data.jsonl` and `reference_answer.json`, or a task file; empty = what was downloaded."""
    download: bool = False
    """Fetch the files from `source` when they are not there."""
    source: str = UPSTREAM
    """Where the files are fetched from."""
    train: str = ""
    """Task file for training; without one there is nothing to train on, since the benchmark is for evaluation."""
    sites: tuple[str, ...] = ()
    """Names of sites (`Allrecipes`, `ArXiv`...) to draw tasks from; empty = all."""
    hosts: tuple[str, ...] = ()
    """Hosts that may be visited, `*` is a wildcard; empty = those of the tasks with their subdomains, also for
    what pages load. `["*"]` lets agents go anywhere on the internet, as the original does."""
    max_steps: int = Field(default=15, ge=1)
    """Longest episode (WebVoyager: 15); `eval.steps` may be shorter."""
    view: Literal["webarena", "compact", "full"] = "webarena"
    """What the policy sees; `webarena` has the filter of the original's text-only agents."""
    settle: float | None = Field(default=None, ge=0)
    """Most seconds that a page is waited for once it has loaded; not set = `web.settle`."""
    region: Literal["viewport", "page"] = "viewport"
    """Only what the window shows, as in the original, or the whole page."""
    screenshots: str = ""
    """Folder for a picture of every page under a readable name, beside those that `observation.modality` asks for;
    multimodal judges look at either. Empty = none."""
    judge: WebvoyagerJudgeConfig = Field(default_factory=WebvoyagerJudgeConfig)
    """The judge behind the environment's own verdict; without `judge.server.model` episodes are ungraded."""


@hookimpl
def dynaweb_environments() -> Sequence[PluginSpec]:
    """The environment `webvoyager`."""
    return [
        PluginSpec(
            name="webvoyager",
            target="dynaweb_env_webvoyager.env:WebvoyagerSource",
            config=WebvoyagerConfig,
            summary="WebVoyager's open questions on live sites, or your own in its format",
            extra="web",
            capabilities=frozenset({"tasks", "real", "browser", "pictures"}),
        )
    ]


@hookimpl
def dynaweb_formats() -> Sequence[PluginSpec]:
    """The format `webvoyager`."""
    return [
        format_spec(
            "webvoyager",
            "dynaweb_env_webvoyager.formats:Webvoyager",
            ("grammar", "prompt"),
            "Prompt and actions of WebVoyager's text-only agents",
        ),
    ]
