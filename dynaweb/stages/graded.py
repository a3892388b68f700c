"""Graded real episodes: what judges are fitted and audited on, and what offline learning learns from.

The SFT policy plays, sampled, and every episode gets the environment's verdict while its environment still stands.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dynaweb import events
from dynaweb.judges.reward import grading
from dynaweb.pipeline.episodes import play_in_batches
from dynaweb.pipeline.keys import stage_key
from dynaweb.rollout.agents import ModelPolicy
from dynaweb.rollout.episode import Episode, Rules, refuse_total_failure
from dynaweb.stages.demos import save_episodes, training_tasks

if TYPE_CHECKING:
    from dynaweb.pipeline.artifacts import Artifact
    from dynaweb.pipeline.context import RunContext
    from dynaweb.runs import Stage
    from dynaweb.types import Task


async def graded_rollouts(ctx: RunContext, policy: Artifact, *, split: str, count: int, temperature: float) -> Artifact:
    """Stage `graded`: `count` episodes of a policy on tasks of a split, with the environment's verdicts.

    A longer stage begins with the episodes of a shorter one, as far as the tasks allow.
    """
    recipe = ctx.recipe

    async def body(stage: Stage) -> None:
        tasks = _tasks(ctx, split, count)
        model = ctx.models.load(policy.model)
        player = ModelPolicy(
            ctx.models.engine(model), model.format, temperature=temperature, max_new_tokens=recipe.policy.max_new_tokens
        )
        played = await play_in_batches(
            ctx,
            stage,
            [Episode(f"graded/{split}/{i}", task, ctx.seed("graded", split, i)) for i, task in enumerate(tasks)],
            ctx.envs.source.environment,
            lambda task: player,
            rules=Rules(recipe.dream.longest, invalid_ends=recipe.dream.invalid_ends),
            phase="graded",
            lockstep=ctx.models.lockstep,
            finish=grading(ctx.envs.source),
        )
        refuse_total_failure(played, "graded rollouts")
        save_episodes(stage, played)
        for trajectory in played:
            ctx.tell(events.Rollout("graded", trajectory))

    key = stage_key(ctx, "graded", policy=policy, split=split, episodes=count, temperature=temperature)
    made = await ctx.stage("graded", key, body, resumable=True)
    ctx.keep(made, "graded" if split == "train" else f"graded-{split}")
    return made


def _tasks(ctx: RunContext, split: str, count: int) -> list[Task]:
    tasks = training_tasks(ctx, count) if split == "train" else ctx.envs.tasks(split, count)
    return tasks[:count]
