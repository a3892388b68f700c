"""Fitting a trainable judge on real episodes whose outcome the environment knows.

Sites are whole: some are fitted on, of the others one half calibrates the probabilities and the rest measures them, so
that accuracy, AUC and Brier score are of sites that the judge knows nothing about. Successes and failures weigh the
same in the loss, however rare either is; calibration puts the base rate back. Episodes that did not end by themselves
are scored by code, never by a judge, and are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from dynaweb import events, returned
from dynaweb.config.code import code_of
from dynaweb.config.decisive import decisive
from dynaweb.errors import MissingError, TrainingError
from dynaweb.judges.calibration import Platt, Quality, fit_platt, quality
from dynaweb.judges.making import FITTED, TRAINABLE, to_fit
from dynaweb.judges.rollouts import graded_rollouts
from dynaweb.loop.engines import engine_key
from dynaweb.loop.evaluate import SUCCESS
from dynaweb.loop.tasks import site_of
from dynaweb.loop.training import fit
from dynaweb.loop.verdicts import answers_for, success_of
from dynaweb.loop.worldmodel import split_by
from dynaweb.protocols import PluginContext, TokenRow, TrainableJudge
from dynaweb.runs import write_json
from dynaweb.types import Trajectory

if TYPE_CHECKING:
    from dynaweb.loop.workspace import LoadedModel, Made, Workspace
    from dynaweb.runs import Stage

CHOICES = ("judge_fit.steps", "judge_fit.batch", "judge_fit.lr", "judge_fit.holdout", "judge_fit.prefixes")


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
        usable = [episode for episode in episodes if success_of(episode) is not None and answers_for(episode)]
        known, away = split_by(usable, lambda episode: site_of(episode.task), holdout, seed=seed)
        away = [episode for episode in away if episode.source != "expert"]
        measured, calibration = split_by(away, lambda episode: site_of(episode.task), 0.5, seed=seed)
        if away and not calibration:
            measured, calibration = away[::2], away[1::2]
        return cls(known, calibration, measured)


async def fitted_judge(ws: Workspace, policy: Made, demos: Made) -> Made | None:
    """Fit the recipe's judge if it needs that; None when it does not. The workspace uses it from then on."""
    if to_fit(ws) is None:
        return None
    fit_settings = ws.recipe.judge_fit
    played = await graded_rollouts(
        ws, policy, split="train", count=fit_settings.episodes, temperature=fit_settings.temperature
    )
    return await fit_judge(
        ws, [*played.episodes(), *demos.episodes()], upstream={"graded": played.key, "demos": demos.key}
    )


async def fit_judge(ws: Workspace, episodes: Sequence[Trajectory], *, upstream: dict[str, str]) -> Made:
    """Stage `judge-fit`: the judge's weights, and `judge.json` with its calibration and quality on held-out sites."""
    found = to_fit(ws)
    if found is None:
        raise MissingError(
            f"the judge {ws.recipe.reward.name!r} cannot be fitted, or has its weights; use --reward orm"
        )
    name, config = found

    async def body(stage: Stage) -> None:
        extra = _stored(ws.recipe.judge_fit.data)
        parts = Parts.of([*episodes, *extra], ws.recipe.judge_fit.holdout, seed=ws.seed("judge", "holdout"))
        await _fit(ws, stage, name, config, parts)

    data = ws.recipe.judge_fit.data
    stored = {"data": file_key(Path(data))} if data else {}
    judge = {"name": name, "settings": decisive(config), "package": code_of(ws.plugins.find("reward", name))}
    key = ws.key(*CHOICES, judge=judge, model=ws.trained_key, **engine_key(ws, "reward"), **upstream, **stored)
    made = await ws.stage("judge-fit", key, body, settings=ws.recipe.settings("run.seed", "judge_fit"), resumable=True)
    ws.keep(made, "judge")
    if ws.folder is not None:
        from dynaweb.loop.files import link

        link(made.folder / FITTED, ws.folder.checkpoints / "judge" / FITTED)
    ws.fitted_judge = made.folder
    return made


async def _fit(ws: Workspace, stage: Stage, name: str, config: Any, parts: Parts) -> None:
    model = ws.load()
    judge = _judge_on(ws, model, name, config)
    rows = balanced_rows(judge, parts.fitted, prefixes=ws.recipe.judge_fit.prefixes)
    settings = ws.recipe.judge_fit
    await fit(ws, stage, model, rows, name="judge-fit", steps=settings.steps, batch=settings.batch, lr=settings.lr)
    judge = _judge_on(ws, model, name, config)
    platt = await _calibrated(judge, parts.calibration)
    found = await measured(judge, parts.measured, platt, threshold=float(getattr(config, "threshold", 0.5)))
    counts = {part: len(getattr(parts, part)) for part in ("fitted", "calibration", "measured")}
    write_json(
        stage.folder / FITTED,
        {"judge": name, "episodes": counts, "calibration": platt.data(), "quality": asdict(found)},
    )
    metrics = {key: one.value for key, one in found.estimates().items() if one.value is not None}
    ws.tell(events.Update("judge-quality", 0, {**metrics, "n": float(counts["measured"])}))


def _judge_on(ws: Workspace, model: LoadedModel, name: str, config: Any) -> TrainableJudge:
    """The judge on weights of its own, uncalibrated."""
    assert TRAINABLE in ws.plugins.find("reward", name).spec.capabilities
    context = PluginContext(engine=ws.engine(model, "reward"), format=model.format, seed=ws.seed("judge"))
    return cast("TrainableJudge", ws.plugins.create("reward", name, config, context))


def balanced_rows(judge: TrainableJudge, episodes: Sequence[Trajectory], *, prefixes: bool = False) -> list[TokenRow]:
    """Supervised rows in which successes weigh as much as failures. Raises `TrainingError` where either is missing."""
    labels = [(success_of(episode) or 0.0) >= SUCCESS for episode in episodes]
    pairs = list(zip(episodes, labels, strict=True))
    if prefixes:
        pairs = [(part, label) for episode, label in pairs for part in prefixes_of(episode)]
    good, bad = sum(label for _, label in pairs), sum(not label for _, label in pairs)
    if not good or not bad:
        raise TrainingError(
            f"a judge learns from successes and failures, and there are {good} and {bad}; raise judge_fit.episodes, "
            "or judge_fit.temperature for more variety"
        )
    weight = {True: len(pairs) / (2 * good), False: len(pairs) / (2 * bad)}
    made = returned.pairs(
        "reward",
        judge,
        judge.examples([episode for episode, _ in pairs], [label for _, label in pairs]),
        count=len(pairs),
    )
    return [
        TokenRow(prompt, target, weight=weight[label]) for (prompt, target), (_, label) in zip(made, pairs, strict=True)
    ]


def prefixes_of(trajectory: Trajectory) -> list[Trajectory]:
    """The episode as it stood after each of its steps, the whole one last."""
    pages = [step.observation for step in trajectory.steps[1:]]
    early = [
        replace(trajectory, id=f"{trajectory.id}@{k}", steps=trajectory.steps[:k], final=page)
        for k, page in enumerate(pages, 1)
    ]
    return [*early, trajectory]


async def _calibrated(judge: TrainableJudge, episodes: Sequence[Trajectory]) -> Platt:
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
    known = [(v, (success_of(e) or 0.0) >= SUCCESS) for v, e in zip(values, episodes, strict=True) if math.isfinite(v)]
    return [value for value, _ in known], [label for _, label in known]


def _stored(path: str) -> list[Trajectory]:
    return read_graded(Path(path)) if path else []


def read_graded(path: Path) -> list[Trajectory]:
    """The graded episodes of a trajectory store. Raises `MissingError` when there are none."""
    from dynaweb.data.store import TrajectoryStore

    if not path.is_file():
        raise MissingError(f"there is no trajectory store {path}; runs leave theirs in their folder trajectories/")
    found = [trajectory for trajectory in TrajectoryStore(path) if success_of(trajectory) is not None]
    if not found:
        raise MissingError(f"{path} holds no real episode with a verdict of its environment; dreams have none")
    return found


def file_key(path: Path) -> str:
    """A hash of a store's content. Raises `MissingError` when it is not there."""
    import hashlib

    if not path.is_file():
        raise MissingError(
            f"there is no trajectory store {path}; give one that a run has left in its folder trajectories/"
        )
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:20]
