"""The critic: values of the right states, its loss and gradient, its own learning rate, its checkpoints, its
failures."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import engine_kit as kit
import pytest
import rank_kit
import torch
import transformers

from dynaweb.errors import CheckpointError, TrainingError
from dynaweb.protocols import Credit, CriticSpec, LossInput, LossOutput, TokenRow, ValueInput
from dynaweb.trainer.critic import Critic
from dynaweb.trainer.stepper import Schedule, move_together
from dynaweb.trainer.torch_trainer import TorchTrainer
from dynaweb_opt_gspo import GspoConfig
from dynaweb_opt_gspo.gspo import Gspo
from dynaweb_opt_ppo import PpoConfig
from dynaweb_opt_ppo.ppo import Ppo
from dynaweb_opt_webrl import WebrlConfig
from dynaweb_opt_webrl.webrl import Webrl

pytestmark = pytest.mark.usefixtures("one_thread")


def _critic(model: Any = None, **changes: Any) -> Critic:
    spec = CriticSpec(**({"lr": 1e-2, "max_grad_norm": 1e9} | changes))
    critic = Critic(kit.llama(3) if model is None else model, spec, Schedule(1.0, 10), micro_tokens=50)
    with torch.no_grad():
        torch.manual_seed(1)
        critic.head.weight.normal_()
        critic.head.bias.fill_(0.25)
    return critic


def _plain_values(critic: Critic, row: TokenRow) -> torch.Tensor:
    """The head on the last hidden states that predict the response, by the model's own forward."""
    body: Any = critic.model
    ids = torch.tensor([[*row.prompt.ids, *row.response_ids]])
    hidden = getattr(body, body.base_model_prefix)(input_ids=ids).last_hidden_state[0].float()
    start = len(row.prompt) - 1
    return critic.head(hidden[start : start + len(row.response_ids)])


def narrow_opt(seed: int) -> Any:
    """A random OPT whose body gives fewer numbers than its hidden size, as the one of 350 million weights."""
    torch.manual_seed(seed)
    sizes = {"hidden_size": 32, "ffn_dim": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = transformers.OPTConfig(vocab_size=kit.VOCABULARY, word_embed_proj_dim=16, **sizes, **kit.IDS)
    return transformers.OPTForCausalLM(config).eval()


@pytest.mark.parametrize("kind", [kit.llama, kit.gpt2, kit.mamba, narrow_opt])
def test_values_are_of_the_states_before_agent_tokens(kind: Any) -> None:
    critic, rows = _critic(kind(3), outputs=2), kit.rows_of(3)
    for row, values in zip(rows, critic.values(rows), strict=True):
        torch.testing.assert_close(torch.tensor(values), _plain_values(critic, row).detach(), rtol=1e-3, atol=1e-3)


def test_a_critic_of_rows_looks_at_the_state_before_the_first_token() -> None:
    critic, rows = _critic(at="rows"), kit.rows_of(3)
    for row, values in zip(rows, critic.values(rows), strict=True):
        assert len(values) == 1
        torch.testing.assert_close(torch.tensor(values), _plain_values(critic, row)[:1].detach(), rtol=1e-3, atol=1e-3)


def _step(critic: Critic, rows: list[TokenRow], credit: Credit, optimizer: Any, index: int) -> dict[str, float]:
    """One update of the critic alone."""
    found = critic.compute(rows, credit, optimizer)
    move_together(index, [(critic.stepper, found.gradient)])
    return critic.report(found, index)


class Spy(Ppo):
    """Keeps what its critic loss saw."""

    def __init__(self) -> None:
        super().__init__(PpoConfig(value_clip=None))
        self.seen: list[ValueInput] = []

    def critic_loss(self, batch: ValueInput) -> LossOutput:
        self.seen.append(batch)
        return super().critic_loss(batch)


def _credit(critic: Critic, rows: list[TokenRow]) -> Credit:
    targets: list[list[float | None]] = [[0.5 * i - t for t in range(len(r.response_ids))] for i, r in enumerate(rows)]
    targets[2] = [None] * len(targets[2])
    return Credit([1.0] * 4, targets=targets, values=critic.values(rows))


@pytest.mark.parametrize("micro_tokens", [1, 10_000])
def test_loss_and_gradient_are_the_plain_ones_whatever_the_split(micro_tokens: int) -> None:
    rows, critic, plain = kit.rows_of(3), _critic(), _critic()
    critic._micro_tokens = micro_tokens
    credit = _credit(critic, rows)
    errors = []
    for row, target in zip(rows, credit.targets or (), strict=True):
        if None not in target:
            errors.append((_plain_values(plain, row)[:, 0] - torch.tensor(target)).square())
    loss = torch.cat(errors).mean() / 2
    loss.backward()
    norm = math.sqrt(sum(float(p.grad.square().sum()) for p in plain.stepper.parameters.values() if p.grad is not None))
    metrics = _step(critic, rows, credit, Spy(), 0)
    assert metrics["critic_loss"] == pytest.approx(loss.item(), rel=1e-3)
    assert metrics["critic_grad_norm"] == pytest.approx(norm, rel=2e-3)
    assert metrics["critic_lr"] == 1e-2


def test_what_has_no_target_is_masked() -> None:
    rows, critic, spy = kit.rows_of(3), _critic(), Spy()
    credit = _credit(critic, rows)
    _step(critic, rows, credit, spy, 0)
    known = sum(len(row.response_ids) for i, row in enumerate(rows) if i != 2)
    assert sum(int(batch.mask_RT.sum()) for batch in spy.seen) == known
    assert {batch.states for batch in spy.seen} == {known}
    silent = Credit([1.0] * 4, targets=[[None] * len(r.response_ids) for r in rows], values=critic.values(rows))
    before = {name: p.detach().clone() for name, p in critic.stepper.parameters.items()}
    assert _step(critic, rows, silent, spy, 1)["critic_grad_norm"] == 0
    kit.same(dict(critic.stepper.parameters), before, rtol=0, atol=0)


def test_a_critic_needs_targets_and_an_optimizer_that_trains_it() -> None:
    rows, critic = kit.rows_of(3), _critic()
    with pytest.raises(TrainingError, match="targets and its old values"):
        _step(critic, rows, Credit([1.0] * 4), Spy(), 0)
    trainer = TorchTrainer(kit.llama(), lr=1e-3, total_steps=3, critic=(kit.llama(3), CriticSpec(1e-2)))
    with pytest.raises(TrainingError, match="Gspo has no critic_loss"):
        trainer.policy_step(rows, Gspo(GspoConfig()), [1.0, -1.0, 0.5, 0.0])


@pytest.mark.parametrize(
    "optimizer", [Ppo(PpoConfig()), Webrl(WebrlConfig()), Webrl(WebrlConfig(variant="released-code"))]
)
def test_policy_and_critic_move_all_their_parameters(optimizer: Any) -> None:
    trainer = rank_kit.trainer_of(optimizer)
    before = {name: value.clone() for name, value in trainer.state_dict()["tensors"].items()}
    metrics = rank_kit.train(trainer, optimizer, updates=3)
    after = trainer.state_dict()["tensors"]
    assert sum(name.startswith("critic.model.") for name in before) > 10
    assert [name for name, value in before.items() if torch.equal(after[name], value)] == []
    assert metrics[0]["critic_lr"] == optimizer.config.critic_lr != metrics[0]["lr"]
    assert all(math.isfinite(value) for found in metrics for value in found.values())


def test_a_critic_learns_what_the_returns_are() -> None:
    optimizer = Ppo(PpoConfig(critic_lr=3e-3, value_clip=None))
    trainer = rank_kit.trainer_of(optimizer, lr=1e-7)
    errors = [found["value_error"] for found in rank_kit.train(trainer, optimizer, updates=25)]
    assert errors[-1] < 0.3 * errors[0]


def test_a_resumed_run_with_a_critic_is_the_same_bit_for_bit(tmp_path: Path) -> None:
    optimizer = Ppo(PpoConfig())
    whole = rank_kit.trainer_of(optimizer)
    rows = kit.rows_of(2, trajectories=5)
    steps = [_train_once(whole, optimizer, rows) for _ in range(4)]
    first = rank_kit.trainer_of(optimizer)
    assert [_train_once(first, optimizer, rows) for _ in range(2)] == steps[:2]
    first.save(tmp_path)
    second = rank_kit.trainer_of(optimizer)
    second.load(tmp_path)
    assert [_train_once(second, optimizer, rows) for _ in range(2)] == steps[2:]
    for name, value in whole.state_dict()["tensors"].items():
        assert torch.equal(second.state_dict()["tensors"][name], value), name


def _train_once(trainer: TorchTrainer, optimizer: Any, rows: list[TokenRow]) -> tuple[float, float]:
    from dynaweb.protocols import CreditInput, CreditRow

    assert trainer.critic is not None
    given = [
        CreditRow(row.trajectory, i % 3, len(row.response_ids), values=values)
        for i, (row, values) in enumerate(zip(rows, trainer.critic.values(rows), strict=True))
    ]
    credit = optimizer.credit(CreditInput(rank_kit.REWARDS, ["task"] * 5, given))
    metrics = trainer.policy_step(rows, optimizer, replace(credit, values=[row.values for row in given]))
    return metrics["loss"], metrics["critic_loss"]


def test_checkpoints_of_other_optimizers_are_refused(tmp_path: Path) -> None:
    with_critic, without = rank_kit.trainer_of(Ppo(PpoConfig())), rank_kit.trainer_of(Gspo(GspoConfig()))
    with_critic.save(tmp_path / "ppo")
    without.save(tmp_path / "gspo")
    with pytest.raises(CheckpointError, match="has no critic and the optimizer one"):
        with_critic.load(tmp_path / "gspo")
    with pytest.raises(CheckpointError, match="has a critic and the optimizer none"):
        without.load(tmp_path / "ppo")


class BrokenCritic(Ppo):
    """A critic loss that is not finite."""

    def critic_loss(self, batch: ValueInput) -> LossOutput:
        return LossOutput(super().critic_loss(batch).loss * math.nan)


def test_an_unsound_critic_is_skipped_and_stops_the_training_after_three() -> None:
    optimizer = BrokenCritic(PpoConfig())
    trainer = rank_kit.trainer_of(optimizer)
    assert trainer.critic is not None
    before = {name: p.detach().clone() for name, p in trainer.critic.stepper.parameters.items()}
    assert [m["critic_skipped"] for m in rank_kit.train(trainer, optimizer, updates=2)] == [1, 2]
    kit.same(dict(trainer.critic.stepper.parameters), before, rtol=0, atol=0)
    with pytest.raises(TrainingError, match=r"3 updates in a row.*of the critic"):
        rank_kit.train(trainer, optimizer, updates=1)


class Unsound(Ppo):
    """A loss of the policy or of the critic that is nan from the time on that it is told."""

    broken = ""

    def loss(self, batch: LossInput) -> LossOutput:
        out = super().loss(batch)
        return LossOutput(out.loss * math.nan if self.broken == "policy" else out.loss, out.metrics)

    def critic_loss(self, batch: ValueInput) -> LossOutput:
        out = super().critic_loss(batch)
        return LossOutput(out.loss * math.nan if self.broken == "critic" else out.loss, out.metrics)


@pytest.mark.parametrize("broken", ["policy", "critic"])
def test_an_update_that_stops_the_training_moves_neither_policy_nor_critic(broken: str, tmp_path: Path) -> None:
    """What is saved then belongs together: both as they were after the last whole update."""
    optimizer = Unsound(PpoConfig())
    trainer = rank_kit.trainer_of(optimizer)
    rank_kit.train(trainer, optimizer, updates=2)
    optimizer.broken = broken
    rank_kit.train(trainer, optimizer, updates=2)
    before = {name: value.clone() for name, value in trainer.state_dict()["tensors"].items()}
    with pytest.raises(TrainingError, match="3 updates in a row"):
        rank_kit.train(trainer, optimizer, updates=1)
    after = trainer.state_dict()["tensors"]
    assert after.keys() == before.keys() and any("critic.adam" in name for name in after)
    assert [name for name, value in before.items() if not torch.equal(after[name], value)] == []
    assert trainer.steps == 4
    trainer.save(tmp_path)
    optimizer.broken = ""
    resumed = rank_kit.trainer_of(optimizer)
    resumed.load(tmp_path)
    metrics = rank_kit.train(resumed, optimizer, updates=1)[0]
    assert metrics["updated"] == 1 and math.isfinite(metrics["critic_loss"])


def test_the_critic_shares_warm_up_and_decay_at_its_own_learning_rate() -> None:
    spec = CriticSpec(1e-2)
    trainer = TorchTrainer(
        kit.llama(), lr=1e-3, total_steps=20, warmup=4, final_fraction=0.5, critic=(kit.llama(3), spec)
    )
    assert trainer.critic is not None
    own = trainer.critic.stepper.schedule
    assert [own.at(i) / trainer.schedule.at(i) for i in range(25)] == pytest.approx([10.0] * 25)


def test_an_output_head_of_its_own_is_not_part_of_the_critic() -> None:
    critic = _critic(kit.llama(tied=False))
    assert not any("lm_head" in name for name in critic.stepper.parameters)
    assert any("embed_tokens" in name for name in critic.stepper.parameters)
    assert any("embed_tokens" in name for name in _critic(kit.llama(tied=True)).stepper.parameters)
