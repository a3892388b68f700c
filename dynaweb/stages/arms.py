"""The arms of a run: the policies that it evaluates on the same held-out episodes, look-ahead agents included."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from dynaweb.judges.parts import judges_in
from dynaweb.pipeline.artifacts import Artifact, Artifacts, StageKey, refreshed_by
from dynaweb.pipeline.judge import make_judge, to_fit
from dynaweb.pipeline.keys import stage_key
from dynaweb.rollout.agents import ModelPolicy
from dynaweb.rollout.lookahead import LookaheadPolicy
from dynaweb.runs.names import BEST_UPDATE, UPDATES, Role, sft_label
from dynaweb.stages.evaluate import audit_judge, evaluate_arm
from dynaweb.stages.world_model import held_out_sites, page_rules, real_transitions
from dynaweb.stats import count

if TYPE_CHECKING:
    from dynaweb.pipeline.context import RunContext
    from dynaweb.protocols import Environment
    from dynaweb.rollout.agents import PlayerFor
    from dynaweb.types import Observation


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
    evaluated: Artifact


def arms(ctx: RunContext, have: Artifacts) -> list[ArmSpec]:
    """The policies of a run in the order of the closing table: SFT, its control, the other controls, the main one."""
    controls = [*_longer_sft(ctx, have), *_filtered_bc(have)]
    return [_sft(ctx, have), *controls, *_ahead(ctx, have, _main(ctx, have))]


def n_arms(ctx: RunContext) -> int:
    """How many arms there will be, as far as the recipe tells."""
    recipe = ctx.recipe
    main = recipe.rl.updates > 0 or (looks_ahead(ctx) and ctx.envs.dreams)
    return 1 + bool(recipe.controls.sft_steps) + has_filtered(ctx) + main


async def evaluated(ctx: RunContext, spec: ArmSpec) -> ArmResult:
    """An arm with its judged evaluation episodes: the stages `eval` and `judge-audit`."""
    played = await evaluate_arm(ctx, spec.name, spec.weights, spec.key, player=spec.player, label=spec.label)
    return ArmResult(spec, await audit_judge(ctx, spec.name, played, spec.weights, label=spec.label))


def has_filtered(ctx: RunContext) -> bool:
    """Whether filtered behaviour cloning is one of the controls."""
    rl = ctx.recipe.rl
    return ctx.recipe.controls.filtered_bc and rl.mode != "filtered-bc" and rl.updates > 0


def looks_ahead(ctx: RunContext) -> bool:
    """Whether the recipe's agent looks ahead."""
    return ctx.recipe.agent.kind == "lookahead"


def lookahead(
    ctx: RunContext, weights: Path | None, world_model: Path | None, explored: Artifact | None
) -> Callable[[], PlayerFor]:
    """What makes the look-ahead player of a policy's weights (None: the base model) and a world model's (None: the
    base).

    `explored` gives real transitions to world models that are shown examples.
    """

    def make() -> PlayerFor:
        agent, recipe = ctx.recipe.agent, ctx.recipe
        model = ctx.models.load(weights)
        engine = ctx.models.engine(model)
        dreamer = ctx.models.load(world_model) if world_model is not None else ctx.models.base
        episodes = explored.episodes() if explored is not None else []
        world = ctx.models.world_model(
            dreamer,
            temperature=agent.world_temperature,
            held_out=held_out_sites(ctx, episodes),
            transitions=lambda: real_transitions(ctx, episodes),
        )

        dreaming, rules = ctx.models.dream_prompts(model.format), page_rules(ctx, episodes)

        def dream(page: Observation) -> Environment:
            # Of futures as text none has a picture, so that a judge compares like with like.
            start = page if dreaming is model.format else replace(page, screenshot=None)
            return ctx.envs.dream(world, lambda task: start, rules=rules)()

        limit = recipe.policy.max_new_tokens
        proposer = ModelPolicy(engine, model.format, temperature=agent.temperature, max_new_tokens=limit)
        goes_on = ModelPolicy(engine, dreaming, temperature=0.0, max_new_tokens=limit)
        player = LookaheadPolicy(proposer, goes_on, dream, make_judge(ctx, engine, model.format), agent)
        return lambda task: player

    return make


def lookahead_key(ctx: RunContext, world_model: str) -> StageKey:
    """What the decisions of a look-ahead agent depend on besides the policy's weights."""
    return stage_key(ctx, "lookahead", world_model=world_model)


def updates_of(artifact: Artifact) -> str:
    """The updates that reinforcement learning really did, as in `12 of 50 updates` where the time budget ended it, or
    `50 updates, 3 skipped` where some loss or gradient was not finite."""
    progress = artifact.data(UPDATES)
    done = count(progress["done"], "update") if progress["done"] == progress["planned"] else _part(progress)
    return f"{done}, {progress['skipped']} skipped" if progress.get("skipped") else done


def prerequisites(ctx: RunContext, arms: Sequence[ArmResult]) -> list[str]:
    """What the result rests on besides the method, a sentence each."""
    recipe = ctx.recipe
    sentences = []
    if ctx.envs.dreams:
        who = {"policy": "the SFT policy", "expert": "experts", "random": "random actions"}[recipe.explore.player]
        word = "remembered" if recipe.dream.memory != "none" else "recalled" if recipe.dream.recall else ""
        use = f"for the world model, and {word} in dreams" if word and recipe.rl.updates else "for the world model"
        if recipe.explore.episodes:
            sentences.append(f"{recipe.explore.episodes} unrewarded real episodes of {who}, {use}.")
        if recipe.phases.count > 1:
            sentences.append("The real first page of every new task of a later phase, opened once.")
    if arms and any(getattr(config, "model", "") for _, config in judges_in(recipe, ctx.plugins)):
        sentences.append("A judge that is the language model itself; the shipped one was trained to judge other sites.")
    if to_fit(ctx) is not None:
        episodes = recipe.judge_fit.episodes
        sentences.append(f"A judge that was fitted on {episodes} real episodes with the environment's own verdicts.")
    if recipe.offline.episodes and not ctx.envs.dreams:
        sentences.append(f"{recipe.offline.episodes} recorded real episodes of the SFT policy, to learn from offline.")
    if isinstance(recipe.data.demos, str):
        sentences.append("Demonstrations that were read from a source, whoever made them.")
    elif recipe.data.experts == "all":
        sentences.append("An expert for every training task, for reinforcement learning and the longer SFT alike.")
    if recipe.rl.mode == "policy" and recipe.rl.bc_weight > 0:
        sentences.append("A behaviour-cloning term on the demonstrations that SFT saw.")
    return sentences


def _sft(ctx: RunContext, have: Artifacts) -> ArmSpec:
    steps, sft = ctx.recipe.sft.steps, have.need("sft")
    if not steps:
        return ArmSpec("base", "the model as it is", "sft", sft.model, sft.key, "prompted, not trained")
    return ArmSpec("sft", sft_label(steps), "sft", sft.model, sft.key, "where the others start from")


def _longer_sft(ctx: RunContext, have: Artifacts) -> list[ArmSpec]:
    control = have.longer_sft
    if control is None:
        return []
    scores = ", ".join(f"{steps}: {score}" for steps, score in control.validation.items())
    data = ctx.recipe.data
    few = data.experts == "few" or isinstance(data.demos, str)
    which = "the same demonstrations" if few else "all expert data of the run"
    note = f"trained longer on {which}" + (f"; success on validation sites by updates: {scores}" if scores else "")
    weights = control.artifact
    return [ArmSpec("sft-long", sft_label(control.steps), "sft", weights.model, weights.key, note)]


def _filtered_bc(have: Artifacts) -> list[ArmSpec]:
    artifact = have.filtered_bc
    if artifact is None:
        return []
    note = f"cross-entropy on successful rollouts only, as many of them; {updates_of(artifact)}"
    label = "filtered behaviour cloning" + _cut(artifact)
    return [ArmSpec("filtered-bc", label, "control", artifact.model, artifact.key, note)]


def _main(ctx: RunContext, have: Artifacts) -> list[ArmSpec]:
    rl, artifact, dreams = ctx.recipe.rl, have.rl, ctx.envs.dreams
    if artifact is None:
        return []
    where = "dreams" if dreams else "recorded rollouts" if have.offline is not None else "real pages"
    how = ctx.recipe.opt.name if rl.mode == "policy" else "filtered behaviour cloning"
    note = f"{updates_of(artifact)} of {rl.tasks} x {rl.n} rollouts in {where}, {how}"
    if rl.validate_every and rl.results_of == "best" and (artifact.folder / BEST_UPDATE).exists():
        note = f"{note}; the weights of update {artifact.data(BEST_UPDATE)['updates']}, the best validation"
    label = ("DynaWeb" if dreams and rl.mode == "policy" else f"{how} in {where}") + _cut(artifact)
    phases, done = ctx.recipe.phases.count, int(artifact.data(UPDATES).get("phase", 1))
    if done < phases:
        note, label = f"{done} of {phases} phases, the last of {note}", f"{label} ({done} of {phases} phases)"
    elif phases > 1:
        note = f"{phases} phases, each of {note}"
    return [ArmSpec("dynaweb", label, "main", artifact.model, artifact.key, note)]


def _ahead(ctx: RunContext, have: Artifacts, main: list[ArmSpec]) -> list[ArmSpec]:
    """The main policy, or the SFT policy where nothing else was trained, as a look-ahead agent, if the recipe asks.

    It looks ahead in the world model that was refreshed while the policy learned, where there is one.
    """
    if not looks_ahead(ctx) or have.world_model is None:
        return main
    base = main[0] if main else _sft(ctx, have)
    fitted = have.world_model.model if have.world_model.model.is_dir() else None
    weights = refreshed_by(base.weights.parent) or fitted
    agent = ctx.recipe.agent
    return [
        ArmSpec(
            "dynaweb",
            f"{base.label}, looking ahead",
            "main",
            base.weights,
            f"{base.key} {lookahead_key(ctx, have.world_model.key)}",
            f"{agent.candidates} candidates, {agent.depth} steps imagined with {ctx.recipe.wm.name}, judged",
            lookahead(ctx, base.weights, weights, have.explore),
        )
    ]


def _cut(artifact: Artifact) -> str:
    """What the label of an arm adds when the time budget ended its training, or updates were skipped."""
    progress = artifact.data(UPDATES)
    whole = progress["done"] == progress["planned"] and not progress.get("skipped")
    return "" if whole else f" ({updates_of(artifact)})"


def _part(progress: Mapping[str, int]) -> str:
    return f"{progress['done']} of {progress['planned']} updates"
