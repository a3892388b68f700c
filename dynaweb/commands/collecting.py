"""Demonstrations that are made here: a model behind a server or a person plays training tasks (`dynaweb collect --by`).

They go straight into a trajectory store, each as it ends, and a task that has one there is not played again. So there
is no stage to cache: what is there is what the store holds.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dynaweb import events
from dynaweb.data.demonstrations import Only, passes, unusable
from dynaweb.data.images import ImageStore, images_next_to, pictures_of
from dynaweb.data.store import SUFFIX, TrajectoryStore, existing_trajectories
from dynaweb.errors import ConfigError, hint
from dynaweb.judges.reward import grading, judge_all
from dynaweb.pipeline.judge import make_judge
from dynaweb.report.summary import StageResult
from dynaweb.rollout.agents import SERVER, Player
from dynaweb.rollout.episode import Episode, Rules, play_all, refuse_total_failure
from dynaweb.rollout.human import GivenUp, HumanPlayer
from dynaweb.runs.cache import IMAGES
from dynaweb.stages.demos import training_tasks
from dynaweb.stages.evaluate import server_policy

if TYPE_CHECKING:
    from dynaweb.pipeline.context import RunContext
    from dynaweb.types import Trajectory

HUMAN = "human"
COLLECTED = "collected"


@dataclass(frozen=True, slots=True)
class Terminal:
    """How a person is shown something, and asked for a line."""

    say: Callable[[str], None]
    ask: Callable[[str], str]


def makes_demonstrations(by: str) -> bool:
    """Whether a player of `dynaweb collect --by` leaves whole episodes, not transitions."""
    return by == HUMAN or by.startswith(SERVER)


def check_player(by: str) -> None:
    """Raise `ConfigError` for a player that makes no demonstrations."""
    if not makes_demonstrations(by) or by == SERVER:
        raise ConfigError(f"no player is called {by!r}; {hint(by, (HUMAN, f'{SERVER}MODEL'))}")


def check_store(store: Path | None) -> None:
    """Raise `ConfigError` for a file that holds transitions, `CheckpointError` for one that is no store."""
    if store is not None and store.exists():
        existing_trajectories(store)


async def demonstrate(
    ctx: RunContext, by: str, *, store: Path | None, only: Only | None, terminal: Terminal
) -> StageResult:
    """Play the first `explore.episodes` training tasks of which the store has no episode, and add what was played.

    Episodes are graded by the environment as they end; `only` leaves out those that are no success by the environment's
    check, or by the recipe's judge. A person may give up, and what was played before is there.
    """
    assert ctx.folder is not None  # every job here runs in one
    explore = ctx.recipe.explore
    target = TrajectoryStore(store or ctx.folder.trajectories / f"{COLLECTED}{SUFFIX}")
    images = images_next_to(store) if store is not None else ImageStore(ctx.folder.path / IMAGES)
    present = {trajectory.task.id for trajectory in target}
    drawn = training_tasks(ctx, explore.episodes, once=True)[: explore.episodes]
    tasks = [task for task in drawn if task.id not in present]
    player, spent = _player(ctx, by, terminal)
    advance = ctx.on_episode("collect", len(tasks))
    played: list[Trajectory] = []
    added = 0

    def keep(batch: list[Trajectory]) -> None:
        nonlocal added
        chosen = [one for one in batch if only is None or passes(one, only)]
        ctx.images.share((image for one in chosen for image in pictures_of(one)), images.folder)
        added += target.append(chosen)

    def finished(trajectory: Trajectory) -> None:
        played.append(trajectory)
        if only != "judged" and trajectory.end != "infrastructure":
            keep([trajectory])
        advance(trajectory)
        ctx.tell(events.Rollout("collect", trajectory))

    with suppress(GivenUp):
        await play_all(
            [Episode(f"{COLLECTED}/{by}/{task.id}", task, ctx.seed(COLLECTED, by, task.id)) for task in tasks],
            ctx.envs.source.environment,
            lambda task: player,
            rules=Rules(explore.steps),
            slots=1 if by == HUMAN else ctx.recipe.web.contexts,
            finish=grading(ctx.envs.source),
            on_done=finished,
        )
    refuse_total_failure(played, "demonstrations")
    if only == "judged":
        model = ctx.models.load()
        judge = make_judge(ctx, ctx.models.engine(model), model.format)
        keep(await judge_all(judge, [one for one in played if one.end != "infrastructure"]))
    usable = sum(not unusable(one) for one in target)
    counts = {"played": len(played), "added": added, "episodes": len(target), "usable": usable}
    return StageResult("collect", ctx.folder.path, metrics={**counts, **spent(), "store": str(target.path)})


def _player(ctx: RunContext, by: str, terminal: Terminal) -> tuple[Player, Callable[[], dict[str, Any]]]:
    """Who plays, and what it has cost so far."""
    if by == HUMAN:
        return HumanPlayer(terminal.say, terminal.ask), dict
    policy = server_policy(ctx, by, temperature=ctx.recipe.explore.temperature)
    stats = policy.engine.stats
    return policy, lambda: {"requests": stats.requests, "new tokens": stats.new_tokens, "cost": stats.cost}
