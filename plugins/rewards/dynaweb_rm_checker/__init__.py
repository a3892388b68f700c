"""The checker: the environment's own verdict as the reward."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict

from dynaweb.hookspecs import PluginSpec, hookimpl


class CheckerConfig(BaseModel):
    """The checker has no settings."""

    model_config = ConfigDict(extra="forbid", frozen=True)


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
