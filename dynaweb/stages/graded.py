"""Graded real episodes: what judges are fitted and audited on, and what offline learning learns from.

The SFT policy plays, sampled, and every episode gets the environment's verdict while its environment still stands.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle, islice
from typing import TYPE_CHECKING

from dynaweb import events
from dynaweb.judges.reward import grading
from dynaweb.pipeline.episodes import play_in_batches, save_episodes
from dynaweb.pipeline.judge import to_fit
from dynaweb.pipeline.keys import stage_key
from dynaweb.rollout.agents import ModelPolicy
from dynaweb.rollout.episode import Episode, Rules, refuse_total_failure
from dynaweb.stages.demos import practice_key, practice_tasks

if TYPE_CHECKING:
    from dynaweb.pipeline.artifacts import Artifact
    from dynaweb.pipeline.context import RunContext
    from dynaweb.protocols import Engine, PromptFormat
    from dynaweb.runs import Stage
    from dynaweb.types import Task, Trajectory


async def graded(ctx: RunContext, sft: Artifact) -> Artifact | None:
    """Stage `graded`: the rollouts that the recipe's judge is fitted on; None where it need not be fitted."""
    settings = ctx.recipe.judge_fit
    if to_fit(ctx) is None:
        return None
    return await graded_rollouts(ctx, sft, split="train", count=settings.episodes, temperature=settings.temperature)


async def offline(ctx: RunContext, sft: Artifact) -> Artifact | None:
    """Stage `offline`: the rollouts that the run learns from offline; None where every update plays its own."""
    settings = ctx.recipe.offline
    if not settings.episodes:
        return None
    count, temperature = settings.episodes, settings.temperature
    return await graded_rollouts(ctx, sft, split="train", count=count, temperature=temperature, name="offline")


async def graded_rollouts(
    ctx: RunContext, policy: Artifact, *, split: str, count: int, temperature: float, name: str = "graded"
) -> Artifact:
    """The stage `name`: `count` episodes of a policy on tasks of a split, with the environment's verdicts.

    A longer stage begins with the episodes of a shorter one, as far as the tasks allow.
    """

    async def body(stage: Stage) -> None:
        tasks = _tasks(ctx, split, count)
        model = ctx.models.load(policy.model)
        episodes = [Episode(f"graded/{split}/{i}", task, ctx.seed("graded", split, i)) for i, task in enumerate(tasks)]
        engine = ctx.models.engine(model)
        played = await play_graded(ctx, stage, episodes, engine, model.format, temperature=temperature, phase=name)
        refuse_total_failure(played, "graded rollouts")
        save_episodes(stage, played)
        for trajectory in played:
            ctx.tell(events.Rollout(name, trajectory))

    left_out = practice_key(ctx) if split == "train" else {}
    key = stage_key(ctx, "graded", policy=policy, split=split, episodes=count, temperature=temperature, **left_out)
    artifact = await ctx.stage(name, key, body, resumable=True)
    ctx.keep(artifact, name if split == "train" else f"{name}-{split}")
    return artifact


async def play_graded(
    ctx: RunContext,
    stage: Stage | None,
    episodes: Sequence[Episode],
    engine: Engine,
    prompts: PromptFormat,
    *,
    temperature: float,
    phase: str,
) -> list[Trajectory]:
    """Real episodes of a policy, sampled, as long as its rollouts in training, each with its environment's verdict."""
    recipe = ctx.recipe
    player = ModelPolicy(engine, prompts, temperature=temperature, max_new_tokens=recipe.policy.max_new_tokens)
    return await play_in_batches(
        ctx,
        stage,
        episodes,
        ctx.envs.source.environment,
        lambda task: player,
        rules=Rules(recipe.dream.longest, invalid_ends=recipe.dream.invalid_ends),
        phase=phase,
        lockstep=ctx.models.lockstep,
        finish=grading(ctx.envs.source),
    )


def _tasks(ctx: RunContext, split: str, count: int) -> list[Task]:
    """Of an environment with fewer training tasks all, and the same ones again, with other seeds."""
    if split == "train":
        return list(islice(cycle(practice_tasks(ctx, count)), count))
    return ctx.envs.tasks(split, count)[:count]
