"""Data frames of runs, episodes, steps and updates, in pandas or polars.

    frames = dynaweb.results("runs/matrix-optimizers")
    frames.episodes.query("arm == 'dynaweb'").groupby("setting.opt").success.mean()

Read are a run folder, the folder of a matrix, a folder of either, or a file of raw results. `COLUMNS` says what each
column is. Beside these every frame has a column `setting.NAME` for each setting in which the runs differ. Of a run that
is not finished stands there what there is; a finished run whose records are damaged is refused, as by `dynaweb report`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from dynaweb.compare.groups import grouped
from dynaweb.compare.raw import RawResults, RawRun, episode_tokens, is_results, read_results
from dynaweb.compare.records import COSTS, MAIN, RunRecord
from dynaweb.config.files import understood
from dynaweb.config.labels import Labels
from dynaweb.errors import ConfigError, MissingError, hint
from dynaweb.matrix.folder import MatrixFolder
from dynaweb.matrix.plan import PLAN
from dynaweb.report.gather import gather
from dynaweb.runs.jsonl import read_jsonl
from dynaweb.types import Trajectory

Kind = Literal["pandas", "polars"]
KINDS: tuple[Kind, ...] = ("pandas", "polars")
EVAL = "eval "
COLUMNS: Mapping[str, Mapping[str, str]] = {
    "runs": {
        "run": "name of the run: of a cell its id, else its folder",
        "folder": "where it is",
        "seed": "its seed",
        "status": "done, running, failed or interrupted",
        "arm": "name of the arm that the run is about; none before its evaluation",
        "success": "share of that arm's graded episodes that succeeded, in [0, 1]",
        "n": "how many were graded",
        "real_steps": COSTS["real_steps"],
        "tokens_generated": COSTS["tokens_generated"],
        "seconds": COSTS["seconds"],
        "version": "the version of dynaweb that ran it",
    },
    "episodes": {
        "run": "name of the run",
        "seed": "seed of the run",
        "phase": "demos, explore, rl, eval...: what it was played for",
        "arm": "of an evaluation, the arm that played",
        "update": "of a rollout, the update that learned from it, from 1",
        "episode": "its id: that of its trajectory",
        "task": "id of its task",
        "source": "dream, real or expert",
        "end": "how it ended",
        "real_steps": "its steps; of a dream they are no real ones",
        "tokens": "of an evaluation, tokens that the policy wrote, where the trajectories are there",
        "reward": "the judge's score in [0, 1]",
        "success": "the environment's verdict in [0, 1]; none where it was not graded",
    },
    "steps": {
        "run": "name of the run",
        "seed": "seed of the run",
        "file": "file of trajectories: demos, explore, dreams, eval-ARM...",
        "episode": "id of the trajectory",
        "task": "id of its task",
        "step": "number of the step, from 1",
        "url": "address of the page that the policy saw",
        "elements": "how many elements that page has",
        "action": "kind of the action; none where the reply held no action",
        "target_role": "role of the element that it acted on",
        "target_name": "name of that element",
        "text": "the typed text, the option, the keys, the address or the answer",
        "error": "why the action could not be read, or was refused",
        "reply": "what the policy wrote",
        "tokens": "how many tokens that is",
        "logprob": "their summed log-probability under the policy that drew them",
        "policy_version": "updates that this policy had had",
        "dreamed": "whether a world model was asked for the page that followed",
        "recalled": "whether a memory gave it",
        "imagined": "whether it was imagined",
        "world_model_tokens": "tokens that the world model wrote for it",
    },
    "updates": {
        "run": "name of the run",
        "seed": "seed of the run",
        "stage": "sft, world-model, rl...",
        "update": "number of the update in its stage, from 1",
        "...": "a column for each metric: loss, reward, entropy, grad_norm, policy_tokens...",
    },
}
"""The columns of each frame, in their order, and what they are."""


@dataclass(frozen=True, slots=True)
class _Run:
    name: str
    record: RunRecord
    raw: RawRun | None = None
    """The run in a file of raw results; None: it is a folder."""


@dataclass(frozen=True)
class Results:
    """Frames of one or many runs, each read when it is first looked at."""

    source: Path
    frame: Kind
    _runs: tuple[tuple[_Run, Labels], ...]

    @cached_property
    def runs(self) -> Any:
        """A row a run."""
        return self._made("runs", (_run_row(run) | _settings(labels) for run, labels in self._runs))

    @cached_property
    def episodes(self) -> Any:
        """A row an episode: demonstrations, exploration, rollouts and evaluations; of raw results the evaluations."""
        rows = (row | _settings(labels) for run, labels in self._runs for row in _episode_rows(run))
        return self._made("episodes", rows)

    @cached_property
    def steps(self) -> Any:
        """A row a step of every trajectory that is kept. Raises `ConfigError` of raw results, which have none."""
        if any(run.raw is not None for run, _ in self._runs):
            raise ConfigError(
                f"{self.source} holds raw results, which have episodes but no steps; give the run folders"
            )
        return self._made("steps", (row | _settings(labels) for run, labels in self._runs for row in _step_rows(run)))

    @cached_property
    def updates(self) -> Any:
        """A row an update of a training stage."""
        rows = (row | _settings(labels) for run, labels in self._runs for row in _update_rows(run))
        return self._made("updates", rows)

    def _made(self, name: str, rows: Iterator[dict[str, Any]]) -> Any:
        columns: dict[str, list[Any]] = {column: [] for column in COLUMNS[name] if column != "..."}
        settings = dict.fromkeys(axis for _, labels in self._runs for axis, _ in labels)
        columns |= {f"setting.{axis}": [] for axis in settings}
        for count, row in enumerate(rows):
            for column in row:
                columns.setdefault(column, [None] * count)
            for column, values in columns.items():
                values.append(row.get(column))
        return _framed(columns, self.frame)


def results(source: Path, frame: str = "pandas") -> Results:
    """The frames of a run, a matrix, a folder of runs and matrices, or a file of raw results.

    Raises `ConfigError` for another kind of frame and where there is no run, `MissingError` without its package, and
    `CheckpointError` for a damaged run.
    """
    if frame not in KINDS:
        raise ConfigError(f"frame={frame!r}: there are no such data frames; {hint(frame, KINDS)}: pandas or polars")
    kind: Kind = "polars" if frame == "polars" else "pandas"
    _framed({}, kind)  # what is missing is said before anything is read
    if is_results(source):
        raw: RawResults = read_results(source)
        return Results(source, kind, tuple((_Run(run.id, run.record, run), run.labels) for run in raw.runs))
    known = [run for folder, labels in _folders(source) for run in [(_read(source, folder), labels)]]
    if not known:
        raise ConfigError(f"{source} holds no run: give a run folder, the folder of a matrix, or a folder of these")
    names = _names([run for run, labels in known if labels is None])
    return Results(
        source, kind, tuple((run, labels if labels is not None else names[run.name]) for run, labels in known)
    )


def _folders(source: Path) -> Iterator[tuple[Path, Labels | None]]:
    """Run folders, those of a matrix with the settings of their cell."""
    if (source / "status.json").is_file():
        yield source, None
    elif (source / PLAN).is_file():
        matrix = MatrixFolder(source)
        for cell in matrix.read_plan().cells:
            if (matrix.cell(cell.id) / "status.json").is_file():
                yield matrix.cell(cell.id), cell.labels
    elif source.is_dir():
        for path in sorted(source.iterdir()):
            if path.is_dir() and ((path / "status.json").is_file() or (path / PLAN).is_file()):
                yield from _folders(path)


def _read(source: Path, folder: Path) -> _Run:
    data = gather(folder, episodes=False)
    name = str(folder.relative_to(source)) if folder != source else folder.resolve().name
    settings = {item.path: item.value for item in data.settings}
    return _Run(name.removeprefix("cells/"), RunRecord(folder, data.seed, settings, data, {}))


def _names(runs: Sequence[_Run]) -> dict[str, Labels]:
    """The settings by which runs differ, by name of the run."""
    groups = grouped([run.record for run in runs])
    labels = {id(one): group.labels for group in groups for one in (*group.runs, *group.copies)}
    return {run.name: labels[id(run.record)] for run in runs}


def _settings(labels: Labels) -> dict[str, str]:
    return {f"setting.{axis}": value for axis, value in labels}


def _run_row(run: _Run) -> dict[str, Any]:
    record = run.record
    arm = record.arm(MAIN)
    success = arm.success if arm is not None else None
    return {
        "run": run.name,
        "folder": str(record.folder),
        "seed": record.seed,
        "status": record.data.status,
        "arm": arm.name if arm is not None else None,
        "success": success.value if success is not None else None,
        "n": success.n if success is not None else 0,
        **{name: record.cost(name) for name in COSTS},
        "version": record.data.versions.get("dynaweb"),
    }


def _episode_rows(run: _Run) -> Iterator[dict[str, Any]]:
    known = {"run": run.name, "seed": run.record.seed}
    if run.raw is not None:
        for arm, episodes in run.raw.episodes.items():
            for at, one in enumerate(episodes):
                played = {"task": one.task, "real_steps": one.real_steps, "tokens": one.tokens, "success": one.success}
                yield known | {"phase": "eval", "arm": arm, "episode": f"{EVAL}{arm}/{at}", "source": "real"} | played
        return
    path = run.record.folder / "metrics.jsonl"
    rows = [row for row in read_jsonl(path) if row.get("event") == "rollout"]
    arms = dict.fromkeys(str(row["phase"]) for row in rows if str(row.get("phase")).startswith(EVAL))
    tokens = {}
    for phase in arms:
        count = sum(row.get("phase") == phase for row in rows)
        tokens[phase] = iter(episode_tokens(run.record.folder, phase.removeprefix(EVAL), count))
    with understood(path):
        for row in rows:
            phase, update = str(row["phase"]), int(row.get("index", -1))
            is_evaluation = phase.startswith(EVAL)
            yield known | {
                "phase": "eval" if is_evaluation else phase,
                "arm": phase.removeprefix(EVAL) if is_evaluation else None,
                "update": update + 1 if update >= 0 else None,
                "episode": row.get("id"),
                "task": row.get("task"),
                "source": row.get("source"),
                "end": row.get("end"),
                "real_steps": row.get("steps"),
                "tokens": next(tokens[phase]) if is_evaluation else None,
                "reward": row.get("reward"),
                "success": row.get("success"),
            }


def _step_rows(run: _Run) -> Iterator[dict[str, Any]]:
    from dynaweb.data.store import SUFFIX, TrajectoryStore

    for path in sorted((run.record.folder / "trajectories").glob(f"*{SUFFIX}")):
        known = {"run": run.name, "seed": run.record.seed, "file": path.name.removesuffix(SUFFIX)}
        for trajectory in TrajectoryStore(path):
            for row in _steps_of(trajectory):
                yield known | row


def _steps_of(trajectory: Trajectory) -> Iterator[dict[str, Any]]:
    for at, step in enumerate(trajectory.steps, start=1):
        action = step.action
        yield {
            "episode": trajectory.id,
            "task": trajectory.task.id,
            "step": at,
            "url": step.observation.url,
            "elements": len(step.observation.nodes),
            "action": action.kind if action is not None else None,
            "target_role": action.target_role if action is not None else None,
            "target_name": action.target_name if action is not None else None,
            "text": action.text if action is not None else None,
            "error": step.error,
            "reply": step.reply,
            "tokens": len(step.response_ids),
            "logprob": sum(step.logprobs) if step.logprobs else None,
            "policy_version": step.policy_version,
            "dreamed": step.facts.dreamed,
            "recalled": step.facts.recalled,
            "imagined": step.facts.imagined,
            "world_model_tokens": step.facts.tokens,
        }


def _update_rows(run: _Run) -> Iterator[dict[str, Any]]:
    known = {"run": run.name, "seed": run.record.seed}
    rows: dict[tuple[str, float], dict[str, Any]] = {}
    for curve in run.record.data.curves:
        for update, value in curve.points:
            row = rows.setdefault((curve.stage, update), known | {"stage": curve.stage, "update": int(update)})
            row[curve.metric] = value
    yield from rows.values()


def _framed(columns: Mapping[str, Sequence[Any]], kind: Kind) -> Any:
    try:
        if kind == "polars":
            import polars

            # A column may begin with values that are not known.
            return polars.DataFrame(columns, strict=False, infer_schema_length=None)
        import pandas

        return pandas.DataFrame(columns)
    except ImportError:
        extra = {"pandas": "frames", "polars": "polars"}[kind]
        raise MissingError(f"data frames of {kind} need it; install it with: pip install 'dynaweb[{extra}]'") from None
