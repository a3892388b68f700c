"""Checkpoints of the trainer: exact resume, one file at a time, damage is told."""

from __future__ import annotations

from pathlib import Path

import engine_kit as kit
import pytest
from trainer_kit import ADVANTAGES, WIDE, trainer_of, weights

from dynaweb.errors import CheckpointError
from dynaweb.trainer import checkpoint
from dynaweb.trainer.torch_trainer import TorchTrainer
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


def _files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


HARMS = ["no-file", "truncated", "flipped-header", "bad-json", "other-format"]


def _harm(folder: Path, step: int, how: str) -> None:
    index = folder / f"state-{step:08d}.json"
    file = index.with_suffix(".safetensors")
    if how == "missing":
        index.unlink()
    elif how == "no-file":
        file.unlink()
    elif how == "truncated":
        file.write_bytes(file.read_bytes()[:-100])
    elif how == "flipped-header":
        file.write_bytes(b"\xff" * 8 + file.read_bytes()[8:])
    elif how == "bad-json":
        index.write_text(index.read_text()[:20])
    else:
        index.write_text('{"format": 99}')


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
    assert _files(tmp_path) == ["state-00000001.json", "state-00000001.safetensors"]


def test_the_last_ones_are_kept(tmp_path: Path) -> None:
    trainer = trainer_of()
    for _ in range(4):
        trainer.save(tmp_path, keep=3)
        trainer.supervised_step(kit.rows_of(1))
    assert checkpoint.steps(tmp_path) == [1, 2, 3]
    assert len(_files(tmp_path)) == 6


@pytest.mark.parametrize("harm", HARMS)
def test_a_damaged_last_checkpoint_leads_to_the_one_before_and_to_the_same_end(
    tmp_path: Path, harm: str, caplog: pytest.LogCaptureFixture
) -> None:
    whole = trainer_of()
    losses = _train(whole, 5)
    first = trainer_of()
    for _ in range(3):
        _train(first, 1)
        first.save(tmp_path, keep=2)
    _harm(tmp_path, 3, harm)
    second = trainer_of(kit.llama(seed=99))
    second.load(tmp_path)
    assert second.steps == 2
    assert "state-00000003" in caplog.text and "from the checkpoint before it, state-00000002" in caplog.text
    assert _train(second, 1) == losses[2:3]
    second.save(tmp_path, keep=2)
    caplog.clear()
    third = trainer_of(kit.llama(seed=98))
    third.load(tmp_path)
    assert third.steps == 3 and not caplog.text
    assert _train(third, 2) == losses[3:]
    kit.same(weights(third.model), weights(whole.model), rtol=0, atol=0)


def test_training_that_was_taken_back_forgets_what_came_after(tmp_path: Path) -> None:
    trainer = trainer_of()
    for _ in range(3):
        _train(trainer, 1)
        trainer.save(tmp_path, keep=9)
    (tmp_path / "state-00000002.safetensors").write_bytes(b"")
    (tmp_path / "state-00000003.safetensors").write_bytes(b"")
    trainer.load(tmp_path)
    assert trainer.steps == 1
    trainer.save(tmp_path, keep=9)
    assert checkpoint.steps(tmp_path) == [1] and len(_files(tmp_path)) == 2


def test_tensors_without_their_json_file_are_no_checkpoint(tmp_path: Path) -> None:
    trainer = trainer_of()
    trainer.save(tmp_path, keep=2)
    (tmp_path / "state-00000001.safetensors").write_bytes(b"as a kill leaves it")
    assert checkpoint.steps(tmp_path) == [0]
    trainer.load(tmp_path)
    _train(trainer, 2)
    trainer.save(tmp_path, keep=2)
    assert checkpoint.steps(tmp_path) == [0, 2] and len(_files(tmp_path)) == 4


@pytest.mark.parametrize("harm", ["missing", *HARMS])
@pytest.mark.parametrize("kept", [1, 2])
def test_broken_checkpoints_are_refused_and_change_nothing(tmp_path: Path, harm: str, kept: int) -> None:
    trainer = trainer_of()
    for _ in range(kept):
        trainer.save(tmp_path, keep=kept)
        trainer.steps += 1
    for step in range(kept):
        _harm(tmp_path, step, harm)
    before = weights(trainer.model)
    words = "no checkpoint in" if harm == "missing" else r"(?s)state-00000000.*" if kept == 1 else r"00001\b.*00000\b"
    with pytest.raises(CheckpointError, match=words):
        trainer.load(tmp_path)
    kit.same(weights(trainer.model), before, rtol=0, atol=0)


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    trainer_of(kit.llama(layers=2)).save(tmp_path)
    with pytest.raises(CheckpointError, match=r"layers\.2.*missing"):
        trainer_of().load(tmp_path)
