"""MiniWoB++ (`--env miniwob`): small tasks on one page each, served from the installed package `miniwob`.

How the parts fit together: `pages` finds the pages and serves them, `goals` reads the goal of a seed out of its page,
`env` plays them in the browser, and `plans` holds the scripted experts. Nothing of `miniwob` is imported: its code
needs Selenium, its pages do not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field

from dynaweb.config.sections import PageView
from dynaweb.hookspecs import PluginSpec, hookimpl


class MiniwobConfig(PageView):
    """Settings of MiniWoB++."""

    path: str = ""
    """Folder of MiniWoB's `html`; empty = that of the installed package `miniwob`."""
    view: Literal["compact", "full"] = "compact"
    """What the policy sees: a flat list for small models, or the filtered accessibility tree."""
    settle: float | None = Field(default=None, ge=0)
    """Most seconds that a page is waited for once it has loaded; not set = `web.settle`."""
    port: int = Field(default=0, ge=0, le=65535)
    """Port of the server on 127.0.0.1; 0 = any free one."""
    templates: tuple[str, ...] = ()
    """Names of the tasks to draw, such as `click-button`; empty = all."""
    pick: Literal["all", "steady", "scripted"] = "all"
    """Which of them: `all`; `steady`: without those that depend on the timing of frames; `scripted`: with an expert."""
    held_out: Annotated[int, Field(ge=0)] | tuple[str, ...] = 0
    """Tasks that are kept out whole, so that the test split alone has them: their names, or how many, chosen by a hash
    of the name. Every second task of the test split is then of a kept-out template; the others are of the templates
    that training knows, with seeds that it does not."""
    seeds: int = Field(default=1000, ge=1, le=10_000)
    """Seeds of each task in a split; splits share none."""
    time_limit: float = Field(default=1800.0, gt=0, le=2_000_000)
    """Seconds after which the page itself ends an episode with -1 (MiniWoB: 10, far too short for a language model)."""
    mark_clickable: bool = True
    """Give elements that only a script makes clickable a role, and icons a name, so that they can be seen."""
    show_goal: bool = False
    """Leave the goal on the page too; it is the task's intent anyway."""


@hookimpl
def dynaweb_environments() -> Sequence[PluginSpec]:
    """The environment `miniwob`."""
    return [
        PluginSpec(
            name="miniwob",
            target="dynaweb_env_miniwob.env:MiniwobSource",
            config=MiniwobConfig,
            summary="MiniWoB++: 130 small tasks on one page each, from the package miniwob",
            extra="miniwob",
            capabilities=frozenset({"tasks", "real", "expert", "browser", "pictures"}),
        )
    ]
