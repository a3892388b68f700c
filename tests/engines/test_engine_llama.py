"""The compact Llama forward against the original, and sharing plans."""

from __future__ import annotations

import random
from typing import Any

import engine_kit as kit
import pytest
import torch

from dynaweb.engines.local import decoding, llama
from dynaweb.engines.local.sharing import Plan, common_length, spans
from dynaweb.types import Prompt

VARIANTS: list[dict[str, Any]] = [
    {},
    {"kv_heads": 2},
    {"kv_heads": 1, "tied": False},
    {"layers": 1},
    {"head_dim": 16},
    {"rope_parameters": {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 4.0, "low_freq_factor": 1.0,
                         "high_freq_factor": 4.0, "original_max_position_embeddings": 64}},
]  # fmt: skip


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_prefill_and_decoding_equal_the_original(variant: dict[str, Any]) -> None:
    model = kit.llama(**variant)
    assert llama.unsupported(model) == ""
    torch.manual_seed(1)
    ids = torch.randint(0, kit.VOCABULARY, (4, 20))
    last = torch.tensor([19, 7, 0, 12])
    with torch.inference_mode():
        weights = llama.fuse(model)
        cache = decoding.Cache(weights, 4, 26, ragged=26)
        found = [decoding.prefill(weights, ids, last, decoding.Target(cache, slice(0, 4), torch.arange(4)))]
        new = torch.randint(0, kit.VOCABULARY, (4, 3))
        for step in range(3):
            start, zero = last + 1 + step, torch.zeros(4, dtype=torch.long)
            found.append(decoding.extend(weights, new[:, step : step + 1], start, zero, cache, slice(0, 4), 24))
        for row in range(4):
            whole = torch.cat([ids[row, : last[row] + 1], new[row]])
            want = model(whole[None]).logits[0, last[row] :]
            got = torch.stack([logits[row] for logits in found])
            torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


def test_extending_by_tails_of_many_lengths_equals_the_original() -> None:
    model = kit.llama(kv_heads=2)
    rng = random.Random(0)
    page = kit.tokens(rng, 15, 15)
    tails = [kit.tokens(rng, n, n) for n in (1, 3, 6)]
    with torch.inference_mode():
        weights = llama.fuse(model)
        cache = decoding.Cache(weights, 3, 30, ragged=30)
        target = decoding.Target(cache, slice(0, 3), torch.zeros(3, dtype=torch.long))
        assert decoding.prefill(weights, torch.tensor([page]), None, target) is None
        ids = torch.tensor([[*tail, *[0] * (6 - len(tail))] for tail in tails])
        last = torch.tensor([len(tail) - 1 for tail in tails])
        found = decoding.extend(weights, ids, torch.full((3,), 15), last, cache, slice(0, 3), 21)
        for row, tail in enumerate(tails):
            want = model(torch.tensor([[*page, *tail]])).logits[0, -1]
            torch.testing.assert_close(found[row], want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("variant", VARIANTS[:3], ids=str)
def test_gradients_through_fused_weights_are_those_of_the_original(variant: dict[str, Any]) -> None:
    model = kit.llama(**variant)
    ids = torch.randint(0, kit.VOCABULARY, (3, 9))
    last = torch.tensor([8, 8, 8])
    pick = torch.randn(3, kit.VOCABULARY)
    (model(ids).logits[:, -1] * pick).sum().backward()
    want = kit.gradients(model)
    model.zero_grad()
    proxies = llama.Proxies(model)
    for row in range(3):
        logits = decoding.prefill(proxies.weights, ids[row : row + 1], last[row : row + 1])
        assert logits is not None
        (logits * pick[row]).sum().backward()
    proxies.push()
    kit.same(kit.gradients(model), want, rtol=1e-4, atol=1e-5)


def test_models_that_it_cannot_serve_are_told_why() -> None:
    assert "GPT2LMHeadModel" in llama.unsupported(kit.gpt2())
    assert "plain linear" in llama.unsupported(kit.llama(attention_bias=True))
    assert "gelu" in llama.unsupported(kit.llama(hidden_act="gelu"))


def test_spans_bound_the_padded_size() -> None:
    parts = list(spans([3, 3, 4, 9, 10, 50], 12))
    assert [(part.start, part.stop) for part in parts] == [(0, 3), (3, 4), (4, 5), (5, 6)]
    assert list(spans([], 12)) == []


def test_common_length() -> None:
    assert common_length(Prompt((1, 2, 3, 4)), Prompt((1, 2, 9, 4))) == 2
    assert common_length(Prompt((1, 2)), Prompt((1, 2, 3))) == 2
    assert common_length(Prompt((5,)), Prompt((6,))) == 0


@pytest.mark.parametrize("seed", range(20))
def test_a_plan_has_every_row_once_and_rebuilds_every_prompt(seed: int) -> None:
    rng = random.Random(seed)
    pages = [kit.tokens(rng, 30, 60) for _ in range(3)]
    prompts = [rng.choice(pages)[: rng.choice([10, 40, 60])] + kit.tokens(rng, 0, 8) for _ in range(12)]
    prompts = [ids or (1,) for ids in prompts + rng.sample(prompts, 4)]
    plan = Plan.of([Prompt(ids) for ids in prompts])
    assert sorted(plan.order) == list(range(len(prompts)))
    shared = {row: prefix for prefix, rows in plan.prefixes for row in rows}
    for tail in plan.tails:
        assert (*shared[tail.row], *tail.ids) == prompts[tail.row]
        assert len(shared[tail.row]) == tail.start
        assert tail.ids
    for prompt, rows in plan.whole:
        assert all(prompts[row] == prompt for row in rows)
    assert plan.computed <= sum(map(len, set(prompts))) + sum(len(tail.ids) for tail in plan.tails)


def test_one_page_with_several_actions_is_computed_once() -> None:
    page = tuple(range(90))
    plan = Plan.of([Prompt((*page, 1, action)) for action in (5, 6, 7, 7)] + [Prompt((9, 9))])
    assert [(len(prefix), rows) for prefix, rows in plan.prefixes] == [(91, (0, 1, 2, 3))]
    assert plan.computed == 91 + 4 + 2
