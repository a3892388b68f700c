"""What the trainer refuses and skips: updates that are not finite, batches that cannot be, models that cannot move."""

from __future__ import annotations

import logging
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import engine_kit as kit
import pytest
import torch
from trainer_kit import ADVANTAGES, WIDE, old_logps, trainer_of, weights

from dynaweb.errors import TrainingError
from dynaweb.protocols import Credit, LossInput, LossOutput, TokenRow
from dynaweb.types import Prompt
from dynaweb_opt_gspo.gspo import Gspo

pytestmark = pytest.mark.usefixtures("one_thread")


class Broken(Gspo):
    """An optimizer whose loss is nan, in value or only in its gradient."""

    def __init__(self, gradient_only: bool) -> None:
        super().__init__(WIDE)
        self._gradient_only = gradient_only

    def loss(self, batch: LossInput) -> LossOutput:
        logp = torch.where(batch.mask_RT, batch.logp_RT, 0.0)
        if self._gradient_only:
            return LossOutput((logp * 0).abs().sqrt().sum())
        return LossOutput(logp.sum() * math.nan)


@pytest.mark.parametrize("gradient_only", [False, True])
def test_updates_that_are_not_finite_are_skipped_and_three_in_a_row_stop(
    gradient_only: bool, caplog: pytest.LogCaptureFixture
) -> None:
    rows, trainer = kit.rows_of(1), trainer_of()
    trainer.supervised_step(rows)
    before = weights(trainer.model)
    broken = Broken(gradient_only)
    with caplog.at_level(logging.WARNING):
        for count in (1, 2):
            metrics = trainer.policy_step(rows, broken, ADVANTAGES)
            assert (metrics["updated"], metrics["skipped"]) == (0, count)
    assert "update 1 skipped" in caplog.text
    kit.same(weights(trainer.model), before, rtol=0, atol=0)
    assert trainer.supervised_step(rows)["updated"] == 1
    for _ in range(2):
        trainer.policy_step(rows, broken, ADVANTAGES)
    with pytest.raises(TrainingError, match="3 updates in a row"):
        trainer.policy_step(rows, broken, ADVANTAGES)


class OneBad(Gspo):
    """Unsound where trajectory 2 is: a loss that is nan, or a gradient that is."""

    def __init__(self, gradient_only: bool) -> None:
        super().__init__(WIDE)
        self._gradient_only = gradient_only

    def loss(self, batch: LossInput) -> LossOutput:
        out = super().loss(batch)
        bad = (batch.trajectory_R == 2)[:, None] & batch.mask_RT
        if not bool(bad.any()):
            return out
        root = (batch.logp_RT[bad] * 0).abs().sqrt().sum()  # 0, with a gradient of nan
        return LossOutput(out.loss + (root if self._gradient_only else root * math.nan))


@pytest.mark.parametrize("gradient_only", [False, True])
@pytest.mark.parametrize("micro_tokens", [1, 4096])
def test_the_trajectory_that_makes_an_update_unsound_is_named(gradient_only: bool, micro_tokens: int) -> None:
    rows, trainer = kit.rows_of(1), trainer_of(micro_tokens=micro_tokens)
    bad = OneBad(gradient_only)
    metrics = trainer.policy_step(rows, bad, ADVANTAGES, old_logps(rows))
    assert (metrics["updated"], trainer.offender) == (0, 2)
    assert trainer.policy_step(rows, Gspo(WIDE), ADVANTAGES)["updated"] == 1
    assert trainer.offender is None


@pytest.mark.parametrize("changes", [{"advantages": (1.0,)}, {"old_logps": [(0.0,)]}])
def test_an_update_that_is_refused_blames_nobody(changes: dict[str, Any]) -> None:
    """Who is to blame is a fact of one update: what an earlier one found says nothing about the next one's rows."""
    rows, trainer = kit.rows_of(1), trainer_of()
    trainer.policy_step(rows, OneBad(False), ADVANTAGES, old_logps(rows))
    assert trainer.offender == 2
    with pytest.raises(TrainingError):
        trainer.policy_step(rows, Gspo(WIDE), **({"advantages": ADVANTAGES} | changes))  # type: ignore[arg-type]
    assert trainer.offender is None


def test_no_trajectory_is_blamed_for_supervised_rows() -> None:
    rows, trainer = kit.rows_of(1), trainer_of()
    demos = [replace(row, weight=math.nan) for row in rows[:2]]
    metrics = trainer.policy_step(rows, Gspo(WIDE), ADVANTAGES, supervised=demos, supervised_weight=1.0)
    assert (metrics["updated"], trainer.offender) == (0, None)


def test_parameters_that_cannot_move_are_told() -> None:
    trainer = trainer_of(lr=1e-12)
    with pytest.raises(TrainingError, match=r"did not move in any update up to.*too small for torch.float32"):
        trainer.supervised_step(kit.rows_of(1))


def test_a_warm_up_below_the_precision_of_weights_is_sound(tmp_path: Path) -> None:
    """Its first rates move no number near 1; the full rate does, and is what is judged."""
    settings: dict[str, Any] = {"lr": 1e-6, "total_steps": 60, "warmup": 40}
    trainer, rows = trainer_of(**settings), kit.rows_of(1)
    before = weights(trainer.model)
    for _ in range(42):
        assert trainer.supervised_step(rows)["updated"] == 1.0
    assert not [name for name, now in weights(trainer.model).items() if torch.equal(now, before[name])]
    # Rates at the end may be as small: what has moved once is not judged again, also after a resume.
    trainer.save(tmp_path)
    again = trainer_of(**settings | {"final_fraction": 1e-6, "total_steps": 43})
    again.load(tmp_path)
    again.supervised_step(rows)


def test_a_full_rate_that_moves_nothing_is_told_when_it_is_reached() -> None:
    trainer, rows = trainer_of(lr=1e-12, warmup=3), kit.rows_of(1)
    for _ in range(3):
        trainer.supervised_step(rows)
    with pytest.raises(TrainingError, match=r"up to the learning rate 1e-12, such as .* too small for torch.float32"):
        trainer.supervised_step(rows)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"advantages": (1.0, 2.0)}, "there are 2 advantages"),
        ({"advantages": (1.0, math.nan, 0.0, 0.0)}, "must be finite"),
        ({"old_logps": [(0.0,)]}, "old_logps must hold one number"),
        ({"ref_logps": [(0.0,)]}, "ref_logps must hold one number"),
        ({"advantages": Credit(ADVANTAGES, tokens=[[0.0]])}, "token advantages must hold one number"),
        ({"advantages": Credit(ADVANTAGES, rows=[math.inf] * 12)}, "of a row or token is not finite"),
    ],
)
def test_batches_that_cannot_be_are_refused(changes: dict[str, Any], words: str) -> None:
    given: dict[str, Any] = {"advantages": ADVANTAGES} | changes
    with pytest.raises(TrainingError, match=words):
        trainer_of().policy_step(kit.rows_of(1), Gspo(WIDE), **given)


def test_a_supervised_batch_needs_a_response() -> None:
    with pytest.raises(TrainingError, match="without any response token"):
        trainer_of().supervised_step([TokenRow(Prompt((1, 2)), ())])
