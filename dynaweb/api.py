"""The Python API: everything that the command line does, each command as one call.

Calls that train or evaluate take a recipe (a shipped name, a TOML file, or a resolved `Recipe`) with overrides and
flags as `dynaweb.config.resolving.resolve` knows them (`seed=1`, `wm="delta"`, `thorough=True`...; any other keyword is
a `ConfigError` that names the nearest). They draw nothing by themselves; `progress=True` draws progress on stderr.
Heavy code is imported when a call needs it, after the recipe has been checked. Errors are those of `dynaweb.errors`.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from dynaweb.config.agreement import used_settings
from dynaweb.config.resolving import DEFAULT, Overrides, check_flags, resolve
from dynaweb.errors import ConfigError
from dynaweb.plugin.registry import current, use

if TYPE_CHECKING:
    from http.server import ThreadingHTTPServer

    from dynaweb.commands.doctor import Check
    from dynaweb.commands.push import Pushed
    from dynaweb.compare import Comparison
    from dynaweb.compare.raw import RawResults
    from dynaweb.config import Recipe
    from dynaweb.data.importers import ImportReport
    from dynaweb.data.inspect import EpisodeSummary, Overlap, Summary
    from dynaweb.data.labels import Labelled
    from dynaweb.engines.server import OpenAIEngine
    from dynaweb.estimate import Estimate
    from dynaweb.judges.audit import JudgeAudits
    from dynaweb.matrix import MatrixFolder, Plan
    from dynaweb.matrix.frames import Results
    from dynaweb.matrix.results import MatrixResults
    from dynaweb.pipeline.context import RunContext
    from dynaweb.plugin.discovery import PluginStatus
    from dynaweb.report.gather import RunResult
    from dynaweb.report.summary import StageResult
    from dynaweb.runs.pruning import CachedStage
    from dynaweb.scaffold.recipe import NewRecipe
    from dynaweb.serve.environment import ServedEnvironment
    from dynaweb.stages.world_model_eval import GradedPrediction, WorldModelScores
    from dynaweb.types import Task, Trajectory, Transition

PluginKind = Literal["world-model", "optimizer", "reward", "env", "observer", "engine", "prompt"]
T = TypeVar("T")
log = logging.getLogger("dynaweb")


def run(
    recipe: str | Path | Recipe = DEFAULT,
    *,
    overrides: Overrides = (),
    out: str | Path | None = None,
    resume: bool = False,
    progress: bool = False,
    **flags: Any,
) -> RunResult:
    """Run the main job: demonstrations, SFT, world model, reinforcement learning in dreams, evaluation, report.

    `out` is the run folder (default: `runs/<recipe>-<seed>-<n>`); with `resume` the run that is there goes on, by its
    own recipe unless another is named. Returns the result: its text is the sentence and the arms of the end,
    `full` the whole closing table.
    """
    if resume and out is not None and recipe == DEFAULT:
        from dynaweb.runs import RunFolder

        recipe = RunFolder(Path(out)).recipe()
    from dynaweb.runs.processes import placed

    session = _session(run, recipe, overrides, flags, out, progress)
    if session.recipe.cluster.address and not placed():
        raise ConfigError(
            f"cluster.address = {session.recipe.cluster.address} is for the command `dynaweb run`, which places the "
            "run's processes over a cluster; set it to '' to run in this process"
        )
    from dynaweb import train
    from dynaweb.report import build_report, closing_json, gather
    from dynaweb.report.gather import RunResult
    from dynaweb.report.summary import write_summary
    from dynaweb.stages.preflight import check_seam, check_together

    def check(ctx: RunContext) -> None:
        for kind, name, settings in used_settings(ctx.recipe, ctx.plugins):
            ctx.plugins.check_class(kind, name, settings)
        check_seam(ctx)
        check_together(ctx)

    async def job(ctx: RunContext) -> Path:
        outcome = await train.run(ctx)
        assert ctx.folder is not None  # the session opens one
        write_summary(ctx, outcome, ctx.folder.path)
        return ctx.folder.path

    folder = session.do("run", job, check, resume=resume, closing=lambda path: closing_json(gather(path)))
    data = gather(folder)
    return RunResult(folder, build_report(folder, data=data), closing_json(data))


def sft(
    recipe: str | Path | Recipe = DEFAULT,
    *,
    overrides: Overrides = (),
    out: str | Path | None = None,
    progress: bool = False,
    **flags: Any,
) -> StageResult:
    """Make demonstrations and fine-tune the policy on them."""
    session = _session(sft, recipe, overrides, flags, out, progress)
    from dynaweb.commands import stages
    from dynaweb.stages.preflight import check_model

    return session.do("sft", stages.sft, check_model)


def fit_world_model(
    recipe: str | Path | Recipe = DEFAULT,
    *,
    data: str | Path | None = None,
    overrides: Overrides = (),
    out: str | Path | None = None,
    progress: bool = False,
    **flags: Any,
) -> StageResult:
    """Fit the world model on real transitions and measure its fidelity.

    `data` is a transition store to use instead of exploration by the recipe.
    """
    session = _session(fit_world_model, recipe, overrides, flags, out, progress)
    from dynaweb.commands import stages
    from dynaweb.stages.preflight import check_model
    from dynaweb.stages.world_model import check_fit

    store = _existing(data)
    check = check_fit if store is None else check_model
    return session.do("wm fit", lambda ctx: stages.fit_world_model(ctx, store), check)


def evaluate_world_model(
    recipe: str | Path | Recipe = DEFAULT,
    *,
    weights: str | Path | None = None,
    data: str | Path | None = None,
    horizon: int = 8,
    overrides: Overrides = (),
    out: str | Path | None = None,
    progress: bool = False,
    **flags: Any,
) -> WorldModelScores:
    """Compare a world model with real pages: one step, open-loop over `horizon` steps, and its confidence.

    `weights` is a folder of weights, by default those that the recipe fits; `data` a transition store to measure on,
    all of whose sites then count as held out, by default the held-out sites of the recipe's exploration.
    """
    session = _session(evaluate_world_model, recipe, overrides, flags, out, progress, weights=[weights])
    from dynaweb.commands import stages
    from dynaweb.pipeline.models import world_model_weights
    from dynaweb.stages.world_model import check_fit

    folder, store = world_model_weights(_path(weights)), _existing(data)
    return session.do("wm eval", lambda ctx: stages.evaluate_world_model(ctx, folder, store, horizon), check_fit)


def show_prediction(
    recipe: str | Path | Recipe = DEFAULT,
    *,
    index: int = 0,
    weights: str | Path | None = None,
    data: str | Path | None = None,
    overrides: Overrides = (),
    out: str | Path | None = None,
    progress: bool = False,
    **flags: Any,
) -> GradedPrediction:
    """A prediction of a held-out transition, and the truth; `weights` and `data` as in `evaluate_world_model`."""
    session = _session(show_prediction, recipe, overrides, flags, out, progress, weights=[weights])
    from dynaweb.commands import stages
    from dynaweb.pipeline.models import world_model_weights
    from dynaweb.stages.world_model import check_fit

    folder, store = world_model_weights(_path(weights)), _existing(data)
    return session.do("wm show", lambda ctx: stages.show_prediction(ctx, folder, store, index), check_fit)


def collect(
    recipe: str | Path | Recipe = DEFAULT,
    *,
    store: str | Path | None = None,
    overrides: Overrides = (),
    out: str | Path | None = None,
    progress: bool = False,
    **flags: Any,
) -> StageResult:
    """Collect real transitions as `explore.player` says: with the SFT policy, experts, or random actions.

    They are added to `store`, by default to `transitions.jsonl.gz` in the run folder. Raises `CheckpointError` for a
    file that is no store, before anything is explored.
    """
    session = _session(collect, recipe, overrides, flags, out, progress)
    from dynaweb.commands import stages
    from dynaweb.data.store import TransitionStore

    target = _path(store)
    if target is not None:
        TransitionStore(target)
    return session.do("collect", lambda ctx: stages.collect(ctx, target))


def demonstrate(
    recipe: str | Path | Recipe = DEFAULT,
    *,
    by: str,
    store: str | Path | None = None,
    only: str = "",
    say: Callable[[str], None] = print,
    ask: Callable[[str], str] = input,
    overrides: Overrides = (),
    out: str | Path | None = None,
    progress: bool = False,
    **flags: Any,
) -> StageResult:
    """Make demonstrations: training tasks played by a model behind a server (`by="server:MODEL"`, see `policy.server`)
    or by a person (`by="human"`, who is told by `say` and answers by `ask`).

    Whole episodes with the environment's verdicts are added to the trajectory store `store`, by default to
    `trajectories/collected.jsonl.gz` in the run folder; `only` takes those that were `checked` or `judged` to be
    successes. `explore.episodes` says of how many tasks; those that have an episode there are not played again.
    """
    session = _session(demonstrate, recipe, overrides, flags, out, progress)
    from dynaweb.commands import collecting
    from dynaweb.data.demonstrations import one_of

    target, wanted = _path(store), one_of(only) if only else None
    collecting.check_player(by)
    collecting.check_store(target)
    terminal = collecting.Terminal(say, ask)
    return session.do(
        "collect", lambda ctx: collecting.demonstrate(ctx, by, store=target, only=wanted, terminal=terminal)
    )


def evaluate(
    recipe: str | Path | Recipe = DEFAULT,
    *,
    policy: str | Path | None = None,
    world_model: str | Path | None = None,
    overrides: Overrides = (),
    out: str | Path | None = None,
    progress: bool = False,
    **flags: Any,
) -> StageResult:
    """Evaluate a policy on held-out tasks of an environment.

    `policy` is a folder of weights or one of `sft` (default), `base` (the model as it is), `expert`, `random`. The
    result has rows by site and by kind of task, and every failure with its label. With `agent="lookahead"` the policy
    looks ahead in the world model of these weights (`world_model`), by default the one that the recipe fits.
    The same call with the same `out` goes on after an interruption, and plays again what the infrastructure broke.
    """
    policy = policy or _path(policy)
    session = _session(evaluate, recipe, overrides, flags, out, progress, weights=[policy, world_model])
    from dynaweb.commands import stages
    from dynaweb.pipeline.models import world_model_weights

    folder = world_model_weights(_path(world_model))
    stages.check_policy(policy)
    return session.do(
        "eval",
        lambda ctx: stages.evaluate(ctx, policy, folder),
        lambda ctx: stages.check_evaluation(ctx, policy),
        subject=stages.evaluation_of(policy, folder),
    )


def fit_judge(
    recipe: str | Path | Recipe = DEFAULT,
    *,
    data: str | Path | None = None,
    overrides: Overrides = (),
    out: str | Path | None = None,
    progress: bool = False,
    **flags: Any,
) -> StageResult:
    """Fit the recipe's judge (`reward="orm"`) on graded real episodes, and measure it on held-out sites.

    `data` is a trajectory store with such episodes, by default new ones of the SFT policy.
    """
    session = _session(fit_judge, recipe, overrides, flags, out, progress)
    from dynaweb.commands import stages

    store = _path(data)
    return session.do("orm fit", lambda ctx: stages.fit_judge(ctx, store), stages.check_judge_fit)


def audit_judges(
    recipe: str | Path | Recipe = DEFAULT,
    *,
    judges: Sequence[str] = (),
    data: str | Path | None = None,
    episodes: int = 0,
    overrides: Overrides = (),
    out: str | Path | None = None,
    progress: bool = False,
    **flags: Any,
) -> JudgeAudits:
    """Compare judges (default: the recipe's) with the environment's verdicts on the same real episodes.

    `data` is a trajectory store of graded episodes; by default `episodes` new ones are played on validation sites.
    """
    session = _session(audit_judges, recipe, overrides, flags, out, progress)
    from dynaweb.commands import stages

    names, store = list(judges) or [session.recipe.reward.name], _path(data)
    return session.do(
        "judge audit",
        lambda ctx: stages.audit_judges(ctx, names, store, episodes),
        lambda ctx: stages.check_judges(ctx, names),
    )


@dataclass(frozen=True, slots=True)
class _Session:
    """One call in a run folder of its own: the checked recipe, the folder if the caller names it, and progress."""

    recipe: Recipe
    out: Path | None
    progress: bool

    def do(
        self,
        command: str,
        job: Callable[[RunContext], Awaitable[T]],
        check: Callable[[RunContext], None] = lambda ctx: None,
        *,
        resume: bool = False,
        subject: str = "",
        closing: Callable[[Path], dict[str, Any]] = lambda path: {},
    ) -> T:
        """Open the run folder, do the job and close it, however it ends (`dynaweb.pipeline.session.in_folder`)."""
        from dynaweb.pipeline.session import in_folder

        return in_folder(
            self.recipe,
            job,
            out=self.out,
            resume=resume,
            command=command,
            subject=subject,
            closing=closing,
            check=check,
            progress=self.progress,
        )


def _session(
    call: Callable[..., Any],
    recipe: str | Path | Recipe,
    overrides: Overrides,
    flags: dict[str, Any],
    out: str | Path | None,
    progress: bool,
    *,
    weights: Sequence[str | Path | None] = (),
) -> _Session:
    """The session of a call, once all plugins that its recipe chooses are there and its folders of weights are whole.

    All of it before torch and the browser's driver, which take seconds to import.
    """
    own = signature(call).parameters
    check_flags(flags, f"dynaweb.{call.__name__}", [name for name in own if name != "flags"])
    if flags.get("plugins") is not None:
        use(flags["plugins"])
    plugins = current()
    resolved = resolve(recipe, overrides=overrides, **flags)
    for kind, name, settings in used_settings(resolved, plugins):
        plugins.try_class(kind, name, settings)
    from dynaweb.trainer.models import check_folders

    for folder in map(_path, weights):
        if folder is not None and folder.is_dir():
            check_folders(folder)
    return _Session(resolved, _path(out), progress)


def _path(path: str | Path | None) -> Path | None:
    """Raises `ConfigError` for an empty one, which would stand for the working directory."""
    if path is not None and not str(path):
        raise ConfigError("a path is empty; name a file or folder, or leave it out")
    return None if path is None else Path(path)


def _existing(store: str | Path | None) -> Path | None:
    """The path of a transition store, which has to be there."""
    from dynaweb.data.store import existing

    path = _path(store)
    if path is not None:
        existing(path)
    return path


def estimate_run(recipe: Recipe, *, nproc: int = 0, on: str = "") -> Estimate | None:
    """What a resolved recipe takes on this machine (`dynaweb run --dry-run`); None where the model's size is unknown.

    `on` names another machine, such as `"8xh100"`, `"a100"` or `"laptop"`; `nproc` is the number of processes, 0 for 1
    here and for one on each GPU there.

    Raises `ConfigError`, `MissingError` or `PluginError` with everything for which the run would be refused here, as
    far as it can be known without a model, an optimizer, or the files that settings name.
    """
    from dynaweb.estimate.refusals import examined

    result = examined(recipe, nproc, on)
    result.problems.check()
    return result.estimate


def compare_runs(folders: Iterable[str | Path]) -> Comparison:
    """Compare runs, the first is the reference (`dynaweb compare`): settings that differ, paired statistics."""
    from dynaweb.compare import compare

    return compare([Path(folder) for folder in folders])


def compare_recipes(
    recipes: Iterable[str],
    *,
    seeds: Sequence[int] = (0, 1, 2),
    sets: Iterable[str] = (),
    out: str | Path | None = None,
    jobs: int = 1,
    fail_fast: bool = False,
    measures: Sequence[str] = (),
) -> MatrixResults:
    """Run recipes on the same tasks and seeds, what is not done of it, and compare them (`dynaweb compare --recipes`).

    `sets` are texts as `--set` takes them, with `RECIPE:` before those of one recipe.
    """
    from dynaweb.matrix import plan_of
    from dynaweb.matrix.recipes import comparison
    from dynaweb.runs.folder import RUNS

    matrix, _ = comparison(recipes, sets=sets, seeds=tuple(seeds))
    folder = out if out is not None else RUNS / matrix.name
    return run_matrix(plan_of(matrix), out=folder, jobs=jobs, fail_fast=fail_fast, measures=measures)


def plan_matrix(
    source: str | Path,
    *,
    axes: Iterable[str] = (),
    overrides: Mapping[str, Any] | None = None,
    seeds: Sequence[int] | None = None,
    mode: str | None = None,
    max_cells: int | None = None,
) -> Plan:
    """Every cell of a matrix, composed and validated (`dynaweb matrix show`).

    `source` is a TOML file, a shipped matrix, a recipe to vary, or the folder of a matrix; `axes` are texts such as
    `"wm=delta,full-state"`.
    """
    from dynaweb.matrix import MatrixFolder, plan_of, read_matrix

    if Path(source).is_dir():
        return MatrixFolder(Path(source)).read_plan()
    chosen = None if seeds is None else tuple(seeds)
    return plan_of(read_matrix(source, axes=axes, sets=overrides or {}, seeds=chosen, mode=mode, max_cells=max_cells))


def run_matrix(
    plan: Plan,
    *,
    out: str | Path | None = None,
    jobs: int = 1,
    fail_fast: bool = False,
    measures: Sequence[str] = (),
) -> MatrixResults:
    """Run the cells that are not done, each in a process of its own, and return the table (`dynaweb matrix run`).

    `out` defaults to `runs/matrix-NAME`. Cells that fail are missing in the table; `plan_matrix` and this call again
    try them again.
    """
    from dynaweb.matrix.results import measures_of
    from dynaweb.matrix.runner import Runner

    measures_of(plan, measures)  # a mistake is said now, not after all the work
    Runner(plan, _matrix_folder(plan, out), jobs=jobs, fail_fast=fail_fast).run()
    return matrix_table(plan, out=out, measures=measures)


def matrix_table(plan: Plan, *, out: str | Path | None = None, measures: Sequence[str] = ()) -> MatrixResults:
    """What is done of a matrix so far (`dynaweb matrix table|status`): n, mean and interval of every combination."""
    from dynaweb.matrix.results import results

    return results(plan, _matrix_folder(plan, out), measures)


def results(source: str | Path, *, frame: Literal["pandas", "polars"] = "pandas") -> Results:
    """Data frames of what runs have left: `.runs`, `.episodes`, `.steps` and `.updates`, each read when it is used.

    `source` is a run folder, the folder of a matrix, a folder of these, or a file of raw results; `frame` chooses
    pandas or polars. `dynaweb.matrix.frames.COLUMNS` says what the columns are. Raises `CheckpointError` for a finished
    run whose records are damaged.
    """
    from dynaweb.matrix.frames import results

    return results(Path(source), frame)


def matrix_figures(
    results: MatrixResults,
    folder: str | Path = "figures",
    *,
    kinds: Sequence[str] = (),
    formats: Sequence[str] = ("pdf", "svg", "png"),
    width: str = "140mm",
    font: str = "sans:8",
) -> list[Path]:
    """Draw figures of a matrix, by default all that its results give (`dynaweb matrix figure`); returns the files.

    Raises `MissingError` without matplotlib, and `ConfigError` for a figure, width, font or format that is none.
    """
    from dynaweb.compare.figures import Style
    from dynaweb.matrix.figures import write_figures

    return write_figures(results, Path(folder), names=kinds, style=Style(width, font), formats=formats)


def list_results(folder: str | Path = "results") -> dict[str, str]:
    """Name and title of the raw results in a folder (`dynaweb results list`)."""
    from dynaweb.compare.raw import files, read_results

    return {name: read_results(path).title for name, path in files(Path(folder)).items()}


def reproduce(
    name: str, *, results: str | Path = "results", out: str | Path = "reproduced", figures: bool = True
) -> list[Path]:
    """Write the tables and figures of published results, from their raw results (`dynaweb reproduce`).

    Returns the files, which are in `out`/`name`. Raises `ConfigError` where there are no results of that name.
    """
    from dynaweb.matrix.reproduce import find, write

    return write(find(name, Path(results)), Path(out) / name, figures=figures)


def write_results(
    name: str,
    sources: Iterable[str | Path],
    *,
    out: str | Path | None = None,
    title: str = "",
    command: str = "",
) -> tuple[Path, RawResults]:
    """Write the raw results of a matrix or of runs, one row an episode (`dynaweb results write`).

    `sources` is the folder of one matrix, or run folders. Returns the file (default: `results/NAME.jsonl.gz`) and what
    is in it, as `dynaweb.compare.raw` says.
    """
    from dynaweb.compare.raw import FOLDER, SUFFIX, write_results
    from dynaweb.matrix.raw import collect

    results = collect([Path(source) for source in sources], name, title=title, command=command)
    path = Path(out) if out is not None else FOLDER / f"{name}{SUFFIX}"
    write_results(path, results)
    return path, results


def write_report(run: str | Path, *, each: int | None = 100) -> Path:
    """Write `report.html` of a run or a matrix anew (`dynaweb report`) and return its path.

    `each` trajectories of every arm and phase are in it, None for all.
    """
    from dynaweb.report import build_report, gather

    folder = Path(run)
    if not (folder / "matrix.json").exists():
        return build_report(folder, data=gather(folder, each=each))
    from dynaweb.matrix import MatrixFolder
    from dynaweb.matrix.page import write_page
    from dynaweb.matrix.results import results

    matrix = MatrixFolder(folder)
    return write_page(results(matrix.read_plan(), matrix), matrix)


def push(
    run: str | Path,
    repo: str,
    *,
    checkpoint: str = "",
    licence: str = "",
    private: bool = False,
    dry_run: bool = False,
) -> Pushed:
    """Send a finished run's trained policy to a model repository of the Hugging Face hub (`dynaweb push`), with a model
    card made from the run; with `dry_run` only write the folder that would be sent.

    `checkpoint` is one of the run's checkpoints by name, by default the trained policy; without `licence` (an
    identifier of the hub) the card names none.
    """
    from dynaweb.commands.push import push as send

    return send(Path(run), repo, checkpoint=checkpoint, licence=licence, private=private, dry_run=dry_run)


def report_server(run: str | Path, *, port: int = 0) -> ThreadingHTTPServer:
    """A server of the live pages of a run, a matrix or a folder of several, on this machine (`dynaweb view`): call
    `serve_forever()`, then `server_close()`."""
    from dynaweb.serve.reports import server_for

    return server_for(Path(run), port=port)


def export_site(run: str | Path, out: str | Path) -> Path:
    """Write the same pages as a static site into a folder (`dynaweb view --export`), and return its first page."""
    from dynaweb.serve.export import export

    return export(Path(run), Path(out))


def import_data(
    name: str, source: str | Path, store: str | Path, *, trajectories: bool = False, only: str = ""
) -> ImportReport:
    """Add other people's data (`nnetnav`, `webarena`, `browsergym`, `mind2web`) or a `run` of ours to a store
    (`dynaweb data import`): its transitions, or with `trajectories` its whole episodes; `only` those that were
    `checked` or `judged` to be successes. The report counts what was taken, and what was left out and why.
    Pictures of pages go to `images/` beside the store."""
    from dynaweb.data.demonstrations import one_of
    from dynaweb.data.images import images_next_to
    from dynaweb.data.importers import ImportReport, read_foreign, read_trajectories
    from dynaweb.data.store import TrajectoryStore, TransitionStore

    report, images = ImportReport(), images_next_to(Path(store))
    if trajectories:
        wanted = one_of(only) if only else None
        TrajectoryStore(Path(store)).extend(read_trajectories(name, str(source), report, wanted, images))
    elif only:
        raise ConfigError("only whole episodes are successes or not; import them with --trajectories")
    else:
        TransitionStore(Path(store)).extend(read_foreign(name, str(source), report, images))
    return report


def export_data(
    store: str | Path,
    out: str | Path,
    *,
    to: str = "parquet",
    form: str = "delta",
    history: int = 0,
    goal: bool = True,
    messages: bool = False,
    recipe: Recipe | None = None,
) -> tuple[int, Path]:
    """Write a store for other tools: `parquet`, `datasets`, `trl`, `llamafactory` (`dynaweb data export`).

    `form`, `history` and `goal` are for transitions. Rows of whole episodes are in the prompt format of `recipe`, by
    default the recipe `dynaweb`: ids, or with `messages` the turns of a chat. Returns how many rows there are, and
    where; why episodes are left out is logged.
    """
    from dynaweb.data.store import TransitionStore, open_store

    records = open_store(Path(store))
    if isinstance(records, TransitionStore):
        from dynaweb.data.exports import export

        return export(records, to, Path(out), form=form, history=history, goal=goal)
    from dynaweb.commands.policy_rows import export_episodes
    from dynaweb.pipeline.models import Models
    from dynaweb.runs.seeding import derive

    prompts = None
    if to in ("trl", "llamafactory"):
        used = recipe if recipe is not None else resolve()
        models = Models(used, current(), lambda *labels: derive(used.run.seed, *labels), lambda engine: None)
        prompts = models.format
    result = export_episodes(records, to, Path(out), prompts, messages=messages)
    for reason, count in result.dropped.most_common():
        log.warning("%d of %s are left out: %s", count, store, reason)
    return result.rows, result.path


def data_stats(store: str | Path) -> Summary | EpisodeSummary:
    """Count what a store of transitions or of whole episodes holds (`dynaweb data stats`), pictures too."""
    from dynaweb.data.images import images_of
    from dynaweb.data.inspect import summarise, summarise_episodes
    from dynaweb.data.store import TransitionStore, open_store

    records = open_store(Path(store))
    counted = summarise(records) if isinstance(records, TransitionStore) else summarise_episodes(records)
    counted.pictures.store = images_of(Path(store))
    return counted


def data_record(store: str | Path, index: int = 0) -> Transition | Trajectory:
    """One transition or whole episode of a store, counted from 0, from the end where negative (`dynaweb data show`).

    Raises `ConfigError` for a number that the store does not have.
    """
    from dynaweb.data.store import open_store

    try:
        return open_store(Path(store))[index]
    except IndexError as error:
        raise ConfigError(str(error)) from error


def contamination(train: str | Path, evaluation: str | Path) -> tuple[list[Overlap], int]:
    """What of an evaluation's store was in the training store (`dynaweb data contamination`), by level, and the number
    of the evaluation's transitions."""
    from dynaweb.data.inspect import contamination as compared
    from dynaweb.data.store import existing

    return compared(existing(Path(train)), existing(Path(evaluation)))


def label_data(store: str | Path, out: str | Path, *, engine: OpenAIEngine | None = None) -> Labelled:
    """Give transitions their reasoning and sentence of change (`dynaweb data label`): from templates, or by `engine`.

    Goes on where an earlier call ended. A server may cost money: nothing is asked before it starts.
    """
    from dynaweb.data.labels import label_file

    return label_file(Path(store), Path(out), engine)


def list_plugins() -> list[PluginStatus]:
    """Every plugin with its state: `ok`, `missing`, `broken` or `blocked` (`dynaweb plugins list`)."""
    return current().statuses()


def check_plugin(kind: Any, name: str) -> type:
    """Import the class of a plugin and compare it with the protocol of its kind (`dynaweb plugins check`).

    Raises `MissingError` or `PluginError` with the cause.
    """
    return current().check_class(kind, name)


def new_plugin(kind: PluginKind, name: str, folder: str | Path | None = None) -> list[Path]:
    """Write a package with a working plugin and its tests (`dynaweb new plugin`), and return its files."""
    from dynaweb.scaffold import new_plugin as write

    return write(kind, name, None if folder is None else Path(folder))


def new_project(folder: str | Path = ".", *, base: str = "dynaweb") -> list[Path]:
    """Write a project into a folder (`dynaweb init`): recipe, ablation, notebook, `.gitignore`; returns its files."""
    from dynaweb.scaffold.project import new_project

    return new_project(Path(folder), base=base)


def new_recipe(
    name: str,
    *,
    model: str = "",
    tasks: str | Path = "",
    eval_tasks: str | Path = "",
    sites: Iterable[str] = (),
    demos: Iterable[str] = (),
    gpus: int | None = None,
    on: str = "",
    trial: bool = False,
    folder: str | Path | None = None,
    ask: Callable[[str], str] | None = None,
) -> NewRecipe:
    """Write a recipe for a model, sites and trajectories of one's own (`dynaweb new recipe`), with the files beside it.

    `tasks` are in WebArena's format; without `eval_tasks` some of their templates are kept for the evaluation. `sites`
    are texts such as `"shop=http://my-host:7770"`, `demos` are sources for `data.demos`, with `:FORMAT` behind those
    that have to be imported. It is written for `gpus` GPUs, or for the machine that `on` names; with `trial` every
    stage runs once. `ask` is asked for what is left out. Nothing is overwritten, and nothing written but when all fits.
    """
    from dynaweb.scaffold.recipe import Answers, parse_sites
    from dynaweb.scaffold.recipe import new_recipe as write

    answers = Answers(
        model=model,
        tasks=str(tasks),
        eval_tasks=str(eval_tasks),
        sites=parse_sites(sites),
        demos=tuple(demos),
        gpus=gpus,
        on=on,
        trial=trial,
    )
    return write(name, answers, _path(folder), ask)


def open_environment(recipe: Recipe, *, world_model: str | Path | None = None) -> ServedEnvironment:
    """The environment of a resolved recipe outside of a run: its tasks, episodes to play, verdicts (`dynaweb play`,
    `dynaweb tasks`, `dynaweb env serve`).

    `dynaweb.serve.gym` has every environment as a `gymnasium.Env`, `dynaweb.serve.openenv` as a server.
    """
    from dynaweb.serve.environment import ServedEnvironment

    return ServedEnvironment(recipe, world_model=None if world_model is None else Path(world_model))


def serve_browsers(
    *, sessions: int = 1, host: str = "127.0.0.1", port: int = 9300, token: str = "", browser: str = ""
) -> None:
    """Offer browsers to runs on other machines until SIGINT or SIGTERM (`dynaweb web serve`).

    `dynaweb.web.chromium.serving.BrowserServer` says what the arguments are, and is the same for an event loop. Raises
    `ConfigError` for an address that cannot be listened on or needs a token, `MissingError`, `BrowserError`.
    """
    import asyncio

    from dynaweb.web.chromium.serving import serve

    asyncio.run(serve(sessions=sessions, host=host, port=port, token=token, browser=browser))


def list_tasks(recipe: Recipe, split: str = "", *, count: int = 24) -> list[Task]:
    """Tasks of a split ('': the one that the environment means), drawn with the recipe's seed (`dynaweb tasks`)."""
    return open_environment(recipe).tasks(split, count)


def install_environment(name: str) -> Path:
    """Install packages whose pins clash with everybody's into an environment of their own (`dynaweb env install`)."""
    from dynaweb.errors import hint
    from dynaweb.runs import sidecar

    if name not in sidecar.SIDECARS:
        raise ConfigError(f"no such environment: {name!r}; {hint(name, sidecar.SIDECARS)}")
    return Path(sidecar.install(name))


def setup(*, system: bool = True) -> tuple[Path, str]:
    """Find or install a Chromium and start it once (`dynaweb setup`); its path and version.

    As root, and unless `system` is False, with the system's packages that it needs.
    """
    from dynaweb.web.chromium.install import set_up

    chromium, version = set_up(system=system, tell=log.warning)
    return Path(chromium.path), version


def doctor(recipe: str = "dynaweb", *, sets: Iterable[str] = ()) -> list[Check]:
    """What this machine has and lacks (`dynaweb doctor`): lines on packages, plugins, browser, model and cache."""
    from dynaweb.commands.doctor import examine

    return examine(recipe, sets)


def recipe_schema() -> dict[str, Any]:
    """JSON schema of recipe files, with the settings of every plugin (`dynaweb config schema`)."""
    from dynaweb.config import schema

    return schema(current())


def list_recipes() -> dict[str, str]:
    """Name and description of the recipes that come with the package (`dynaweb config recipes`)."""
    from dynaweb.config.layers import recipe_layers, shipped_recipes

    return {name: recipe_layers(name)[1] for name in shipped_recipes()}


def list_matrices() -> dict[str, str]:
    """Name and description of the matrices that come with the package (`dynaweb matrix list`)."""
    from dynaweb.matrix import read_matrix, shipped_matrices

    return {name: read_matrix(name).description for name in shipped_matrices()}


def list_cache() -> list[CachedStage]:
    """Every stage in the cache, the one that was used last first (`dynaweb cache list`)."""
    from dynaweb.runs.pruning import cached_stages

    return cached_stages()


def prune_cache(
    *, older_than: str | None = None, max_size: str | None = None, every: bool = False, dry_run: bool = False
) -> list[CachedStage]:
    """Delete stages from the cache (`dynaweb cache prune`), never one that a running run uses, and return them.

    Those not used for so long (`"12h"`, `"7d"`), the oldest until the rest takes no more than `max_size` (`"2G"`), or
    `every` one. With `dry_run` nothing is deleted. Raises `ConfigError` where nothing says which.
    """
    from dynaweb.runs.pruning import bytes_of, cached_stages, chosen_stages, drop_pictures, seconds_of, take_out

    age = None if older_than is None else seconds_of(older_than)
    size = None if max_size is None else bytes_of(max_size)
    chosen = chosen_stages(cached_stages(), older_than=age, max_size=size, every=every)
    if dry_run:
        return chosen
    gone = take_out(chosen)
    drop_pictures()
    return gone


def _matrix_folder(plan: Plan, out: str | Path | None) -> MatrixFolder:
    from dynaweb.matrix import MatrixFolder
    from dynaweb.runs.folder import RUNS

    return MatrixFolder(Path(out) if out is not None else RUNS / f"matrix-{plan.matrix.name}")
