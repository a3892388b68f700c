"""Graded real episodes: what judges are fitted and audited on, and what offline learning learns from.

The SFT policy plays, sampled, and every episode gets the environment's verdict while its environment still stands.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dynaweb import events
from dynaweb.loop.demos import save_episodes, training_tasks
from dynaweb.loop.players import ModelPolicy
from dynaweb.loop.rollout import Episode, Rules, refuse_total_failure
from dynaweb.loop.verdicts import grading
from dynaweb.loop.waves import play_in_waves

if TYPE_CHECKING:
    from dynaweb.loop.workspace import Made, Workspace
    from dynaweb.runs import Stage
    from dynaweb.types import Task


async def graded_rollouts(ws: Workspace, policy: Made, *, split: str, count: int, temperature: float) -> Made:
    """Stage `graded`: `count` episodes of a policy on tasks of a split, with the environment's verdicts.

    A longer stage begins with the episodes of a shorter one, as far as the tasks allow.
    """
    recipe = ws.recipe

    async def body(stage: Stage) -> None:
        tasks = _tasks(ws, split, count)
        model = ws.load(policy.model)
        player = ModelPolicy(
            ws.engine(model), model.format, temperature=temperature, max_new_tokens=recipe.rl.max_new_tokens
        )
        played = await play_in_waves(
            ws,
            stage,
            [Episode(f"graded/{split}/{i}", task, ws.seed("graded", split, i)) for i, task in enumerate(tasks)],
            ws.source.environment,
            lambda task: player,
            rules=Rules(recipe.dream.longest, invalid_ends=recipe.dream.invalid_ends),
            phase="graded",
            lockstep=ws.lockstep,
            finish=grading(ws.source),
        )
        refuse_total_failure(played, "graded rollouts")
        save_episodes(stage, played)
        for trajectory in played:
            ws.tell(events.Rollout("graded", trajectory))

    told = {"split": split, "episodes": count, "temperature": temperature}
    parts = ("policy", "rl.max_new_tokens", "web.contexts", "data.max_best_steps", "dream.horizon", "dream.max_horizon")
    key = ws.key(*parts, "dream.invalid_ends", tasks=ws.task_key, policy=policy.key, model=ws.model_key, **told)
    made = await ws.stage("graded", key, body, settings=ws.recipe.settings("run.seed") | told, resumable=True)
    ws.keep(made, "graded" if split == "train" else f"graded-{split}")
    return made


def _tasks(ws: Workspace, split: str, count: int) -> list[Task]:
    found = training_tasks(ws, count) if split == "train" else ws.tasks(split, count)
    return found[:count]
