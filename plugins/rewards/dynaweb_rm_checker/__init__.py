"""The checker: the environment's own verdict as the reward."""

from __future__ import annotations

from collections.abc import Sequence

from dynaweb.config.sections import Section
from dynaweb.hookspecs import PluginSpec, hookimpl


class CheckerConfig(Section):
    """The checker has no settings."""


@hookimpl
def dynaweb_rewards() -> Sequence[PluginSpec]:
    """Offer `--reward checker`."""
    return [
        PluginSpec(
            name="checker",
            target="dynaweb_rm_checker.checker:Checker",
            config=CheckerConfig,
            summary="the environment's own verdict (answer, url, page and server state); real episodes only",
            capabilities=frozenset({"real"}),
        )
    ]
