"""Observer `mlflow`: the curves of a run in MLflow."""

from __future__ import annotations

from dynaweb.config.sections import Section
from dynaweb.hookspecs import PluginSpec, hookimpl


class MlflowConfig(Section):
    """Settings of the MLflow observer. No page text leaves: numbers and the recipe only."""

    experiment: str = "dynaweb"
    """Experiment that runs go to."""
    run_name: str = ""
    """How the run is called; empty = the run folder's name."""
    tracking_uri: str = ""
    """The server or store, such as `http://127.0.0.1:5000`; empty = what `MLFLOW_TRACKING_URI` says, else `mlflow` in
    the run folder."""


@hookimpl
def dynaweb_observers() -> list[PluginSpec]:
    """Offer `--observe mlflow`."""
    return [
        PluginSpec(
            name="mlflow",
            target="dynaweb_obs_mlflow.run:Mlflow",
            config=MlflowConfig,
            summary="curves, evaluations, costs and recipe in MLflow, in the run folder unless a server is named",
            extra="mlflow",
        )
    ]
