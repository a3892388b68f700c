"""Demonstrations: scripted experts play a few training tasks in the real environment.

With `data.experts = "few"` these are all the expert data of a run: SFT, its longer controls, expert mixing and the
behaviour-cloning term see the same ones. `"all"` (the paper's looser setting) adds an expert for every RL task.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dynaweb import events
from dynaweb.errors import MissingError, TrainingError
from dynaweb.loop.experts import by_task
from dynaweb.loop.players import ExpertPlayer
from dynaweb.loop.rollout import Episode, Rules, refuse_total_failure
from dynaweb.loop.tasks import one_per_template
from dynaweb.loop.verdicts import grading, success_of
from dynaweb.loop.waves import play_in_waves
from dynaweb.types import Task, Trajectory

if TYPE_CHECKING:
    from dynaweb.loop.workspace import Made, Workspace
    from dynaweb.protocols import TaskSource
    from dynaweb.runs import Stage

MOST = 16_384
"""Most tasks that reinforcement learning draws before its first update, which takes seconds; a longer run plays them
again."""
SLACK = 2
"""Steps that an expert may take beyond the longest best case."""
POOL = 256
"""Smallest number of training tasks that are drawn: enough to hold one of each template."""


def training_tasks(ws: Workspace, count: int) -> list[Task]:
    """At least `count` training tasks, templates in rotation: demonstrations, exploration and RL draw from them.

    Each stage asks for its own number, so that no stage depends on the settings of another.
    """
    return ws.tasks("train", max(POOL, count))


def rl_tasks(ws: Workspace) -> list[Task]:
    """The training tasks of reinforcement learning: one for each place of each update, `MOST` at most."""
    return training_tasks(ws, min(MOST, ws.recipe.rl.updates * ws.recipe.rl.tasks))


def pool_key(ws: Workspace) -> dict[str, int]:
    """What cache keys hold where `MOST` limits the tasks; runs that draw fewer do not depend on it."""
    return {"pool": MOST} if ws.recipe.rl.updates * ws.recipe.rl.tasks > MOST else {}


async def demos(ws: Workspace) -> Made:
    """Stage `demos`: the demonstrations that SFT sees."""
    tasks = one_per_template(scripted(ws, training_tasks(ws, ws.recipe.data.demos)), ws.recipe.data.demos)
    made = await _played(ws, tasks, ws.key("data.demos", "data.max_best_steps", tasks=ws.task_key, part="few"))
    ws.keep(made, "demos")
    return made


async def no_demos(ws: Workspace) -> Made:
    """Stage `demos` of a run that learns from none: no episode, and no need for a scripted expert."""

    async def body(stage: Stage) -> None:
        save_episodes(stage, [])

    return await ws.stage("demos", ws.key(part="none"), body)


async def all_experts(ws: Workspace, few: Made) -> Made:
    """The expert data of RL and of the SFT controls: the demonstrations, or with `all` an expert for each RL task."""
    if ws.recipe.data.experts == "few":
        return few
    key = ws.key("data.max_best_steps", "rl.updates", "rl.tasks", tasks=ws.task_key, part="all", **pool_key(ws))
    made = await _played(ws, scripted(ws, rl_tasks(ws)), key)
    ws.keep(made, "experts")
    return made


def scripted(ws: Workspace, tasks: Sequence[Task]) -> list[Task]:
    """The tasks that have a scripted expert. Raises `MissingError` when none has."""
    found = [task for task in tasks if has_expert(ws.source, task)]
    if not found:
        name, _ = ws.task_settings
        raise MissingError(
            f"environment {name!r} has no scripted expert for any of {len(tasks)} training tasks, so there is nothing "
            "to demonstrate; evaluate a policy of your own with --policy DIR, or use an environment with experts"
        )
    return found


def has_expert(source: TaskSource, task: Task) -> bool:
    """Whether the environment brings a scripted expert for a task."""
    try:
        source.expert(task)
    except MissingError:
        return False
    return True


async def _played(ws: Workspace, tasks: Sequence[Task], key: str) -> Made:
    async def body(stage: Stage) -> None:
        played = await play_experts(ws, stage, tasks)
        save_episodes(stage, played)
        for trajectory in played:
            ws.tell(events.Rollout("demos", trajectory))
            if success_of(trajectory) != 1.0:
                ws.tell(events.Failure(where=f"expert of {trajectory.task.id}", error=why_failed(trajectory)))
        if not by_task(played):
            raise TrainingError(f"no expert succeeded on any of {len(tasks)} tasks; the first: {why_failed(played[0])}")

    return await ws.stage("demos", key, body, settings=ws.recipe.settings("run.seed", "data"), resumable=True)


async def play_experts(ws: Workspace, stage: Stage, tasks: Sequence[Task]) -> list[Trajectory]:
    """One expert episode per task, graded by the environment."""
    episodes = [Episode(f"expert/{i}/{task.id}", task, ws.seed("demos", task.id)) for i, task in enumerate(tasks)]
    played = await play_in_waves(
        ws,
        stage,
        episodes,
        ws.source.environment,
        lambda task: ExpertPlayer(ws.source.expert(task)),
        rules=Rules(ws.recipe.data.max_best_steps + SLACK, source="expert", invalid_ends=True),
        phase="demos",
        finish=grading(ws.source),
    )
    refuse_total_failure(played, "demonstrations")
    return played


def why_failed(trajectory: Trajectory) -> str:
    """Why an episode did not succeed, in words."""
    verdict = trajectory.info.get("verdict") or {}
    last = trajectory.steps[-1].error if trajectory.steps else ""
    return str(trajectory.info.get("failure") or last or verdict.get("why") or f"it ended by {trajectory.end}")


def save_episodes(stage: Stage, episodes: Sequence[Trajectory]) -> None:
    """Write episodes into a stage's folder."""
    from dynaweb.data.store import TrajectoryStore
    from dynaweb.loop.workspace import EPISODES

    path = stage.folder / EPISODES
    path.unlink(missing_ok=True)
    TrajectoryStore(path).append(episodes)
