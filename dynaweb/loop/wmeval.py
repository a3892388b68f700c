"""`dynaweb wm eval` and `wm show`: a world model against real pages, one step at a time and open-loop.

One step: greedy predictions of real transitions on held-out sites, by environment (host) and by kind of action. Open
loop: the actions of real episodes repeated in dreams (`drift`), at the temperature of dreams. Calibration: the model's
own confidence, at that temperature too.
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
from dynaweb.loop.fidelity import Graded, Probe, grade, predictions
from dynaweb.loop.measures import estimates
from dynaweb.loop.openloop import open_loop
from dynaweb.loop.worldmodel import Material, calibrate_on

if TYPE_CHECKING:
    from dynaweb.loop.workspace import LoadedModel, Workspace
    from dynaweb.report.stats import Estimate
    from dynaweb.types import Prediction
    from dynaweb.worldmodels.confidence import Calibration

MAX_CHAINS = 128
"""Real episodes that are followed open-loop, at most."""
ALL = "all"
SHOWN = ("element_f1", "changed_f1", "exact", "url", "page_kind", "next_action", "invalid", "tokens")
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
        for group, found in self.one_step.items():
            lines += [f"  {group}", *(f"    {key.ljust(12)} {found[key]}" for key in SHOWN if key in found)]
        lines += [f"  {self.seconds:.4f} seconds a step", "open loop, element F1 by step"]
        lines += [f"  {at}  {step['element_f1']}  alive {step['alive']}" for at, step in enumerate(self.steps, 1)]
        lines += [_calibrated(self.calibration) if self.calibration else f"no calibration: {self.uncalibrated}"]
        return "\n".join([*lines, *map(str, self.files)])


def _calibrated(found: Calibration) -> str:
    bins = ", ".join(f"{one.expected:.2f} -> {one.sound:.2f} (n={one.n})" for one in found.reliability)
    return (
        f"confidence: Brier score {found.brier:.3f} (always the base rate {found.base_rate:.2f}: "
        f"{found.brier_of_base_rate:.3f}), n={found.n}; expected -> sound: {bins}"
    )


async def score(ws: Workspace, model: LoadedModel, given: Material, *, horizon: int) -> WorldModelScores:
    """Evaluate the world model of the recipe on these weights. Raises `ConfigError` when nothing is held out."""
    questions = given.questions.unseen
    if not questions:
        raise ConfigError("no transition is left to evaluate on: raise wm_fit.holdout, or give other data with --data")
    greedy = given.asked_of(ws, model, temperature=0.0)
    started = time.monotonic()
    answers = await predictions(greedy, questions, seed=ws.seed("fidelity"))
    seconds = (time.monotonic() - started) / len(questions)
    graded = [grade(probe, answer) for probe, answer in zip(questions, answers, strict=True)]
    dreaming = given.asked_of(ws, model, temperature=ws.recipe.dream.temperature)
    calibration, why = None, ""
    try:
        fidelity = ws.recipe.dream.fidelity
        calibration = await calibrate_on(dreaming, questions, seed=ws.seed("calibration"), fidelity=fidelity)
    except ConfigError as error:
        why = str(error)
    steps = [estimates(step) for step in await open_loop(ws, dreaming, given, horizon=horizon, most=MAX_CHAINS)]
    probes = tuple({"site": site_of(q.transition), **one} for q, one in zip(questions, graded, strict=True))
    groups = by_group(questions, graded)
    return WorldModelScores(ws.recipe.wm.name, groups, steps, seconds, calibration, why, probes=probes)


def by_group(questions: Sequence[Probe], graded: Sequence[Graded]) -> dict[str, dict[str, Estimate]]:
    """Measures of all questions, of each environment (host) and of each kind of action."""
    groups: dict[str, list[Graded]] = {ALL: list(graded)}
    for probe, one in zip(questions, graded, strict=True):
        host = urlsplit(probe.transition.observation.url).hostname or "other"
        for name in (f"env {host}", f"action {probe.transition.action.kind}"):
            groups.setdefault(name, []).append(one)
    return {name: estimates(found) for name, found in groups.items()}


@dataclass(frozen=True)
class Shown:
    """One prediction beside the truth."""

    probe: Probe
    prediction: Prediction
    measures: Mapping[str, float | None]


async def show(ws: Workspace, model: LoadedModel, given: Material, index: int) -> Shown:
    """The greedy prediction of one held-out transition. Raises `ConfigError` for an index that is not there."""
    questions = given.questions.unseen
    if not 0 <= index < len(questions):
        raise ConfigError(f"there are {len(questions)} held-out transitions, numbered from 0; there is no {index}")
    world_model = given.asked_of(ws, model, temperature=0.0)
    (answer,) = await predictions(world_model, [questions[index]], seed=ws.seed("fidelity"))
    return Shown(questions[index], answer, grade(questions[index], answer))
