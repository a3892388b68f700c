"""Exploration: the SFT policy, loosened, walks the training sites in the real environment.

It leaves unrewarded transitions for the world model and the real start pages of dreams. No expert takes part, and
nobody looks at whether tasks succeed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dynaweb import events
from dynaweb.loop.demos import save_episodes, training_tasks
from dynaweb.loop.players import MixedPolicy, ModelPolicy
from dynaweb.loop.rollout import Episode, Rules, refuse_total_failure
from dynaweb.loop.waves import play_in_waves

if TYPE_CHECKING:
    from dynaweb.loop.workspace import Made, Workspace
    from dynaweb.runs import Stage


async def explore(ws: Workspace, sft: Made) -> Made:
    """Stage `explore`: `explore.episodes` episodes over the training tasks."""

    async def body(stage: Stage) -> None:
        recipe = ws.recipe
        model = ws.load(sft.model)
        policy = ModelPolicy(
            ws.engine(model),
            model.format,
            temperature=recipe.explore.temperature,
            max_new_tokens=recipe.rl.max_new_tokens,
        )
        tasks = training_tasks(ws, recipe.explore.episodes)[: recipe.explore.episodes]
        episodes = [Episode(f"explore/{i}", task, ws.seed("explore", i)) for i, task in enumerate(tasks)]
        mixed = MixedPolicy(policy, recipe.explore.random)
        played = await play_in_waves(
            ws,
            stage,
            episodes,
            ws.source.environment,
            lambda task: mixed,
            rules=Rules(recipe.explore.steps),
            phase="explore",
            lockstep=ws.lockstep,
        )
        refuse_total_failure(played, "exploration")
        save_episodes(stage, played)
        for trajectory in played:
            ws.tell(events.Rollout("explore", trajectory))

    key = ws.key("explore", "rl.max_new_tokens", "web.contexts", "data.max_best_steps", tasks=ws.task_key, sft=sft.key)
    made = await ws.stage("explore", key, body, settings=ws.recipe.settings("run.seed", "explore"), resumable=True)
    ws.keep(made, "explore")
    return made
