"""Micro-batches and log-probabilities: every response token once, equal to the plain computation, gradient included."""

from __future__ import annotations

import gc
import random
from collections.abc import Sequence
from typing import Any

import engine_kit as kit
import pytest
import torch

from dynaweb.protocols import TokenRow
from dynaweb.trainer import logprobs
from dynaweb.trainer.batching import TAIL_TOKENS, collate, draw, plan, units
from dynaweb.trainer.logprobs import GenericScorer, LlamaScorer, PackedScorer, scorer_for
from dynaweb.trainer.stepper import Schedule
from dynaweb.types import Prompt

CPU = torch.device("cpu")


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("micro_tokens", [1, 100, 100_000])
def test_every_response_token_is_in_exactly_one_micro_batch(seed: int, micro_tokens: int) -> None:
    rows = [*kit.rows_of(seed), TokenRow(Prompt((1, 2)), ()), TokenRow(Prompt((7,)), (8, 9))]
    found: dict[int, tuple[int, ...]] = {}
    parts = plan(units(rows, range(len(rows))), micro_tokens)
    for part in parts:
        batch = collate(rows, part, CPU)
        assert len(part) == 1 or batch.padded_tokens <= micro_tokens + len(part)
        laid_out = batch.spread(batch.target_N).tolist()
        for row, tokens, mask in zip(batch.rows, laid_out, batch.mask().tolist(), strict=True):
            assert row not in found
            found[row] = tuple(token for token, real in zip(tokens, mask, strict=True) if real)
    assert found == {i: row.response_ids for i, row in enumerate(rows) if row.response_ids}


def test_rows_of_one_prompt_are_one_unit_until_it_is_full() -> None:
    rows = [TokenRow(Prompt((1, 2, 3)), (4,) * 100) for _ in range(7)] + [TokenRow(Prompt((1, 2)), (4,))]
    shared = units(rows, range(8))
    assert [unit.rows for unit in shared] == [(0, 1, 2, 3, 4), (5, 6), (7,)]
    assert all(unit.tail <= TAIL_TOKENS for unit in shared)
    assert len(units(rows, range(8), share=False)) == 8
    assert [unit.rows for unit in units(rows, [6, 7])] == [(6,), (7,)]


def test_a_response_without_a_prompt_is_refused() -> None:
    with pytest.raises(ValueError, match="row 0 has a response but no prompt"):
        units([TokenRow(Prompt(()), (1,))], [0])


def _score(scorer: Any, rows: Sequence[TokenRow], micro_tokens: int, weights: torch.Tensor) -> list[torch.Tensor]:
    """Log-probabilities by row; backward of their sum weighted by row."""
    out: dict[int, torch.Tensor] = {}
    with scorer.step():
        for part in plan(units(rows, range(len(rows)), share=scorer.shares_prompts), micro_tokens):
            batch = collate(rows, part, CPU)
            logp, entropy = scorer.logprobs(batch)
            assert not entropy.requires_grad
            (logp * weights[torch.tensor(batch.rows)][batch.row_N]).sum().backward()
            for place, row in enumerate(batch.rows):
                out[row] = logp.detach()[batch.row_N == place]
    return [out[row] for row in range(len(rows))]


@pytest.mark.parametrize(
    ("model", "kind"),
    [
        (kit.llama(), LlamaScorer),
        (kit.llama(kv_heads=2, tied=False), LlamaScorer),
        (kit.llama(layers=1), LlamaScorer),
        (kit.llama(), PackedScorer),
        (kit.llama(kv_heads=2, tied=False), PackedScorer),
        (kit.llama(layers=1), PackedScorer),
        (kit.llama(), GenericScorer),
        (kit.gpt2(), GenericScorer),
    ],
    ids=[
        "llama",
        "gqa-untied",
        "one-layer",
        "packed",
        "packed-gqa-untied",
        "packed-one-layer",
        "generic-llama",
        "gpt2",
    ],
)
@pytest.mark.parametrize("micro_tokens", [60, 4096])
def test_logprobs_and_gradients_equal_the_plain_computation(model: Any, kind: type, micro_tokens: int) -> None:
    rows = kit.rows_of(3)
    weights = torch.linspace(-1, 2, len(rows))
    model.zero_grad()
    naive = [kit.naive_logprobs(model, row) for row in rows]
    torch.stack([w * logp.sum() for w, logp in zip(weights, naive, strict=True)]).sum().backward()
    want = kit.gradients(model)
    model.zero_grad()
    found = _score(kind(model), rows, micro_tokens, weights)
    for got, logp in zip(found, naive, strict=True):
        torch.testing.assert_close(got, logp.detach(), rtol=1e-4, atol=1e-4)
    kit.same(kit.gradients(model), want, rtol=1e-3, atol=1e-4)


def test_shared_prompts_have_exactly_the_gradient_of_separate_ones_in_float64() -> None:
    model = kit.llama().double()
    rows = kit.rows_of(5, trajectories=6)
    found = []
    for share in (True, False):
        model.zero_grad()
        scorer = LlamaScorer(model)
        scorer.shares_prompts = share
        _score(scorer, rows, 4096, torch.ones(len(rows), dtype=torch.float64))
        found.append(kit.gradients(model))
    kit.same(found[0], found[1], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_packed_rows_have_exactly_the_gradient_of_padded_ones_in_float64(checkpointing: bool) -> None:
    model = kit.llama(kv_heads=2).double()
    lone = TokenRow(Prompt((7,)), (8, 9))
    rows = [*kit.rows_of(5, trajectories=6), lone, lone, TokenRow(Prompt((5,)), (1,))]
    found = []
    for scorer in (LlamaScorer(model), PackedScorer(model, checkpointing=checkpointing)):
        model.zero_grad()
        logps = _score(scorer, rows, 4096, torch.linspace(-1, 1, len(rows), dtype=torch.float64))
        found.append((torch.cat(logps), kit.gradients(model)))
    torch.testing.assert_close(found[1][0], found[0][0], rtol=1e-6, atol=1e-7)
    kit.same(found[1][1], found[0][1], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("kind", [LlamaScorer, PackedScorer, GenericScorer])
def test_nothing_that_an_update_made_outlives_it(kind: Any) -> None:
    """Every update fuses weights and makes activations; a circle that nothing collects would add up to all memory."""
    scorer, rows = kind(kit.llama()), kit.rows_of(1)

    def alive() -> int:
        gc.collect()
        return sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())

    counts = []
    for _ in range(4):
        _score(scorer, rows, 60, torch.ones(len(rows)))
        counts.append(alive())
    assert counts[-1] == counts[1], counts


def test_entropy_is_that_of_the_next_token_distribution() -> None:
    model = kit.llama()
    row = TokenRow(Prompt((1, 2, 3)), (4,))
    batch = collate([row], units([row], [0]), CPU)
    entropy = LlamaScorer(model).logprobs(batch)[1]
    want = torch.distributions.Categorical(logits=model(torch.tensor([[1, 2, 3]])).logits[0, -1]).entropy()
    torch.testing.assert_close(entropy[0], want, rtol=1e-4, atol=1e-5)


def test_a_head_in_parts_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    model = kit.llama()
    rows = kit.rows_of(2)
    found = []
    for elements in (logprobs.HEAD_ELEMENTS, 5 * kit.VOCABULARY):
        monkeypatch.setattr(logprobs, "HEAD_ELEMENTS", elements)
        model.zero_grad()
        logps = _score(LlamaScorer(model), rows, 4096, torch.ones(len(rows)))
        found.append((torch.cat(logps), kit.gradients(model)))
    torch.testing.assert_close(found[0][0], found[1][0])
    kit.same(found[0][1], found[1][1], rtol=1e-4, atol=1e-5)


def test_the_scorer_fits_the_model() -> None:
    assert isinstance(scorer_for(kit.llama()), LlamaScorer)
    assert isinstance(scorer_for(kit.gpt2()), GenericScorer)


def test_draws_use_every_row_once_before_any_again() -> None:
    seen = [i for step in range(5) for i in draw(10, 4, seed=3, step=step)]
    assert sorted(seen[:10]) == sorted(seen[10:20]) == list(range(10))
    assert seen[:10] != seen[10:20]
    assert draw(10, 4, seed=3, step=2) == seen[8:12]
    assert draw(10, 4, seed=4, step=2) != seen[8:12]
    assert len(draw(2, 5, seed=0, step=0)) == 5
    with pytest.raises(ValueError, match="nothing to draw"):
        draw(0, 1, seed=0, step=0)


def test_the_schedule_warms_up_and_decays() -> None:
    schedule = Schedule(peak=1.0, total=13, warmup=3, final_fraction=0.1)
    assert [schedule.at(step) for step in range(4)] == [0.25, 0.5, 0.75, 1.0]
    assert schedule.at(12) == pytest.approx(0.1)
    assert schedule.at(100) == pytest.approx(0.1)
    steps = [schedule.at(step) - schedule.at(step + 1) for step in range(3, 12)]
    assert steps == pytest.approx([0.1] * 9)
    assert Schedule(1.0, 1).at(0) == 1.0


def test_padding_stays_small_for_rows_of_many_lengths() -> None:
    rng = random.Random(0)
    rows = [TokenRow(kit.prompt(rng, 120, 200), kit.tokens(rng, 8, 16)) for _ in range(200)]
    found = units(rows, range(len(rows)))
    padded = sum(collate(rows, part, CPU).padded_tokens for part in plan(found, 4096))
    assert padded < 1.1 * sum(unit.size for unit in found)
