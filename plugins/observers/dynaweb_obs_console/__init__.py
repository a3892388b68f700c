"""Observer `console`: the metrics of updates and evaluations as lines on stderr."""

from __future__ import annotations

from pydantic import Field

from dynaweb.config.sections import Section
from dynaweb.hookspecs import PluginSpec, hookimpl


class ConsoleConfig(Section):
    """Settings of the console observer."""

    every: int = Field(default=1, ge=1)
    """A line for every so many updates of a stage; the first one always has one."""
    metrics: tuple[str, ...] = ("loss", "reward", "success", "invalid_rate", "entropy", "grad_norm")
    """Metrics that are shown, by name or by the beginning of it; empty = all."""


@hookimpl
def dynaweb_observers() -> list[PluginSpec]:
    """Offer `--observe console`."""
    return [
        PluginSpec(
            name="console",
            target="dynaweb_obs_console.console:Console",
            config=ConsoleConfig,
            summary="a line of metrics for each update and evaluation, on stderr",
        )
    ]
