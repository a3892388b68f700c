"""Observer `wandb`: the curves of a run in Weights & Biases."""

from __future__ import annotations

from typing import Literal

from dynaweb.config.sections import Section
from dynaweb.hookspecs import PluginSpec, hookimpl


class WandbConfig(Section):
    """Settings of the Weights & Biases observer. No page text leaves: numbers and the recipe only."""

    project: str = "dynaweb"
    """Project that runs go to."""
    entity: str = ""
    """User or team; empty = that of the account."""
    run_name: str = ""
    """How the run is called; empty = the run folder's name."""
    mode: Literal["online", "offline"] = "offline"
    """`offline`: files in the run folder, sent later by `wandb sync`. `online`: sent as they come."""


@hookimpl
def dynaweb_observers() -> list[PluginSpec]:
    """Offer `--observe wandb`."""
    return [
        PluginSpec(
            name="wandb",
            target="dynaweb_obs_wandb.run:Wandb",
            config=WandbConfig,
            summary="curves, evaluations, costs and recipe in Weights & Biases, offline unless asked otherwise",
            extra="wandb",
        )
    ]
