"""What a run ends with: `summary.json`, the report, and the results that the Python API returns."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dynaweb.runs import finite, write_json
from dynaweb.stages.arms import prerequisites
from dynaweb.stages.browser_sample import sample_words
from dynaweb.stages.drift import drift_by_step
from dynaweb.stages.evaluate import (
    Row,
    estimates,
    failures,
    judge_errors,
    kind_name,
    rows_by,
    site_name,
    successes,
    summary,
    table,
)
from dynaweb.stages.world_model import FIDELITY
from dynaweb.stats import Estimate, proportion

if TYPE_CHECKING:
    from dynaweb.pipeline.context import RunContext
    from dynaweb.train import Outcome
    from dynaweb.types import Trajectory

SUMMARY = "summary.json"
RESULTS = "results.json"
_CAUSES = 10
"""Causes of broken episodes that are printed."""


@dataclass(frozen=True)
class StageResult:
    """One stage that was run alone: the run folder, the weights that it made (if any), and its closing metrics.

    `estimates` holds those metrics again that have an interval; the text shows these with interval and n. An
    evaluation has rows by `sites` and by `kinds`, and its `failures` with their labels.
    """

    stage: str
    folder: Path
    weights: Path | None = None
    metrics: Mapping[str, Any] = field(default_factory=dict)
    estimates: Mapping[str, Estimate] = field(default_factory=dict)
    sites: Sequence[Row] = ()
    kinds: Sequence[Row] = ()
    failures: Sequence[Mapping[str, Any]] = ()

    def __str__(self) -> str:
        lines = [f"{self.stage}: {self.folder}", *([f"weights: {self.weights}"] if self.weights else [])]
        width = max((len(name) for name in [*self.metrics, *self.estimates]), default=0)
        values = {**self.metrics, **self.estimates}
        lines += [f"{name.ljust(width)}  {_shown(name, value)}" for name, value in values.items()]
        if self.sites:
            lines += ["", table(self.sites, "site")]
        if len(self.kinds) > len(self.sites):
            lines += ["", table(self.kinds, "kind")]
        broken = Counter(str(failure["why"]) for failure in self.failures if failure["label"] == "infrastructure")
        if broken:
            lines += ["", "broken by the infrastructure; the same command with the same --out plays these again:"]
            lines += [f"  {count} x {why}" for why, count in broken.most_common(_CAUSES)]
            lines += [f"  and {len(broken) - _CAUSES} other causes"] if len(broken) > _CAUSES else []
        return "\n".join(lines)

    __repr__ = __str__


SHARES = ("success", "stop_rate", "invalid_rate", "judge_false_positive", "judge_false_negative")
"""Metrics that are printed in percent, as in the closing table."""


def _shown(name: str, value: Any) -> str:
    if name not in SHARES:
        return _short(value)
    if isinstance(value, Estimate):
        return value.text(1, scale=100, unit=" %")
    return "-" if math.isnan(value) else f"{100 * value:.1f} %"


def _short(value: Any) -> str:
    if isinstance(value, float) and math.isnan(value):
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def evaluated(
    arm: str, folder: Path, weights: Path | None, episodes: Sequence[Trajectory], *, judged: bool
) -> StageResult:
    """The result of an evaluation, with `results.json` in the run folder. `judged`: a judge was audited on it too."""
    result = StageResult(
        "eval",
        folder,
        weights,
        summary(episodes) | (judge_errors(episodes) if judged else {}),
        estimates(episodes) if judged else {"success": proportion(successes(episodes))},
        rows_by(episodes, site_name),
        rows_by(episodes, kind_name),
        failures(episodes),
    )
    plain = {"policy": arm, "metrics": result.metrics, "failures": result.failures}
    tables = {name: [asdict(row) for row in getattr(result, name)] for name in ("sites", "kinds")}
    write_json(folder / RESULTS, finite(plain | tables))
    return result


def write_summary(ctx: RunContext, outcome: Outcome, folder: Path) -> None:
    """Write what the report cannot read from metrics and episodes."""
    arms = [
        {
            "name": arm.spec.name,
            "label": arm.spec.label,
            "role": arm.spec.role,
            "note": arm.spec.note,
            "outcomes": [list(successes(arm.evaluated.episodes()))],
        }
        for arm in outcome.arms
    ]
    model = outcome.artifacts.world_model
    fidelity = model.data(FIDELITY) if model is not None else {"probes": []}
    document = finite(
        {
            "arms": arms,
            "prerequisites": prerequisites(ctx, outcome.arms),
            "probes": fidelity["probes"],
            "rules": fidelity.get("rules", []),
            "drift": drift_by_step(outcome.artifacts.drift),
            "episodes_are": episodes_are(ctx),
            "browser_sample": sample_words(outcome.sample) if outcome.sample is not None else "",
        }
    )
    write_json(folder / SUMMARY, document)


def episodes_are(ctx: RunContext) -> str:
    """What the evaluation episodes are, in words."""
    name, settings = ctx.envs.eval_settings
    driver = ctx.envs.resolved(name, settings).get("driver")
    where = f"in env {name}" if driver is None else f"in env {name} without a browser (driver {driver})"
    if ctx.envs.in_browser(name, settings):
        where = "in the real browser"
    able = ctx.plugins.find("env", name).spec.capabilities
    if "tasks" in able and "expert" not in able:
        # Its tasks are what somebody else has listed: how long the shortest way is, and on which sites, is not known.
        return f"tasks of split {ctx.recipe.eval.split}, {where}"
    best = ctx.recipe.data.max_best_steps
    return f"held-out tasks of at most {best} best-case steps on unseen {ctx.recipe.eval.split} sites, {where}"
