"""A run of MLflow beside a run of dynaweb."""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

from mlflow import MlflowClient
from mlflow.entities import Metric, Param

from dynaweb import events
from dynaweb.hookspecs import hookimpl
from dynaweb.observers.scalars import Dashboard, Scalars, settings

if TYPE_CHECKING:
    from dynaweb.protocols import PluginContext
    from dynaweb_obs_mlflow import MlflowConfig

DATABASE = "mlflow.db"
PARAMS = 100
"""Parameters that MLflow takes at once."""
LONGEST = 6000
"""Characters of a parameter."""
STATES = {"done": "FINISHED", "failed": "FAILED", "interrupted": "KILLED"}


class Mlflow(Dashboard):
    """Logs numbers; the step of a curve is the update of its stage. A run that is resumed goes on with the same run."""

    def __init__(self, config: MlflowConfig, context: PluginContext) -> None:
        self.config = config
        self._client: Any = None
        self._run = ""
        self._stages: Counter[str] = Counter()

    def open(self, event: events.RunStart) -> None:
        """Open the run, with the recipe as its parameters."""
        own = event.folder.resolve() / "mlflow"
        own.mkdir(exist_ok=True)
        chosen = self.config.tracking_uri or os.environ.get("MLFLOW_TRACKING_URI", "")
        self._client = MlflowClient(chosen or f"sqlite:///{own / DATABASE}")
        mark = own / "run-id"
        if event.resumed and mark.exists():
            self._run = mark.read_text(encoding="utf-8").strip()
            self._client.update_run(self._run, status="RUNNING")
            return
        known = self._client.get_experiment_by_name(self.config.experiment)
        # In a store of the run's own, what belongs to it lies beside it; a server has a place of its own.
        where = None if chosen else own.as_uri()
        experiment = known.experiment_id if known else self._client.create_experiment(self.config.experiment, where)
        name = self.config.run_name or event.folder.name
        self._run = self._client.create_run(experiment, run_name=name).info.run_id
        params = [Param(allowed(path), str(value)[:LONGEST]) for path, value in settings(event).items()]
        for start in range(0, len(params), PARAMS):
            self._client.log_batch(self._run, params=params[start : start + PARAMS])
        mark.write_text(self._run, encoding="utf-8")

    def curve(self, stage: str, index: int, values: Scalars) -> None:
        """The metrics of an update."""
        self._log(values, index)

    def result(self, values: Scalars) -> None:
        """Numbers without a step."""
        self._log(values, 0)

    def cost(self, stage: str, values: Scalars) -> None:
        """What a stage cost; the step is its number among those of its name."""
        self._log(values, self._stages[stage])
        self._stages[stage] += 1

    @hookimpl
    def dynaweb_run_end(self, event: events.RunEnd) -> None:
        """Close the run, with how it ended."""
        self._end(STATES[event.status])

    def close(self) -> None:
        """Close the run when nothing else did; twice is allowed."""
        self._end("FAILED")

    def _log(self, values: Scalars, step: int) -> None:
        if self._run and values:
            now = int(1000 * time.time())
            metrics = [Metric(allowed(name), value, now, step) for name, value in values.items()]
            self._client.log_batch(self._run, metrics=metrics)

    def _end(self, status: str) -> None:
        if self._run:
            self._client.set_terminated(self._run, status)
            self._run = ""


def allowed(name: str) -> str:
    """A name as MLflow takes it: what it refuses becomes `_`."""
    return re.sub(r"[^\w\-. :/]", "_", name)
