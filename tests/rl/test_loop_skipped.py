"""Updates without a step: told of where some were skipped, an error where all were."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trainer_kit

from dynaweb import events
from dynaweb.config import resolve
from dynaweb.errors import DivergedError, TrainingError
from dynaweb.pipeline.artifacts import Artifact, Artifacts
from dynaweb.pipeline.context import RunContext
from dynaweb.pipeline.fit import count_skipped
from dynaweb.plugin.registry import current
from dynaweb.protocols import LossInput, LossOutput, TokenRow
from dynaweb.rl.checkpoints import Checkpointed, Checkpoints, History
from dynaweb.runs import StageCache, write_json
from dynaweb.runs.names import UPDATES
from dynaweb.stages.arms import arms, updates_of
from dynaweb.types import Prompt

ROWS = [TokenRow(Prompt((1, 2, 3)), (4, 5), 0), TokenRow(Prompt((1, 2)), (6, 7), 1)]


class Sometimes:
    """An optimizer whose loss is not finite where it is told so."""

    needs_trajectory_ratio = False
    factor = 1.0

    def advantages(self, rewards: Any, groups: Any) -> list[float]:
        return [1.0, -1.0]

    def loss(self, batch: LossInput) -> LossOutput:
        return LossOutput(-(batch.logp_RT * batch.mask_RT).sum() * self.factor)


def after(*factors: float) -> Any:
    """A trainer after one update for each factor of the loss."""
    trainer, optimizer = trainer_kit.trainer_of(), Sometimes()
    for optimizer.factor in factors:
        trainer.policy_step(ROWS, optimizer, [1.0, -1.0])
    return trainer


def counted(trainer: Any) -> tuple[int, list[Any]]:
    told: list[Any] = []
    return count_skipped(cast("Any", SimpleNamespace(tell=told.append)), trainer, "rl"), told


@pytest.mark.parametrize("odd", [float("nan"), float("inf")])
def test_a_stage_without_one_sound_update_is_an_error(odd: float) -> None:
    for count in (1, 2):
        with pytest.raises(TrainingError, match=rf"stage rl learned nothing: {count} of {count} updates were skipped"):
            counted(after(*[odd] * count))


def test_some_skipped_updates_are_told_and_none_is_silent() -> None:
    skipped, told = counted(after(1.0, float("nan"), 1.0))
    assert skipped == 1
    assert told == [
        events.Failure(where="rl", error="1 of 3 updates were skipped: their loss or gradient was not finite")
    ]
    assert counted(after(1.0)) == (0, [])
    assert counted(after()) == (0, [])


LIVE, DEAD = {"rows": 3.0, "rows_skipped": 1.0}, {"rows": 3.0, "rows_skipped": 3.0}


@pytest.mark.parametrize(
    ("steps", "unmoved"),
    [
        ([(LIVE, 0.0)], 1),
        ([(DEAD, 1.0), (LIVE, 0.0), (LIVE, 0.0)], 2),
        ([(DEAD, 1.0), (LIVE, 0.5), (LIVE, 0.0)], 0),
        ([(DEAD, 1.0), (DEAD, 0.0)], 0),
        ([({}, 1.0)], 0),
    ],
)
def test_a_stage_that_learned_nothing_from_its_rollouts_is_an_error(
    steps: list[tuple[dict[str, float], float]], unmoved: int
) -> None:
    """Whatever the behaviour-cloning term has moved in updates without a live group."""
    history = History()
    for metrics, updated in steps:
        history.stepped({**metrics, "updated": updated})
    if not unmoved:
        return history.refuse_unmoved("rl")
    with pytest.raises(TrainingError, match=rf"rl learned nothing from its rollouts: in all {unmoved} updates"):
        history.refuse_unmoved("rl")


@pytest.mark.parametrize(
    ("dead", "warned"),
    [([1.0] * 12, [9]), ([1.0] * 9, []), ([0.8] * 12, []), ([1.0] * 9 + [0.0], [9]), ([0.5] * 10 + [1.0] * 10, [])],
)
def test_rollouts_that_teach_nothing_are_told_once(dead: list[float], warned: list[int]) -> None:
    history = History()
    said = [history.played({"reward": 0.5, "dead_groups": share}, 0.005) for share in dead]
    assert [update for update, words in enumerate(said) if words] == warned
    for update in warned:
        assert f"in {sum(dead[:10]) / 10:.0%} of the groups" in said[update]
        assert all(words in said[update] for words in ("0.005 nats", "sft.steps", "rl.temperature", "rl.sampling"))
    unmeasured = History()
    told = [unmeasured.played({"reward": 0.5, "dead_groups": 1.0}, math.nan) for _ in range(10)][-1]
    assert "nats" not in told and "sft.steps" in told


@pytest.mark.parametrize(
    ("found", "text", "label"),
    [
        ({"done": 5, "planned": 5, "skipped": 0}, "5 updates", ""),
        ({"done": 5, "planned": 5}, "5 updates", ""),
        ({"done": 5, "planned": 5, "skipped": 2}, "5 updates, 2 skipped", " (5 updates, 2 skipped)"),
        ({"done": 3, "planned": 5, "skipped": 0}, "3 of 5 updates", " (3 of 5 updates)"),
        ({"done": 3, "planned": 5, "skipped": 1}, "3 of 5 updates, 1 skipped", " (3 of 5 updates, 1 skipped)"),
    ],
)
def test_the_table_says_how_many_were_skipped(found: dict[str, int], text: str, label: str, tmp_path: Path) -> None:
    write_json(tmp_path / UPDATES, found)
    ctx, trained = RunContext(resolve("dynaweb"), current(), StageCache(tmp_path)), Artifact("", tmp_path)
    main = arms(ctx, Artifacts(sft=trained, rl=trained))[-1]
    assert (updates_of(trained), main.label) == (text, f"DynaWeb{label}")


@pytest.mark.parametrize(
    ("error", "moves", "saved"),
    [(TrainingError("lost"), 0, 1), (TrainingError("lost"), 1, 0), (DivergedError("gone"), 0, 0)],
)
def test_only_sound_weights_become_the_last_checkpoint(
    error: Exception, moves: int, saved: int, tmp_path: Path
) -> None:
    """Not those that diverged, nor those of half an update."""
    written: list[int] = []
    trainer: Any = SimpleNamespace(steps=2, skipped=1, moves=2, save=lambda folder, keep: written.append(1))
    history = History(rewards=[0.5, 0.5, 0.5])
    policy: Any = None
    partners: list[Checkpointed] = [history]
    checkpoints = Checkpoints(tmp_path, trainer, policy, partners, per_update=1, keep=1)
    with pytest.raises(type(error)), checkpoints.guard(2, tmp_path / "none"):
        trainer.steps, trainer.skipped, trainer.moves = 3, 2, 2 + moves
        raise error
    assert len(written) == saved
    if saved:
        assert (trainer.steps, trainer.skipped) == (2, 1)  # what is done again is not counted before
        assert len(history.rewards) == 2
