"""What a report shows, as plain values. `gather` fills it from a run folder; anything else can fill it by hand.

    data = ReportData(
        title="dynaweb-0-1",
        arms=(Arm("sft", "SFT", "sft", ((1.0, 0.0, ...),)), Arm("dynaweb", "DynaWeb", "main", ((1.0, 1.0, ...),))),
        curves=(Curve("rl", "reward", ((0, 0.41), (1, 0.44))),),
    )
    path.write_text(render(data), encoding="utf-8")

Only `title` is needed: a section without data is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from dynaweb.runs.names import Role
from dynaweb.stats import Estimate, PairedDifference, paired_difference, success_rate
from dynaweb.types import Observation, Trajectory

KINDS = {"wm": "world model", "opt": "optimizer", "reward": "reward", "env": "environment"}
"""What is chosen by name, in words."""
CHOSEN = tuple(f"{kind}.name" for kind in KINDS)


@dataclass(frozen=True, slots=True)
class Arm:
    """One trained policy on the held-out episodes.

    `outcomes` holds, for each seed, one success in [0, 1] per episode (None = could not be graded), the same episodes
    in the same order in every arm. `note` is shown under the label.
    """

    name: str
    label: str
    role: Role
    outcomes: tuple[tuple[float | None, ...], ...]
    note: str = ""

    @property
    def success(self) -> Estimate:
        """Success rate over all episodes and seeds."""
        return success_rate(self.outcomes)


@dataclass(frozen=True, slots=True)
class Stage:
    """A part of the run: `status` is `done`, `cached`, `failed` or `running`; `cost` as in `events.Stage`.

    Known keys of `cost`: `seconds`, `tokens_generated`, `tokens_trained`, `browser_steps`, `peak_memory_mib`. Of a
    cached stage it is what was paid when it was made.
    """

    name: str
    status: str
    key: str = ""
    detail: str = ""
    cost: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Curve:
    """One metric of one stage over its updates: points (update, value), value None where it is not finite."""

    stage: str
    metric: str
    points: tuple[tuple[float, float | None], ...]
    label: str = ""
    """Name in the legend; empty = the stage."""

    @property
    def values(self) -> list[float]:
        """The finite values."""
        return [value for _, value in self.points if value is not None]


@dataclass(frozen=True, slots=True)
class Measure:
    """One measure of a world model on held-out transitions, in words that a newcomer understands.

    `name` is what programs call it, `values` what it was on each transition, where that is known.
    """

    label: str
    estimate: Estimate
    meaning: str = ""
    name: str = ""
    values: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class JudgeAudit:
    """The judge against the environment's own verdict on real episodes of one arm.

    `false_positive` is the share of truly failed episodes that the judge calls successes, `false_negative` the share of
    true successes that it rejects; n counts the episodes that it was asked about. `failed` and `solved` count all
    graded episodes: those that did not end by themselves are scored 0 without asking.
    """

    label: str
    false_positive: Estimate
    false_negative: Estimate
    failed: int = 0
    solved: int = 0


@dataclass(frozen=True, slots=True)
class Sample:
    """A trajectory to look at: the arm or phase that played it, and the update of a dream (-1 = none).

    `real` holds, for each step of a dream, the real page that followed the same action on the same page, where one was
    seen; it may be empty.
    """

    arm: str
    trajectory: Trajectory
    update: int = -1
    real: tuple[Observation | None, ...] = ()


class EpisodeRow(NamedTuple):
    """An episode as lists show it: what a search, a filter and a link need to know of it.

    `arm` is the arm or phase that played it, `update` counts from 1 (-1 = of none), `failure` is its `failure_kind`.
    """

    intent: str
    arm: str
    source: str
    outcome: str
    steps: int
    update: int
    task: str
    failure: str


@dataclass(frozen=True, slots=True)
class EpisodeFile:
    """All episodes of one file of a run, in its order; `stem` is the file's name without its suffix."""

    name: str
    stem: str
    is_evaluation: bool
    rows: tuple[EpisodeRow, ...]


@dataclass(frozen=True, slots=True)
class Setting:
    """One resolved setting of the recipe and where its value comes from."""

    path: str
    value: Any
    origin: str = ""


@dataclass(frozen=True, slots=True)
class ReportData:
    """Everything that a report shows.

    `failures` counts, for each arm or phase, unsuccessful episodes by kind; `episodes` how many there were. `total`
    is the number of trajectories of the run, of which `samples` are a part. `drift` holds the measures of step 1, 2...
    of dreams that follow real episodes. `prerequisites` says, a sentence each, what the result rests on besides the
    method. `plugins` rows have kind, name, package, version.
    """

    title: str
    subtitle: str = ""
    folder: str = ""
    """The run folder, as it was given; no part of the result."""
    path: Path | None = None
    """Where the run folder is, for what is read when it is shown; no part of the result."""
    status: str = "done"
    seconds: float | None = None
    arms: tuple[Arm, ...] = ()
    episodes_are: str = "held-out episodes in the real browser"
    browser_sample: str = ""
    """What episodes that were played without a browser gave in Chromium, a sentence; empty where none was tried."""
    prerequisites: tuple[str, ...] = ()
    curves: tuple[Curve, ...] = ()
    stages: tuple[Stage, ...] = ()
    fidelity: tuple[Measure, ...] = ()
    drift: tuple[Mapping[str, Estimate], ...] = ()
    audits: tuple[JudgeAudit, ...] = ()
    failures: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    episodes: Mapping[str, int] = field(default_factory=dict)
    samples: tuple[Sample, ...] = ()
    files: tuple[EpisodeFile, ...] = ()
    """Every episode as a row, for pages that load an episode only when it is opened."""
    total: int = 0
    settings: tuple[Setting, ...] = ()
    plugins: tuple[Mapping[str, str], ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    seed: int = 0
    alarms: tuple[str, ...] = ()
    """What audits found alarming, a sentence each."""

    @property
    def start(self) -> Arm | None:
        """The first arm of role `sft`: what the others started from."""
        return next((arm for arm in self.arms if arm.role == "sft"), None)

    @property
    def reference(self) -> Arm | None:
        """The best arm of role `sft`, the first of equals: what every other arm has to beat."""
        graded = [arm for arm in self.arms if arm.role == "sft" and arm.success.value is not None]
        return max(graded, key=lambda arm: arm.success.value or 0.0, default=None)

    @property
    def made_with(self) -> dict[str, str]:
        """What was chosen by name of each kind, as far as the settings tell and the run has used it."""
        chosen = {item.path.removesuffix(".name"): str(item.value) for item in self.settings if item.path in CHOSEN}
        ran = {stage.name for stage in self.stages}
        if ran and "world-model" not in ran:
            chosen.pop("wm", None)
        if ran and not {"rl", "filtered-bc"} & ran:
            chosen.pop("opt", None)
        tasks = next((str(item.value) for item in self.settings if item.path == "env.tasks"), "")
        if tasks and "env" in chosen:
            chosen["env"] += f" ({tasks})"
        return {kind: chosen[kind] for kind in KINDS if kind in chosen}

    @property
    def main(self) -> Arm | None:
        """The arm that the run is about."""
        return next((arm for arm in self.arms if arm.role == "main"), None)

    def against_reference(self, arm: Arm) -> PairedDifference | None:
        """The paired difference of an arm to `reference`; None for the reference itself and where nothing pairs."""
        return self._against(self.reference, arm)

    def against_start(self, arm: Arm) -> PairedDifference | None:
        """The same to `start`."""
        return self._against(self.start, arm)

    def _against(self, first: Arm | None, arm: Arm) -> PairedDifference | None:
        if first is None or arm.name == first.name:
            return None
        try:
            return paired_difference(first.outcomes, arm.outcomes, seed=self.seed)
        except ValueError:  # an interrupted run: the arms have not played the same episodes yet
            return None


def measure_words(name: str) -> str:
    """A measure's name for people."""
    return name.replace("_", " ").capitalize().replace(" f1", " F1").replace("Url", "Address")
