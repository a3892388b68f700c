"""Raw results: one row an episode, as compressed JSON Lines that a repository can keep (`results/NAME.jsonl.gz`).

The first line is the header, then every run has one row, and then every evaluated episode:

    {"format": "dynaweb-results", "version": 1, "name", "title", "command", "matrix", "axes", "runs", "sha256", ...}
    {"row": "run", "run", "seed", "settings", "arms", "recipe", "stages", "world_model", "judge", "updates", ...}
    {"row": "episode", "run", "seed", "settings", "arm", "task", "kind", "success", "real_steps", "tokens"}

`settings` are those that are varied, by name. `success` lies in [0, 1], null where an episode could not be graded.
`real_steps` counts the actions of the episode, `tokens` what the policy wrote in it, null where no trajectory is left.
`kind` is what the environment calls tasks of its kind; older files do without it.
`sha256` is that of all lines after the first one, `sum` that of the header's own values. Tables made of the file are
those made of the run folders; measures of the world model and the numbers of updates are rounded to 6 significant
digits. The same results give the same bytes.

`pandas.read_json(path, lines=True)` reads it too.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dynaweb.compare.records import RunRecord, arm_rows, judge_errors, named, read_run
from dynaweb.config.files import RESTORE, parse_json, read_json, understood
from dynaweb.config.labels import Labels
from dynaweb.config.layers import flatten
from dynaweb.errors import CheckpointError, ConfigError
from dynaweb.masking import masked_data
from dynaweb.report.data import Arm, Curve, Measure, ReportData, Setting, Stage, measure_words
from dynaweb.runs.atomic import write_with
from dynaweb.runs.checksums import SUM, fits_sum, with_sum
from dynaweb.runs.folder import NO_RESULT
from dynaweb.runs.jsonl import read_jsonl
from dynaweb.stats import estimate

FORMAT, VERSION = "dynaweb-results", 1
SUFFIX = ".jsonl.gz"
NAME = r"[\w+-][\w.+-]*"
"""What results may be called."""
FOLDER = Path("results")
"""Where a repository keeps raw results."""
LARGEST = 2**30
"""More bytes than this no file of results has when it is unpacked."""
UPDATES = (
    "reward",
    "success",
    "policy_tokens",
    "world_model_tokens",
    "steps",
    "dreamed_steps",
    "expert_share",
    "entropy",
)
"""Numbers of an update of reinforcement learning that a file keeps."""


@dataclass(frozen=True, slots=True)
class Episode:
    """One evaluated episode of an arm; None = not known."""

    task: str
    success: float | None
    real_steps: int | None = None
    tokens: int | None = None
    kind: str = ""


@dataclass(frozen=True, slots=True)
class RawRun:
    """One run: `id` is unique in its file, `recipe` is what `recipe.json` holds, `episodes` by arm in their order."""

    id: str
    labels: Labels
    record: RunRecord
    recipe: Mapping[str, Any]
    episodes: Mapping[str, Sequence[Episode]]

    @property
    def seed(self) -> int:
        """The seed of the run."""
        return self.record.seed


@dataclass(frozen=True, slots=True)
class RawResults:
    """What a file holds: the runs of one experiment. `matrix` is the matrix that they are cells of, as plain data."""

    name: str
    runs: tuple[RawRun, ...]
    axes: tuple[str, ...]
    title: str = ""
    command: str = ""
    matrix: Mapping[str, Any] = field(default_factory=dict)


def is_results(path: Path) -> bool:
    """Whether a path names a file of raw results."""
    return path.is_file() and path.name.endswith(SUFFIX)


def files(folder: Path = FOLDER) -> dict[str, Path]:
    """The files of raw results in a folder, by name."""
    return {path.name.removesuffix(SUFFIX): path for path in sorted(folder.glob(f"*{SUFFIX}"))}


def read_raw_run(folder: Path, *, id: str, labels: Labels) -> RawRun:
    """A finished run with the steps and tokens of each evaluated episode. Raises `CheckpointError` as `read_run`."""
    record = read_run(folder)
    rows = list(read_jsonl(folder / "metrics.jsonl"))
    episodes = {arm.name: _episodes(folder, arm, rows) for arm in record.data.arms}
    path = folder / "recipe.json"
    recipe = read_json(path, dict, finite=True) if path.exists() else {}
    return RawRun(id, labels, record, _shareable(recipe), episodes)


def _shareable(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe without the settings that change no result, which may name files of this machine."""
    settings: dict[str, Any] = {}
    for section, values in recipe.get("settings", {}).items():
        table = isinstance(values, Mapping)
        settings[section] = {
            name: value
            for name, value in (values.items() if table else ())
            if not f"{section}.{name}".startswith(NO_RESULT)
        }
    origins = {path: origin for path, origin in recipe.get("origins", {}).items() if not path.startswith(NO_RESULT)}
    return {**recipe, "settings": settings, "origins": origins}


def _episodes(folder: Path, arm: Arm, rows: Sequence[Mapping[str, Any]]) -> list[Episode]:
    played = arm_rows(rows, arm.name)
    outcomes = arm.outcomes[0] if arm.outcomes else ()
    if len(played) != len(outcomes):
        return [Episode("", outcome) for outcome in outcomes]
    tokens = episode_tokens(folder, arm.name, len(outcomes))
    with understood(folder / "metrics.jsonl"):
        return [
            Episode(
                str(row["task"]),
                outcome,
                int(row["steps"]) if "steps" in row else None,
                count,
                str(row.get("kind", "")),
            )
            for row, outcome, count in zip(played, outcomes, tokens, strict=True)
        ]


def episode_tokens(folder: Path, arm: str, count: int) -> list[int | None]:
    """Tokens that the policy wrote in each episode, None where the trajectories are gone."""
    from dynaweb.data.store import TrajectoryStore

    path = folder / "trajectories" / f"eval-{arm}{SUFFIX}"
    if not path.exists():
        return [None] * count
    tokens: list[int | None] = [sum(len(step.response_ids) for step in one.steps) for one in TrajectoryStore(path)]
    return tokens if len(tokens) == count else [None] * count


def write_results(path: Path, results: RawResults) -> None:
    """Write a file of raw results, whole or not at all.

    Raises `ConfigError` for another suffix, a name that is not the file's, and two runs of one id.
    """
    if not path.name.endswith(SUFFIX):
        raise ConfigError(f"{path} does not end in {SUFFIX}; raw results are compressed JSON Lines")
    if why := _misnamed(path, results.name):
        raise ConfigError(f"{why}; give the results the name of their file")
    ids = [run.id for run in results.runs]
    if twice := {id for id in ids if ids.count(id) > 1}:
        raise ConfigError(f"{path}: two runs are called {min(twice)}; each needs a name of its own")
    runs = [_line(_run_row(run)) for run in results.runs]
    episodes = [_line(row) for run in results.runs for row in _episode_rows(run)]
    body = "".join([*runs, *episodes]).encode()
    header = {
        "format": FORMAT,
        "version": VERSION,
        "name": results.name,
        "title": results.title,
        "command": results.command,
        "matrix": dict(results.matrix),
        "axes": list(results.axes),
        "runs": len(runs),
        "episodes": len(episodes),
        "sha256": hashlib.sha256(body).hexdigest(),
    }
    packed = gzip.compress(_line(with_sum(header)).encode() + body, mtime=0)
    write_with(path, lambda temporary: temporary.write_bytes(packed))


def _misnamed(path: Path, name: object) -> str:
    """Why results in this file cannot have the name, of which files and folders are made; '' where they can."""
    if not isinstance(name, str) or not re.fullmatch(NAME, name):
        return f"{path}: {name!r} is no name of results: letters, digits and `.+-_`, no dot first"
    return "" if f"{name}{SUFFIX}" == path.name else f"{path} holds results of another name, {name!r}"


def _line(row: Mapping[str, Any]) -> str:
    return json.dumps(masked_data(row), ensure_ascii=True, allow_nan=False, separators=(",", ":")) + "\n"


def _run_row(run: RawRun) -> dict[str, Any]:
    data = run.record.data
    return {
        "row": "run",
        "run": run.id,
        "seed": run.seed,
        "settings": dict(run.labels),
        "arms": [{"name": arm.name, "label": arm.label, "role": arm.role, "note": arm.note} for arm in data.arms],
        "episodes_are": data.episodes_are,
        "versions": dict(data.versions),
        "recipe": dict(run.recipe),
        "stages": [{"name": stage.name, "status": stage.status, "cost": dict(stage.cost)} for stage in data.stages],
        "world_model": {one.name: [_rounded(value) for value in one.values] for one in data.fidelity if one.values},
        "judge": {arm: dict(metrics) for arm, metrics in run.record.judge_metrics.items()},
        "updates": [
            {"stage": one.stage, "metric": one.metric, "points": [[at, _rounded(value)] for at, value in one.points]}
            for one in data.curves
            if one.stage.startswith("rl") and one.metric in UPDATES
        ],
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.6g}")


def _episode_rows(run: RawRun) -> Iterator[dict[str, Any]]:
    common = {"row": "episode", "run": run.id, "seed": run.seed, "settings": dict(run.labels)}
    for arm, episodes in run.episodes.items():
        for one in episodes:
            played = {"success": one.success, "real_steps": one.real_steps, "tokens": one.tokens}
            kind = {"kind": one.kind} if one.kind else {}
            yield common | {"arm": arm, "task": one.task} | kind | played


def read_results(path: Path) -> RawResults:
    """The runs of a file. Raises `CheckpointError` for what is no such file, and for one that is damaged."""
    header, rows = _read(path)
    if why := _misnamed(path, header.get("name")):
        raise CheckpointError(f"{why}; {RESTORE}")
    with understood(path):
        runs = [row for row in rows if row["row"] == "run"]
        episodes: dict[str, list[Mapping[str, Any]]] = {str(run["run"]): [] for run in runs}
        for row in rows:
            if row["row"] == "episode":
                episodes[row["run"]].append(row)
        return RawResults(
            name=str(header["name"]),
            runs=tuple(_raw_run(path, run, episodes[run["run"]]) for run in runs),
            axes=tuple(map(str, header["axes"])),
            title=str(header["title"]),
            command=str(header["command"]),
            matrix=dict(header["matrix"]),
        )


def _read(path: Path) -> tuple[Mapping[str, Any], list[dict[str, Any]]]:
    try:
        with gzip.open(path) as file:
            first = file.readline(LARGEST)
            body = file.read(LARGEST)
    except (OSError, EOFError, gzip.zlib.error) as error:  # type: ignore[attr-defined]
        if isinstance(error, FileNotFoundError | PermissionError):
            raise CheckpointError(f"{path} cannot be read ({error.strerror}); give another path") from error
        raise CheckpointError(f"{path} is damaged ({error}); {RESTORE}") from error
    try:
        header = parse_json(first.decode(), dict, finite=True)
    except ValueError as error:
        raise CheckpointError(f"{path} is no file of raw results (line 1: {error}); {RESTORE}") from error
    if header.get("format") != FORMAT:
        raise CheckpointError(
            f"{path} is no file of raw results; `dynaweb results write NAME FOLDER` makes one of runs or a matrix"
        )
    if header.get("version") != VERSION:
        raise CheckpointError(
            f"{path} has version {header.get('version')} of the format, and this dynaweb reads {VERSION}; "
            "use the version that wrote it, or a newer one"
        )
    # Files of earlier versions have no sum of their header.
    sound = fits_sum(header) if SUM in header else True
    if not sound or header.get("sha256") != hashlib.sha256(body).hexdigest():
        raise CheckpointError(f"{path} is damaged (its checksum does not fit); {RESTORE}")
    number = 1
    rows = []
    try:
        for number, line in enumerate(body.decode().split("\n")[:-1], start=2):  # noqa: B007
            rows.append(parse_json(line, dict, finite=True))
    except ValueError as error:
        raise CheckpointError(f"{path} is damaged (line {number}: {error}); {RESTORE}") from error
    return header, rows


def _raw_run(path: Path, row: Mapping[str, Any], rows: Iterable[Mapping[str, Any]]) -> RawRun:
    episodes: dict[str, list[Episode]] = {arm["name"]: [] for arm in row["arms"]}
    for one in rows:
        success = None if one["success"] is None else float(one["success"])
        kind = str(one.get("kind", ""))
        episodes[one["arm"]].append(Episode(str(one["task"]), success, one["real_steps"], one["tokens"], kind))
    arms = tuple(
        Arm(arm["name"], arm["label"], arm["role"], (tuple(one.success for one in episodes[arm["name"]]),), arm["note"])
        for arm in row["arms"]
    )
    settings = tuple(
        Setting(name, value) for name, value in sorted(flatten(row["recipe"].get("settings", {}))) if value != {}
    )
    data = ReportData(
        title=str(row["run"]),
        arms=arms,
        episodes_are=str(row["episodes_are"]),
        stages=tuple(Stage(one["name"], one["status"], cost=dict(one["cost"])) for one in row["stages"]),
        fidelity=tuple(_measure(name, values) for name, values in row["world_model"].items()),
        curves=tuple(
            Curve(one["stage"], one["metric"], tuple((at, value) for at, value in one["points"]))
            for one in row["updates"]
        ),
        settings=settings,
        versions=dict(row["versions"]),
        seed=int(row["seed"]),
    )
    played = {
        name: named((one.success for one in of_arm), [one.task for one in of_arm if one.task])
        for name, of_arm in episodes.items()
    }
    metrics = {arm: dict(values) for arm, values in row["judge"].items()}
    judge = {arm: judge_errors(values) for arm, values in metrics.items()}
    record = RunRecord(
        path / str(row["run"]), data.seed, {one.path: one.value for one in settings}, data, played, judge, metrics
    )
    labels = tuple((str(axis), str(value)) for axis, value in row["settings"].items())
    return RawRun(str(row["run"]), labels, record, dict(row["recipe"]), episodes)


def _measure(name: str, values: Sequence[float]) -> Measure:
    from dynaweb.worldmodels.fidelity import MEANINGS, kind_of

    return Measure(measure_words(name), estimate(kind_of(name), values), MEANINGS.get(name, ""), name, tuple(values))
