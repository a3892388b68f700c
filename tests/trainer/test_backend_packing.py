"""Packed rows: each sequence as if it were alone, nothing computed for padding, and models that cannot be packed."""

from __future__ import annotations

import random
from typing import Any

import engine_kit as kit
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import masking_utils

from dynaweb.engines.local.architecture import UnreadableError, window_of
from dynaweb.errors import ConfigError, TrainingError
from dynaweb.protocols import TokenRow
from dynaweb.trainer.batching import Layout, attend, packed_attention, plan, units
from dynaweb.trainer.distributed.sharded import Scored, ShardedScorer
from dynaweb.trainer.logprobs import GenericScorer, micro_batches
from dynaweb.types import Prompt

pytestmark = pytest.mark.usefixtures("one_thread")
CPU = torch.device("cpu")
WINDOW = {"sliding_window": 6}
EXPERTS = {"num_experts_per_tok": 2, "num_local_experts": 4}
MORE: dict[str, dict[str, Any]] = {
    "Mistral": WINDOW,
    "Gemma2": WINDOW,
    # Their windows live in masks alone: attention is not told of them.
    "Phimoe": WINDOW | EXPERTS,
    "Qwen2Moe": WINDOW
    | {"num_experts": 4, "moe_intermediate_size": 24, "shared_expert_intermediate_size": 24}
    | {"use_sliding_window": True, "max_window_layers": 2},
    "Llama4Text": EXPERTS | {"attention_chunk_size": 8, "intermediate_size_mlp": 48},
}


def model_of(kind: str) -> Any:
    """A small random model of a family."""
    torch.manual_seed(0)
    if kind == "gpt2":
        return kit.gpt2()
    if kind == "mamba":
        return kit.mamba()
    config = getattr(transformers, f"{kind}Config")(**kit.SMALL | MORE.get(kind, {}), **kit.IDS)
    return kit.louder(getattr(transformers, f"{kind.removesuffix('Text')}ForCausalLM")(config).eval())


def rows(seed: int = 1) -> list[TokenRow]:
    rng = random.Random(seed)
    return [TokenRow(kit.prompt(rng, 2, 30), kit.tokens(rng, 1, 6), i) for i in range(7)]


@pytest.mark.parametrize(
    ("kind", "packs"),
    [
        ("Llama", True),
        ("Qwen2", True),
        ("Qwen3", True),
        ("Mistral", True),
        ("gpt2", True),
        ("Phimoe", True),
        ("Qwen2Moe", True),
        ("Gemma2", False),
        ("Llama4Text", False),
        ("mamba", False),
    ],
)
def test_what_each_row_gives_does_not_depend_on_its_neighbours(kind: str, packs: bool) -> None:
    """Whatever the family: window, window in the mask alone, soft cap, chunks, recurrence. The gradient too."""
    model, given = model_of(kind), rows()
    scorer = GenericScorer(model)
    assert scorer.packs is packs
    before = model.config._attn_implementation
    wanted = [kit.naive_logprobs(model, row) for row in given]
    with scorer.step():
        for batch in micro_batches(scorer, given, range(len(given)), 100, CPU):
            found = batch.spread(scorer.logprobs(batch)[0])
            for place, row in enumerate(batch.rows):
                want = wanted[row]
                torch.testing.assert_close(found[place, : len(want)], want, rtol=1e-4, atol=1e-5)
            found.sum().backward()
    seen = kit.gradients(model)
    model.zero_grad()
    torch.cat(wanted).sum().backward()
    kit.same(seen, kit.gradients(model), rtol=1e-3, atol=1e-4)
    assert model.config._attn_implementation == before


def test_rows_that_differ_in_their_rotary_frequencies_do_not_meet() -> None:
    """transformers takes the longest row of a batch for all of it."""
    model, rng = kit.longrope(), random.Random(0)
    batch = [TokenRow(kit.prompt(rng, n, n), (1, 2, 3), i) for i, n in enumerate((4, 14, 15, 40))]
    wanted = [kit.naive_logprobs(model, row) for row in batch]
    wanted[1] = kit.naive_logprobs(model, TokenRow(batch[1].prompt, (1, 2)))  # its last token predicts nothing
    scorer = GenericScorer(model)
    parts = micro_batches(scorer, batch, range(4), 1000, CPU)
    assert sorted(part.rows for part in parts) == [(0, 1), (2, 3)]
    for part in parts:
        logp = part.spread(scorer.logprobs(part)[0])
        for index, row in enumerate(part.rows):
            count = len(wanted[row])
            torch.testing.assert_close(logp[index, :count], wanted[row], rtol=1e-4, atol=1e-5)


def test_a_row_beyond_frequencies_that_grow_is_refused() -> None:
    rope = {"rope_type": "dynamic", "rope_theta": 100.0, "factor": 4.0}
    scorer = GenericScorer(kit.llama(rope_parameters=rope, positions=16))
    micro_batches(scorer, [TokenRow(Prompt((1,) * 14), (1, 2, 3))], [0], 1000, CPU)
    with pytest.raises(TrainingError, match="a row of 17 tokens is longer than the 16 up to which"):
        micro_batches(scorer, [TokenRow(Prompt((1,) * 15), (1, 2, 3))], [0], 1000, CPU)


def test_a_model_that_sees_later_tokens_is_refused() -> None:
    config: Any = transformers.BertConfig(**kit.SMALL, **kit.IDS)
    with pytest.raises(ConfigError, match="BertLMHeadModel is not causal"):
        GenericScorer(kit.louder(transformers.BertLMHeadModel(config).eval()))


@pytest.mark.parametrize("window", [None, 1, 5, 4096])
def test_windows_are_read_from_mask_functions(window: int | None) -> None:
    causal = masking_utils.causal_mask_function
    mask = causal if window is None else masking_utils.sliding_window_causal_mask_function(window)
    assert window_of(mask) == window
    chunked = masking_utils.chunked_causal_mask_function(4096, torch.zeros(1, dtype=torch.long))
    for other in (chunked, masking_utils.bidirectional_mask_function):
        with pytest.raises(UnreadableError):
            window_of(other)


def test_nothing_is_computed_for_padding() -> None:
    """The layers see as many tokens as the rows have, however different their lengths are."""
    model, given = model_of("Qwen2"), [TokenRow(Prompt((1,) * 50), (2, 3)), TokenRow(Prompt((4, 5)), (6,))]
    scorer = GenericScorer(model)
    assert scorer.packs
    seen: list[int] = []
    model.model.layers[0].mlp.register_forward_hook(lambda _, x, y: seen.append(x[0].shape[:-1].numel()))
    (batch,) = micro_batches(scorer, given, range(2), 1000, CPU)
    scorer.logprobs(batch)
    assert seen == [51 + 2] == [batch.tokens]
    assert batch.padded_tokens > batch.tokens


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=5), st.sampled_from([None, 1, 3, 50]), st.sampled_from([1, 2, 4])
)
def test_attention_is_that_of_each_sequence_alone(lengths: list[int], window: int | None, key_heads: int) -> None:
    torch.manual_seed(sum(lengths))
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    layout = Layout.of(mask)
    q, k, v = (torch.randn(sum(lengths), heads, 8) for heads in (4, key_heads, key_heads))
    found = attend(q, k, v, layout, 0.3, window)
    start = 0
    for length in lengths:
        part = slice(start, start + length)
        keys, values = (x[part].repeat_interleave(4 // key_heads, dim=1) for x in (k, v))
        score = torch.einsum("qhe,khe->hqk", q[part], keys) * 0.3
        far = torch.arange(length)[:, None] - torch.arange(length)
        score = score.masked_fill((far < 0) | (far >= (window or 100)), -torch.inf)
        want = torch.einsum("hqk,khe->qhe", score.softmax(-1), values)
        torch.testing.assert_close(found[part], want, rtol=1e-4, atol=1e-5)
        start += length
    assert torch.equal(layout.position_T, torch.cat([torch.arange(length) for length in lengths]))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(2, 40), st.integers(1, 20)), min_size=1, max_size=30), st.integers(1, 200))
def test_packed_micro_batches_are_filled_by_tokens_and_lose_no_row(sizes: list[tuple[int, int]], budget: int) -> None:
    found = units([TokenRow(Prompt((1,) * p), (2,) * r) for p, r in sizes], range(len(sizes)), share=False)
    parts = plan(found, budget, packed=True)
    assert sorted(row for part in parts for unit in part for row in unit.rows) == list(range(len(sizes)))
    totals = [sum(unit.size for unit in part) for part in parts]
    assert all(total <= budget or len(part) == 1 for total, part in zip(totals, parts, strict=True))
    # No two neighbours could have been one.
    assert all(a + parts[i + 1][0].size > budget for i, a in enumerate(totals[:-1]))


def test_the_models_attention_is_put_back_after_an_error() -> None:
    model = model_of("Llama")
    before = model.config._attn_implementation
    with pytest.raises(RuntimeError, match="stop"), packed_attention(model):
        raise RuntimeError("stop")
    assert model.config._attn_implementation == before
    model.generate(torch.tensor([[1, 2, 3]]), max_new_tokens=2, pad_token_id=0)


@pytest.mark.parametrize(("kind", "packs"), [("gpt2", True), ("mamba", False)])
def test_sharded_weights_count_tokens_as_the_scorer_inside_does(kind: str, packs: bool) -> None:
    model = model_of(kind)
    scored = Scored(model, checkpointing=False)
    inside = ShardedScorer(scored, scored)
    assert inside.packs is packs
    given, chosen = rows(), range(7)
    wanted = micro_batches(GenericScorer(model), given, chosen, 60, CPU)
    assert [one.rows for one in micro_batches(inside, given, chosen, 60, CPU)] == [one.rows for one in wanted]
