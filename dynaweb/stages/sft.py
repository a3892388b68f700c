"""Supervised fine-tuning on the demonstrations, and its longer control on the same ones.

The control answers whether more of the same training would have done as well: a few step counts are tried, the best one
on validation sites in the real environment is the arm that the main result is compared with.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dynaweb.pipeline.artifacts import Control
from dynaweb.pipeline.fit import fit, with_adapters
from dynaweb.pipeline.keys import stage_key
from dynaweb.rollout.group import by_task, rows_of
from dynaweb.runs.names import sft_label
from dynaweb.stages.evaluate import evaluate_arm, successes
from dynaweb.stats import Estimate, proportion

if TYPE_CHECKING:
    from dynaweb.pipeline.artifacts import Artifact
    from dynaweb.pipeline.context import RunContext
    from dynaweb.runs import Stage


async def sft(ctx: RunContext, demos: Artifact, *, steps: int | None = None, keep_as: str = "sft") -> Artifact:
    """Stage `sft`: the base model trained on every step of the successful demonstrations; as it is for 0 steps.

    With `steps` one of the stage `longer-sft`.
    """
    settings = ctx.recipe.sft
    count = settings.steps if steps is None else steps
    name = "sft" if steps is None else f"sft-{count}"

    async def body(stage: Stage) -> None:
        if count == 0:
            return ctx.models.load().save(stage.folder)
        experts = [episode for group in by_task(demos.episodes()).values() for episode in group]
        model = ctx.models.load()
        rows = rows_of(experts, model.format)
        model = with_adapters(model, settings.lora_rank, seed=ctx.seed("lora", name))
        await fit(ctx, stage, model, rows, name=name, steps=count, batch=settings.batch, lr=settings.lr)

    key = stage_key(ctx, "sft", steps=count, name=name, demos=demos)
    artifact = await ctx.stage("sft" if steps is None else "longer-sft", key, body, resumable=True)
    ctx.keep(artifact, keep_as)
    return artifact


async def longer_sft(ctx: RunContext, demos: Artifact) -> Control | None:
    """Stage `longer-sft` of each candidate, evaluated on validation sites; the best one (the shorter of equals)."""
    candidates = sorted(set(ctx.recipe.controls.sft_steps))
    if not candidates:
        return None
    artifacts = {steps: await sft(ctx, demos, steps=steps, keep_as=f"sft-{steps}") for steps in candidates}
    scores: dict[int, Estimate] = {}
    if len(candidates) > 1:
        scores = {steps: await _validation(ctx, steps, artifact) for steps, artifact in artifacts.items()}
    best = max(candidates, key=lambda steps: (scores[steps].value or 0.0, -steps) if scores else (0.0, -steps))
    return Control(best, artifacts[best], scores)


async def _validation(ctx: RunContext, steps: int, artifact: Artifact) -> Estimate:
    evaluated = await evaluate_arm(
        ctx,
        f"sft-{steps}",
        artifact.model,
        artifact.key,
        split="validation",
        count=ctx.recipe.controls.sft_validation,
        label=sft_label(steps),
    )
    return proportion(successes(evaluated.episodes()))
