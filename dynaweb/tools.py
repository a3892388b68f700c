"""The Python API besides training: matrices, comparisons, reports, data, plugins, tasks, places, cache and machine.

Each call does what the command does that its documentation names; the command line is a thin layer over the same
functions. Heavy code is imported when a call needs it. Errors are those of `dynaweb.errors`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from http.server import ThreadingHTTPServer

    from dynaweb.compare import Comparison
    from dynaweb.config import Recipe
    from dynaweb.data.importers import ImportReport
    from dynaweb.data.inspect import Overlap, Summary
    from dynaweb.data.labels import Labelled
    from dynaweb.discovery import PluginStatus
    from dynaweb.doctoring import Check
    from dynaweb.engines.openai_engine import OpenAIEngine
    from dynaweb.estimate import Estimate
    from dynaweb.matrix import Plan
    from dynaweb.matrix.results import MatrixResults
    from dynaweb.runs.pruning import CachedStage
    from dynaweb.serve.place import Place
    from dynaweb.types import Task

Plugged = Literal["world-model", "optimizer", "reward", "env"]


def estimate_run(recipe: Recipe, *, nproc: int = 1) -> Estimate | None:
    """What a resolved recipe takes on this machine (`dynaweb run --dry-run`); None where the model's size is unknown.

    Raises `ConfigError`, `MissingError` or `PluginError` with everything for which the run would be refused here, as
    far as it can be known without a model, an optimizer, or the files that settings name.
    """
    from dynaweb.estimate.refusals import examined

    found, problems = examined(recipe, nproc)
    problems.check()
    return found


def compare_runs(folders: Iterable[str | Path]) -> Comparison:
    """Runs beside each other, the first the reference (`dynaweb compare`): settings that differ, paired statistics."""
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
    given = None if seeds is None else tuple(seeds)
    return plan_of(read_matrix(source, axes=axes, sets=overrides or {}, seeds=given, mode=mode, max_cells=max_cells))


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

    measures_of(plan, measures)  # a mistake is told now, not after all the work
    Runner(plan, _matrix_folder(plan, out), jobs=jobs, fail_fast=fail_fast).run()
    return matrix_table(plan, out=out, measures=measures)


def matrix_table(plan: Plan, *, out: str | Path | None = None, measures: Sequence[str] = ()) -> MatrixResults:
    """What is done of a matrix so far (`dynaweb matrix table|status`): n, mean and interval of every combination."""
    from dynaweb.matrix.results import results

    return results(plan, _matrix_folder(plan, out), measures)


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

    place = MatrixFolder(folder)
    return write_page(results(place.read_plan(), place), place)


def report_server(run: str | Path, *, each: int | None = 100, port: int = 0) -> ThreadingHTTPServer:
    """A server of the live report on this machine (`dynaweb view`): call `serve_forever()`, then `server_close()`."""
    from dynaweb.report.live import server_for

    return server_for(Path(run), each=each, port=port)


def import_data(name: str, source: str | Path, store: str | Path) -> ImportReport:
    """Add other people's data (`nnetnav`, `webarena`, `browsergym`, `mind2web`) to a transition store
    (`dynaweb data import`); the report counts what was kept, and what was left out and why."""
    from dynaweb.data.importers import ImportReport, read_foreign
    from dynaweb.data.store import TransitionStore

    report = ImportReport()
    TransitionStore(Path(store)).extend(read_foreign(name, str(source), report))
    return report


def export_data(
    store: str | Path,
    out: str | Path,
    *,
    to: str = "parquet",
    form: str = "delta",
    history: int = 0,
    goal: bool = True,
) -> tuple[int, Path]:
    """Write a transition store for other tools: `parquet`, `datasets`, `trl`, `llamafactory` (`dynaweb data export`).

    Returns how many rows there are, and where.
    """
    from dynaweb.data.exports import export
    from dynaweb.data.store import existing

    return export(existing(Path(store)), to, Path(out), form=form, history=history, goal=goal)


def data_stats(store: str | Path) -> Summary:
    """Count what a transition store holds (`dynaweb data stats`)."""
    from dynaweb.data.inspect import summarise
    from dynaweb.data.store import existing

    return summarise(existing(Path(store)))


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
    from dynaweb.plugins import current

    return current().statuses()


def check_plugin(kind: Any, name: str) -> type:
    """Import the class of a plugin (`dynaweb plugins check`). Raises `MissingError` or `PluginError` with the cause."""
    from dynaweb.plugins import current

    return current().load_class(kind, name)


def new_plugin(kind: Plugged, name: str, folder: str | Path | None = None) -> list[Path]:
    """Write a package with a working plugin and its tests (`dynaweb new plugin`), and return its files."""
    from dynaweb.scaffold import new_plugin as write

    return write(kind, name, None if folder is None else Path(folder))


def open_place(recipe: Recipe, *, world_model: str | Path | None = None) -> Place:
    """The environment of a resolved recipe outside of a run: its tasks, a place to play them, verdicts (`dynaweb play`,
    `dynaweb tasks`, `dynaweb env serve`).

    `dynaweb.serve.gym` has every environment as a `gymnasium.Env`, `dynaweb.serve.openenv` as a server.
    """
    from dynaweb.serve.place import Place

    return Place(recipe, world_model=None if world_model is None else Path(world_model))


def list_tasks(recipe: Recipe, split: str = "", *, count: int = 24) -> list[Task]:
    """Tasks of a split ('': the one that the environment means), drawn with the recipe's seed (`dynaweb tasks`)."""
    return open_place(recipe).tasks(split, count)


def install_environment(name: str) -> Path:
    """Install packages whose pins clash with everybody's into an environment of their own (`dynaweb env install`)."""
    from dynaweb import sidecar
    from dynaweb.errors import ConfigError
    from dynaweb.suggest import hint

    if name not in sidecar.SIDECARS:
        raise ConfigError(f"no such environment: {name!r}; {hint(name, sidecar.SIDECARS)}")
    return Path(sidecar.install(name))


def setup() -> tuple[Path, str]:
    """Find or install a Chromium and start it once (`dynaweb setup`); its path and version."""
    from dynaweb.web.chromium import install, try_out

    found = install()
    return Path(found.path), try_out(found)


def doctor(recipe: str = "dynaweb", *, sets: Iterable[str] = ()) -> list[Check]:
    """What this machine has and lacks (`dynaweb doctor`): lines on packages, plugins, browser, model and cache."""
    from dynaweb.doctoring import examine

    return examine(recipe, sets)


def recipe_schema() -> dict[str, Any]:
    """JSON schema of recipe files, with the settings of every plugin (`dynaweb config schema`)."""
    from dynaweb.config import schema
    from dynaweb.plugins import current

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
    from dynaweb.runs.pruning import bytes_of, cached_stages, chosen_stages, seconds_of, take_out

    age = None if older_than is None else seconds_of(older_than)
    size = None if max_size is None else bytes_of(max_size)
    chosen = chosen_stages(cached_stages(), older_than=age, max_size=size, every=every)
    return chosen if dry_run else take_out(chosen)


def _matrix_folder(plan: Plan, out: str | Path | None) -> Any:
    from dynaweb.matrix import MatrixFolder
    from dynaweb.runs.folder import RUNS

    return MatrixFolder(Path(out) if out is not None else RUNS / f"matrix-{plan.matrix.name}")
