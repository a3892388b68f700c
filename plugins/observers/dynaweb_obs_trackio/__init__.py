"""Observer `trackio`: the curves of a run in trackio, a local dashboard."""

from __future__ import annotations

from dynaweb.config.sections import Section
from dynaweb.hookspecs import PluginSpec, hookimpl


class TrackioConfig(Section):
    """Settings of the trackio observer. No page text leaves: numbers and the recipe only."""

    project: str = "dynaweb"
    """Project that runs go to; `trackio show --project dynaweb` opens it."""
    run_name: str = ""
    """How the run is called; empty = the run folder's name."""
    space_id: str = ""
    """A Hugging Face space that runs are sent to; empty = this machine only."""


@hookimpl
def dynaweb_observers() -> list[PluginSpec]:
    """Offer `--observe trackio`."""
    return [
        PluginSpec(
            name="trackio",
            target="dynaweb_obs_trackio.run:Trackio",
            config=TrackioConfig,
            summary="curves, evaluations, costs and recipe in trackio's local dashboard",
            extra="trackio",
        )
    ]
