"""Episodes of a stage in waves, each written to the stage's scratch: what Ctrl-C or a kill costs is one wave.

A wave is played by itself, so the batches that engines see, and with them every bit of the result, are the same
whether a stage ran through or went on from its finished waves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from dynaweb.errors import CheckpointError
from dynaweb.loop.rollout import Episode, Finish, LiveEpisodes, Rules, failures, play_all

if TYPE_CHECKING:
    from pathlib import Path

    from dynaweb.loop.players import PlayerFor
    from dynaweb.loop.workspace import Workspace
    from dynaweb.protocols import Environment
    from dynaweb.runs import Stage
    from dynaweb.types import Trajectory

ROUNDS = 4
"""Episodes of one wave for each environment that is open at once."""
WAVES = "waves"


async def play_in_waves(
    ws: Workspace,
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
) -> list[Trajectory]:
    """`play_all` over `web.contexts` environments, wave after wave; waves that an earlier attempt finished are read.

    A wave in which nothing could be played is not kept: the next attempt may find the browser mended. Without a `stage`
    nothing is kept. `evaluation` says what the steps are counted as.
    """
    size = ROUNDS * ws.recipe.web.contexts
    waves = [episodes[start : start + size] for start in range(0, len(episodes), size)]
    ready = [_read(stage, number, wave) for number, wave in enumerate(waves)]
    done = sum(len(played) for played in ready if played is not None)
    on_done = ws.on_episode(phase, len(episodes), done=done, evaluation=evaluation)
    result: list[Trajectory] = []
    for number, wave in enumerate(waves):
        played = ready[number]
        if played is None:
            played = await play_all(
                wave,
                environment,
                player_for,
                rules=rules,
                slots=ws.recipe.web.contexts,
                lockstep=lockstep,
                finish=finish,
                on_done=on_done,
            )
            if stage is not None and len(failures(played)) < len(played):
                _write(_path(stage, number), played)
                ws.remember_cost(stage)
        result += played
    return result


def _path(stage: Stage, number: int) -> Path:
    return stage.scratch / WAVES / f"{number:04d}.jsonl.gz"


def _read(stage: Stage | None, number: int, wave: Sequence[Episode]) -> list[Trajectory] | None:
    from dynaweb.data.store import TrajectoryStore

    if stage is None or not _path(stage, number).exists():
        return None
    played = list(TrajectoryStore(_path(stage, number)))
    if [trajectory.id for trajectory in played] != [episode.id for episode in wave]:
        raise CheckpointError(f"{_path(stage, number)} does not hold the {len(wave)} episodes of its wave")
    return played


def _write(path: Path, played: Sequence[Trajectory]) -> None:
    """All of a wave or nothing."""
    from dynaweb.data.store import TrajectoryStore

    path.parent.mkdir(exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    part.unlink(missing_ok=True)
    TrajectoryStore(part).append(played)
    part.replace(path)
