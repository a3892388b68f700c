"""Evaluation of a world model against real pages, one step at a time and open-loop: `wm eval` and `wm show`.

One step: greedy predictions of real transitions on held-out sites, by environment (host) and by kind of action. Open
loop: the actions of real episodes repeated in dreams (see the stage `drift`), at the temperature of dreams.
Calibration: the model's own confidence, at that temperature too.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from dynaweb.data.inspect import site_of
from dynaweb.errors import ConfigError
from dynaweb.stages.drift import open_loop
from dynaweb.stages.world_model import Material, calibrate_on
from dynaweb.worldmodels.fidelity import Graded, Probe, estimates, grade, predictions

if TYPE_CHECKING:
    from dynaweb.pipeline.artifacts import LoadedModel
    from dynaweb.pipeline.context import RunContext
    from dynaweb.stats import Estimate
    from dynaweb.types import Prediction
    from dynaweb.worldmodels.calibration import Calibration

MAX_CHAINS = 128
"""Real episodes that are followed open-loop, at most."""
ALL = "all"
COLUMNS = ("element_f1", "changed_f1", "exact", "url", "page_kind", "next_action", "invalid", "tokens")
"""Measures of the table; JSON and the page have all."""


@dataclass(frozen=True)
class WorldModelScores:
    """What an evaluation found.

    `one_step` maps a group (`all`, `env HOST`, `action KIND`) to its measures, `steps[k - 1]` holds the measures of
    step k open-loop, `seconds` is the wall-clock time of one prediction in a batch of `one_step["all"]`'s size.
    `probes` holds the measures of each question with its `site`, in the same order for every model on the same data, so
    that models can be compared question by question.
    """

    name: str
    one_step: Mapping[str, Mapping[str, Estimate]]
    steps: Sequence[Mapping[str, Estimate]]
    seconds: float
    calibration: Calibration | None = None
    uncalibrated: str = ""
    files: Sequence[Path] = field(default_factory=tuple)
    probes: Sequence[Mapping[str, Any]] = field(default_factory=tuple)

    def __str__(self) -> str:
        lines = [f"world model {self.name}: one step, on held-out sites"]
        for group, measures in self.one_step.items():
            lines += [f"  {group}", *(f"    {key.ljust(12)} {measures[key]}" for key in COLUMNS if key in measures)]
        lines += [f"  {self.seconds:.4f} seconds a step", "open loop, element F1 by step"]
        lines += [f"  {at}  {step['element_f1']}  alive {step['alive']}" for at, step in enumerate(self.steps, 1)]
        lines += [_calibrated(self.calibration) if self.calibration else f"no calibration: {self.uncalibrated}"]
        return "\n".join([*lines, *map(str, self.files)])


def _calibrated(calibration: Calibration) -> str:
    bins = ", ".join(f"{one.expected:.2f} -> {one.sound:.2f} (n={one.n})" for one in calibration.reliability)
    return (
        f"confidence: Brier score {calibration.brier:.3f} (always the base rate {calibration.base_rate:.2f}: "
        f"{calibration.brier_of_base_rate:.3f}), n={calibration.n}; expected -> sound: {bins}"
    )


async def score(ctx: RunContext, model: LoadedModel, material: Material, *, horizon: int) -> WorldModelScores:
    """Evaluate the world model of the recipe on these weights. Raises `ConfigError` when nothing is held out."""
    questions = material.questions.unseen
    if not questions:
        raise ConfigError("no transition is left to evaluate on: raise wm_fit.holdout, or give other data with --data")
    greedy = material.world_model(ctx, model, temperature=0.0)
    started = time.monotonic()
    answers = await predictions(greedy, questions, seed=ctx.seed("fidelity"))
    seconds = (time.monotonic() - started) / len(questions)
    graded = [grade(probe, answer) for probe, answer in zip(questions, answers, strict=True)]
    dreaming = material.world_model(ctx, model, temperature=ctx.recipe.dream.temperature)
    calibration, why = None, ""
    try:
        fidelity = ctx.recipe.dream.fidelity
        calibration = await calibrate_on(dreaming, questions, seed=ctx.seed("calibration"), fidelity=fidelity)
    except ConfigError as error:
        why = str(error)
    steps = [estimates(step) for step in await open_loop(ctx, dreaming, material, horizon=horizon, most=MAX_CHAINS)]
    probes = tuple({"site": site_of(q.transition), **one} for q, one in zip(questions, graded, strict=True))
    groups = by_group(questions, graded)
    return WorldModelScores(ctx.recipe.wm.name, groups, steps, seconds, calibration, why, probes=probes)


def by_group(questions: Sequence[Probe], graded: Sequence[Graded]) -> dict[str, dict[str, Estimate]]:
    """Measures of all questions, of each environment (host) and of each kind of action."""
    groups: dict[str, list[Graded]] = {ALL: list(graded)}
    for probe, one in zip(questions, graded, strict=True):
        host = urlsplit(probe.transition.observation.url).hostname or "other"
        for name in (f"env {host}", f"action {probe.transition.action.kind}"):
            groups.setdefault(name, []).append(one)
    return {name: estimates(rows) for name, rows in groups.items()}


@dataclass(frozen=True)
class GradedPrediction:
    """One prediction beside the truth."""

    probe: Probe
    prediction: Prediction
    measures: Mapping[str, float | None]


async def show(ctx: RunContext, model: LoadedModel, material: Material, index: int) -> GradedPrediction:
    """The greedy prediction of one held-out transition. Raises `ConfigError` for an index that is not there."""
    questions = material.questions.unseen
    if not 0 <= index < len(questions):
        raise ConfigError(f"there are {len(questions)} held-out transitions, numbered from 0; there is no {index}")
    world_model = material.world_model(ctx, model, temperature=0.0)
    (answer,) = await predictions(world_model, [questions[index]], seed=ctx.seed("fidelity"))
    return GradedPrediction(questions[index], answer, grade(questions[index], answer))
