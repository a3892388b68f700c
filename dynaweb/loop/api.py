"""The calls behind `dynaweb.run` and its like: each takes a resolved recipe and leaves a run folder.

They may be called from a program or from a notebook with a running event loop. Ctrl-C (or a cancellation) lets the
running stage save its state and raises `Interrupted`; `resume=True` goes on.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from dynaweb import events
from dynaweb.config.agreement import used_plugins
from dynaweb.data.store import existing
from dynaweb.errors import ConfigError, Interrupted, StorageError, TrainingError
from dynaweb.judges.fitting import fitted_judge
from dynaweb.judges.making import to_fit
from dynaweb.loop import stages
from dynaweb.loop.agents import lookahead, lookahead_key, looks_ahead
from dynaweb.loop.checks import check_model, check_seam, check_together
from dynaweb.loop.closing import RunResult, StageResult, evaluated, write_scores, write_summary
from dynaweb.loop.demos import demos
from dynaweb.loop.evaluate import audit_judge, audits, evaluate_arm
from dynaweb.loop.explore import explore
from dynaweb.loop.fidelity import transitions_of
from dynaweb.loop.files import files_hash
from dynaweb.loop.players import POLICIES, WITHOUT_MODEL, without_model
from dynaweb.loop.running import joined_team, run_async
from dynaweb.loop.sft import sft as sft_stage
from dynaweb.loop.weights import world_model_weights
from dynaweb.loop.workspace import MODEL, Workspace
from dynaweb.loop.worldmodel import FIDELITY, Material, check_fit, fidelity_estimates, means, trains
from dynaweb.observers import MetricsFile
from dynaweb.observers.chosen import chosen_observers
from dynaweb.plugins import current
from dynaweb.runs import StageCache, open_run
from dynaweb.runs.cache import default_root
from dynaweb.runs.folder import choose_folder
from dynaweb.runs.space import out_of_space, storage_error

if TYPE_CHECKING:
    from dynaweb.config import Recipe
    from dynaweb.loop.wmeval import Shown, WorldModelScores
    from dynaweb.loop.workspace import LoadedModel, Made
    from dynaweb.plugins import Plugins
    from dynaweb.runs import RunFolder

TRANSITIONS = "transitions.jsonl.gz"
COLLECTED = "collected"
"""Key of `Transition.info`: the cache key of the exploration that a collected transition comes from."""
T = TypeVar("T")
Job = Callable[[Workspace], Awaitable[T]]
Check = Callable[[Workspace], None]
Closing = Callable[[Path], dict[str, Any]]


def run(recipe: Recipe, *, out: Path | None = None, resume: bool = False) -> RunResult:
    """The main job: every stage, the evaluation of every arm, and the report."""
    from dynaweb.report import build_report, closing_json, gather
    from dynaweb.report.plot import needed

    def check(ws: Workspace) -> None:
        needed()  # now, not after an hour
        for kind, name in used_plugins(recipe, ws.plugins):
            ws.plugins.load_class(kind, name)
        check_seam(ws)
        check_together(ws)

    async def job(ws: Workspace) -> Path:
        outcome = await stages.whole_run(ws)
        folder = _folder(ws)
        write_summary(ws, outcome, folder)
        return folder

    closing: Closing = lambda path: closing_json(gather(path))  # noqa: E731
    folder = _in_folder(recipe, job, out=out, resume=resume, closing=closing, check=check)
    data = gather(folder)
    return RunResult(folder, build_report(folder, data=data), closing_json(data))


def sft(recipe: Recipe, *, out: Path | None = None) -> StageResult:
    """Demonstrations and SFT."""

    async def job(ws: Workspace) -> StageResult:
        shown = await demos(ws)
        await sft_stage(ws, shown)
        metrics = {"demonstrations": len(shown.episodes()), "updates": ws.recipe.sft.steps}
        return StageResult("sft", _folder(ws), _folder(ws) / "checkpoints" / "sft", metrics)

    return _in_folder(recipe, job, out=out, command="sft", check=check_model)


def collect(recipe: Recipe, *, out: Path | None = None, store: Path | None = None) -> StageResult:
    """Real, unrewarded transitions of `explore.player`, in the run folder or, with `store`, added to that store.

    All are added or none, and none that the store holds from the same exploration: a repeated call changes nothing.
    Raises `CheckpointError` for a file that is no store, before anything is explored.
    """
    from dynaweb.data.store import TransitionStore

    if store is not None:
        TransitionStore(store)

    async def job(ws: Workspace) -> StageResult:
        policy = await sft_stage(ws, await demos(ws)) if ws.recipe.explore.player == "policy" else None
        made = await explore(ws, policy)
        episodes = made.episodes()
        found = [replace(one, info={**one.info, COLLECTED: made.key}) for one in transitions_of(episodes)]
        target = TransitionStore(store or _folder(ws) / TRANSITIONS)
        there = any(one.info.get(COLLECTED) == made.key for one in target)
        added = 0 if there else target.append(found)
        steps = sum(len(episode.steps) for episode in episodes)
        counts = {"episodes": len(episodes), "steps": steps, "transitions": len(found), "added": added}
        return StageResult("collect", _folder(ws), metrics={**counts, "store": str(target.path)})

    return _in_folder(recipe, job, out=out, command="collect")


def fit_world_model(recipe: Recipe, *, out: Path | None = None, data: Path | None = None) -> StageResult:
    """A world model with its fidelity; everything that it needs is made first, or with `data` taken from a store."""
    if data is not None:
        existing(data)

    async def job(ws: Workspace) -> StageResult:
        made = await _world_model(ws, data)
        weights = _folder(ws) / "checkpoints" / "world-model" if made.model.is_dir() else None
        found = made.data(FIDELITY)
        metrics = means(found["probes"], found["rules"])
        return StageResult("world-model", _folder(ws), weights, metrics, fidelity_estimates(found))

    return _in_folder(recipe, job, out=out, command="wm fit", check=check_fit if data is None else check_model)


def evaluate_world_model(
    recipe: Recipe,
    *,
    out: Path | None = None,
    weights: Path | None = None,
    data: Path | None = None,
    horizon: int = 8,
) -> WorldModelScores:
    """A world model against real pages: one step, open-loop over `horizon` steps, and its confidence.

    `weights` are those of a fitted model, by default those that the recipe fits. Held-out transitions of the recipe's
    exploration are what it is measured on, or those of `data`, all of whose sites then count as held out.
    """
    from dynaweb.loop.wmeval import score

    weights = world_model_weights(weights)
    if data is not None:
        existing(data)

    async def job(ws: Workspace) -> WorldModelScores:
        found = await score(ws, *await _model_and_material(ws, weights, data), horizon=horizon)
        return replace(found, files=write_scores(found, _folder(ws)))

    return _in_folder(recipe, job, out=out, command="wm eval", check=check_fit)


def show_prediction(
    recipe: Recipe,
    *,
    index: int = 0,
    out: Path | None = None,
    weights: Path | None = None,
    data: Path | None = None,
) -> Shown:
    """One greedy prediction of a held-out transition beside the truth; arguments as in `evaluate_world_model`."""
    from dynaweb.loop.wmeval import show

    weights = world_model_weights(weights)
    if data is not None:
        existing(data)

    async def job(ws: Workspace) -> Shown:
        return await show(ws, *await _model_and_material(ws, weights, data), index)

    return _in_folder(recipe, job, out=out, command="wm show", check=check_fit)


async def _world_model(ws: Workspace, data: Path | None) -> Made:
    from dynaweb.loop.worldmodel import fit_on_store
    from dynaweb.loop.worldmodel import fit_world_model as fit_stage

    if data is not None:
        return await fit_on_store(ws, data)
    check_fit(ws)
    shown = await demos(ws)
    return await fit_stage(ws, await _explored(ws, shown), shown)


async def _explored(ws: Workspace, shown: Made) -> Made:
    return await explore(ws, await sft_stage(ws, shown) if ws.recipe.explore.player == "policy" else None)


async def _model_and_material(ws: Workspace, weights: Path | None, data: Path | None) -> tuple[LoadedModel, Material]:
    """The weights of the world model, and what it is measured on. Only what is not given is made."""
    check_fit(ws)
    if weights is None and trains(ws):
        weights = (await _world_model(ws, None)).model
    model = ws.load(weights) if weights is not None else ws.base
    if data is not None:
        return model, Material.for_evaluation(data)
    shown = await demos(ws)
    return model, Material.of_episodes(ws, (await _explored(ws, shown)).episodes(), shown.episodes())


def evaluate(
    recipe: Recipe,
    *,
    out: Path | None = None,
    policy: str | Path | None = None,
    world_model: Path | None = None,
) -> StageResult:
    """A policy on the held-out tasks: the weights in a folder, or one of `players.POLICIES` (default: `sft`).

    An interrupted evaluation goes on with the tasks that are left. `results.json` holds the table by site and by kind,
    and every failure with its label. An agent that looks ahead does so in the world model of these weights, by default
    the one that the recipe fits.
    """
    world_model = world_model_weights(world_model)
    _check_policy(policy)

    def check(ws: Workspace) -> None:
        if str(policy) not in WITHOUT_MODEL:
            (check_together if looks_ahead(ws) else check_model)(ws)

    async def job(ws: Workspace) -> StageResult:
        arm, weights, key = await _policy(ws, policy)
        player = without_model(arm, ws) if arm in WITHOUT_MODEL else None
        ahead = player is None and looks_ahead(ws)
        if player is None:
            await _fit_judge(ws)
        if ahead:
            return await _ahead(ws, arm, weights, key, world_model)
        made = await evaluate_arm(ws, arm, weights, key, player=player, by_task=True)
        if player is None:
            made = await audit_judge(ws, arm, made, weights)
        else:
            ws.keep(made, f"eval-{arm}")
        return evaluated(arm, _folder(ws), weights, made.episodes(), judged=player is None and audits(ws))

    return _in_folder(recipe, job, out=out, command="eval", check=check)


async def _ahead(ws: Workspace, arm: str, weights: Path | None, key: str, given: Path | None) -> StageResult:
    """The evaluation of a policy that looks ahead."""
    fitted, told, explored = (given, files_hash(given), None) if given is not None else await _fitted_here(ws)
    name = f"{arm}-ahead"
    player = lookahead(ws, weights, fitted, explored)
    made = await evaluate_arm(ws, name, weights, f"{key} {lookahead_key(ws, told)}", player=player, by_task=True)
    made = await audit_judge(ws, name, made, weights)
    return evaluated(name, _folder(ws), weights, made.episodes(), judged=audits(ws))


async def _fitted_here(ws: Workspace) -> tuple[Path | None, str, Made]:
    """The weights of the recipe's world model (None: the base), their key, and the exploration behind it."""
    from dynaweb.loop.worldmodel import fit_world_model as fit_stage

    check_fit(ws)
    shown = await demos(ws)
    explored = await _explored(ws, shown)
    made = await fit_stage(ws, explored, shown)
    return made.model if made.model.is_dir() else None, f"{made.key} {explored.key}", explored


async def _fit_judge(ws: Workspace) -> None:
    """Fit the judge, where it needs that, as a run does: what it says of the evaluated episodes is audited."""
    if to_fit(ws) is not None:
        shown = await demos(ws)
        await fitted_judge(ws, await sft_stage(ws, shown), shown)


def _check_policy(policy: str | Path | None) -> None:
    """Before anything is made. Raises `ConfigError` for what is no name and no folder."""
    if policy is not None and str(policy) not in POLICIES and not Path(policy).is_dir():
        raise ConfigError(f"no policy is called {policy}; name a folder of weights, or one of {', '.join(POLICIES)}")


async def _policy(ws: Workspace, policy: str | Path | None) -> tuple[str, Path | None, str]:
    """Name, weights (None = those of the base model, or none at all) and key of a policy."""
    if policy is None or str(policy) == "sft":
        made = await sft_stage(ws, await demos(ws))
        return "sft", made.model, made.key
    if str(policy) in POLICIES:
        return str(policy), None, str(policy)
    folder = Path(policy)
    weights = folder / MODEL if (folder / MODEL).is_dir() else folder
    return "policy", weights, files_hash(weights)


def _folder(ws: Workspace) -> Path:
    assert ws.folder is not None  # every call here opens one
    return ws.folder.path


def _in_folder(
    recipe: Recipe,
    job: Job[T],
    *,
    out: Path | None,
    resume: bool = False,
    command: str = "run",
    closing: Closing = lambda path: {},
    check: Check = lambda ws: None,
) -> T:
    """Do a job in a run folder of its own, with its metrics file, its status, and word to the observers.

    What cannot be is said by `check` before there is a folder.
    """
    plugins = current()
    chosen = partial(choose_folder, recipe, out=out, resume=resume, command=command)
    _check_first(recipe, plugins, chosen, check)
    manifest = plugins.manifest(used_plugins(recipe, plugins))
    folder = open_run(recipe, out=out, resume=resume, plugins=manifest, command=command)
    with folder.lock():
        metrics = MetricsFile(folder.metrics)
        try:
            with plugins.observing(metrics), chosen_observers(recipe, plugins, folder.path):
                return _told(recipe, job, folder, plugins, closing)
        finally:
            metrics.close()


def _check_first(recipe: Recipe, plugins: Plugins, folder: Callable[[], Any], check: Check) -> None:
    ws = Workspace(recipe, plugins, StageCache())
    try:
        folder()  # costs nothing; `check` may import torch
        ws.engines.require()
        check(ws)
    except Exception:
        ws.team = joined_team()  # who waits for this process is sent home when it closes
        raise
    finally:
        run_async(ws.close())


in_folder = _in_folder
"""For calls of other packages that leave a run folder too."""


def _told(recipe: Recipe, job: Job[T], folder: RunFolder, plugins: Plugins, closing: Closing) -> T:
    started = time.monotonic()

    def end(status: Any, error: BaseException | None = None) -> None:
        if error is not None and not isinstance(error, Interrupted):
            plugins.notify(events.Failure(where="run", error=f"{type(error).__name__}: {error}", fatal=True))
        folder.set_status(status, **({"error": str(error)} if error is not None else {}))
        done = closing(folder.path) if status == "done" else {}
        plugins.notify(events.RunEnd(folder.path, status, time.monotonic() - started, done))

    folder.set_status("running")
    chosen = tuple(plugins.manifest(used_plugins(recipe, plugins)))
    plugins.notify(events.RunStart(folder.path, recipe.tree(), chosen, folder.resumed))
    try:
        result = run_async(_worked(recipe, job, folder, plugins))
    except (asyncio.CancelledError, KeyboardInterrupt) as error:
        stopped = Interrupted(f"interrupted; the state is saved, {folder.how_to_go_on}")
        end("interrupted", stopped)
        raise stopped from error
    except BaseException as error:
        full = storage_error(error, folder.path, default_root())
        told = error if full is None else StorageError(f"{full}; when it can be written to, {folder.how_to_go_on}")
        if isinstance(error, SystemExit):
            told = TrainingError(f"something in the run asked the process to exit: sys.exit({error.code!r})")
        # A full disk may not take the status either, and what is to be told is why.
        with suppress(*((OSError, StorageError) if out_of_space(error) else ())):
            end("failed", told)
        if told is error:
            raise
        raise told from error
    end("done")
    return result


async def _worked(recipe: Recipe, job: Job[T], folder: RunFolder, plugins: Plugins) -> T:
    cache = StageCache(notify=plugins.notify)
    ws = Workspace(recipe, plugins, cache, folder)
    ws.team = joined_team()
    if recipe.run.time_budget:
        ws.deadline = time.monotonic() + 60 * recipe.run.time_budget
    try:
        return await job(ws)
    finally:
        await ws.close()
        cache.close()
