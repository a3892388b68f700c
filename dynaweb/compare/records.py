"""What a run folder tells about its results: arms with the outcome of each episode by name, measures, costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote
from typing import Any

from dynaweb.config.files import understood
from dynaweb.errors import CheckpointError
from dynaweb.events import JUDGE_OF
from dynaweb.report.data import Arm, Measure, ReportData
from dynaweb.report.gather import gather
from dynaweb.report.table import cost_totals, real_steps
from dynaweb.runs.jsonl import read_jsonl
from dynaweb.stats import Estimate, wilson

MAIN = "main"
COSTS = {
    "real_steps": "steps in the real environment before the evaluation",
    "tokens_generated": "tokens that models wrote",
    "seconds": "wall-clock time of all stages",
}
"""What a run cost, in words. Of a stage that was found in the cache: what it cost when it was made."""
MOST = 10**9
"""More episodes than this no run has."""
Episodes = Mapping[str, float | None]
"""Success in [0, 1] by episode (None = not graded); an episode is its task's id, numbered where it was played twice."""


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One run: `settings` by dotted path, `episodes` by arm, `judge` the judge's errors by arm and kind.

    `judge_metrics` are the numbers that `judge` was made of.
    """

    folder: Path
    seed: int
    settings: Mapping[str, Any]
    data: ReportData
    episodes: Mapping[str, Episodes]
    judge: Mapping[str, Mapping[str, Estimate]] = field(default_factory=dict)
    judge_metrics: Mapping[str, Mapping[str, float | None]] = field(default_factory=dict)

    def arm(self, name: str) -> Arm | None:
        """The arm of a name; `main` is what the run is about, which is its last arm where no arm says so."""
        if name == MAIN:
            return self.data.main or (self.data.arms[-1] if self.data.arms else None)
        return next((arm for arm in self.data.arms if arm.name == name), None)

    def played(self, name: str) -> Episodes:
        """Outcomes of an arm by episode, empty when it was not played."""
        arm = self.arm(name)
        return self.episodes.get(arm.name, {}) if arm is not None else {}

    def measured(self, name: str) -> Measure | None:
        """A measure of the world model, by name or label (`element_f1`, `Element F1`)."""
        wanted = measure_key(name)
        return next((one for one in self.data.fidelity if measure_key(one.label) == wanted), None)

    @property
    def costs(self) -> dict[str, float]:
        """What all stages cost, cached or not."""
        return cost_totals(self.data)

    def cost(self, name: str) -> float | None:
        """One of `COSTS`, over all stages, cached or not; None where no stage counts it."""
        if name == "real_steps":
            return real_steps(self.data)
        return self.costs.get(name)


def read_run(folder: Path) -> RunRecord:
    """Read a run. Raises `CheckpointError` when the folder is no run folder, is damaged, or has no evaluation yet."""
    data = gather(folder, episodes=False)
    if not data.arms:
        raise CheckpointError(
            f"{folder} has no evaluated arm: the run is {data.status or 'unfinished'}; go on with "
            f"`dynaweb run --resume --out {quote(str(folder))}`, or leave it out"
        )
    settings = {item.path: item.value for item in data.settings}
    with understood(folder / "metrics.jsonl"):
        rows = list(read_jsonl(folder / "metrics.jsonl"))
        episodes = {arm.name: named(arm.outcomes[0], _tasks(rows, arm.name)) for arm in data.arms}
        metrics = _judge_metrics(rows)
        judge = {arm: judge_errors(values) for arm, values in metrics.items()}
        return RunRecord(folder, data.seed, settings, data, episodes, judge, metrics)


def named(outcomes: Iterable[float | None], tasks: list[str]) -> dict[str, float | None]:
    """Outcomes by episode. Where it is not known which tasks they were, places in the order stand for them."""
    outcomes = list(outcomes)
    names = tasks if len(tasks) == len(outcomes) else [f"episode {at}" for at in range(len(outcomes))]
    seen: Counter[str] = Counter()
    episodes = {}
    for name, outcome in zip(names, outcomes, strict=True):
        seen[name] += 1
        episodes[name if seen[name] == 1 else f"{name} #{seen[name]}"] = outcome
    return episodes


def _tasks(rows: Iterable[Mapping[str, Any]], arm: str) -> list[str]:
    return [str(row["task"]) for row in arm_rows(rows, arm)]


def arm_rows(rows: Iterable[Mapping[str, Any]], arm: str) -> list[Mapping[str, Any]]:
    """The rows of a metrics file with the evaluated episodes of an arm, in the order of its outcomes."""
    return [row for row in rows if row.get("event") == "rollout" and row.get("phase") == f"eval {arm}"]


JUDGED = ("judge_false_positive", "judge_failed_n", "judge_false_negative", "judge_solved_n")
"""What an evaluation says of the judge: shares, and the number of episodes of each."""


def _judge_metrics(rows: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, float | None]]:
    """What is known of the judge on each arm's real episodes."""
    metrics: dict[str, dict[str, float | None]] = {}
    for row in rows:
        if row.get("event") == "eval" and str(row["arm"]).startswith(JUDGE_OF):
            values = row.get("metrics", {})
            metrics[row["arm"].removeprefix(JUDGE_OF)] = {name: values.get(name) for name in JUDGED}
    return metrics


def judge_errors(metrics: Mapping[str, float | None]) -> dict[str, Estimate]:
    """False positives and negatives of the judge. Raises `ValueError` for a count that none can be."""
    kinds = (
        ("false positives", "judge_false_positive", "judge_failed_n"),
        ("false negatives", "judge_false_negative", "judge_solved_n"),
    )
    errors = {}
    for label, share, count in kinds:
        n = int(metrics.get(count) or 0)
        if not 0 <= n < MOST:
            raise ValueError(f"{count} is {n}")
        errors[label] = wilson(round((metrics.get(share) or 0.0) * n), n)
    return errors


def measure_key(name: str) -> str:
    """What the name of a world-model measure and its label for people have in common."""
    return name.lower().replace("_", " ").replace("address", "url")
