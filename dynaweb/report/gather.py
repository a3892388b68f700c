"""The data of a report, read from a run folder.

Read are `recipe.json`, `plugins.json`, `versions.json`, `seeds.json`, `status.json`, `metrics.jsonl` (rows `stage`,
`update`, `eval`, `run_end`) and `trajectories/*.jsonl.gz`; whatever is missing, in a run that was stopped, leaves out
its section. Files named `eval-<arm>` are judged evaluation episodes of an arm. What those files cannot tell stands in
`summary.json`, where every key may be missing:

    arms           [{"name", "label", "role", "note", "outcomes": [[1.0, 0.0, null...] a seed]}]; without it, arms are
                   made from the `eval` rows of the recipe's split
    prerequisites  ["what the result rests on, a sentence each"]
    drift          [[{measure: value or null} an episode] a step of the dream]
    probes         [{measure: value or null} a held-out transition], as `worldmodels.fidelity.measure` returns them
    episodes_are   "held-out episodes in the real browser"
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from dynaweb.config.files import RESTORE, read_json, understood
from dynaweb.config.layers import flatten
from dynaweb.data.store import SUFFIX, TrajectoryStore
from dynaweb.errors import CheckpointError
from dynaweb.events import JUDGE_OF
from dynaweb.report.data import (
    Arm,
    Curve,
    EpisodeFile,
    EpisodeRow,
    JudgeAudit,
    Measure,
    ReportData,
    Sample,
    Setting,
    Stage,
    measure_words,
)
from dynaweb.report.html import render
from dynaweb.report.outcome import AuditCounts, Outcome, failure_kind, outcome
from dynaweb.report.table import closing_short, closing_text
from dynaweb.report.viewer import episode_row, update_of
from dynaweb.runs.checksums import check_records
from dynaweb.runs.folder import STATES
from dynaweb.runs.jsonl import read_jsonl
from dynaweb.runs.names import AUDIT, DREAMS, ROLLOUTS, Role, sft_label
from dynaweb.stats import estimate
from dynaweb.types import Observation, Step, Trajectory
from dynaweb.worldmodels.memory import Question, question

PRACTICE = (DREAMS, ROLLOUTS)
EACH = 8
"""Trajectories of each file that the default report shows."""
Row = Mapping[str, Any]


@dataclass(frozen=True)
class RunResult:
    """A finished run. Its text is how it ends on a terminal, `full` the whole closing table; `results` holds the same
    numbers as plain data.

    `results["arms"]` has one entry per arm with its success, interval, n and paired difference to the best SFT arm;
    `world_model` the fidelity, `judge` the judge's errors on real episodes, `costs` what the run took.
    """

    folder: Path
    report: Path
    results: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def text(self) -> str:
        """One sentence, the arms, and where to look next."""
        return closing_short(gather(self.folder, episodes=False), report=self.report)

    # Every trajectory is read for it, so once is enough.
    @cached_property
    def full(self) -> str:
        """The closing table as text."""
        return closing_text(gather(self.folder), report=self.report)

    def __str__(self) -> str:
        return self.text

    __repr__ = __str__


def build_report(folder: Path, *, each: int | None = EACH, data: ReportData | None = None) -> Path:
    """Write `report.html` into a run folder and return its path; `each` None shows every trajectory.

    `data` is what `gather` has found there, if it was asked already; `each` then says nothing.
    Raises `CheckpointError` when this is no run folder, or when one of its files is damaged: of a finished run that is
    every one that is not as the run left it.
    """
    from dynaweb.runs.atomic import write_text

    path = folder / "report.html"
    write_text(path, render(data if data is not None else gather(folder, each=each)))
    return path


def gather(
    folder: Path,
    *,
    each: int | None = EACH,
    episodes: bool = True,
    read: Callable[[Path, int | None], ReadFile] | None = None,
) -> ReportData:
    """What a run folder holds, for `render`, `closing_text` and `closing_json`.

    `each` of the trajectories of a file are its samples: None takes all, 0 none. Without `episodes` no trajectory is
    read: that is quick, and leaves out what only they tell (failures by kind, the audit of the judge, the viewer).
    `read` reads a file of trajectories, by default `ReadFile.read`; whoever asks often may keep what it has read.
    """
    from dynaweb.worldmodels.fidelity import estimates

    if not (folder / "status.json").exists():
        raise CheckpointError(f"{folder} is not a run folder: it has no status.json; give the folder that a run made")
    check_records(folder)
    status = str(_json(folder, "status.json", {}).get("status", ""))
    if status not in ("", *STATES):
        raise CheckpointError(f"{folder / 'status.json'} is damaged (no run is {status!r:.40}); {RESTORE}")
    recipe = _json(folder, "recipe.json", {})
    summary, rows = _json(folder, "summary.json", {}), list(read_jsonl(folder / "metrics.jsonl"))
    with understood(folder / "recipe.json"):
        settings = tuple(_settings(recipe))
    with understood(folder / "summary.json"):
        arms = _summary_arms(summary)
        fidelity = measures([_numbers(probe) for probe in summary.get("probes", ())])
        drift = tuple(estimates([_numbers(probe) for probe in step]) for step in summary.get("drift", ()))
        # Version 0.1 called them `bought`.
        prerequisites = tuple(map(str, summary.get("prerequisites", summary.get("bought", ()))))
    with understood(folder / "metrics.jsonl"):
        arms = arms or _eval_arms(rows, recipe)
        curves, stages, alarms = _curves(rows, arms), _stages(rows), _alarms(rows)
        ends = ({"seconds": row.get("time.seconds")} for row in reversed(rows) if row.get("event") == "run_end")
        seconds = _numbers(next(ends, {})).get("seconds")
    with understood(folder / "seeds.json"):
        chosen = next((one.value for one in settings if one.path == "run.seed"), 0)
        seed = int(_json(folder, "seeds.json", {}).get("run", chosen))
    with understood(folder / "plugins.json"):
        plugins = tuple(map(_texts, _json(folder, "plugins.json", [])))
    versions = {name: str(version) for name, version in _json(folder, "versions.json", {}).items()}
    paths = sorted((folder / "trajectories").glob(f"*{SUFFIX}")) if episodes else []
    files = _sorted([(read or ReadFile.read)(path, each) for path in paths], arms)
    counted = [file for file in files if file.is_evaluation or file.name in PRACTICE]
    real_pages = RealPages(real_page_files(paths))
    return ReportData(
        title=folder.resolve().name,
        folder=_named(folder),
        path=folder,
        subtitle=str(recipe.get("description", "")),
        status=status,
        seconds=seconds,
        arms=arms,
        prerequisites=prerequisites,
        curves=curves,
        stages=stages,
        fidelity=fidelity,
        drift=drift,
        audits=_audits(files, arms),
        failures={file.name: file.sorted_failures() for file in counted},
        episodes={file.name: file.count for file in files},
        samples=tuple(real_pages.paired(sample) for file in files for sample in file.samples),
        files=tuple(EpisodeFile(file.name, file.stem, file.is_evaluation, tuple(file.rows)) for file in files),
        total=sum(file.count for file in files),
        settings=settings,
        plugins=plugins,
        versions=versions,
        alarms=alarms,
        seed=seed,
        # Without a summary nobody has said whether there was a browser.
        episodes_are=str(summary.get("episodes_are", "held-out episodes")),
        browser_sample=str(summary.get("browser_sample", "")),
    )


def _named(folder: Path) -> str:
    """The folder as commands name it, below the working directory where it is there."""
    whole, here = folder.resolve(), Path.cwd()
    return str(whole.relative_to(here)) if whole.is_relative_to(here) else str(folder)


def measures(probes: Sequence[Mapping[str, float | None]]) -> tuple[Measure, ...]:
    """World-model measures from one dict per probe, in words."""
    from dynaweb.worldmodels.fidelity import MEANINGS, columns, kind_of

    return tuple(
        Measure(measure_words(name), estimate(kind_of(name), values), MEANINGS.get(name, ""), name, tuple(values))
        for name, values in columns(probes).items()
    )


def _json(folder: Path, name: str, default: Any) -> Any:
    """A document of the kind of `default`, which stands for it where there is none."""
    path = folder / name
    return read_json(path, type(default), finite=True) if path.exists() else default


def _summary_arms(summary: Row) -> tuple[Arm, ...]:
    return tuple(
        Arm(
            str(item["name"]),
            str(item.get("label", item["name"])),
            item.get("role", "control"),
            tuple(map(_outcomes, item["outcomes"])),
            str(item.get("note", "")),
        )
        for item in summary.get("arms", ())
    )


def _outcomes(values: Iterable[Any]) -> tuple[float | None, ...]:
    """Successes by episode, None where one has no grade. Raises `TypeError` or `ValueError` for what is no number from
    0 to 1."""
    outcomes = tuple(None if value is None else float(value) for value in values)
    for success in outcomes:
        if success is not None and not 0 <= success <= 1:
            raise ValueError(f"{success:g} is no success, which lies between 0 and 1")
    return outcomes


def _numbers(measured: Row) -> Mapping[str, float | None]:
    """Numbers by name, None where one is not known. Raises `ValueError` for what is no number."""
    for name, value in measured.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise ValueError(f"{name} is {value!r:.40}")
    return measured


def _texts(row: Row) -> Mapping[str, str]:
    """Texts by name. Raises `ValueError` for what is no text."""
    for name, value in row.items():
        if not isinstance(value, str):
            raise ValueError(f"{name} is {value!r:.40}")
    return row


def _eval_arms(rows: Iterable[Row], recipe: Row) -> tuple[Arm, ...]:
    """The last evaluation of each arm on the recipe's split, audits of the judge left out."""
    split = recipe.get("settings", {}).get("eval", {}).get("split", "test")
    wanted = (row for row in rows if row.get("event") == "eval" and row.get("split") == split)
    last = {row["arm"]: _outcomes(row["successes"]) for row in wanted if not row["arm"].startswith(JUDGE_OF)}
    return tuple(Arm(name, arm_label(name), arm_role(name), (outcomes,)) for name, outcomes in last.items())


def arm_role(name: str) -> Role:
    """The role that an arm's name implies."""
    if name.startswith("sft"):
        return "sft"
    return "main" if name in ("dynaweb", "main", "rl") else "control"


def arm_label(name: str) -> str:
    """An arm's name for people."""
    known = {"dynaweb": "DynaWeb", "main": "DynaWeb", "rl": "DynaWeb", "filtered-bc": "filtered behaviour cloning"}
    known |= {"base": "the model as it is", "sft-long": "SFT, longer"}
    if words := known.get(name) or sft_words(name):
        return words
    label = name.replace("-", " ").replace("_", " ")
    return f"SFT{label[3:]}" if label.startswith("sft") else label


def _curves(rows: Iterable[Row], arms: Sequence[Arm]) -> tuple[Curve, ...]:
    """Updates counted from 1; a curve of training is called as the arm that it makes."""
    points: dict[tuple[str, str], list[tuple[float, float | None]]] = {}
    for row in rows:
        if row.get("event") == "update":
            for metric, value in _numbers(row.get("metrics", {})).items():
                points.setdefault((str(row["stage"]), metric), []).append((row["index"] + 1, value))
    labels = {arm.name: arm.label for arm in arms}
    labels["rl"] = next((arm.label for arm in arms if arm.role == "main"), "")
    return tuple(
        Curve(stage, metric, tuple(values), labels.get(stage) or sft_words(stage))
        for (stage, metric), values in points.items()
    )


def sft_words(stage: str) -> str:
    """The label of the arm that a stage such as `sft-120` trains, '' for another stage."""
    steps = stage.removeprefix("sft-")
    return sft_label(steps) if stage.startswith("sft-") and steps.isdigit() else ""


def _stages(rows: Iterable[Row]) -> tuple[Stage, ...]:
    """Stages in their order; parts with one name (evaluations of several arms) become one row."""
    unique = {(str(row["name"]), str(row["key"])): row for row in rows if row.get("event") == "stage"}
    groups: dict[str, list[Row]] = {}
    for (name, _), row in unique.items():
        groups.setdefault(name, []).append(row)
    return tuple(_stage(name, group) for name, group in groups.items())


def _stage(name: str, rows: Sequence[Row]) -> Stage:
    cost: dict[str, float] = {}
    for row in rows:
        times = {key.removeprefix("time."): value for key, value in row.items() if key.startswith("time.")}
        for key, value in (row.get("metrics", {}) | times).items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                cost[key] = max(cost.get(key, 0), value) if key.endswith("_mib") else cost.get(key, 0) + value
    states = [str(row.get("time.status", "done")) for row in rows]
    status = states[0] if len(set(states)) == 1 else "failed" if "failed" in states else "done"
    cached = states.count("cached")
    detail = f"{len(rows)} parts" + (f", {cached} cached" if cached and status != "cached" else "")
    return Stage(name, status, str(rows[0]["key"]) if len(rows) == 1 else "", detail if len(rows) > 1 else "", cost)


def _alarms(rows: Iterable[Row]) -> tuple[str, ...]:
    """The alarms among the rows of a metrics file, each once, in order."""
    alarms = (
        str(row["error"])
        for row in rows
        if row.get("event") == "error" and str(row.get("where", "")).startswith(f"{AUDIT} ")
    )
    return tuple(dict.fromkeys(alarms))


def _settings(recipe: Row) -> Iterable[Setting]:
    origins = recipe.get("origins", {})
    for path, value in sorted(flatten(recipe.get("settings", {}))):
        if not isinstance(value, Mapping):
            yield Setting(path, value, str(origins.get(path, "")))


def _sorted(files: Iterable[ReadFile], arms: Sequence[Arm]) -> list[ReadFile]:
    """Evaluations in the order of their arms, then the others by name."""
    order = {arm.name: at for at, arm in enumerate(arms)}
    return sorted(files, key=lambda file: order.get(file.name, len(order)) if file.is_evaluation else len(order) + 1)


def _audits(files: Iterable[ReadFile], arms: Sequence[Arm]) -> tuple[JudgeAudit, ...]:
    labels = {arm.name: arm.label for arm in arms}
    evaluated = (file for file in files if file.is_evaluation)
    audits = (file.audit.result(labels.get(file.name, arm_label(file.name))) for file in evaluated)
    return tuple(audit for audit in audits if audit is not None)


@dataclass(slots=True)
class ReadFile:
    """One file of trajectories, read once from end to end; of each a short row is kept, of some (`samples`) all."""

    name: str
    stem: str
    is_evaluation: bool
    count: int = 0
    failures: dict[str, int] = field(default_factory=dict)
    audit: AuditCounts = field(default_factory=AuditCounts)
    samples: list[Sample] = field(default_factory=list)
    rows: list[EpisodeRow] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path, each: int | None) -> ReadFile:
        """Read a file of trajectories; `each` as in `gather`."""
        stem = path.name.removesuffix(SUFFIX)
        file = cls(stem.removeprefix("eval-"), stem, stem.startswith("eval-"))
        sampler = Sampler(each)
        dreamed = False
        for trajectory in TrajectoryStore(path):
            file._count(trajectory)
            if each != 0:
                sampler.add(trajectory, outcome(trajectory), update_of(trajectory))
            dreamed = dreamed or trajectory.source == "dream"
        if file.count and not dreamed and file.name.startswith(DREAMS):
            # As runs on real pages once called their rollouts.
            file.name = ROLLOUTS + file.name.removeprefix(DREAMS)
            file.rows = [row._replace(arm=file.name) for row in file.rows]
        file.samples = [Sample(file.name, trajectory, update) for trajectory, update in sampler.chosen()]
        return file

    def _count(self, trajectory: Trajectory) -> None:
        self.count += 1
        self.audit.add(trajectory)
        self.rows.append(episode_row(trajectory, self.name, update_of(trajectory)))
        kind = failure_kind(trajectory)
        if kind is not None:
            self.failures[kind] = self.failures.get(kind, 0) + 1

    def sorted_failures(self) -> dict[str, int]:
        """Most frequent first."""
        return dict(sorted(self.failures.items(), key=lambda item: (-item[1], item[0])))


HELD = 4
Entry = tuple[int, Trajectory, int]
"""Number in the file, trajectory, update."""


@dataclass(slots=True)
class Sampler:
    """About `each` of the trajectories added, spread evenly over each outcome; None keeps all.

    Of each outcome at most `HELD` times its share is held: when there are more, every second one is dropped and from
    then on only every second, fourth, eighth... is taken, so that a file of any length is read once in constant memory.
    """

    each: int | None
    _entries: dict[Outcome, list[Entry]] = field(default_factory=dict)
    _seen: dict[Outcome, int] = field(default_factory=dict)
    _every: dict[Outcome, int] = field(default_factory=dict)
    _last: dict[Outcome, Entry] = field(default_factory=dict)
    _count: int = 0

    @property
    def _share(self) -> int:
        """Successes and failures in equal shares: a report that shows only one of them would mislead."""
        return max(1, (self.each or 0) // 2)

    def add(self, trajectory: Trajectory, kind: Outcome, update: int) -> None:
        """Look at the next trajectory of the file."""
        entries = self._entries.setdefault(kind, [])
        self._last[kind] = one = self._count, trajectory, update
        self._count += 1
        seen = self._seen[kind] = self._seen.get(kind, -1) + 1
        if seen % self._every.setdefault(kind, 1):
            return
        entries.append(one)
        if self.each is not None and len(entries) > HELD * self._share:
            del entries[1::2]
            self._every[kind] *= 2

    def chosen(self) -> Iterator[tuple[Trajectory, int]]:
        """The trajectories to show, with their updates, in the order of the file."""
        chosen = [one for kind, entries in self._entries.items() for one in self._of(kind, entries)]
        yield from ((trajectory, update) for _, trajectory, update in sorted(chosen, key=lambda one: one[0]))

    def _of(self, kind: Outcome, entries: list[Entry]) -> list[Entry]:
        if self.each is None:
            return entries
        last = self._last[kind]
        ends = entries if entries[-1] is last else [*entries, last]
        count = min(self._share, len(ends))
        if count == 1:
            return ends[:1]
        return [ends[round(at * (len(ends) - 1) / (count - 1))] for at in range(count)]


def real_page_files(paths: Iterable[Path]) -> list[Path]:
    """Those files of trajectories that may hold what really followed a dreamed step."""
    return [path for path in paths if not path.name.startswith(("eval-", *PRACTICE))]


class RealPages:
    """Real pages beside dreamed ones: what really followed the same action on the same page, where a run has seen it.

    Steps of exploration and demonstrations; `paths` are stores of trajectories, read when a dream is shown."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self._paths = list(paths)
        self._pages: dict[Question, Observation] | None = None

    def paired(self, sample: Sample) -> Sample:
        """The sample with the real page of each dreamed step, as far as one is known."""
        if sample.trajectory.source != "dream":
            return sample
        known = self._known()
        steps = sample.trajectory.steps
        real = tuple(known.get(query) if (query := _question(step)) else None for step in steps)
        return replace(sample, real=real) if any(page is not None for page in real) else sample

    def _known(self) -> dict[Question, Observation]:
        if self._pages is None:
            self._pages = {}
            for path in self._paths:
                for episode in TrajectoryStore(path):
                    self._learn(self._pages, episode)
        return self._pages

    def _learn(self, pages: dict[Question, Observation], episode: Trajectory) -> None:
        if episode.source == "dream":
            return
        for step, page in zip(episode.steps, episode.following, strict=True):
            if step.action is not None and page is not None and not step.error and step.action.kind != "stop":
                pages.setdefault(question(step.observation, step.action), page)


def _question(step: Step) -> Question | None:
    """What the world model was asked; a recalled page is the real one, so that there is nothing to compare."""
    if step.action is None or not step.facts.dreamed:
        return None
    return question(step.observation, step.action)
