"""Fitting the world model on the transitions of exploration, and measuring how true it is.

Only transitions that need a model are learned from (`rules.needs_prediction`). Fidelity is measured on held-out
episodes of exploration, and on the steps of the demonstrations, which are never fitted on and tell what the expert did
next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from dynaweb import events
from dynaweb.loop.fidelity import Probe, measure, probes_of, rules_hold, transitions_of
from dynaweb.loop.rules import needs_prediction
from dynaweb.loop.training import fit
from dynaweb.protocols import TokenRow
from dynaweb.runs import write_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dynaweb.loop.workspace import LoadedModel, Made, Workspace
    from dynaweb.protocols import TrainableWorldModel
    from dynaweb.runs import Stage
    from dynaweb.types import Trajectory, Transition

FIDELITY = "fidelity.json"
MAX_PROBES = 256
"""Held-out transitions that are predicted, at most."""


async def fit_world_model(ws: Workspace, explored: Made, demos: Made) -> Made:
    """Stage `world-model`: weights (unless frozen) and `fidelity.json`: probes, and how often the code's rules held."""

    async def body(stage: Stage) -> None:
        episodes = explored.episodes()
        fitted, held_out = split(episodes, ws.recipe.wm_fit.holdout)
        model = ws.load()
        if trains(ws):
            await _fit(ws, stage, model, fitted)
        await _measure(ws, stage, model, held_out, demos.episodes())

    upstream = {"base": ws.base_key, "explored": explored.key, "demos": demos.key}
    key = ws.key("model", "wm", "wm_fit", trains=trains(ws), **upstream)
    settings = ws.recipe.settings("run.seed", "wm", "wm_fit")
    made = await ws.stage("world-model", key, body, settings=settings, resumable=True)
    ws.keep(made, "world-model")
    return made


def trains(ws: Workspace) -> bool:
    """Whether the chosen world model is fitted: it can be, and the recipe gives it updates."""
    capabilities = ws.plugins.find("wm", ws.recipe.wm.name).spec.capabilities
    return "trainable" in capabilities and ws.recipe.wm_fit.steps > 0


def split(episodes: Sequence[Trajectory], holdout: float) -> tuple[list[Trajectory], list[Trajectory]]:
    """Episodes to fit on and held-out ones: every k-th, so that all templates are in both."""
    if holdout == 0:
        return list(episodes), []
    every = max(2, round(1 / holdout))
    kept = [episode for i, episode in enumerate(episodes) if i % every]
    return kept, list(episodes[::every])


def modelled(episodes: Sequence[Trajectory]) -> list[Transition]:
    """The transitions of episodes that only a world model can predict."""
    return [t for t in transitions_of(episodes) if needs_prediction(t.observation, t.action)]


async def _fit(ws: Workspace, stage: Stage, model: LoadedModel, episodes: Sequence[Trajectory]) -> None:
    settings = ws.recipe.wm_fit
    world_model = cast("TrainableWorldModel", ws.world_model(model, temperature=0.0))
    pairs = world_model.examples(modelled(episodes))
    rows = [TokenRow(prompt_ids=prompt, response_ids=target) for prompt, target in pairs]
    await fit(ws, stage, model, rows, name="world-model", steps=settings.steps, batch=settings.batch, lr=settings.lr)


async def _measure(
    ws: Workspace, stage: Stage, model: LoadedModel, held_out: Sequence[Trajectory], demos: Sequence[Trajectory]
) -> None:
    probes = [Probe(transition) for transition in modelled(held_out)][:MAX_PROBES]
    probes += probes_of(demos)[:MAX_PROBES]
    graded = await measure(ws.world_model(model, temperature=0.0), probes, seed=ws.seed("fidelity"))
    rules = rules_hold(transitions_of(held_out))
    write_json(stage.folder / FIDELITY, {"probes": graded, "rules": rules})
    ws.tell(events.Update("fidelity", 0, means(graded, rules)))


def means(probes: Sequence[dict[str, float | None]], rules: Sequence[float]) -> dict[str, float]:
    """Mean of each measure over the probes it applies to, `n`, and the share of code-decided steps that came true."""
    names = list(dict.fromkeys(name for probe in probes for name in probe))
    columns: dict[str, list[Any]] = {name: [p[name] for p in probes if p.get(name) is not None] for name in names}
    columns["rules"] = list(rules)
    found = {name: sum(values) / len(values) for name, values in columns.items() if values}
    return {**found, "n": float(len(probes))}
