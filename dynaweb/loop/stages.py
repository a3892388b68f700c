"""The order of a whole run, and the arms that it compares.

Every arm plays the same held-out episodes. Expert data are equal by default: the demonstrations that SFT saw are all
that reinforcement learning and the controls get.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dynaweb import events
from dynaweb.judges.fitting import fitted_judge
from dynaweb.judges.making import to_fit
from dynaweb.loop.agents import lookahead, lookahead_key, looks_ahead
from dynaweb.loop.demos import all_experts, demos, no_demos
from dynaweb.loop.evaluate import audit_judge, evaluate_arm
from dynaweb.loop.evolving import in_phases
from dynaweb.loop.explore import explore
from dynaweb.loop.ingredients import Ingredients
from dynaweb.loop.offline import recorded
from dynaweb.loop.openloop import drift_stage
from dynaweb.loop.planned import has_filtered, learns, planned
from dynaweb.loop.refresh import refreshed_by
from dynaweb.loop.rl import UPDATES, reinforce
from dynaweb.loop.sft import Control, longer_sft, sft
from dynaweb.loop.worldmodel import fit_world_model
from dynaweb.report.blocks import count
from dynaweb.report.data import Role, sft_label

if TYPE_CHECKING:
    from dynaweb.loop.players import PlayerFor
    from dynaweb.loop.workspace import Made, Workspace


@dataclass(frozen=True, slots=True)
class ArmSpec:
    """One policy to evaluate: its name in files, its label for people, its role in the table, and its weights."""

    name: str
    label: str
    role: Role
    weights: Path
    key: str
    note: str = ""
    player: Callable[[], PlayerFor] | None = None
    """Who plays, when it is not the policy of these weights by itself."""


@dataclass(frozen=True, slots=True)
class ArmResult:
    """An arm with its judged evaluation episodes."""

    spec: ArmSpec
    evaluated: Made


@dataclass(frozen=True, slots=True)
class Outcome:
    """All that a run made: its ingredients, and its arms in the order of the closing table."""

    given: Ingredients
    arms: tuple[ArmResult, ...]
    control: Control | None


async def ingredients(ws: Workspace) -> Ingredients:
    """Demonstrations, SFT, and what dreams are made of: everything before reinforcement learning."""
    shown = await demos(ws) if learns(ws) else await no_demos(ws)
    experts = await all_experts(ws, shown) if learns(ws) else shown
    policy = await sft(ws, shown)
    judge = await fitted_judge(ws, policy, shown)
    if not ws.dreams:
        return Ingredients(policy, shown, experts, judge=judge, recorded=await recorded(ws, policy))
    explored = await explore(ws, policy if ws.recipe.explore.player == "policy" else None)
    model = await fit_world_model(ws, explored, shown)
    drift = await drift_stage(ws, explored, shown, model)
    return Ingredients(policy, shown, experts, explored, model, judge, drift=drift)


async def whole_run(ws: Workspace) -> Outcome:
    """All stages of a run up to the evaluations; the report is made from what they leave in the run folder."""
    ws.tell(events.Progress(events.STAGES, 0, planned(ws), "stages"))
    given = await ingredients(ws)
    main = _ahead(ws, given, await _main(ws, given))
    control = await longer_sft(ws, given.experts)
    filtered = await _filtered(ws, given)
    specs = [_sft_arm(ws, given), *_control_arm(ws, control), *filtered, *main]
    return Outcome(given, tuple([await _evaluated(ws, spec) for spec in specs]), control)


def _sft_arm(ws: Workspace, given: Ingredients) -> ArmSpec:
    steps = ws.recipe.sft.steps
    if not steps:
        return ArmSpec("base", "the model as it is", "sft", given.sft.model, given.sft.key, "prompted, not trained")
    return ArmSpec("sft", sft_label(steps), "sft", given.sft.model, given.sft.key, "where the others start from")


def _control_arm(ws: Workspace, control: Control | None) -> list[ArmSpec]:
    if control is None:
        return []
    scores = ", ".join(f"{steps}: {score}" for steps, score in control.validation.items())
    which = "the same demonstrations" if ws.recipe.data.experts == "few" else "all expert data of the run"
    note = f"trained longer on {which}" + (f"; success on validation sites by updates: {scores}" if scores else "")
    return [ArmSpec("sft-long", sft_label(control.steps), "sft", control.made.model, control.made.key, note)]


async def _main(ws: Workspace, given: Ingredients) -> list[ArmSpec]:
    rl = ws.recipe.rl
    if rl.updates == 0:
        return []
    made = await in_phases(ws, given, rl.mode)
    where = "dreams" if ws.dreams else "recorded rollouts" if given.recorded is not None else "real pages"
    how = ws.recipe.opt.name if rl.mode == "policy" else "filtered behaviour cloning"
    note = f"{updates_of(made)} of {rl.tasks} x {rl.n} rollouts in {where}, {how}"
    phases = ws.recipe.phases.count
    note = f"{phases} phases, each of {note}" if phases > 1 else note
    label = "DynaWeb" if ws.dreams and rl.mode == "policy" else f"{how} in {where}"
    return [ArmSpec("dynaweb", label + _cut(made), "main", made.model, made.key, note)]


def _ahead(ws: Workspace, given: Ingredients, main: list[ArmSpec]) -> list[ArmSpec]:
    """The main policy, or the SFT policy where nothing else was trained, as a look-ahead agent, if the recipe asks.

    It looks ahead in the world model that was refreshed while the policy learned, where there is one.
    """
    if not looks_ahead(ws) or given.world_model is None:
        return main
    base = main[0] if main else _sft_arm(ws, given)
    fitted = given.world_model.model if given.world_model.model.is_dir() else None
    weights = refreshed_by(base.weights.parent) or fitted
    agent = ws.recipe.agent
    return [
        ArmSpec(
            "dynaweb",
            f"{base.label}, looking ahead",
            "main",
            base.weights,
            f"{base.key} {lookahead_key(ws, given.world_model.key)}",
            f"{agent.candidates} candidates, {agent.depth} steps imagined with {ws.recipe.wm.name}, judged",
            lookahead(ws, base.weights, weights, given.explored),
        )
    ]


async def _filtered(ws: Workspace, given: Ingredients) -> list[ArmSpec]:
    if not has_filtered(ws):
        return []
    made = await reinforce(ws, given, mode="filtered-bc")
    note = f"cross-entropy on successful rollouts only, as many of them; {updates_of(made)}"
    label = "filtered behaviour cloning" + _cut(made)
    return [ArmSpec("filtered-bc", label, "control", made.model, made.key, note)]


def updates_of(made: Made) -> str:
    """The updates that reinforcement learning really did, as in `12 of 50 updates` where the time budget ended it, or
    `50 updates, 3 skipped` where some loss or gradient was not finite."""
    found = made.data(UPDATES)
    done = count(found["done"], "update") if found["done"] == found["planned"] else _part(found)
    return f"{done}, {found['skipped']} skipped" if found.get("skipped") else done


def _part(found: Mapping[str, int]) -> str:
    return f"{found['done']} of {found['planned']} updates"


def _cut(made: Made) -> str:
    """What the label of an arm adds when the time budget ended its training, or updates were skipped."""
    found = made.data(UPDATES)
    whole = found["done"] == found["planned"] and not found.get("skipped")
    return "" if whole else f" ({updates_of(made)})"


async def _evaluated(ws: Workspace, spec: ArmSpec) -> ArmResult:
    played = await evaluate_arm(ws, spec.name, spec.weights, spec.key, player=spec.player, label=spec.label)
    return ArmResult(spec, await audit_judge(ws, spec.name, played, spec.weights, label=spec.label))


def bought(ws: Workspace, arms: Sequence[ArmResult]) -> list[str]:
    """What the result rests on besides the method, a sentence each."""
    recipe = ws.recipe
    sentences = []
    if ws.dreams:
        who = {"policy": "the SFT policy", "expert": "experts", "random": "random actions"}[recipe.explore.player]
        recalled = recipe.dream.recall and recipe.rl.updates
        use = "for the world model, and recalled in dreams" if recalled else "for the world model"
        if recipe.explore.episodes:
            sentences.append(f"{recipe.explore.episodes} unrewarded real episodes of {who}, {use}.")
        if recipe.phases.count > 1:
            sentences.append("The real first page of every new task of a later phase, opened once.")
    if getattr(recipe.reward.config, "model", "") and arms:
        sentences.append("A judge that is the language model itself; the shipped one was trained to judge other sites.")
    if to_fit(ws) is not None:
        episodes = recipe.judge_fit.episodes
        sentences.append(f"A judge that was fitted on {episodes} real episodes with the environment's own verdicts.")
    if recipe.offline.episodes and not ws.dreams:
        sentences.append(f"{recipe.offline.episodes} recorded real episodes of the SFT policy, to learn from offline.")
    if recipe.data.experts == "all":
        sentences.append("An expert for every training task, for reinforcement learning and the longer SFT alike.")
    if recipe.rl.mode == "policy" and recipe.rl.bc_weight > 0:
        sentences.append("A behaviour-cloning term on the demonstrations that SFT saw.")
    return sentences
