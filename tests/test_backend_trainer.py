"""The trainer: exact normalisation, masks, GSPO over split trajectories, sound failure, exact resume."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import engine_kit as kit
import numpy as np
import pytest
import torch

from dynaweb.backends.torch_backend import TorchTrainer
from dynaweb.credit import Credit
from dynaweb.errors import CheckpointError, TrainingError
from dynaweb.protocols import LossInput, LossOutput, TokenRow
from dynaweb_opt_gspo import GspoConfig
from dynaweb_opt_gspo.gspo import Gspo

WIDE = GspoConfig(clip_low=0.2, clip_high=0.3)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def _trainer(model: Any = None, **changes: Any) -> TorchTrainer:
    settings: dict[str, Any] = {"lr": 1e-3, "total_steps": 10, "max_grad_norm": 1e9, "micro_tokens": 4096}
    return TorchTrainer(kit.llama() if model is None else model, **(settings | changes))


class Spy(TorchTrainer):
    """Keeps the gradients of the last update."""

    seen: dict[str, torch.Tensor]

    def _report(self, *args: Any) -> dict[str, float]:
        self.seen = kit.gradients(self.model)
        return super()._report(*args)


def _spy(model: Any = None, **changes: Any) -> Spy:
    settings: dict[str, Any] = {"lr": 1e-3, "total_steps": 10, "max_grad_norm": 1e9, "micro_tokens": 4096}
    return Spy(kit.llama() if model is None else model, **(settings | changes))


def _weights(model: Any) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def _old(rows: Sequence[TokenRow], shift: float = 0.05) -> list[tuple[float, ...]]:
    """Log-probabilities of a slightly different policy."""
    torch.manual_seed(9)
    found = _trainer().logprobs(rows)
    return [tuple((torch.from_numpy(values) + shift * torch.randn(len(values))).tolist()) for values in found]


ADVANTAGES = (1.0, -0.5, 0.75, -1.25)


def test_supervised_loss_and_gradient_are_the_plain_ones() -> None:
    rows = [replace(row, weight=1.0 + i % 3) for i, row in enumerate(kit.rows_of(1))]
    trainer = _spy()
    model = kit.llama()
    total = sum(len(row.response_ids) for row in rows)
    loss = torch.stack([-row.weight * kit.naive_logprobs(model, row).sum() for row in rows]).sum() / total
    loss.backward()
    found = trainer.supervised_step(rows)
    assert found["loss"] == pytest.approx(loss.item(), rel=1e-4)
    assert found["tokens"] == total
    assert found["updated"] == 1
    kit.same(trainer.seen, kit.gradients(model), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("kind", [kit.llama, kit.gpt2])
@pytest.mark.parametrize("level", ["trajectory", "token"])
@pytest.mark.parametrize("old", [False, True])
def test_policy_updates_do_not_depend_on_the_split(kind: Any, level: Any, old: bool) -> None:
    rows = kit.rows_of(2)
    given = _old(rows) if old else None
    found = []
    for micro_tokens in (1, 70, 100_000):
        trainer = _spy(kind(), micro_tokens=micro_tokens)
        config = WIDE.model_copy(update={"level": level})
        metrics = trainer.policy_step(rows, Gspo(config), ADVANTAGES, given)
        found.append((metrics, trainer.seen))
    for metrics, gradients in found[1:]:
        kit.same(gradients, found[0][1], rtol=1e-3, atol=1e-4)
        for name in metrics.keys() - {"seconds", "padded_tokens"}:
            assert metrics[name] == pytest.approx(found[0][0][name], rel=2e-4, abs=1e-6), name


def _plain_gspo(model: Any, rows: Sequence[TokenRow], advantages: Sequence[float], old: Any) -> torch.Tensor:
    """GSPO straight from the paper, on the plain forward."""
    terms = []
    for trajectory, advantage in enumerate(advantages):
        mine = [i for i, row in enumerate(rows) if row.trajectory == trajectory]
        logps = [kit.naive_logprobs(model, rows[i]) for i in mine]
        olds = [logp.detach() if old is None else torch.tensor(old[i]) for i, logp in zip(mine, logps, strict=True)]
        ratio = (torch.cat(logps) - torch.cat(olds)).mean().exp()
        clipped = ratio.clamp(1 - WIDE.clip_low, 1 + WIDE.clip_high)
        terms.append(torch.minimum(ratio * advantage, clipped * advantage))
    return -torch.stack(terms).mean()


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("micro_tokens", [1, 4096])
def test_policy_loss_and_gradient_are_those_of_the_paper(old: bool, micro_tokens: int) -> None:
    rows = kit.rows_of(4)
    given = _old(rows) if old else None
    trainer = _spy(micro_tokens=micro_tokens)
    model = kit.llama()
    loss = _plain_gspo(model, rows, ADVANTAGES, given)
    loss.backward()
    metrics = trainer.policy_step(rows, Gspo(WIDE), ADVANTAGES, given)
    assert metrics["policy_loss"] == pytest.approx(loss.item(), rel=1e-4, abs=1e-6)
    kit.same(trainer.seen, kit.gradients(model), rtol=1e-3, atol=2e-4)
    assert (metrics["ratio_min"] == metrics["ratio_max"] == 1) is not old


def test_the_supervised_term_adds_its_gradient() -> None:
    rows, demos = kit.rows_of(4), kit.rows_of(6)
    trainer = _spy()
    model = kit.llama()
    total = sum(len(row.response_ids) for row in demos)
    bc = torch.stack([-kit.naive_logprobs(model, row).sum() for row in demos]).sum() / total
    loss = _plain_gspo(model, rows, ADVANTAGES, None) + 0.2 * bc
    loss.backward()
    metrics = trainer.policy_step(rows, Gspo(WIDE), ADVANTAGES, supervised=demos, supervised_weight=0.2)
    assert metrics["supervised_loss"] == pytest.approx(bc.item(), rel=1e-4)
    assert metrics["loss"] == pytest.approx(loss.item(), rel=1e-4)
    kit.same(trainer.seen, kit.gradients(model), rtol=1e-3, atol=2e-4)


def test_prompt_and_page_tokens_get_no_gradient() -> None:
    """The loss sees response tokens only: what it is given for a row is as long as the row's response."""
    rows = kit.rows_of(7)
    seen: list[int] = []

    class Watch(Gspo):
        def loss(self, batch: LossInput) -> LossOutput:
            seen.extend(batch.mask_RT.sum(1).tolist())
            return super().loss(batch)

    _trainer().policy_step(rows, Watch(WIDE), ADVANTAGES)
    assert sorted(seen) == sorted(len(row.response_ids) for row in rows)


def test_logits_at_prompt_tokens_get_no_gradient() -> None:
    # A token that occurs in no response and no prompt but the given one gets a gradient from the head alone, and only
    # as an alternative to response tokens: with one response token of probability 1 there is nothing left to learn.
    model = kit.llama(tied=False)
    with torch.no_grad():
        model.lm_head.weight.zero_()
    trainer = _spy(model)
    row = TokenRow((10, 11, 12, 13), (20,))
    trainer.supervised_step([row])
    head = trainer.seen["lm_head.weight"]
    # Cross-entropy at one position: gradient of row v is (p_v - [v = target]) x hidden, p uniform, whatever the prompt.
    hidden = -head[20] / (1 - 1 / kit.VOCABULARY)
    for token in (10, 11, 12, 13, 50):
        torch.testing.assert_close(head[token], hidden / kit.VOCABULARY, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("kind", [kit.llama, kit.gpt2])
def test_rows_without_response_change_nothing(kind: Any) -> None:
    rows = kit.rows_of(2)
    pages = [TokenRow((1, 2, 3), (), trajectory) for trajectory in range(4)]
    old = _old(rows)
    found = []
    for extra, more in (([], []), (pages, [()] * 4)):
        trainer = _spy(kind())
        metrics = trainer.policy_step([*rows, *extra], Gspo(WIDE), ADVANTAGES, [*old, *more])
        found.append((metrics["loss"], trainer.seen))
    assert found[0][0] == found[1][0]
    kit.same(found[0][1], found[1][1], rtol=0, atol=0)


def test_dead_trajectories_are_not_computed_and_count_in_the_mean() -> None:
    rows = kit.rows_of(2)
    trainer = _spy()
    model = kit.llama()
    advantages = (1.0, 0.0, 0.0, -1.0)
    _plain_gspo(model, rows, advantages, None).backward()
    metrics = trainer.policy_step(rows, Gspo(WIDE), advantages)
    kit.same(trainer.seen, kit.gradients(model), rtol=1e-3, atol=2e-4)
    assert metrics["dead_share"] == 0.5
    assert metrics["rows_skipped"] == 6
    assert metrics["tokens"] == sum(len(row.response_ids) for row in rows if row.trajectory in (0, 3))


def test_an_update_of_dead_groups_only_moves_nothing() -> None:
    trainer = _trainer(weight_decay=0.1)
    trainer.supervised_step(kit.rows_of(1))
    before = _weights(trainer.model)
    metrics = trainer.policy_step(kit.rows_of(2), Gspo(WIDE), (0.0,) * 4)
    assert metrics["updated"] == metrics["tokens"] == metrics["skipped"] == 0
    assert metrics["dead_share"] == 1
    assert trainer.steps == 2
    kit.same(_weights(trainer.model), before, rtol=0, atol=0)


def test_an_update_without_rows_is_the_supervised_term_alone() -> None:
    demos = kit.rows_of(6)
    trainer, plain = _trainer(), _trainer()
    metrics = trainer.policy_step([], Gspo(WIDE), [], supervised=demos, supervised_weight=1.0)
    assert metrics["loss"] == plain.supervised_step(demos)["loss"]
    kit.same(_weights(trainer.model), _weights(plain.model), rtol=0, atol=0)


def test_a_reference_term_keeps_dead_trajectories_alive() -> None:
    rows = kit.rows_of(2)
    trainer = _trainer()
    optimizer = Gspo(GspoConfig(beta=0.1))
    ref = _old(rows)
    metrics = trainer.policy_step(rows, optimizer, (0.0,) * 4, ref_logps=ref)
    assert metrics["rows_skipped"] == 0
    assert metrics["ref_kl"] == pytest.approx(metrics["kl"], rel=1e-5)
    assert metrics["grad_norm"] > 0


def test_metrics_tell_ratio_kl_and_clipping() -> None:
    rows = kit.rows_of(2)
    trainer = _trainer()
    logps = trainer.logprobs(rows)
    old = [tuple(float(value) - 0.1 for value in values) for values in logps]
    metrics = trainer.policy_step(rows, Gspo(GspoConfig()), ADVANTAGES, old)
    assert metrics["ratio_p50"] == pytest.approx(math.exp(0.1), rel=1e-5)
    assert metrics["approx_kl"] == pytest.approx(math.expm1(0.1) - 0.1, rel=1e-3)
    assert metrics["clip_frac_high"] == pytest.approx(0.5)
    assert metrics["clip_frac_low"] == 0
    assert 0 < metrics["entropy"] < math.log(kit.VOCABULARY)


@pytest.mark.parametrize("kind", [kit.llama, kit.gpt2])
def test_logprobs_are_those_of_the_model(kind: Any) -> None:
    rows = [*kit.rows_of(3), TokenRow((1,), ())]
    model = kind()
    found = _trainer(model, micro_tokens=50).logprobs(rows)
    assert all(values.dtype == np.float32 for values in found)
    assert len(found[-1]) == 0
    for row, values in zip(rows[:-1], found[:-1], strict=True):
        np.testing.assert_allclose(values, kit.naive_logprobs(model, row).detach().numpy(), rtol=1e-4, atol=1e-4)


def test_training_learns_and_follows_the_schedule() -> None:
    trainer = _trainer(lr=3e-3, total_steps=30, warmup=3, max_grad_norm=1.0)
    rows = kit.rows_of(1)
    found = [trainer.supervised_step([rows[i] for i in trainer.draw(len(rows), 6)]) for _ in range(30)]
    assert found[0]["lr"] == pytest.approx(3e-3 / 4)
    assert found[-1]["lr"] == pytest.approx(3e-4)
    assert sum(m["loss"] for m in found[-5:]) < 0.5 * sum(m["loss"] for m in found[:5])


def test_gradients_are_clipped_to_the_norm() -> None:
    trainer = _spy(max_grad_norm=0.01)
    metrics = trainer.supervised_step(kit.rows_of(1))
    assert metrics["grad_norm"] > 0.01
    norm = math.sqrt(sum(float(g.square().sum()) for g in trainer.seen.values()))
    assert norm == pytest.approx(0.01, rel=1e-3)


def test_dropout_is_off_and_the_mode_is_put_back() -> None:
    model = kit.gpt2().train()
    rows = kit.rows_of(1)
    trainer = _trainer(model, lr=1e-12)
    assert trainer.logprobs(rows)[0].tolist() == trainer.logprobs(rows)[0].tolist()
    assert model.training


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
    rows, trainer = kit.rows_of(1), _trainer()
    trainer.supervised_step(rows)
    before = _weights(trainer.model)
    broken = Broken(gradient_only)
    with caplog.at_level(logging.WARNING):
        for count in (1, 2):
            metrics = trainer.policy_step(rows, broken, ADVANTAGES)
            assert (metrics["updated"], metrics["skipped"]) == (0, count)
    assert "update 1 skipped" in caplog.text
    kit.same(_weights(trainer.model), before, rtol=0, atol=0)
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
    rows, trainer = kit.rows_of(1), _trainer(micro_tokens=micro_tokens)
    bad = OneBad(gradient_only)
    metrics = trainer.policy_step(rows, bad, ADVANTAGES, _old(rows))
    assert (metrics["updated"], trainer.offender) == (0, 2)
    assert trainer.policy_step(rows, Gspo(WIDE), ADVANTAGES)["updated"] == 1
    assert trainer.offender is None


def test_no_trajectory_is_blamed_for_supervised_rows() -> None:
    rows, trainer = kit.rows_of(1), _trainer()
    demos = [replace(row, weight=math.nan) for row in rows[:2]]
    metrics = trainer.policy_step(rows, Gspo(WIDE), ADVANTAGES, supervised=demos, supervised_weight=1.0)
    assert (metrics["updated"], trainer.offender) == (0, None)


def test_a_row_without_old_logps_has_ratio_one() -> None:
    rows = kit.rows_of(2)
    old = _old(rows)
    free: list[Any] = [None if row.trajectory == 1 else values for row, values in zip(rows, old, strict=True)]
    plain = _trainer().logprobs(rows)
    same = [p.tolist() if row.trajectory == 1 else o for row, o, p in zip(rows, old, plain, strict=True)]
    found = []
    for given in (free, same):
        for micro_tokens in (1, 4096):
            trainer = _spy(micro_tokens=micro_tokens)
            metrics = trainer.policy_step(rows, Gspo(WIDE), ADVANTAGES, given)
            found.append((metrics["policy_loss"], trainer.seen))
    for loss, gradients in found[1:]:
        assert loss == pytest.approx(found[0][0], rel=1e-5, abs=1e-7)
        kit.same(gradients, found[0][1], rtol=1e-3, atol=1e-4)


def test_finer_credit_reaches_the_loss() -> None:
    """Row credit equals trajectory credit when a trajectory's rows have the same; token credit when its tokens do."""
    rows = kit.rows_of(2)
    by_row = [ADVANTAGES[row.trajectory] for row in rows]
    by_token = [[ADVANTAGES[row.trajectory]] * len(row.response_ids) for row in rows]
    optimizer = Gspo(WIDE.model_copy(update={"level": "token"}))
    found = []
    for credit in (Credit(ADVANTAGES), Credit(ADVANTAGES, rows=by_row), Credit(ADVANTAGES, tokens=by_token)):
        trainer = _spy()
        found.append((trainer.policy_step(rows, optimizer, credit, _old(rows))["policy_loss"], trainer.seen))
    for loss, gradients in found[1:]:
        assert loss == found[0][0]
        kit.same(gradients, found[0][1], rtol=0, atol=0)


def test_rows_without_credit_are_not_computed() -> None:
    rows = kit.rows_of(2)
    tokens = [[0.0] * len(row.response_ids) if i % 3 else [1.0] * len(row.response_ids) for i, row in enumerate(rows)]
    metrics = _trainer().policy_step(
        rows, Gspo(WIDE.model_copy(update={"level": "token"})), Credit(ADVANTAGES, tokens=tokens)
    )
    assert metrics["rows_skipped"] == 8
    assert metrics["tokens"] == sum(len(row.response_ids) for row in rows[::3])


def test_parameters_that_cannot_move_are_told() -> None:
    trainer = _trainer(kit.llama().to(torch.bfloat16), lr=1e-7)
    with pytest.raises(TrainingError, match=r"did not move in the first update.*bfloat16"):
        trainer.supervised_step(kit.rows_of(1))


def test_frozen_parameters_stay_and_others_move() -> None:
    model = kit.llama()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("layers.1" in name)
    before = _weights(model)
    trainer = _trainer(model)
    trainer.supervised_step(kit.rows_of(1))
    for name, value in _weights(model).items():
        assert torch.equal(value, before[name]) is ("layers.1" not in name), name


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
        _trainer().policy_step(kit.rows_of(1), Gspo(WIDE), **given)


def test_a_supervised_batch_needs_a_response() -> None:
    with pytest.raises(TrainingError, match="without any response token"):
        _trainer().supervised_step([TokenRow((1, 2), ())])


def _train(trainer: TorchTrainer, updates: int) -> list[float]:
    rows = kit.rows_of(1)
    out = []
    for _ in range(updates):
        chosen = [rows[i] for i in trainer.draw(len(rows), 5)]
        metrics = trainer.policy_step(chosen, Gspo(WIDE), ADVANTAGES, supervised=chosen, supervised_weight=0.1)
        out.append(metrics["loss"])
    return out


def test_a_resumed_run_is_the_same_bit_for_bit(tmp_path: Path) -> None:
    whole = _trainer()
    losses = _train(whole, 6)
    first = _trainer()
    assert _train(first, 3) == losses[:3]
    first.save(tmp_path / "checkpoint")
    second = _trainer(kit.llama(seed=99))
    second.load(tmp_path / "checkpoint")
    assert second.steps == 3
    assert _train(second, 3) == losses[3:]
    kit.same(_weights(second.model), _weights(whole.model), rtol=0, atol=0)


def test_a_new_checkpoint_replaces_the_old_one(tmp_path: Path) -> None:
    trainer = _trainer()
    trainer.save(tmp_path)
    trainer.supervised_step(kit.rows_of(1))
    trainer.save(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["state-00000001.safetensors", "trainer.json"]


@pytest.mark.parametrize("harm", ["missing", "no-file", "truncated", "flipped-header", "bad-json", "other-format"])
def test_broken_checkpoints_are_refused_and_change_nothing(tmp_path: Path, harm: str) -> None:
    trainer = _trainer()
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
    before = _weights(trainer.model)
    with pytest.raises(CheckpointError):
        trainer.load(tmp_path)
    kit.same(_weights(trainer.model), before, rtol=0, atol=0)


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    _trainer(kit.llama(layers=2)).save(tmp_path)
    with pytest.raises(CheckpointError, match=r"layers\.2.*missing"):
        _trainer().load(tmp_path)
