"""Embedded sites: a shop, a forum, a tracker and mail, generated from seeds, served on loopback (`--env sites`).

How the parts fit together: `content` makes names, `goals` says what a task is, `base` what a site is; `shop`, `forum`,
`tracker` and `mail` are the sites, each with `pages`, `state` and `tasks`; `long_tasks` has long ones of all;
`world_store` keeps one world per episode and `server` serves them all; `tasks` draws tasks, `expert` plays them, and
`env` is the plugin object that the core talks to. Import the modules for their classes; this one stays light.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Self

from pydantic import Field, model_validator

from dynaweb.config.sections import PageView
from dynaweb.hookspecs import PluginSpec, hookimpl


class SitesConfig(PageView):
    """Settings of the embedded sites."""

    driver: Literal["chromium", "static"] = "chromium"
    """`chromium`: a real browser and a real server. `static`: the same pages without, twenty times as fast."""
    view: Literal["compact", "full"] = "compact"
    """What the policy sees: a flat list for small models, or the filtered accessibility tree."""
    port: int = Field(default=0, ge=0, le=65535)
    """Port of the server on 127.0.0.1; 0 = any free one."""
    threads: int = Field(default=4, ge=1)
    """Threads of the server."""
    pretrain_sites: int = Field(default=400, ge=1, le=10_000)
    """Worlds of the split `pretrain`."""
    train_sites: int = Field(default=8, ge=1, le=10_000)
    """Worlds of the split `train`."""
    validation_sites: int = Field(default=8, ge=1, le=10_000)
    """Worlds of the split `validation`."""
    test_sites: int = Field(default=24, ge=1, le=10_000)
    """Worlds of the split `test`."""
    sites: tuple[Literal["shop", "forum", "tracker", "mail"], ...] = Field(
        default=("shop", "forum", "tracker"), min_length=1
    )
    """Sites whose tasks are drawn. The shipped tiny model was never trained on pages of `mail`."""
    length: Literal["usual", "long"] = "usual"
    """`long`: tasks of 8 to 15 best-case steps (`data.max_best_steps` must allow them, and `eval.steps` and
    `dream.horizon` should)."""
    templates: tuple[str, ...] = ()
    """Names of the task templates to use, such as `shop/add-to-cart`; empty = those of `sites` and `length`."""
    max_best_steps: int = Field(default=0, ge=0)
    """Longest best-case plan of a task, the closing `stop` included; 0 = any (`data.max_best_steps` holds too)."""

    @property
    def needed_extra(self) -> str:
        """Only Chromium wants Playwright."""
        return "web" if self.driver == "chromium" else "pages"

    @model_validator(mode="after")
    def _static_is_compact(self) -> Self:
        if self.driver == "static" and self.view != "compact":
            raise ValueError('the driver "static" has the view "compact" only; use driver = "chromium" for "full"')
        usual = type(self).model_fields["max_nodes"].default
        if self.driver == "static" and (self.region != "page" or self.max_nodes != usual):
            raise ValueError('the driver "static" knows no window: `region` and `max_nodes` need driver = "chromium"')
        return self


@hookimpl
def dynaweb_environments() -> Sequence[PluginSpec]:
    """The environment `sites`."""
    return [
        PluginSpec(
            name="sites",
            target="dynaweb_env_sites.env:SitesSource",
            config=SitesConfig,
            summary="Embedded shop, forum, tracker and mail, generated from seeds, in Chromium or without",
            extra="web",
            capabilities=frozenset({"tasks", "real", "expert", "pictures"}),
        )
    ]
