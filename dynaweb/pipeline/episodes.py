"""Episodes of a stage in batches, each written to the stage's scratch: what Ctrl-C or a kill costs is one batch.

A batch is played by itself, so what engines compute together, and with them every bit of the result, are the same
whether a stage ran through or went on from its finished batches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from dynaweb.errors import CheckpointError
from dynaweb.pipeline.artifacts import EPISODES
from dynaweb.rollout.episode import Episode, Finish, LiveEpisodes, Rules, failures, play_all

if TYPE_CHECKING:
    from pathlib import Path

    from dynaweb.pipeline.context import RunContext
    from dynaweb.protocols import Environment
    from dynaweb.rollout.agents import PlayerFor
    from dynaweb.runs import Stage
    from dynaweb.types import Trajectory

ROUNDS = 4
"""Episodes of one batch for each environment that is open at once."""
BATCHES = "batches"
JOURNAL = "episodes.jsonl.gz"


async def play_in_batches(
    ctx: RunContext,
    stage: Stage | None,
    episodes: Sequence[Episode],
    environment: Callable[[], Environment],
    player_for: PlayerFor,
    *,
    rules: Rules,
    phase: str,
    lockstep: LiveEpisodes | None = None,
    finish: Finish | None = None,
    evaluation: bool = False,
    by_task: bool = False,
) -> list[Trajectory]:
    """`play_all` over `web.contexts` environments, in batches; those that an earlier attempt finished are read.

    A batch in which nothing could be played is not kept: the next attempt may find the browser mended. Without a
    `stage` nothing is kept. `evaluation` says what the steps are counted as. With `by_task` every episode is kept as it
    ends, in one batch: a kill costs the running episodes only, and those that the infrastructure broke are played
    again; model calls are then computed together with those of other episodes than before, which may change a last bit.
    """
    from dynaweb.data.store import TrajectoryStore

    if by_task and stage is not None:
        journal = Journal(stage, episodes)
        report = ctx.on_episode(phase, len(episodes), done=len(journal.played), evaluation=evaluation)

        def keep(trajectory: Trajectory) -> None:
            journal.add(trajectory)
            report(trajectory)
            ctx.remember_cost(stage)

        return journal.all(
            await play_all(
                journal.left,
                environment,
                player_for,
                rules=rules,
                slots=ctx.recipe.web.contexts,
                lockstep=lockstep,
                finish=finish,
                on_done=keep,
            )
        )
    size = ROUNDS * ctx.recipe.web.contexts
    batches = [episodes[start : start + size] for start in range(0, len(episodes), size)]
    ready = [_read(stage, number, batch) for number, batch in enumerate(batches)]
    done = sum(len(played) for played in ready if played is not None)
    on_done = ctx.on_episode(phase, len(episodes), done=done, evaluation=evaluation)
    result: list[Trajectory] = []
    for number, batch in enumerate(batches):
        played = ready[number]
        if played is None:
            played = await play_all(
                batch,
                environment,
                player_for,
                rules=rules,
                slots=ctx.recipe.web.contexts,
                lockstep=lockstep,
                finish=finish,
                on_done=on_done,
            )
            if stage is not None and len(failures(played)) < len(played):
                TrajectoryStore.write(_path(stage, number), played)
                ctx.remember_cost(stage)
        result += played
    return result


def save_episodes(stage: Stage, episodes: Sequence[Trajectory]) -> None:
    """Write episodes into a stage's folder; no file for none."""
    from dynaweb.data.store import TrajectoryStore

    path = stage.folder / EPISODES
    path.unlink(missing_ok=True)
    TrajectoryStore(path).append(episodes)


class Journal:
    """The episodes of a stage, each written as it ends."""

    def __init__(self, stage: Stage, episodes: Sequence[Episode]) -> None:
        """Reads what an earlier attempt has finished; what the infrastructure broke counts as not played."""
        from dynaweb.data.store import TrajectoryStore

        stage.scratch.mkdir(exist_ok=True)
        self.episodes = episodes
        self._store = TrajectoryStore(stage.scratch / JOURNAL)
        wanted = {episode.id for episode in episodes}
        self.played = {t.id: t for t in self._store if t.id in wanted and t.end != "infrastructure"}

    @property
    def left(self) -> list[Episode]:
        """The episodes that are still to play."""
        return [episode for episode in self.episodes if episode.id not in self.played]

    def add(self, trajectory: Trajectory) -> None:
        """Keep a finished episode."""
        self._store.append([trajectory])

    def all(self, new: Sequence[Trajectory]) -> list[Trajectory]:
        """Those of earlier attempts and the new ones, in the order of the episodes."""
        episodes = self.played | {trajectory.id: trajectory for trajectory in new}
        return [episodes[episode.id] for episode in self.episodes]


def _path(stage: Stage, number: int) -> Path:
    return stage.scratch / BATCHES / f"{number:04d}.jsonl.gz"


def _read(stage: Stage | None, number: int, batch: Sequence[Episode]) -> list[Trajectory] | None:
    from dynaweb.data.store import TrajectoryStore

    if stage is None or not _path(stage, number).exists():
        return None
    played = list(TrajectoryStore(_path(stage, number)))
    if [trajectory.id for trajectory in played] != [episode.id for episode in batch]:
        raise CheckpointError(f"{_path(stage, number)} does not hold the {len(batch)} episodes of its batch")
    return played
