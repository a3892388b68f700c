"""Observer `tensorboard`: the curves of a run in TensorBoard's format."""

from __future__ import annotations

from pydantic import Field

from dynaweb.config.sections import Section
from dynaweb.hookspecs import PluginSpec, hookimpl


class TensorBoardConfig(Section):
    """Settings of the TensorBoard observer."""

    folder: str = ""
    """Where event files go; empty = `tensorboard` in the run folder."""
    flush_seconds: int = Field(default=30, ge=1)
    """Longest time until a value is on the disk."""


@hookimpl
def dynaweb_observers() -> list[PluginSpec]:
    """Offer `--observe tensorboard`."""
    return [
        PluginSpec(
            name="tensorboard",
            target="dynaweb_obs_tensorboard.writer:TensorBoard",
            config=TensorBoardConfig,
            summary="curves, evaluations and costs as TensorBoard event files in the run folder",
            extra="tensorboard",
        )
    ]
