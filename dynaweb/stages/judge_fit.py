"""Fitting a trainable judge on real episodes whose outcome the environment knows.

Sites are whole: some are fitted on, of the others one half calibrates the probabilities and the rest measures them, so
that accuracy, AUC and Brier score are of sites that the judge knows nothing about. Successes and failures weigh the
same in the loss, however rare either is; calibration puts the base rate back. Episodes that did not end by themselves
are scored by code, never by a judge, and are left out.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from dynaweb import events
from dynaweb.config.keys import code_of, decisive
from dynaweb.errors import MissingError, TrainingError
from dynaweb.judges.calibration import Platt, Quality, fit_platt, quality
from dynaweb.judges.parts import TRAINABLE
from dynaweb.judges.reward import SUCCESS, needs_judge, success_of
from dynaweb.pipeline.fit import fit
from dynaweb.pipeline.judge import FITTED, to_fit
from dynaweb.pipeline.keys import stage_key
from dynaweb.pipeline.models import engine_key
from dynaweb.plugin import contracts
from dynaweb.protocols import JudgeContext, TokenRow, TrainableJudge
from dynaweb.runs import write_json
from dynaweb.runs.seeding import derive
from dynaweb.stages.world_model import split_by
from dynaweb.types import Action, Step, Task, Trajectory

if TYPE_CHECKING:
    from dynaweb.pipeline.artifacts import Artifact, LoadedModel
    from dynaweb.pipeline.context import RunContext
    from dynaweb.runs import Stage


@dataclass(frozen=True, slots=True)
class Parts:
    """Graded episodes to fit on, to calibrate on, and to measure on; no site is in two of them unless there is one."""

    fitted: list[Trajectory]
    calibration: list[Trajectory]
    measured: list[Trajectory]

    @classmethod
    def of(cls, episodes: Sequence[Trajectory], holdout: float, *, seed: int) -> Parts:
        """Split by site; where a single site is held out, its episodes are dealt out in turn.

        Experts' episodes are fitted on only: they nearly always succeed, which would shift the base rate that
        probabilities are calibrated to.
        """
        known, away = split_by(usable(episodes), lambda episode: episode.task.site_key, holdout, seed=seed)
        away = [episode for episode in away if episode.source != "expert"]
        measured, calibration = split_by(away, lambda episode: episode.task.site_key, 0.5, seed=seed)
        if away and not calibration:
            measured, calibration = away[::2], away[1::2]
        return cls(known, calibration, measured)


def usable(episodes: Sequence[Trajectory]) -> list[Trajectory]:
    """Those that a judge is asked about and whose outcome is known."""
    return [episode for episode in episodes if success_of(episode) is not None and needs_judge(episode)]


async def judge_fit(ctx: RunContext, graded: Artifact | None, demos: Artifact) -> Artifact | None:
    """Stage `judge-fit` on graded rollouts and demonstrations; None where the recipe's judge needs no fit.

    `ctx.models` uses the fitted judge from then on.
    """
    if graded is None:
        return None
    return await fit_judge(ctx, [*graded.episodes(), *demos.episodes()], upstream={"graded": graded, "demos": demos})


async def fit_judge(
    ctx: RunContext, episodes: Sequence[Trajectory], *, upstream: Mapping[str, Artifact | str]
) -> Artifact:
    """Stage `judge-fit`: the judge's weights, and `judge.json` with its calibration and quality on held-out sites."""
    spec = to_fit(ctx)
    if spec is None:
        raise MissingError(
            f"the judge {ctx.recipe.reward.name!r} cannot be fitted, or has its weights; use --reward orm"
        )
    name, config = spec

    async def body(stage: Stage) -> None:
        await _fit(ctx, stage, name, config, parts_of(ctx, episodes))

    fitted = {"name": name, "settings": decisive(config), "package": code_of(ctx.plugins.find("reward", name))}
    engine = engine_key(ctx.recipe, ctx.plugins, "reward")
    key = stage_key(ctx, "judge-fit", judge=fitted, **engine, **upstream)
    artifact = await ctx.stage("judge-fit", key, body, resumable=True)
    ctx.keep(artifact, "judge")
    if ctx.folder is not None:
        from dynaweb.pipeline.artifacts import link

        link(artifact.folder / FITTED, ctx.folder.checkpoints / "judge" / FITTED)
    ctx.models.fitted_judge = artifact.folder
    return artifact


def parts_of(ctx: RunContext, episodes: Sequence[Trajectory]) -> Parts:
    """How a run deals out graded episodes, and those of `judge_fit.data`."""
    settings = ctx.recipe.judge_fit
    return Parts.of([*episodes, *_stored(settings.data)], settings.holdout, seed=ctx.seed("judge", "holdout"))


async def _fit(ctx: RunContext, stage: Stage, name: str, config: Any, parts: Parts) -> None:
    model = ctx.models.load()
    judge = judge_on(ctx, model, name, config)
    settings = ctx.recipe.judge_fit
    rows = fitted_rows(ctx, judge, parts.fitted)
    await fit(ctx, stage, model, rows, name="judge-fit", steps=settings.steps, batch=settings.batch, lr=settings.lr)
    judge = judge_on(ctx, model, name, config)
    platt = await calibrated(judge, parts.calibration)
    threshold = getattr(config, "threshold", None)
    quality = await measured(judge, parts.measured, platt, threshold=SUCCESS if threshold is None else float(threshold))
    counts = {part: len(getattr(parts, part)) for part in ("fitted", "calibration", "measured")}
    write_json(
        stage.folder / FITTED,
        {"judge": name, "episodes": counts, "calibration": platt.data(), "quality": asdict(quality)},
    )
    metrics = {key: one.value for key, one in quality.estimates().items() if one.value is not None}
    ctx.tell(events.Update("judge-quality", 0, {**metrics, "n": float(counts["measured"])}))


def judge_on(ctx: RunContext, model: LoadedModel, name: str, config: Any) -> TrainableJudge:
    """The judge on weights of its own, uncalibrated."""
    assert TRAINABLE in ctx.plugins.find("reward", name).spec.capabilities
    context = JudgeContext(engine=ctx.models.engine(model, "reward"), format=model.format, seed=ctx.seed("judge"))
    return cast("TrainableJudge", ctx.plugins.create("reward", name, config, context))


def fitted_rows(ctx: RunContext, judge: TrainableJudge, episodes: Sequence[Trajectory]) -> list[TokenRow]:
    """What the recipe's judge learns of these episodes. Raises `TrainingError` where all of them end alike."""
    settings = ctx.recipe.judge_fit
    wrong = contrasts(episodes, seed=ctx.seed("judge", "contrast")) if settings.contrast else []
    return balanced_rows(judge, episodes, wrong, prefixes=settings.prefixes)


def balanced_rows(
    judge: TrainableJudge, episodes: Sequence[Trajectory], wrong: Sequence[Trajectory] = (), *, prefixes: bool = False
) -> list[TokenRow]:
    """Supervised rows in which successes weigh as much as failures; episodes of `wrong` fail, whatever their verdict.

    Raises `TrainingError` where either is missing.
    """
    pairs = [(episode, _succeeds(episode)) for episode in episodes]
    if prefixes:
        pairs = [(part, label) for episode, label in pairs for part in prefixes_of(episode)]
    pairs += [(episode, False) for episode in wrong]  # whole: a part of one may be that of a success
    good, bad = sum(label for _, label in pairs), sum(not label for _, label in pairs)
    if not good or not bad:
        raise TrainingError(
            f"a judge learns from successes and failures, and there are {good} and {bad}; raise judge_fit.episodes, "
            "or judge_fit.temperature for more variety"
        )
    weight = {True: len(pairs) / (2 * good), False: len(pairs) / (2 * bad)}
    targets = contracts.pairs(
        "reward",
        judge,
        judge.examples([episode for episode, _ in pairs], [label for _, label in pairs]),
        count=len(pairs),
    )
    return [
        TokenRow(prompt, target, weight=weight[label])
        for (prompt, target), (_, label) in zip(targets, pairs, strict=True)
    ]


def contrasts(episodes: Sequence[Trajectory], *, seed: int) -> list[Trajectory]:
    """Failures made of each success: the episode under the goal of another task, and the episode that stops too early.

    The other task is of its template, on its own site where there is one, and is not checked alike: two goals may be
    words for one thing. An episode with needless steps is not stopped early, since it may have been done before.
    """
    tasks: dict[str, list[Task]] = {}
    for episode in episodes:
        tasks.setdefault(episode.task.template, []).append(episode.task)
    made = []
    for episode in filter(_succeeds, episodes):
        rng = random.Random(derive(seed, episode.id))
        task = episode.task
        others = [one for one in tasks[task.template] if _differs(one, task)]
        here = [one for one in others if one.site_key == task.site_key]
        if goals := sorted({one.intent for one in here or others}):
            other = replace(task, intent=rng.choice(goals))
            made.append(replace(episode, id=f"{episode.id}/other goal", task=other))
        acts = sum(step.action is None or step.action.kind != "stop" for step in episode.steps)
        if acts and _is_shortest(episode):
            made.append(_stopped(episode, rng.randrange(acts)))
    return made


def _differs(one: Task, other: Task) -> bool:
    """Whether a success at one of these tasks is none at the other, as far as goals and checks tell."""
    return one.intent != other.intent and (not one.evaluation or one.evaluation != other.evaluation)


def _is_shortest(episode: Trajectory) -> bool:
    best = episode.task.best_steps
    return episode.source == "expert" if best is None else len(episode.steps) <= best


def _stopped(episode: Trajectory, k: int) -> Trajectory:
    """The episode as if it had stopped after `k` steps, without an answer."""
    page = episode.steps[k].observation
    steps = (*episode.steps[:k], Step(page, Action("stop")))
    return replace(episode, id=f"{episode.id}/stopped", steps=steps, final=page, end="stop")


def _succeeds(episode: Trajectory) -> bool:
    return (success_of(episode) or 0.0) >= SUCCESS


def prefixes_of(trajectory: Trajectory) -> list[Trajectory]:
    """The episode as it stood after each of its steps, the whole one last."""
    early = [
        replace(trajectory, id=f"{trajectory.id}@{k}", steps=trajectory.steps[:k], final=page)
        for k, page in enumerate(trajectory.following[:-1], 1)
    ]
    return [*early, trajectory]


async def calibrated(judge: TrainableJudge, episodes: Sequence[Trajectory]) -> Platt:
    """The calibration of a judge on episodes that it was not fitted on."""
    odds, labels = await _odds(judge, episodes)
    return fit_platt(odds, labels)


async def measured(judge: TrainableJudge, episodes: Sequence[Trajectory], platt: Platt, *, threshold: float) -> Quality:
    """How well the calibrated judge does on episodes of sites that it was not fitted on."""
    odds, labels = await _odds(judge, episodes)
    decisions = [platt.evidence(value) >= threshold for value in odds]
    return quality([platt.probability(value) for value in odds], labels, decisions)


async def _odds(judge: TrainableJudge, episodes: Sequence[Trajectory]) -> tuple[list[float], list[bool]]:
    import asyncio
    import math

    values = await asyncio.gather(*map(judge.log_odds, episodes))
    known = [(v, _succeeds(e)) for v, e in zip(values, episodes, strict=True) if math.isfinite(v)]
    return [value for value, _ in known], [label for _, label in known]


def _stored(path: str) -> list[Trajectory]:
    return read_graded(Path(path)) if path else []


def read_graded(path: Path) -> list[Trajectory]:
    """The graded episodes of a trajectory store. Raises `MissingError` when there are none."""
    from dynaweb.data.store import existing_trajectories

    if not path.is_file():
        raise MissingError(f"there is no trajectory store {path}; runs leave theirs in their folder trajectories/")
    graded = [trajectory for trajectory in existing_trajectories(path) if success_of(trajectory) is not None]
    if not graded:
        raise MissingError(f"{path} holds no real episode with a verdict of its environment; dreams have none")
    return graded
