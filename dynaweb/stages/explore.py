"""Exploration: the SFT policy, loosened, walks the training sites in the real environment.

It leaves unrewarded transitions for the world model and the real start pages of dreams. Nobody looks at whether tasks
succeed. Other players (`explore.player`) are for collecting data: experts, which would make the comparison with SFT
unequal, or random actions.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle, islice
from typing import TYPE_CHECKING

from dynaweb import events
from dynaweb.errors import ConfigError
from dynaweb.pipeline.episodes import play_in_batches, save_episodes
from dynaweb.pipeline.keys import stage_key
from dynaweb.rollout.agents import ExpertPlayer, MixedPolicy, ModelPolicy, Player, PlayerFor, RandomPolicy
from dynaweb.rollout.episode import Episode, Rules, failures, refuse_total_failure
from dynaweb.rollout.tasks import StartPages, start_key
from dynaweb.stages.demos import practice_key, practice_tasks
from dynaweb.types import Task, Trajectory

if TYPE_CHECKING:
    from dynaweb.pipeline.artifacts import Artifact, Artifacts
    from dynaweb.pipeline.context import RunContext
    from dynaweb.protocols import Engine, PromptFormat
    from dynaweb.runs import Stage


PHASE = "first pages"


async def explore(ctx: RunContext, sft: Artifact | None) -> Artifact:
    """Stage `explore`: `explore.episodes` episodes over the training tasks, played as `explore.player` says.

    `sft` holds the policy's weights; other players need none.
    """

    async def body(stage: Stage) -> None:
        recipe = ctx.recipe
        count = recipe.explore.episodes
        # An environment with fewer tasks is explored from the same ones again, with other seeds.
        tasks = islice(cycle(practice_tasks(ctx, count)), count)
        episodes = [Episode(f"explore/{i}", task, ctx.seed("explore", i)) for i, task in enumerate(tasks)]
        players = _players(ctx, sft)
        await ctx.models.start(ahead=True)
        played = await play_in_batches(
            ctx,
            stage,
            episodes,
            ctx.envs.source.environment,
            players,
            rules=Rules(recipe.explore.steps, source="expert" if recipe.explore.player == "expert" else "real"),
            phase="explore",
            lockstep=ctx.models.lockstep,
        )
        refuse_total_failure(played, "exploration")
        save_episodes(stage, played)
        for trajectory in played:
            ctx.tell(events.Rollout("explore", trajectory))

    artifact = await ctx.stage("explore", stage_key(ctx, "explore", sft=sft, **practice_key(ctx)), body, resumable=True)
    ctx.keep(artifact, "explore")
    return artifact


def _players(ctx: RunContext, sft: Artifact | None) -> PlayerFor:
    """Who plays each task, with the share of random actions that `explore.random` says."""
    explore = ctx.recipe.explore
    if explore.player == "random":
        everywhere = RandomPolicy()
        return lambda task: everywhere
    if explore.player == "expert":
        return lambda task: ExpertPlayer(ctx.envs.source.expert(task))
    if sft is None:
        raise ConfigError("explore.player is the SFT policy, which was not made; run that stage first")
    model = ctx.models.load(sft.model)
    policy = exploration_policy(ctx, ctx.models.engine(model), model.format)
    return lambda task: policy


def exploration_policy(ctx: RunContext, engine: Engine, prompts: PromptFormat) -> Player:
    """A policy as exploration plays it: sampled, with random actions in between."""
    recipe = ctx.recipe
    policy = ModelPolicy(
        engine, prompts, temperature=recipe.explore.temperature, max_new_tokens=recipe.policy.max_new_tokens
    )
    return MixedPolicy(policy, recipe.explore.random)


def recorded_starts(have: Artifacts) -> StartPages:
    """Real first pages that the stages before RL recorded, and those that were opened for the tasks of this phase."""
    artifacts = [have.explore, have.demos, have.phase.tasks]
    return StartPages(episode for one in artifacts if one is not None for episode in one.episodes())


async def open_first_pages(ctx: RunContext, tasks: Sequence[Task], known: StartPages) -> list[Trajectory]:
    """Open the first page of every task whose page is not `known` in the real environment, and add it; the opened ones.

    Dreams start from real pages, and a critic values a task by its first page. Tasks that start on the same page of the
    same generated site share it (`start_key`), so that it is opened once.

    An opened page is an episode without a step whose final page it is. Each counts as one real step in the cost of the
    stage. Tasks whose page could not be opened are still unknown afterwards. Raises `InfrastructureError` when not one
    could be.
    """
    missing = list({start_key(task): task for task in tasks if known(task) is None}.values())
    episodes = [Episode(f"open/{task.id}", task, 0, world=ctx.seed("curriculum", task.id)) for task in missing]
    nobody = RandomPolicy()
    played = await play_in_batches(
        ctx, None, episodes, ctx.envs.source.environment, lambda task: nobody, rules=Rules(max_steps=0), phase=PHASE
    )
    refuse_total_failure(played, PHASE)
    opened = [one for one in played if one.final is not None]
    ctx.meter.count(len(opened), browser=ctx.envs.in_browser(*ctx.envs.task_settings), evaluation=False)
    for failure in failures(played):
        ctx.tell(events.Failure(where=PHASE, error=failure))
    known.add(opened)
    return opened


def as_opened(tasks: Sequence[Task], known: StartPages) -> list[Trajectory]:
    """The known first pages of tasks as episodes without a step, each page once."""
    return [
        Trajectory(f"open/{task.id}", task, (), page, "real", "max-steps")
        for task in {start_key(task): task for task in tasks}.values()
        if (page := known(task)) is not None
    ]
