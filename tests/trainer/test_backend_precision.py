"""bfloat16 with float32 masters, the head, recomputed activations: what stays exact, and what memory it takes."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import engine_kit as kit
import pytest
import torch
from trainer_kit import ADVANTAGES, WIDE, old_logps, spy_of, trainer_of, weights
from transformers import OPTConfig, OPTForCausalLM

from dynaweb.errors import ConfigError
from dynaweb.protocols import TokenRow
from dynaweb.trainer.logprobs import head_scores
from dynaweb.trainer.masters import Masters
from dynaweb.trainer.torch_trainer import TorchTrainer
from dynaweb.types import Prompt
from dynaweb_opt_gspo.gspo import Gspo

pytestmark = pytest.mark.usefixtures("one_thread")


def _half(seed: int = 0) -> Any:
    return kit.llama(seed).bfloat16()


def test_steps_too_small_for_bfloat16_add_up() -> None:
    """Each update moves weights by a thousandth of what bfloat16 can tell apart; together they move them."""
    trainer = trainer_of(_half(), lr=3e-6, total_steps=10_000)
    before, rows = weights(trainer.model), kit.rows_of(1)
    for _ in range(40):
        trainer.supervised_step(rows)
    moved = trainer.state_dict()["tensors"]
    assert all(value.dtype == torch.float32 for name, value in moved.items() if name.startswith("model."))
    for name, old in before.items():
        master = moved[f"model.{name}"]
        assert 1e-5 < float((master - old.float()).abs().max()) < 2e-4, name
        torch.testing.assert_close(dict(trainer.model.named_parameters())[name], master.bfloat16(), rtol=0, atol=0)
    assert sum(not torch.equal(new, before[name]) for name, new in weights(trainer.model).items()) > 5


def test_half_precision_follows_float32() -> None:
    """The same rows from the same (bfloat16) start: the loss falls as it does in float32."""
    rows = kit.rows_of(1)
    found = []
    for model in (_half(), _half().float()):
        trainer = trainer_of(model, lr=2e-3, total_steps=30, max_grad_norm=1.0)
        found.append([trainer.supervised_step(rows)["loss"] for _ in range(30)])
    half, full = found
    assert full[-1] < 0.5 * full[0]
    assert half == pytest.approx(full, rel=0.05, abs=0.05)


def test_gradients_of_many_micro_batches_add_up_in_float32() -> None:
    """A share of 1/1000 of the sum so far is below what bfloat16 keeps: it would all be lost."""
    parameter = torch.nn.Parameter(torch.ones(8, dtype=torch.bfloat16))
    masters = Masters({"p": parameter})
    with masters.collecting():
        parameter.sum().backward()
        for _ in range(1000):
            (1e-3 * parameter).sum().backward()
        assert parameter.grad is None, "nothing is kept twice"
    small = float(torch.tensor(1e-3, dtype=torch.bfloat16))
    torch.testing.assert_close(masters.leaves["p"].grad, torch.full((8,), 1 + 1000 * small), rtol=1e-5, atol=0)


@pytest.mark.parametrize("kind", [kit.llama, kit.gpt2])
def test_the_split_into_micro_batches_costs_half_precision_nothing(kind: Any) -> None:
    """Of every parameter, also of those that the compact forward fuses: one row at a time is as good as all at once."""
    rng = random.Random(0)
    rows = [TokenRow(kit.prompt(rng, 4, 9), kit.tokens(rng, 2, 4), i % 4) for i in range(600)]
    seen = []
    for dtype, micro_tokens in ((torch.float32, 4096), (torch.bfloat16, 4096), (torch.bfloat16, 1)):
        trainer = spy_of(kind().bfloat16().to(dtype), micro_tokens=micro_tokens)
        trainer.supervised_step(rows)
        seen.append(trainer.seen)
    truth, whole, split = seen
    for name, want in truth.items():
        errors = [float((gradients[name] - want).norm() / want.norm()) for gradients in (whole, split)]
        assert errors[1] < 1.2 * errors[0] + 1e-3, (name, errors)


def test_outside_of_an_update_gradients_are_the_models_own() -> None:
    """Hooks go with the update: two trainers of one model do not take each other's gradients."""
    model = _half()
    first, second = trainer_of(model), trainer_of(model)
    first.supervised_step(kit.rows_of(1))
    assert second.supervised_step(kit.rows_of(1))["grad_norm"] > 0
    kit.naive_logprobs(model, kit.rows_of(1)[0]).sum().backward()
    assert all(p.grad is not None for p in model.parameters())


def test_wide_weights_are_their_own_masters() -> None:
    model = kit.llama()
    trainer = trainer_of(model)
    assert all(leaf is p for leaf, p in zip(trainer._stepper.masters.leaves.values(), model.parameters(), strict=True))


def test_a_resumed_half_precision_run_is_the_same_bit_for_bit(tmp_path: Path) -> None:
    """The masters are what is saved: rounded weights alone would lose what had not yet moved them."""
    rows = kit.rows_of(1)

    def train(trainer: TorchTrainer, updates: int) -> list[float]:
        return [trainer.policy_step(rows, Gspo(WIDE), ADVANTAGES)["grad_norm"] for _ in range(updates)]

    whole = trainer_of(_half(), lr=1e-5)
    norms = train(whole, 6)
    first = trainer_of(_half(), lr=1e-5)
    assert train(first, 3) == norms[:3]
    first.save(tmp_path)
    second = trainer_of(_half(99), lr=1e-5)
    second.load(tmp_path)
    kit.same(weights(second.model), weights(first.model), rtol=0, atol=0)
    assert train(second, 3) == norms[3:]
    ours, theirs = (trainer.state_dict()["tensors"] for trainer in (second, whole))
    assert [name for name, value in theirs.items() if not torch.equal(value, ours[name])] == []


class Saved:
    """Counts the bytes that forward passes keep for their backward passes."""

    def __init__(self) -> None:
        self.kept: dict[int, int] = {}

    def __enter__(self) -> Saved:
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, lambda x: x)
        self._hooks.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._hooks.__exit__(*error)

    def _pack(self, x: torch.Tensor) -> torch.Tensor:
        self.kept[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x


def _opt() -> Any:
    """A model whose layers drop out themselves, in training mode."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "word_embed_proj_dim": 32, "ffn_dim": 64, "num_attention_heads": 4}
    ids = {name: None for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    config: Any = OPTConfig(vocab_size=kit.VOCABULARY, num_hidden_layers=3, dropout=0.5, **sizes, **ids)
    return OPTForCausalLM(config).train()


@pytest.mark.parametrize("kind", [kit.llama, kit.gpt2, _opt])
def test_recomputed_activations_give_the_same_update_from_less_memory(kind: Any) -> None:
    rows, found = kit.rows_of(2), []
    old = old_logps(rows)
    for checkpointing in (False, True):
        trainer = spy_of(kind(), checkpointing=checkpointing)
        with Saved() as saved:
            metrics = trainer.policy_step(rows, Gspo(WIDE), ADVANTAGES, old)
        found.append((metrics["loss"], trainer.seen, sum(saved.kept.values())))
    (plain, gradients, much), (loss, again, little) = found
    assert loss == pytest.approx(plain, rel=1e-6)
    kit.same(again, gradients, rtol=1e-4, atol=1e-5)
    assert little < 0.6 * much, "weights and one hidden state per layer are what is left"
    assert trainer.model.training is (kind is _opt)


def test_a_model_without_layers_to_recompute_is_told() -> None:
    trainer = trainer_of(kit.gpt2(), checkpointing=True)
    trainer.model.transformer.h = torch.nn.ModuleList()  # type: ignore[union-attr]
    with pytest.raises(ConfigError, match="no layers that can be recomputed"):
        trainer.supervised_step(kit.rows_of(1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("biased", [False, True])
def test_the_head_keeps_no_logits_and_no_wide_copy(dtype: torch.dtype, biased: bool, monkeypatch: Any) -> None:
    """Between forward and backward: hidden states, the head itself, and one number for each token."""
    torch.manual_seed(0)
    monkeypatch.setattr("dynaweb.trainer.logprobs.HEAD_ELEMENTS", 3 * 50)
    weight, hidden = torch.randn(50, 8, dtype=dtype), torch.randn(10, 8, dtype=dtype)
    bias = torch.randn(50, dtype=dtype) if biased else None
    target = torch.randint(50, (10,))
    given = [x.clone().requires_grad_() for x in (hidden, weight, *([bias] if bias is not None else []))]
    with Saved() as saved:
        logp, entropy = head_scores(given[1], given[2] if biased else None, given[0], target)
    size = weight.element_size()
    assert sum(saved.kept.values()) <= size * (50 * 8 + 10 * 8 + 50) + 8 * 10 + 4 * 10
    slope = torch.randn(10)
    (logp * slope).sum().backward()
    plain = [x.detach().double().requires_grad_() for x in given]
    exact = torch.log_softmax(plain[0] @ plain[1].T + (plain[2] if biased else 0.0), -1)
    want = exact.gather(1, target[:, None])[:, 0]
    torch.testing.assert_close(logp.double(), want, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(entropy.double(), -(exact.exp() * exact).sum(-1), rtol=1e-5, atol=1e-5)
    (want * slope).sum().backward()
    close = {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 1e-2, "atol": 1e-3}
    for mine, its in zip(given, plain, strict=True):
        torch.testing.assert_close(mine.grad.double(), its.grad, **close)  # type: ignore[union-attr]


def test_a_frozen_head_gets_no_gradient_and_the_hidden_states_do() -> None:
    weight, hidden = torch.randn(50, 8), torch.randn(3, 8, requires_grad=True)
    head_scores(weight, None, hidden, torch.tensor([1, 2, 3]))[0].sum().backward()
    assert weight.grad is None and hidden.grad is not None


def test_rows_of_one_token_and_none() -> None:
    trainer = trainer_of(_half())
    found = trainer.logprobs([TokenRow(Prompt((1, 2)), (3,)), TokenRow(Prompt((1,)), ())])
    assert [len(values) for values in found] == [1, 0]
