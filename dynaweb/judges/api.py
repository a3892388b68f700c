"""The calls behind `dynaweb orm fit` and `dynaweb judge audit`; each takes a resolved recipe and leaves a run
folder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dynaweb.errors import ConfigError
from dynaweb.judges.audit import JudgeAudits, report_on
from dynaweb.judges.fitting import file_key, fitted_judge, read_graded
from dynaweb.judges.fitting import fit_judge as fit_stage
from dynaweb.judges.making import FITTED, judge_named, parts, to_fit
from dynaweb.judges.rollouts import graded_rollouts
from dynaweb.loop.api import in_folder
from dynaweb.loop.checks import check_model
from dynaweb.loop.closing import StageResult
from dynaweb.loop.demos import demos
from dynaweb.loop.evaluate import SUCCESS
from dynaweb.loop.sft import sft
from dynaweb.loop.verdicts import answers_for, success_of
from dynaweb.report.stats import Estimate
from dynaweb.runs import write_json

if TYPE_CHECKING:
    from dynaweb.config import Recipe
    from dynaweb.loop.workspace import Made, Workspace
    from dynaweb.types import Trajectory

AUDIT = "judges.json"


def fit_judge(recipe: Recipe, *, out: Path | None = None, data: Path | None = None) -> StageResult:
    """Fit the recipe's judge; with `data` on the graded episodes of a trajectory store, without a policy or a
    browser."""

    def check(ws: Workspace) -> None:
        check_model(ws)
        if to_fit(ws) is None:
            raise ConfigError(
                f"there is nothing to fit: reward {recipe.reward.name!r} cannot be trained, or names its weights "
                "already; use --reward orm without reward.weights"
            )

    async def job(ws: Workspace) -> StageResult:
        made = await _fitted(ws, data)
        folder = ws.folder.path if ws.folder is not None else made.folder
        return _result(made, folder)

    return in_folder(recipe, job, out=out, command="orm fit", check=check)


async def _fitted(ws: Workspace, data: Path | None) -> Made:
    if data is not None:
        return await fit_stage(ws, read_graded(data), upstream={"store": file_key(data)})
    shown = await demos(ws)
    made = await fitted_judge(ws, await sft(ws, shown), shown)
    assert made is not None  # there is one to fit
    return made


def _result(made: Made, folder: Path) -> StageResult:
    found = made.data(FITTED)
    platt, measured = found["calibration"], found["quality"]
    estimates = {name: Estimate(**measured[name]) for name in ("accuracy", "accepts_failures", "auc", "brier")}
    metrics = {
        **{f"episodes {name}": count for name, count in found["episodes"].items()},
        "calibrated on": platt["n"],
        "slope": platt["slope"],
        "intercept": platt["intercept"],
        "prior": platt["prior"],
        "brier of base rate": measured["brier_of_base_rate"],
        "calibration error": measured["calibration_error"],
    }
    return StageResult("judge-fit", folder, folder / "checkpoints" / "judge", metrics, estimates)


def audit_judges(
    recipe: Recipe, *, out: Path | None = None, judges: Sequence[str] = (), data: Path | None = None, episodes: int = 0
) -> JudgeAudits:
    """Judges by name (default: the recipe's) against the environment's verdicts on the same real episodes.

    These are those of a trajectory store (`data`), or `episodes` (default: `eval.episodes`) new ones of the SFT policy,
    sampled, on validation sites. A judge that has to be fitted is fitted as the recipe says, on training sites.
    """
    names = list(judges) or [recipe.reward.name]

    def check(ws: Workspace) -> None:
        check_model(ws)
        for name in names:
            ws.plugins.try_class("reward", name)

    async def job(ws: Workspace) -> JudgeAudits:
        found, origin, policy, shown = await _episodes(ws, data, episodes)
        weights = policy.model if policy is not None else None
        reports = []
        for name in names:
            if _needs_fit(ws, name):
                await _fit_for(ws, name, policy, shown)
            model = ws.load(weights)
            judge = judge_named(ws, name, _settings(ws, name), ws.engine(model), model.format)
            reports.append(await report_on(name, judge, found))
        folder = ws.folder.path if ws.folder is not None else Path()
        result = JudgeAudits(
            folder / AUDIT,
            len(found),
            sum((success_of(t) or 0.0) >= SUCCESS for t in found),
            sum(not answers_for(t) for t in found),
            tuple(reports),
            origin,
        )
        write_json(result.file, plain(result))
        return result

    return in_folder(recipe, job, out=out, command="judge audit", check=check)


def plain(result: JudgeAudits) -> dict[str, Any]:
    """An audit as plain data, rates with their intervals included."""
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
    found: dict[str, Any] = json.loads(json.dumps({**head, "judges": judges}, default=asdict))
    return found


async def _episodes(
    ws: Workspace, data: Path | None, count: int
) -> tuple[list[Trajectory], str, Made | None, Made | None]:
    """Graded episodes, where they are from, and the policy and demonstrations if they were needed."""
    if data is not None:
        return read_graded(data), str(data), None, None
    shown = await demos(ws)
    policy = await sft(ws, shown)
    count = count or ws.recipe.eval.episodes
    made = await graded_rollouts(
        ws, policy, split="validation", count=count, temperature=ws.recipe.judge_fit.temperature
    )
    found = [episode for episode in made.episodes() if success_of(episode) is not None]
    return found, "the SFT policy, sampled, on validation sites", policy, shown


def _settings(ws: Workspace, name: str) -> Any:
    """The recipe's settings of its own judge, the defaults of any other."""
    return ws.recipe.reward.config if name == ws.recipe.reward.name else {}


def _needs_fit(ws: Workspace, name: str) -> bool:
    from dynaweb.judges.making import TRAINABLE, checked_config

    config = checked_config(ws, name, _settings(ws, name))
    return ws.fitted_judge is None and any(
        TRAINABLE in ws.plugins.find("reward", part).spec.capabilities and not getattr(given, "weights", "")
        for part, given in parts(ws, name, config)
    )


async def _fit_for(ws: Workspace, name: str, policy: Made | None, shown: Made | None) -> None:
    """Fit a judge that is not the recipe's own as the recipe would."""
    from dynaweb.config import resolve
    from dynaweb.loop.workspace import Workspace as Other

    recipe = ws.recipe if to_fit(ws) is not None else resolve(ws.recipe, reward=name, plugins=ws.plugins)
    other = Other(recipe, ws.plugins, ws.cache, ws.folder)
    try:
        shown = shown or await demos(other)
        policy = policy or await sft(other, shown)
        await fitted_judge(other, policy, shown)
        ws.fitted_judge = other.fitted_judge
    finally:
        await other.close()
