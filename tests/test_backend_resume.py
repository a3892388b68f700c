"""Checkpoints of the trainer: exact resume, one file at a time, damage is told."""

from __future__ import annotations

from pathlib import Path

import engine_kit as kit
import pytest
from trainer_kit import ADVANTAGES, WIDE, trainer_of, weights

from dynaweb.backends.torch_backend import TorchTrainer
from dynaweb.errors import CheckpointError
from dynaweb_opt_gspo.gspo import Gspo

pytestmark = pytest.mark.usefixtures("one_thread")


def _train(trainer: TorchTrainer, updates: int) -> list[float]:
    rows = kit.rows_of(1)
    out = []
    for _ in range(updates):
        chosen = [rows[i] for i in trainer.draw(len(rows), 5)]
        metrics = trainer.policy_step(chosen, Gspo(WIDE), ADVANTAGES, supervised=chosen, supervised_weight=0.1)
        out.append(metrics["loss"])
    return out


def test_a_resumed_run_is_the_same_bit_for_bit(tmp_path: Path) -> None:
    whole = trainer_of()
    losses = _train(whole, 6)
    first = trainer_of()
    assert _train(first, 3) == losses[:3]
    first.save(tmp_path / "checkpoint")
    second = trainer_of(kit.llama(seed=99))
    second.load(tmp_path / "checkpoint")
    assert second.steps == 3
    assert _train(second, 3) == losses[3:]
    kit.same(weights(second.model), weights(whole.model), rtol=0, atol=0)


def test_a_new_checkpoint_replaces_the_old_one(tmp_path: Path) -> None:
    trainer = trainer_of()
    trainer.save(tmp_path)
    trainer.supervised_step(kit.rows_of(1))
    trainer.save(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["state-00000001.safetensors", "trainer.json"]


@pytest.mark.parametrize("harm", ["missing", "no-file", "truncated", "flipped-header", "bad-json", "other-format"])
def test_broken_checkpoints_are_refused_and_change_nothing(tmp_path: Path, harm: str) -> None:
    trainer = trainer_of()
    trainer.save(tmp_path)
    file, index = tmp_path / "state-00000000.safetensors", tmp_path / "trainer.json"
    if harm == "missing":
        index.unlink()
    elif harm == "no-file":
        file.unlink()
    elif harm == "truncated":
        file.write_bytes(file.read_bytes()[:-100])
    elif harm == "flipped-header":
        file.write_bytes(b"\xff" * 8 + file.read_bytes()[8:])
    elif harm == "bad-json":
        index.write_text(index.read_text()[:20])
    else:
        index.write_text('{"format": 99}')
    before = weights(trainer.model)
    with pytest.raises(CheckpointError):
        trainer.load(tmp_path)
    kit.same(weights(trainer.model), before, rtol=0, atol=0)


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    trainer_of(kit.llama(layers=2)).save(tmp_path)
    with pytest.raises(CheckpointError, match=r"layers\.2.*missing"):
        trainer_of().load(tmp_path)
