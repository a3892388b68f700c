"""Evaluation of a world model against real pages, one step at a time and open-loop: `wm eval`, `wm show`, `drift`.

One step: greedy predictions of real transitions on held-out sites, by environment (host) and by kind of action. Open
loop: the actions of real episodes repeated in dreams (`drift`), at the temperature of dreams. Calibration: the model's
own confidence, at that temperature too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from dynaweb.data.inspect import site_of
from dynaweb.errors import ConfigError
from dynaweb.pipeline.keys import stage_key
from dynaweb.runs import write_json
from dynaweb.stages.world_model import Material, calibrate_on
from dynaweb.worldmodels.fidelity import Graded, Probe, estimates, grade, predictions
from dynaweb.worldmodels.open_loop import chains, drift

if TYPE_CHECKING:
    from dynaweb.pipeline.artifacts import Artifact, LoadedModel
    from dynaweb.pipeline.context import RunContext
    from dynaweb.runs import Stage
    from dynaweb.stats import Estimate
    from dynaweb.types import Prediction
    from dynaweb.worldmodels.calibration import Calibration

MAX_CHAINS = 128
"""Real episodes that are followed open-loop, at most."""
ALL = "all"
COLUMNS = ("element_f1", "changed_f1", "exact", "url", "page_kind", "next_action", "invalid", "tokens")
"""Measures of the table; JSON and the page have all."""


STEPS = "steps.json"
HORIZON = 8
"""Steps of an episode that are followed, at most. No setting: runs with dreams of other lengths share the stage."""


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
    greedy = material.asked_of(ctx, model, temperature=0.0)
    started = time.monotonic()
    answers = await predictions(greedy, questions, seed=ctx.seed("fidelity"))
    seconds = (time.monotonic() - started) / len(questions)
    graded = [grade(probe, answer) for probe, answer in zip(questions, answers, strict=True)]
    dreaming = material.asked_of(ctx, model, temperature=ctx.recipe.dream.temperature)
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
    world_model = material.asked_of(ctx, model, temperature=0.0)
    (answer,) = await predictions(world_model, [questions[index]], seed=ctx.seed("fidelity"))
    return GradedPrediction(questions[index], answer, grade(questions[index], answer))


# Stage `drift`: how errors add up over the steps of a dream, on real episodes of held-out sites (see `drift`). A stage
# of its own: what dreams are made with (temperature, end rules) may change without fitting the world model anew.


async def drift_stage(ctx: RunContext, explored: Artifact, demos: Artifact, fitted: Artifact) -> Artifact | None:
    """The measures of each step of `wm_fit.open_loop` episodes at most, in `STEPS`; None where that is 0."""
    most = ctx.recipe.wm_fit.open_loop
    if not most:
        return None

    async def body(stage: Stage) -> None:
        material = Material.of_episodes(ctx, explored.episodes(), demos.episodes())
        model = ctx.models.load(fitted.model) if fitted.model.is_dir() else ctx.models.base
        dreaming = material.asked_of(ctx, model, temperature=ctx.recipe.dream.temperature)
        write_json(stage.folder / STEPS, await open_loop(ctx, dreaming, material, horizon=HORIZON, most=most))

    key = stage_key(ctx, "drift", explored=explored, demos=demos, world_model=fitted)
    return await ctx.stage("drift", key, body)


def drifted(artifact: Artifact | None) -> list[list[Graded]]:
    """What the stage left: for step 1, 2... the measures of every episode that is so long."""
    return [] if artifact is None else list(artifact.data(STEPS))


async def open_loop(
    ctx: RunContext, world_model: Any, material: Material, *, horizon: int, most: int
) -> list[list[Graded]]:
    """For step 1, 2... up to `horizon` the measures of all real episodes that are so long, `most` of them."""
    walks = [chain for chain in chains(material.walks, longest=horizon) if len(chain) > 1][:most]
    if not ctx.envs.dreams:
        raise ConfigError(f"env {ctx.recipe.env.name!r} has no dreams to follow episodes in; use --env dream")

    def dreams(start_page: Any) -> Callable[[], Any]:
        return ctx.envs.dream(world_model, start_page)

    return by_step(await drift(dreams, walks, seed=ctx.seed("drift"), live=ctx.models.lockstep.episode), horizon)


def by_step(graded: Sequence[Sequence[Graded]], horizon: int) -> list[list[Graded]]:
    """The measures of step 1, 2... over all episodes that are so long."""
    steps = [[chain[at] for chain in graded if len(chain) > at] for at in range(horizon)]
    return [step for step in steps if step]
