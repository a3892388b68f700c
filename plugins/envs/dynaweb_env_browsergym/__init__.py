"""Every benchmark of BrowserGym as an environment (`--env browsergym --set env.id=browsergym/miniwob.click-test`).

BrowserGym's old pins cannot live beside ours, so it runs in an environment of its own: `worker` is a script for that
side and imports nothing of ours, `process` speaks to it, `env` makes observations and actions of what it says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from pydantic import Field

from dynaweb.config.sections import PageView
from dynaweb.hookspecs import PluginSpec, hookimpl
from dynaweb.web.observation_formats import format_spec


class BrowsergymConfig(PageView):
    """Settings of the bridge to BrowserGym."""

    id: str = "browsergym/miniwob.*"
    """Id of a task, or a pattern with `*` for many. The word before the dot is the benchmark, whose package
    (`browsergym.miniwob`) must be installed on that side."""
    module: str = ""
    """Module that registers the tasks; empty = `browsergym.` and the benchmark's name."""
    python: str = ""
    """Python with BrowserGym; empty = the one that `dynaweb env install browsergym` made."""
    variables: Mapping[str, str] = Field(default_factory=dict)
    """Variables for that side, such as WA_SHOPPING. MINIWOB_URL is not needed: the pages are served there."""
    view: Literal["compact", "full", "browsergym"] = "compact"
    """What the policy sees."""
    seeds: int = Field(default=100, ge=1)
    """Seeds of each task in a split; splits share none."""
    step_seconds: float = Field(default=90.0, gt=0)
    """Seconds that a reset or a step may take."""
    success: float = Field(default=1.0, gt=0)
    """Reward from which an episode is a success."""


@hookimpl
def dynaweb_environments() -> Sequence[PluginSpec]:
    """The environment `browsergym`."""
    return [
        PluginSpec(
            name="browsergym",
            target="dynaweb_env_browsergym.env:BrowsergymSource",
            config=BrowsergymConfig,
            summary="Any benchmark of BrowserGym, in a process of its own",
            extra="web",
            capabilities=frozenset({"tasks", "real", "browser", "pictures"}),
        )
    ]


@hookimpl
def dynaweb_formats() -> Sequence[PluginSpec]:
    """The format `browsergym`."""
    return [
        format_spec(
            "browsergym",
            "dynaweb_env_browsergym.formats:Browsergym",
            ("dialect", "grammar", "view"),
            "Accessibility tree and actions of BrowserGym's agents",
        ),
    ]
