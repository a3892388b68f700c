"""One stage alone: the jobs of `dynaweb sft`, `collect`, `wm`, `eval`, `orm` and `judge`, with the stages below theirs.

Each job takes the context of an open run folder. What a stage is made from comes from `train.artifacts_for`, and so
from the cache.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dynaweb import train
from dynaweb.config.agreement import check_pictures
from dynaweb.config.keys import file_key
from dynaweb.data.images import images_next_to, pictures_of
from dynaweb.data.store import TransitionStore
from dynaweb.errors import ConfigError
from dynaweb.judges.audit import JudgeAudits, report_on
from dynaweb.judges.reward import SUCCESS, needs_judge, success_of
from dynaweb.pipeline.artifacts import MODEL, files_hash
from dynaweb.pipeline.context import RunContext
from dynaweb.pipeline.judge import FITTED, judge_named, to_fit
from dynaweb.report.summary import StageResult, evaluated
from dynaweb.report.world_model import write_scores
from dynaweb.rollout.agents import POLICIES, SERVER, WITHOUT_MODEL
from dynaweb.runs import write_json
from dynaweb.stages.arms import lookahead, lookahead_key, looks_ahead
from dynaweb.stages.evaluate import audit_judge, audits, evaluate_arm, without_weights
from dynaweb.stages.graded import graded_rollouts
from dynaweb.stages.judge_fit import fit_judge as fit_judge_stage
from dynaweb.stages.judge_fit import read_graded
from dynaweb.stages.preflight import check_model, check_together
from dynaweb.stages.world_model import FIDELITY, Material, check_fit, fidelity_estimates, fit_on_store, means, trains
from dynaweb.stages.world_model_eval import score, show
from dynaweb.stats import Estimate
from dynaweb.worldmodels.fidelity import transitions_of

if TYPE_CHECKING:
    from dynaweb.pipeline.artifacts import Artifact, LoadedModel
    from dynaweb.stages.world_model_eval import GradedPrediction, WorldModelScores
    from dynaweb.types import Trajectory

TRANSITIONS = "transitions.jsonl.gz"
AUDIT = "judges.json"
COLLECTED = "collected"
"""Key of `Transition.info`: the cache key of the exploration that a collected transition comes from."""


async def sft(ctx: RunContext) -> StageResult:
    """Demonstrations and SFT."""
    have = await train.artifacts_for(ctx, "sft")
    metrics = {"demonstrations": len(have.need("demos").episodes()), "updates": ctx.recipe.sft.steps}
    return StageResult("sft", _folder(ctx), _folder(ctx) / "checkpoints" / "sft", metrics)


async def collect(ctx: RunContext, store: Path | None) -> StageResult:
    """Real, unrewarded transitions of `explore.player`, in the run folder or, with `store`, added to that store.

    All are added or none, and none that the store holds from the same exploration: a repeated call changes nothing.
    """
    explored = (await train.artifacts_for(ctx, "explore")).need("explore")
    episodes = explored.episodes()
    transitions = [replace(one, info={**one.info, COLLECTED: explored.key}) for one in transitions_of(episodes)]
    target = TransitionStore(store or _folder(ctx) / TRANSITIONS)
    known = any(one.info.get(COLLECTED) == explored.key for one in target)
    if store is not None:
        pictures = (image for one in transitions for image in pictures_of(one))
        ctx.images.share(pictures, images_next_to(store).folder)
    added = 0 if known else target.append(transitions)
    steps = sum(len(episode.steps) for episode in episodes)
    counts = {"episodes": len(episodes), "steps": steps, "transitions": len(transitions), "added": added}
    return StageResult("collect", _folder(ctx), metrics={**counts, "store": str(target.path)})


async def fit_world_model(ctx: RunContext, data: Path | None) -> StageResult:
    """A world model with its fidelity, on the recipe's exploration or on the transition store `data`."""
    fitted = await fit_on_store(ctx, data) if data is not None else await _world_model(ctx)
    weights = _folder(ctx) / "checkpoints" / "world-model" if fitted.model.is_dir() else None
    fidelity = fitted.data(FIDELITY)
    metrics = means(fidelity["probes"], fidelity["rules"])
    return StageResult("world-model", _folder(ctx), weights, metrics, fidelity_estimates(fidelity))


async def evaluate_world_model(
    ctx: RunContext, weights: Path | None, data: Path | None, horizon: int
) -> WorldModelScores:
    """A world model against real pages: one step, open-loop over `horizon` steps, and its confidence."""
    scores = await score(ctx, *await _model_and_material(ctx, weights, data), horizon=horizon)
    return replace(scores, files=write_scores(scores, _folder(ctx)))


async def show_prediction(ctx: RunContext, weights: Path | None, data: Path | None, index: int) -> GradedPrediction:
    """One greedy prediction of a held-out transition and the truth."""
    return await show(ctx, *await _model_and_material(ctx, weights, data), index)


async def evaluate(ctx: RunContext, policy: str | Path | None, world_model: Path | None) -> StageResult:
    """A policy on the held-out tasks: the weights in a folder, or one of `agents.POLICIES` (default: `sft`).

    An interrupted evaluation goes on with the tasks that are left. `results.json` holds the table by site and by kind,
    and every failure with its label. An agent that looks ahead does so in the world model of these weights, by default
    the one that the recipe fits.
    """
    arm, weights, key = await _policy(ctx, policy)
    if arm in WITHOUT_MODEL or arm.startswith(SERVER):
        played = await evaluate_arm(ctx, arm, weights, key, player=without_weights(arm, ctx), by_task=True)
        ctx.keep(played, f"eval-{arm}")
        return evaluated(arm, _folder(ctx), weights, played.episodes(), judged=False)
    # What the judge says of the evaluated episodes is audited, so it is fitted as in a run.
    if to_fit(ctx) is not None:
        await train.artifacts_for(ctx, "judge_fit")
    player = None
    if looks_ahead(ctx):
        explored = None
        if world_model is not None:
            model_key = files_hash(world_model)
        else:
            check_fit(ctx)
            have = await train.artifacts_for(ctx, "world_model")
            fitted, explored = have.need("world_model"), have.need("explore")
            world_model = fitted.model if fitted.model.is_dir() else None
            model_key = f"{fitted.key} {explored.key}"
        arm, key = f"{arm}-ahead", f"{key} {lookahead_key(ctx, model_key)}"
        player = lookahead(ctx, weights, world_model, explored)
    played = await evaluate_arm(ctx, arm, weights, key, player=player, by_task=True)
    played = await audit_judge(ctx, arm, played, weights)
    return evaluated(arm, _folder(ctx), weights, played.episodes(), judged=audits(ctx))


def check_policy(policy: str | Path | None) -> None:
    """Before anything is made. Raises `ConfigError` for what is no name and no folder."""
    if policy is None or str(policy) in POLICIES or Path(policy).is_dir():
        return
    if not str(policy).removeprefix(SERVER) or not str(policy).startswith(SERVER):
        names = f"{', '.join(POLICIES)}, {SERVER}MODEL"
        raise ConfigError(f"no policy is called {policy}; name a folder of weights, or one of {names}")


def evaluation_of(policy: str | Path | None, world_model: Path | None) -> str:
    """What an evaluation is about beside its recipe, in words."""
    named = policy is None or str(policy) in POLICIES or str(policy).startswith(SERVER)
    ahead = f", ahead in the world model {world_model.resolve()}" if world_model is not None else ""
    return f"the policy {policy or POLICIES[0] if named else Path(str(policy)).resolve()}{ahead}"


def check_evaluation(ctx: RunContext, policy: str | Path | None) -> None:
    """Raise what the model, and for look-ahead all parts of the recipe together, are refused for."""
    check_pictures(ctx.recipe, ctx.plugins)
    if str(policy).startswith(SERVER):
        without_weights(str(policy), ctx)
    elif str(policy) not in WITHOUT_MODEL:
        (check_together if looks_ahead(ctx) else check_model)(ctx)


async def fit_judge(ctx: RunContext, data: Path | None) -> StageResult:
    """Fit the recipe's judge; with `data` on the graded episodes of a trajectory store, without a policy or a
    browser."""
    if data is not None:
        fitted = await fit_judge_stage(ctx, read_graded(data), upstream={"store": file_key(data)})
    else:
        fitted = (await train.artifacts_for(ctx, "judge_fit")).need("judge_fit")
    saved = fitted.data(FITTED)
    platt, measured = saved["calibration"], saved["quality"]
    estimates = {name: Estimate(**measured[name]) for name in ("accuracy", "accepts_failures", "auc", "brier")}
    metrics = {
        **{f"episodes {name}": count for name, count in saved["episodes"].items()},
        "calibrated on": platt["n"],
        "slope": platt["slope"],
        "intercept": platt["intercept"],
        "prior": platt["prior"],
        "brier of base rate": measured["brier_of_base_rate"],
        "calibration error": measured["calibration_error"],
    }
    return StageResult("judge-fit", _folder(ctx), _folder(ctx) / "checkpoints" / "judge", metrics, estimates)


def check_judge_fit(ctx: RunContext) -> None:
    """Raises `ConfigError` for a judge that cannot be fitted."""
    check_model(ctx)
    if to_fit(ctx) is None:
        raise ConfigError(
            f"there is nothing to fit: reward {ctx.recipe.reward.name!r} cannot be trained, or names its weights "
            "already; use --reward orm without reward.weights"
        )


def check_judges(ctx: RunContext, names: Sequence[str]) -> None:
    """Raises what judges, or the model, are refused for."""
    check_model(ctx)
    for name in names:
        ctx.plugins.try_class("reward", name)


async def audit_judges(ctx: RunContext, judges: Sequence[str], data: Path | None, episodes: int) -> JudgeAudits:
    """Judges by name against the environment's verdicts on the same real episodes.

    These are those of a trajectory store (`data`), or `episodes` (default: `eval.episodes`) new ones of the SFT policy,
    sampled, on validation sites. A judge that has to be fitted is fitted as the recipe says, on training sites.
    """
    weights: Path | None = None
    if data is not None:
        graded, origin = read_graded(data), str(data)
    else:
        policy = (await train.artifacts_for(ctx, "sft")).need("sft")
        weights = policy.model
        count, temperature = episodes or ctx.recipe.eval.episodes, ctx.recipe.judge_fit.temperature
        played = await graded_rollouts(ctx, policy, split="validation", count=count, temperature=temperature)
        graded = [episode for episode in played.episodes() if success_of(episode) is not None]
        origin = "the SFT policy, sampled, on validation sites"
    reports = []
    for name in judges:
        # The recipe's settings of its own judge, the defaults of any other.
        settings: Any = ctx.recipe.reward.config if name == ctx.recipe.reward.name else {}
        if ctx.models.fitted_judge is None and to_fit(ctx, name, settings) is not None:
            await _fit_other_judge(ctx, name)
        model = ctx.models.load(weights)
        judge = judge_named(ctx, name, settings, ctx.models.engine(model), model.format)
        reports.append(await report_on(name, judge, graded))
    return _saved_audit(_folder(ctx) / AUDIT, graded, reports, origin)


def _saved_audit(file: Path, graded: Sequence[Trajectory], reports: Sequence[Any], origin: str) -> JudgeAudits:
    successes = sum((success_of(t) or 0.0) >= SUCCESS for t in graded)
    unfinished = sum(not needs_judge(t) for t in graded)
    result = JudgeAudits(file, len(graded), successes, unfinished, tuple(reports), origin)
    judges = [
        {
            "name": one.name,
            "all": one.whole.data(),
            "sites": [part.data() for part in one.sites],
            "lengths": [part.data() for part in one.lengths],
            "quality": None if one.quality is None else asdict(one.quality),
        }
        for one in result.judges
    ]
    head = {name: getattr(result, name) for name in ("episodes", "successes", "unfinished", "origin")}
    write_json(file, json.loads(json.dumps({**head, "judges": judges}, default=asdict)))
    return result


async def _fit_other_judge(ctx: RunContext, name: str) -> None:
    """Fit a judge as a run of the recipe with that judge would."""
    from dynaweb.config import resolve

    recipe = ctx.recipe if to_fit(ctx) is not None else resolve(ctx.recipe, reward=name, plugins=ctx.plugins)
    other = ctx.with_recipe(recipe)
    try:
        await train.artifacts_for(other, "judge_fit")
        ctx.models.fitted_judge = other.models.fitted_judge
    finally:
        await other.close()


async def _world_model(ctx: RunContext) -> Artifact:
    check_fit(ctx)
    return (await train.artifacts_for(ctx, "world_model")).need("world_model")


async def _model_and_material(ctx: RunContext, weights: Path | None, data: Path | None) -> tuple[LoadedModel, Material]:
    """The weights of the world model, and what it is measured on. Only what is missing is made."""
    check_fit(ctx)
    if weights is None and trains(ctx):
        weights = (await _world_model(ctx)).model
    model = ctx.models.load(weights) if weights is not None else ctx.models.base
    if data is not None:
        return model, Material.for_evaluation(ctx, data)
    have = await train.artifacts_for(ctx, "explore", "demos")
    return model, Material.of_episodes(ctx, have.need("explore").episodes(), have.need("demos").episodes())


async def _policy(ctx: RunContext, policy: str | Path | None) -> tuple[str, Path | None, str]:
    """Name, weights (None = those of the base model, or none at all) and key of a policy."""
    if policy is None or str(policy) == "sft":
        tuned = (await train.artifacts_for(ctx, "sft")).need("sft")
        return "sft", tuned.model, tuned.key
    if str(policy) in POLICIES or str(policy).startswith(SERVER):
        return str(policy), None, str(policy)
    folder = Path(policy)
    weights = folder / MODEL if (folder / MODEL).is_dir() else folder
    return "policy", weights, files_hash(weights)


def _folder(ctx: RunContext) -> Path:
    assert ctx.folder is not None  # every job here runs in one
    return ctx.folder.path
