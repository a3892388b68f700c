"""Demonstrations: scripted experts play a few training tasks in the real environment, or a file holds them.

With `data.experts = "few"` these are all the expert data of a run: SFT, its longer controls, expert mixing and the
behaviour-cloning term see the same ones. `"all"` (the paper's looser setting) adds an expert for every RL task. With
demonstrations from a file (`data.demos`) no scripted expert is asked for anything.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from dynaweb import events
from dynaweb.config.keys import digest
from dynaweb.data.demonstrations import (
    HELD_OUT,
    UNJUDGED,
    Demonstrations,
    as_tasks_of,
    names_of,
    read_demonstrations,
    refused,
)
from dynaweb.data.images import images_of, pictures_of
from dynaweb.errors import ConfigError, MissingError, TrainingError
from dynaweb.judges.reward import grading, success_of
from dynaweb.pipeline.episodes import play_in_batches, save_episodes
from dynaweb.pipeline.keys import stage_key
from dynaweb.protocols import Catalogue
from dynaweb.rollout.agents import ExpertPlayer
from dynaweb.rollout.episode import Episode, Rules, refuse_total_failure, why_failed
from dynaweb.rollout.group import by_task
from dynaweb.rollout.tasks import known, one_per_template
from dynaweb.runs import write_json
from dynaweb.types import Task, Trajectory

if TYPE_CHECKING:
    from dynaweb.pipeline.artifacts import Artifact, StageKey
    from dynaweb.pipeline.context import RunContext
    from dynaweb.protocols import TaskSource
    from dynaweb.runs import Stage

log = logging.getLogger("dynaweb")

READ = "demos.json"
"""What a stage that read its demonstrations says of them: `episodes`, `unjudged`, `dropped` by reason, and `playable`,
the ids of their tasks that the environment can play."""
MOST = 16_384
"""Most tasks that reinforcement learning draws before its first update, which takes seconds; a longer run plays them
again."""
SLACK = 2
"""Steps that an expert may take beyond the longest best case."""
POOL = 256
"""Smallest number of training tasks that are drawn: enough to hold one of each template."""


async def demos(ctx: RunContext) -> Artifact:
    """Stage `demos`: the demonstrations that SFT sees."""
    wanted = ctx.recipe.data.demos
    if isinstance(wanted, str):
        artifact = await _read(ctx, wanted)
    else:
        artifact = await _played(ctx, "demos", _to_demonstrate(ctx, wanted), stage_key(ctx, "demos"))
    ctx.keep(artifact, "demos")
    return artifact


async def no_demos(ctx: RunContext) -> Artifact:
    """Stage `demos` of a run that learns from none: no episode, and no need for a scripted expert."""

    async def body(stage: Stage) -> None:
        save_episodes(stage, [])

    return await ctx.stage("demos", stage_key(ctx), body)


async def all_experts(ctx: RunContext, few: Artifact) -> Artifact:
    """Stage `experts`: the expert data of RL and of the SFT controls, with `data.experts = "all"` one for each RL task.

    Else, and where the demonstrations were read from a file, these are the demonstrations.
    """
    if ctx.recipe.data.experts == "few" or not learns(ctx) or playable(few) is not None:
        return few
    key = stage_key(ctx, "experts", **pool_key(ctx), **practice_key(ctx))
    artifact = await _played(ctx, "experts", scripted(ctx, rl_tasks(ctx)), key)
    ctx.keep(artifact, "experts")
    return artifact


async def play_experts(ctx: RunContext, stage: Stage, name: str, tasks: Sequence[Task]) -> list[Trajectory]:
    """One expert episode per task, graded by the environment."""
    episodes = [Episode(f"expert/{i}/{task.id}", task, ctx.seed("demos", task.id)) for i, task in enumerate(tasks)]
    played = await play_in_batches(
        ctx,
        stage,
        episodes,
        ctx.envs.source.environment,
        lambda task: ExpertPlayer(ctx.envs.source.expert(task)),
        rules=Rules(ctx.recipe.data.max_best_steps + SLACK, source="expert", invalid_ends=True),
        phase=name,
        finish=grading(ctx.envs.source),
    )
    refuse_total_failure(played, "demonstrations")
    return played


def plays_all_experts(ctx: RunContext) -> bool:
    """Whether the recipe has an expert played for every RL task: not where it reads its demonstrations."""
    return ctx.recipe.data.experts == "all" and learns(ctx) and not isinstance(ctx.recipe.data.demos, str)


def learns(ctx: RunContext) -> bool:
    """Whether anything of the run learns from demonstrations; else the model is used as it is."""
    recipe = ctx.recipe
    return bool(recipe.sft.steps or recipe.rl.updates or any(recipe.controls.sft_steps))


def training_tasks(ctx: RunContext, count: int, *, once: bool = False) -> list[Task]:
    """At least `count` training tasks, templates in rotation: demonstrations, exploration and RL draw from them.

    Each stage asks for its own number, so that no stage depends on the settings of another. Of a benchmark that has
    fewer, all: they are played again, except `once`, where a warning says that there are fewer.
    """
    return ctx.envs.tasks("train", max(POOL, count), enough=count if once else 0)


def practice_tasks(ctx: RunContext, count: int) -> list[Task]:
    """At least `count` training tasks to play after SFT; with `data.practice = "new"` none that is demonstrated.

    Of a benchmark that has fewer, all of these. Raises `ConfigError` where every task is demonstrated.
    """
    if ctx.recipe.data.practice == "all":
        return training_tasks(ctx, count)
    shown = _demonstrated(ctx)
    tasks = [task for task in training_tasks(ctx, count + len(shown)) if task.id not in shown]
    if not tasks:
        raise ConfigError(
            f'data.practice = "new": all {len(shown)} training tasks are demonstrated, and none is left to practise; '
            'fewer data.demos, or data.practice = "all"'
        )
    return tasks


def practice_key(ctx: RunContext) -> dict[str, str]:
    """What cache keys of stages that play `practice_tasks` hold of demonstrations; {} where nothing depends on them."""
    if ctx.recipe.data.practice == "all":
        return {}
    return {"demonstrated": digest(sorted(_demonstrated(ctx)))}


def _to_demonstrate(ctx: RunContext, wanted: int) -> list[Task]:
    """The tasks that scripted experts play for SFT."""
    return one_per_template(scripted(ctx, training_tasks(ctx, wanted, once=True)), wanted)


def _demonstrated(ctx: RunContext) -> set[str]:
    """The ids of the environment's tasks that the demonstrations for SFT are of."""
    wanted = ctx.recipe.data.demos
    if isinstance(wanted, str):
        # Keys and stages ask for them again and again, and a store may be large.
        if ctx.demonstrated is None:
            ctx.demonstrated = demonstrations_of(ctx, wanted)[1]
        return ctx.demonstrated
    return {task.id for task in _to_demonstrate(ctx, wanted)} if learns(ctx) else set()


def rl_tasks(ctx: RunContext) -> list[Task]:
    """The training tasks of reinforcement learning: one for each place of each update, `MOST` at most."""
    return practice_tasks(ctx, _pool(ctx))


def _pool(ctx: RunContext) -> int:
    return min(MOST, ctx.recipe.rl.updates * ctx.recipe.rl.tasks)


def pool_key(ctx: RunContext) -> dict[str, int]:
    """What cache keys hold where `MOST` limits the tasks; runs that draw fewer do not depend on it."""
    return {"pool": MOST} if ctx.recipe.rl.updates * ctx.recipe.rl.tasks > MOST else {}


def scripted(ctx: RunContext, tasks: Sequence[Task]) -> list[Task]:
    """The tasks that have a scripted expert. Raises `MissingError` when none has."""
    solvable = [task for task in tasks if has_expert(ctx.envs.source, task)]
    if not solvable:
        name, _ = ctx.envs.task_settings
        raise MissingError(
            f"environment {name!r} has no scripted expert for any of {len(tasks)} training tasks, so there is nothing "
            "to demonstrate; give demonstrations of your own with data.demos=FILE, evaluate a policy of your own with "
            "--policy DIR, or use an environment with experts"
        )
    return solvable


def has_expert(source: TaskSource, task: Task) -> bool:
    """Whether the environment brings a scripted expert for a task."""
    try:
        source.expert(task)
    except MissingError:
        return False
    return True


def playable(demonstrations: Artifact) -> set[str] | None:
    """The tasks of demonstrations that were read which the environment can play; None: all, since it played them."""
    if not (demonstrations.folder / READ).exists():
        return None
    return set(demonstrations.data(READ)["playable"])


def demonstrations_of(ctx: RunContext, source: str) -> tuple[Demonstrations, set[str]]:
    """The usable episodes of a source as the run's tasks, and the ids of the environment's tasks among theirs.

    Raises `ConfigError` where none is usable, `MissingError` where there is no such source.
    """
    batch = read_demonstrations(source)
    ids = {name for one in batch.episodes for name in names_of(one.task.id)}
    matching = as_tasks_of(batch.episodes, _own_tasks(ctx, ids))
    batch.unsure = matching.unsure
    batch.episodes = [one for one in matching.episodes if one.task.split not in HELD_OUT]
    if n_held_out := len(matching.episodes) - len(batch.episodes):
        batch.dropped["its task is held out by the environment"] += n_held_out
    if not batch.episodes:
        raise ConfigError(refused(source, batch.dropped))
    return batch, matching.ids & {one.task.id for one in batch.episodes}


async def _read(ctx: RunContext, source: str) -> Artifact:
    """Stage `demos` of a run whose demonstrations are read."""

    async def body(stage: Stage) -> None:
        batch, same = demonstrations_of(ctx, source)
        episodes = batch.episodes
        save_episodes(stage, episodes)
        if ctx.recipe.observation.pictures:
            bring_pictures(ctx, source, episodes)
        for reason, count in batch.dropped.most_common():
            log.warning("data.demos: %d of %s are left out: %s", count, source, reason)
        for reason, count in batch.unsure.most_common():
            log.warning(
                "data.demos: %d of %s %s; they are imitated, as no task of the environment", count, source, reason
            )
        unjudged = sum(
            episode.facts.verdict is not None and episode.facts.verdict.why == UNJUDGED for episode in episodes
        )
        counts = {"episodes": len(episodes), "unjudged": unjudged, "dropped": dict(batch.dropped)}
        write_json(stage.folder / READ, {**counts, "playable": sorted(same)})
        for trajectory in episodes:
            ctx.tell(events.Rollout("demos", trajectory))

    # Which tasks are the same depends on those that reinforcement learning draws, unless all are listed.
    key = stage_key(ctx, "demos") if _listed(ctx) else stage_key(ctx, "demos", "experts", **pool_key(ctx))
    return await ctx.stage("demos", key, body)


def bring_pictures(ctx: RunContext, source: str, episodes: Sequence[Trajectory]) -> None:
    """Have the pictures of demonstrations among those of the run's stages; says how many are not where they should."""
    path, images = Path(source).expanduser(), [image for episode in episodes for image in pictures_of(episode)]
    missing = images_of(path).share(images, ctx.images.folder) if path.exists() else len(images)
    pages = sum(len(episode.steps) for episode in episodes)
    if missing or not images:
        log.warning(
            "data.demos: %d of %d pictures of %s are missing or damaged (it has %d pages); observation.modality = %s "
            "wants them, which lie in images/ beside the store",
            *(missing, len(set(images)), source, pages, ctx.recipe.observation.modality),
        )


def _own_tasks(ctx: RunContext, ids: set[str]) -> list[Task]:
    """The environment's tasks that demonstrations may be of: training tasks, those with these ids, and where the
    environment lists its tasks, those that it holds out, of which nothing may be learned.

    None where it has no training tasks, as benchmarks: SFT needs none, and stages that do say so themselves.
    """
    source, longest = _listed(ctx), ctx.recipe.data.max_best_steps
    held_out = {task.id: task for split in ("validation", "test") for task in _all_of(source, split)}
    try:
        drawn = (
            source.catalogue("train")
            if source is not None
            else [*training_tasks(ctx, 0), *training_tasks(ctx, _pool(ctx))]
        )
        tasks = {task.id: task for task in drawn if task.best_steps is None or task.best_steps <= longest}
        for task_id in sorted(ids - tasks.keys()):
            if (task := known(ctx.envs.source, task_id)) is not None:
                tasks[task_id] = task
    except (ConfigError, MissingError) as error:
        log.warning("demonstrations are compared with no training task of the environment: %s", error)
        return list(held_out.values())
    return list((held_out | tasks).values())


def _listed(ctx: RunContext) -> Catalogue | None:
    """The environment where it lists its own tasks and brings no experts. Tasks of others are made as they are needed,
    on sites that no other task is on."""
    name, _ = ctx.envs.task_settings
    source = ctx.envs.source
    has_experts = "expert" in ctx.plugins.find("env", name).spec.capabilities
    return source if isinstance(source, Catalogue) and not has_experts else None


def _all_of(source: Catalogue | None, split: str) -> list[Task]:
    """The tasks with a goal of a split, none where there is no such split: the evaluation says so."""
    with suppress(ConfigError, MissingError):
        return [task for task in source.catalogue(split) if task.intent] if source is not None else []
    return []


async def _played(ctx: RunContext, name: str, tasks: Sequence[Task], key: StageKey) -> Artifact:
    async def body(stage: Stage) -> None:
        played = await play_experts(ctx, stage, name, tasks)
        save_episodes(stage, played)
        for trajectory in played:
            ctx.tell(events.Rollout(name, trajectory))
            if success_of(trajectory) != 1.0:
                ctx.tell(events.Failure(where=f"expert of {trajectory.task.id}", error=why_failed(trajectory)))
        if not by_task(played):
            raise TrainingError(f"no expert succeeded on any of {len(tasks)} tasks; the first: {why_failed(played[0])}")

    return await ctx.stage(name, key, body, resumable=True)
