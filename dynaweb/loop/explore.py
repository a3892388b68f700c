"""Exploration: the SFT policy, loosened, walks the training sites in the real environment.

It leaves unrewarded transitions for the world model and the real start pages of dreams. Nobody looks at whether tasks
succeed. Other players (`explore.player`) are for collecting data: experts, which would make the comparison with SFT
unequal, or random actions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dynaweb import events
from dynaweb.errors import ConfigError
from dynaweb.loop.demos import save_episodes, training_tasks
from dynaweb.loop.players import ExpertPlayer, MixedPolicy, ModelPolicy, Player, PlayerFor, RandomPolicy
from dynaweb.loop.rollout import Episode, Rules, refuse_total_failure
from dynaweb.loop.waves import play_in_waves

if TYPE_CHECKING:
    from dynaweb.loop.workspace import Made, Workspace
    from dynaweb.policy.formats import PromptFormat
    from dynaweb.protocols import Engine
    from dynaweb.runs import Stage


async def explore(ws: Workspace, sft: Made | None) -> Made:
    """Stage `explore`: `explore.episodes` episodes over the training tasks, played as `explore.player` says.

    `sft` holds the policy's weights; other players need none.
    """

    async def body(stage: Stage) -> None:
        recipe = ws.recipe
        count = recipe.explore.episodes
        tasks = training_tasks(ws, count)[:count]
        episodes = [Episode(f"explore/{i}", task, ws.seed("explore", i)) for i, task in enumerate(tasks)]
        played = await play_in_waves(
            ws,
            stage,
            episodes,
            ws.source.environment,
            _players(ws, sft),
            rules=Rules(recipe.explore.steps, source="expert" if recipe.explore.player == "expert" else "real"),
            phase="explore",
            lockstep=ws.lockstep,
        )
        refuse_total_failure(played, "exploration")
        save_episodes(stage, played)
        for trajectory in played:
            ws.tell(events.Rollout("explore", trajectory))

    upstream = {"sft": sft.key} if sft is not None else {}
    key = ws.key(
        "policy", "explore", "rl.max_new_tokens", "web.contexts", "data.max_best_steps", tasks=ws.task_key, **upstream
    )
    made = await ws.stage("explore", key, body, settings=ws.recipe.settings("run.seed", "explore"), resumable=True)
    ws.keep(made, "explore")
    return made


def _players(ws: Workspace, sft: Made | None) -> PlayerFor:
    """Who plays each task, with the share of random actions that `explore.random` says."""
    explore = ws.recipe.explore
    if explore.player == "random":
        everywhere = RandomPolicy()
        return lambda task: everywhere
    if explore.player == "expert":
        return lambda task: ExpertPlayer(ws.source.expert(task))
    if sft is None:
        raise ConfigError("explore.player is the SFT policy, which was not made; run that stage first")
    model = ws.load(sft.model)
    policy = loosened(ws, ws.engine(model), model.format)
    return lambda task: policy


def loosened(ws: Workspace, engine: Engine, prompts: PromptFormat) -> Player:
    """A policy as exploration plays it: sampled, with random actions in between."""
    recipe = ws.recipe
    policy = ModelPolicy(
        engine, prompts, temperature=recipe.explore.temperature, max_new_tokens=recipe.rl.max_new_tokens
    )
    return MixedPolicy(policy, recipe.explore.random)
