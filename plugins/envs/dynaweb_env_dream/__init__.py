"""The dream environment: real start pages, and a world model for everything after."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import Field

from dynaweb.config.sections import Section
from dynaweb.hookspecs import PluginSpec, hookimpl


class DreamConfig(Section):
    """Settings of the dream environment. Length, temperature and end rule are in the recipe's `dream` section."""

    tasks: str = "sites"
    """Environment plugin that provides tasks, start pages, experts and the evaluation."""
    task_settings: dict[str, Any] = Field(default_factory=dict)
    """Settings of that plugin, such as `task_settings.driver = "static"`."""


@hookimpl
def dynaweb_environments() -> Sequence[PluginSpec]:
    """Offer `--env dream`."""
    return [
        PluginSpec(
            name="dream",
            target="dynaweb_env_dream.dream:DreamSource",
            config=DreamConfig,
            summary="pages predicted by the world model, from a real start page",
            capabilities=frozenset({"dreams"}),
        )
    ]
