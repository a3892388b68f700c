"""Run the replication: the cells of `arms.toml` and `questions.toml` for one benchmark, until all end or time does.

    python examples/replication/replicate.py miniwob --seeds 0,1,2 --jobs 4 --minutes 20

Cells are processes side by side on one device, the first arms of the files first, each arm with all seeds before the
next one. When the minutes are over they save their state; the same command goes on. Then the raw results of all
benchmarks under `--out` are written, beside those that the file has of other machines, for `dynaweb reproduce
replication`.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import signal
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dynaweb import api
from dynaweb.compare.raw import SUFFIX, RawResults, RawRun, read_results, write_results
from dynaweb.config import resolve
from dynaweb.config.labels import Labels
from dynaweb.config.layers import parse_set
from dynaweb.config.resolving import real_environment
from dynaweb.errors import EXIT_INTERRUPTED, ConfigError, DynawebError, Interrupted, hint
from dynaweb.matrix import MatrixFolder, plan_of, read_matrix
from dynaweb.matrix.plan import Cell, Matrix, Plan
from dynaweb.matrix.raw import collect
from dynaweb.matrix.replication import AXES
from dynaweb.matrix.runner import Lines, Progress, Runner
from dynaweb.runs.lock import locked
from dynaweb.runs.processes import own_command

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
FILES = ("arms.toml", "questions.toml")
OTHERS = {"miniwob": "sites", "roundup": "sites", "sites": "miniwob"}
"""The benchmarks, and whose graded episodes the judge learns from that has seen none of a benchmark's own."""
BASE = "miniwob"
"""The benchmark that the matrix files are written for."""
NAME, TITLE = "replication", "DynaWeb in small on a pre-trained model and pages of others"


def judge_of_others(benchmark: str) -> str:
    """The folder of the judge that was fitted on another benchmark, from the repository's root."""
    return f"runs/{NAME}/judge-of-others-{benchmark}"


def matrices(benchmark: str, sets: Mapping[str, Any] | None = None) -> list[Matrix]:
    """The matrices of a benchmark: those of the files, with its recipe as their base and its real pages."""
    recipe = HERE / f"{benchmark}.toml"
    real = real_environment(recipe)
    names = {"env.name": {BASE: real}, "reward.weights": {judge_of_others(BASE): judge_of_others(benchmark)}}

    def own(value: Any) -> Any:
        return {key: names.get(key, {}).get(one, one) if isinstance(one, str) else one for key, one in value.items()}

    made = []
    for file in FILES:
        matrix = read_matrix(HERE / file, sets=sets)
        axes = {name: [own(value) for value in values] for name, values in matrix.axes.items()}
        made.append(matrix.model_copy(update={"name": benchmark, "base": os.path.relpath(recipe), "axes": axes}))
    return made


def plan(benchmark: str, sets: Mapping[str, Any] | None = None) -> Plan:
    """Every cell of a benchmark by priority: the arms as they stand in the files, each with all of its seeds."""
    every = matrices(benchmark, sets)
    cells = [cell for matrix in every for cell in plan_of(matrix).cells]
    order = {label: at for at, label in enumerate(dict.fromkeys(cell.labels for cell in cells))}
    cells.sort(key=lambda cell: (order[cell.labels], cell.seed))
    arms = [value for matrix in every for value in matrix.axes["arm"]]
    whole = every[0].model_copy(update={"axes": {"arm": arms}, "when": [], "set": {}})
    return Plan(whole, ("arm",), tuple({cell.id: cell for cell in cells}.values()))


def chosen(whole: Plan, arms: Sequence[str], seeds: Sequence[int]) -> list[Cell]:
    """The cells of some arms and seeds; no arm means all. Raises `ConfigError` for what the plan has not."""
    labels = {str(dict(cell.labels)["arm"]): None for cell in whole.cells}
    for arm in arms:
        if arm not in labels:
            raise ConfigError(f"--arms: no arm is called {arm!r}; {hint(arm, labels)}; all: {'; '.join(labels)}")
    known = sorted({cell.seed for cell in whole.cells})
    if odd := [seed for seed in seeds if seed not in known]:
        raise ConfigError(f"--seeds: {odd[0]} is not among {', '.join(map(str, known))}, the seeds of arms.toml")
    return [
        cell
        for cell in whole.cells
        if (not arms or dict(cell.labels)["arm"] in arms) and (not seeds or cell.seed in seeds)
    ]


def asks_others(cell: Cell, benchmark: str) -> bool:
    """Whether the judge of a cell is the one that was fitted on another benchmark."""
    return getattr(cell.recipe.reward.config, "weights", "") == judge_of_others(benchmark)


def fit_judge_of_others(benchmark: str, sets: Mapping[str, Any]) -> None:
    """Fit that judge on graded episodes of the other benchmark, once for all seeds, unless it is there."""
    folder = Path(judge_of_others(benchmark))
    with locked(Path(f"{folder}.lock"), what=f"judge {folder}", wait=True):
        if not (folder / "checkpoints" / "judge").is_dir():
            # What an interrupted fit has done is in the stage cache.
            shutil.rmtree(folder, ignore_errors=True)
            recipe = resolve(HERE / f"{OTHERS[benchmark]}.toml", overrides=dict(sets))
            api.fit_judge(recipe, out=folder, progress=True)


def results(out: Path, file: Path) -> RawResults:
    """The done cells of every benchmark under `out`, beside the runs that the file has of other cells."""
    runs = {run.id: run for run in read_results(file).runs} if file.exists() else {}
    for benchmark in OTHERS:
        folder = MatrixFolder(out / benchmark)
        if folder.plan_file.exists() and any(folder.is_done(cell.id) for cell in folder.read_plan().cells):
            for run in collect([folder.path], NAME).runs:
                labels: Labels = (("benchmark", benchmark), *run.labels)
                runs[f"{benchmark}-{run.id}"] = replace(run, id=f"{benchmark}-{run.id}", labels=labels)
    labels = list(dict.fromkeys(value["label"] for matrix in matrices(BASE) for value in matrix.axes["arm"]))
    seeds = sorted({0, 1, 2, *(run.seed for run in runs.values())})
    matrix = Matrix(name=NAME, description=TITLE, seeds=tuple(seeds), axes={"benchmark": [*OTHERS], "arm": labels})
    command = "python examples/replication/replicate.py miniwob, and of each other benchmark"
    plain = matrix.model_dump(mode="json", by_alias=True)
    return RawResults(NAME, tuple(_ordered(runs.values(), labels)), AXES, TITLE, command, plain)


def _ordered(runs: Iterable[RawRun], arms: Sequence[str]) -> list[RawRun]:
    """By benchmark, arm and seed, whatever machine they are from."""

    def place(run: RawRun) -> tuple[int, int, int]:
        labels = dict(run.labels)
        arm = labels["arm"]
        return [*OTHERS].index(labels["benchmark"]), arms.index(arm) if arm in arms else len(arms), run.seed

    return sorted(runs, key=place)


def main(words: Sequence[str] | None = None) -> int:
    """Run what is chosen; 0 when all of it is done or time is up, 1 when a cell failed, 130 after Ctrl-C."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("benchmark", choices=[*OTHERS])
    parser.add_argument("--arms", default="", help="labels of arms, separated by `;`; default: all, in their order")
    parser.add_argument("--seeds", default="", help="seeds, such as 0,1; default: those of arms.toml")
    parser.add_argument("--jobs", type=int, default=1, help="cells that run at once")
    parser.add_argument(
        "--minutes", type=float, default=0, help="minutes after which cells save their state; 0 = never"
    )
    parser.add_argument("--set", action="append", default=[], dest="sets", metavar="PATH=VALUE", help="for every cell")
    parser.add_argument("--out", type=Path, default=Path("runs") / NAME, help="folder of the runs")
    parser.add_argument("--results", type=Path, default=Path("results"), help="folder of the raw results")
    parser.add_argument("--list", action="store_true", help="say how every chosen cell stands, and run nothing")
    parser.add_argument("--cell", default="", help=argparse.SUPPRESS)
    options = parser.parse_args(words)
    os.chdir(ROOT)
    try:
        return _main(options)
    except DynawebError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def _main(options: argparse.Namespace) -> int:
    sets, problems = parse_set(options.sets)
    if problems:
        raise ConfigError("\n".join(problems))
    folder = MatrixFolder(options.out / options.benchmark)
    if options.cell:
        fit_judge_of_others(options.benchmark, sets)
        command = [sys.executable, *own_command("matrix", "cell", str(folder.path), options.cell)]
        os.execv(sys.executable, command)
    whole = plan(options.benchmark, sets)
    arms = [arm for part in options.arms.split(";") if (arm := part.strip())]
    cells = chosen(whole, arms, [int(seed) for seed in options.seeds.split(",") if seed.strip()])
    if options.list:
        for cell in cells:
            status = folder.status(cell)
            print(f"{cell.id}  {status.state:11}  {cell}{f': {status.detail}' if status.detail else ''}")
        return 0
    failed = _run(whole, cells, folder, options)
    file = options.results / f"{NAME}{SUFFIX}"
    raw = results(options.out, file)
    if raw.runs:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_results(file, raw)
        print(f"{file}: {len(raw.runs)} runs; tables: dynaweb reproduce {NAME} --results {options.results}")
    return failed


def _run(whole: Plan, cells: Sequence[Cell], folder: MatrixFolder, options: argparse.Namespace) -> int:
    """Run the cells; the exit code."""
    progress: list[Progress] = []
    words = [word for text in options.sets for word in ("--set", text)]

    after_judge = {cell.id for cell in cells if asks_others(cell, options.benchmark)}

    def command(folder: MatrixFolder, id: str) -> Sequence[str]:
        if id not in after_judge:
            return [sys.executable, *own_command("matrix", "cell", str(folder.path), id)]
        out = ["--out", str(folder.path.parent)]
        return [sys.executable, str(HERE / "replicate.py"), options.benchmark, "--cell", id, *out, *words]

    display = Lines(progress, sys.stdout)
    runner = Runner(
        whole,
        folder,
        jobs=options.jobs,
        command=command,
        changed=display.changed,
        progress=progress,
        only={cell.id for cell in cells},
    )
    time_is_up = False

    def stop(number: int, frame: Any) -> None:
        nonlocal time_is_up
        time_is_up = True
        signal.raise_signal(signal.SIGINT)

    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, options.minutes * 60)
    code = 0
    try:
        runner.run()
    except (Interrupted, KeyboardInterrupt):  # the latter where nothing runs yet
        code = 0 if time_is_up else Interrupted.exit_code
        print(f"{'time is up' if time_is_up else 'interrupted'}; go on with: {shlex.join([sys.executable, *sys.argv])}")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    for one in progress:
        # Of a cell that time has stopped, its run folder knows how it stands.
        status = folder.status(one.cell)
        detail = f": {status.detail}" if status.detail else ""
        print(f"{one.cell.id}  {status.state:11}  {status.seconds or 0:6.0f} s  {one.cell}{detail}")
    return code or int(any(one.state == "failed" for one in progress))


if __name__ == "__main__":
    sys.exit(main())
