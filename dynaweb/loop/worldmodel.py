"""Fitting the world model on the transitions of exploration, and measuring how true it is.

Only transitions that need a model are learned from (`rules.needs_prediction`). Some sites are held out: nothing of them
is fitted on, and fidelity is measured there, on the steps of exploration and of the demonstrations, which tell what the
expert did next. A question that was fitted on all the same (the very page and action) is no question, and is left out.
Demonstrations on the other sites are measured apart, as `seen`.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from dynaweb import events
from dynaweb.loop.fidelity import Probe, measure, probes_of, rules_hold, transitions_of
from dynaweb.loop.rules import needs_prediction
from dynaweb.loop.tasks import site_of
from dynaweb.loop.training import fit
from dynaweb.protocols import TokenRow
from dynaweb.report.stats import Estimate, share_or_mean
from dynaweb.runs import write_json

if TYPE_CHECKING:
    from dynaweb.loop.workspace import LoadedModel, Made, Workspace
    from dynaweb.protocols import TrainableWorldModel
    from dynaweb.runs import Stage
    from dynaweb.types import Action, Observation, Trajectory, Transition

FIDELITY = "fidelity.json"
Graded = Mapping[str, float | None]
"""One probe's measures, None where one does not apply."""
MAX_PROBES = 256
"""Transitions of each kind that are predicted, at most."""


async def fit_world_model(ws: Workspace, explored: Made, demos: Made) -> Made:
    """Stage `world-model`: weights (unless frozen) and `fidelity.json`: probes, and how often the code's rules held."""

    async def body(stage: Stage) -> None:
        episodes = explored.episodes()
        fitted, held_out = split(episodes, ws.recipe.wm_fit.holdout, seed=ws.seed("holdout"))
        model = ws.load()
        known = modelled(fitted) if trains(ws) else []
        if trains(ws):
            await _fit(ws, stage, model, known)
        await _measure(ws, stage, model, Questions.of(known, fitted, held_out, demos.episodes()))

    settings = ("wm", "wm_fit.holdout", *(("wm_fit.steps", "wm_fit.batch", "wm_fit.lr") if trains(ws) else ()))
    key = ws.key(*settings, trains=trains(ws), model=ws.model_key, explored=explored.key, demos=demos.key)
    told = ws.recipe.settings("run.seed", "wm", "wm_fit")
    made = await ws.stage("world-model", key, body, settings=told, resumable=True)
    ws.keep(made, "world-model")
    return made


def trains(ws: Workspace) -> bool:
    """Whether the chosen world model is fitted: it can be, and the recipe gives it updates."""
    capabilities = ws.plugins.find("wm", ws.recipe.wm.name).spec.capabilities
    return "trainable" in capabilities and ws.recipe.wm_fit.steps > 0


def split(episodes: Sequence[Trajectory], holdout: float, *, seed: int) -> tuple[list[Trajectory], list[Trajectory]]:
    """Episodes to fit on, and those of held-out sites: `holdout` of all sites, one at least; one at least is fitted.

    Sites are whole: no page of a held-out one is in the first part. With a single site nothing can be held out.
    """
    sites = sorted({site_of(episode.task) for episode in episodes})
    random.Random(seed).shuffle(sites)
    count = min(max(1, round(holdout * len(sites))), len(sites) - 1) if holdout > 0 else 0
    chosen = set(sites[: max(0, count)])
    kept = [episode for episode in episodes if site_of(episode.task) not in chosen]
    return kept, [episode for episode in episodes if site_of(episode.task) in chosen]


@dataclass(frozen=True, slots=True)
class Questions:
    """What fidelity is measured on: probes of `unseen` and of `seen` sites, none of which was fitted on.

    `transitions` are all real steps on unseen sites, for the rules of the code.
    """

    unseen: list[Probe]
    seen: list[Probe]
    transitions: list[Transition]

    @classmethod
    def of(
        cls,
        known: Sequence[Transition],
        fitted: Sequence[Trajectory],
        held_out: Sequence[Trajectory],
        demos: Sequence[Trajectory],
    ) -> Questions:
        """`known` are the transitions that were fitted on, of the episodes `fitted`."""
        pairs, sites = {pair(transition) for transition in known}, {site_of(episode.task) for episode in fitted}
        here = [demo for demo in demos if site_of(demo.task) in sites]
        away = [demo for demo in demos if site_of(demo.task) not in sites]

        def new(probes: Sequence[Probe]) -> list[Probe]:
            return [probe for probe in probes if pair(probe.transition) not in pairs][:MAX_PROBES]

        unseen = [*new([Probe(transition) for transition in modelled(held_out)]), *new(probes_of(away))]
        return cls(unseen, new(probes_of(here)), transitions_of(held_out))


def pair(transition: Transition) -> tuple[Observation, Action]:
    """What the world model is asked: the page, without what an earlier action said on it, and the action."""
    return replace(transition.observation, notice=""), transition.action


def modelled(episodes: Sequence[Trajectory]) -> list[Transition]:
    """The transitions of episodes that only a world model can predict."""
    return [t for t in transitions_of(episodes) if needs_prediction(t.observation, t.action)]


async def _fit(ws: Workspace, stage: Stage, model: LoadedModel, known: Sequence[Transition]) -> None:
    settings = ws.recipe.wm_fit
    world_model = cast("TrainableWorldModel", ws.world_model(model, temperature=0.0))
    rows = [TokenRow(prompt_ids=prompt, response_ids=target) for prompt, target in world_model.examples(known)]
    await fit(ws, stage, model, rows, name="world-model", steps=settings.steps, batch=settings.batch, lr=settings.lr)


async def _measure(ws: Workspace, stage: Stage, model: LoadedModel, questions: Questions) -> None:
    world_model = ws.world_model(model, temperature=0.0)
    probes = await measure(world_model, questions.unseen, seed=ws.seed("fidelity"))
    seen = await measure(world_model, questions.seen, seed=ws.seed("fidelity", "seen"))
    rules = rules_hold(questions.transitions)
    write_json(stage.folder / FIDELITY, {"probes": probes, "seen": seen, "rules": rules})
    apart = {f"seen_{name}": value for name, value in means(seen).items()}
    ws.tell(events.Update("fidelity", 0, means(probes, rules) | apart))


def means(probes: Sequence[Graded], rules: Sequence[float] = ()) -> dict[str, float]:
    """Mean of each measure over the probes it applies to, `n`, and the share of code-decided steps that came true."""
    found = {name: sum(values) / len(values) for name, values in _columns(probes, rules).items() if values}
    return {**found, "n": float(len(probes))}


def fidelity_estimates(data: Mapping[str, Any]) -> dict[str, Estimate]:
    """The measures of a `fidelity.json` with their 95 % intervals and n; those of seen sites as `seen_...`."""
    columns = _columns(data["probes"], data.get("rules", ()))
    columns |= {f"seen_{name}": values for name, values in _columns(data.get("seen", ())).items()}
    return {name: share_or_mean(values) for name, values in columns.items() if values}


def _columns(probes: Sequence[Graded], rules: Sequence[float] = ()) -> dict[str, list[float]]:
    names = list(dict.fromkeys(name for probe in probes for name in probe))
    columns = {name: [value for p in probes if (value := p.get(name)) is not None] for name in names}
    return {**columns, "rules": list(rules)}
