"""Settings that are valid alone and cannot work together: said before anything is made, not after the first stages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dynaweb.config import agreement
from dynaweb.errors import ConfigError
from dynaweb.judges.parts import TRAINABLE, judges_in
from dynaweb.pipeline.context import make_optimizer
from dynaweb.pipeline.judge import to_fit, weights_of
from dynaweb.stages.curriculum import chosen_generator
from dynaweb.stages.world_model import check_fit

if TYPE_CHECKING:
    from dynaweb.pipeline.context import RunContext
    from dynaweb.pipeline.models import Role
    from dynaweb.protocols import PolicyOptimizer, Wants


STEPS = 4
"""Steps of the rollouts that an optimizer is asked about; some learn of no step of an episode of one."""


def check_together(ctx: RunContext) -> None:
    """Raise `ConfigError` when parts of the recipe clash, `MissingError` for a judge or a model that is not there."""
    recipe = ctx.recipe
    agreement.check_needs(recipe, ctx.plugins)
    check_model(ctx)
    agreement.check_lookahead(recipe, ctx.plugins)
    agreement.check_offline(recipe, ctx.plugins)
    if recipe.phases.count > 1 and recipe.rl.updates:
        chosen_generator(ctx, recipe.phases)
    if recipe.rl.updates and recipe.rl.mode == "policy":
        check_policy_loss(make_optimizer(ctx))
    if recipe.rl.max_staleness and recipe.rl.updates and recipe.rl.mode == "policy":
        check_staleness(ctx, optimizer_wants(ctx))
    if recipe.replay.capacity and recipe.rl.updates:
        check_replay(ctx, optimizer_wants(ctx))
    if recipe.offline.episodes and recipe.rl.updates and recipe.rl.mode == "policy":
        check_offline(ctx, make_optimizer(ctx))
    check_judge(ctx)


def check_model(ctx: RunContext) -> None:
    """Raise `MissingError` when there is no base model, or when one that has to be downloaded cannot be.

    Its tokenizer says so before anything is spent: it is small, and needed anyway. Raise `ConfigError` when its chat
    template cannot be used, its context is too short, adapters that are asked for do not reach its layers, or it is to
    see pages that nothing takes a picture of.
    """
    agreement.check_pictures(ctx.recipe, ctx.plugins)
    getattr(ctx.models.format, "check", lambda: None)()
    recipe = ctx.recipe
    check_vision(ctx)
    if any(
        (recipe.sft.steps and recipe.sft.lora_rank, recipe.rl.updates and recipe.rl.lora_rank, recipe.wm_fit.lora_rank)
    ):
        from dynaweb.trainer.adapters import check_adapters
        from dynaweb.trainer.models import resolve

        seen = recipe.observation
        check_adapters(resolve(recipe.model.path), sees=seen.pictures, vision=seen.train_vision)


def check_vision(ctx: RunContext) -> None:
    """Raise `ConfigError` where the policy is to see pages, and its prompt layer or its engine shows it none."""
    recipe = ctx.recipe
    if not recipe.observation.pictures:
        return
    modality = f"observation.modality = {recipe.observation.modality}"
    if not hasattr(ctx.models.format, "with_modality"):
        raise ConfigError(
            f"{modality} shows pages as pictures, and the prompt layer of model.format = {recipe.model.format!r} "
            "writes text alone; set model.format = chat, or observation.modality = text"
        )
    _check_seeing_engine(ctx, "policy", f"{modality} shows pages as pictures", "observation.modality = text")


def _check_seeing_engine(ctx: RunContext, role: Role, why: str, instead: str) -> None:
    choice = ctx.recipe.engine_of(role)
    spec = ctx.plugins.find("engine", choice.name).spec
    if "sees" not in spec.capabilities:
        raise ConfigError(
            f"{why}, and the engine {choice.name!r} takes text alone; set {role}.engine.name = transformers, or "
            f"{instead}"
        )
    check = getattr(spec.config.model_validate(choice.settings), "check_sight", None)
    if check is not None:
        from dynaweb.trainer.models import resolve, sees

        check(getattr(sees(resolve(ctx.recipe.model.path)), "model_type", ""))


def check_seam(ctx: RunContext) -> None:
    """Raise `ConfigError` when the judge cannot score what the environment gives: a verdict needs real pages.

    Also, for dreams, what `check_fit` and `agreement.check_refresh` raise.
    """
    if ctx.envs.dreams:
        check_fit(ctx)
        agreement.check_refresh(ctx.recipe, ctx.plugins)
    agreement.check_scored(ctx.recipe, ctx.plugins)


def check_judge(ctx: RunContext) -> None:
    """Raise where a part of the judge does not exist, or its settings or weights are not what they should be.

    Also where it is to be shown pictures of pages, and its engine shows it none, and where it is to be fitted further
    and is not fitted in this run.
    """
    every = ctx.recipe.judge_fit.refresh_every
    if every and ctx.recipe.rl.updates:
        why = "offline.episodes has rollouts judged that were played before" if ctx.recipe.offline.episodes else ""
        why = why or ("" if to_fit(ctx) else f"{ctx.recipe.reward.name!r} is not fitted in this run")
        updates = ctx.recipe.rl.updates
        why = why or (f"of {updates} updates none comes after the first refresh" if every >= updates else "")
        if why:
            raise ConfigError(
                f"judge_fit.refresh_every = {every} fits the judge further on episodes of the current policy, and "
                f"{why}; set it to 0, or to less than rl.updates with --reward orm, without weights, on own "
                "rollouts"
            )
    for name, config in judges_in(ctx.recipe, ctx.plugins):
        able = TRAINABLE in ctx.plugins.find("reward", name).spec.capabilities
        if able and str(getattr(config, "weights", "")):
            weights_of(ctx, name, config)
        pictures = getattr(config, "pictures", 0) if ctx.recipe.observation.pictures else 0
        if pictures and (able or getattr(config, "model", None) == "base"):  # others ask the policy's, or a server
            why = f"pictures = {pictures} shows the judge {name!r} pages as pictures"
            _check_seeing_engine(ctx, "reward", why, "pictures = 0")


def check_policy_loss(optimizer: PolicyOptimizer) -> None:
    """Raise `PluginError` for an optimizer whose loss is not finite, or that learns nothing of a batch."""
    from dynaweb.trainer.probe import check_optimizer  # imports torch

    check_optimizer(optimizer)


def check_replay(ctx: RunContext, wants: Wants) -> None:
    """Raise `ConfigError` for a replay buffer whose steps the optimizer could not value one by one."""
    if wants.critic is None:
        raise ConfigError(
            f"replay.capacity asks for a replay buffer, and opt {ctx.recipe.opt.name!r} compares the rollouts of a "
            "task with each other; use --opt webrl, awr or digirl, or set replay.capacity = 0"
        )


def check_staleness(ctx: RunContext, wants: Wants) -> None:
    """Raise `ConfigError` for rollouts of earlier policies where the optimizer is right for the policy's own alone."""
    if wants.off_policy == "never":
        raise ConfigError(
            f"rl.max_staleness = {ctx.recipe.rl.max_staleness} has updates learn from rollouts of earlier policies, "
            f"and opt {ctx.recipe.opt.name!r} says that it learns from those of the policy in training only; set "
            "rl.max_staleness = 0, or use another optimizer, such as --opt gspo"
        )


def check_offline(ctx: RunContext, optimizer: PolicyOptimizer) -> None:
    """Raise `ConfigError` for recorded episodes of which the optimizer could learn nothing: there is one of a task."""
    if not learns_alone(optimizer):
        raise ConfigError(
            f"offline.episodes records one episode of a task, and opt {ctx.recipe.opt.name!r} compares the rollouts of "
            "a task with each other, so that it would learn nothing; use --opt awr, set rl.mode = filtered-bc, or set "
            "offline.episodes = 0"
        )


def learns_alone(optimizer: PolicyOptimizer) -> bool:
    """Whether rollouts that are each alone in their group, a success and a failure, can move the policy.

    A critic, if there is one, says 0 of everything.
    """
    from dynaweb.protocols import CreditInput, CreditRow, wants
    from dynaweb.trainer.advantages import compute_advantages

    critic = wants(optimizer).critic
    values: list[list[float]] = [] if critic is None else [[0.0] * critic.outputs]
    rows = [
        CreditRow(i, k, 1, anchor=f"{i} {k}", old_logps=(0.0,), ref_logps=(0.0,), values=values)
        for i in range(2)
        for k in range(STEPS)
    ]
    credit = compute_advantages(optimizer, CreditInput([1.0, 0.0], ["a", "b"], rows))
    return any(credit.moves(n, row.trajectory) for n, row in enumerate(rows))


def optimizer_wants(ctx: RunContext) -> Wants:
    """What the recipe's optimizer needs."""
    from dynaweb.protocols import wants

    return wants(make_optimizer(ctx))
