"""Log-probabilities: as exact as the plain computation in float32 and bfloat16, without logits of what is not
trained."""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence
from functools import cache, partial
from typing import Any

import engine_kit as kit
import pytest
import torch
import transformers
from torch.utils._python_dispatch import TorchDispatchMode

from dynaweb.protocols import TokenRow
from dynaweb.trainer.batching import collate, units
from dynaweb.trainer.logprobs import GenericScorer, LlamaScorer, answering, head_scores, micro_batches
from dynaweb.trainer.models import load_model
from dynaweb.types import Prompt

CPU = torch.device("cpu")
SCORERS = [LlamaScorer, GenericScorer]


pytestmark = pytest.mark.usefixtures("one_thread")


@cache
def _sampled() -> list[TokenRow]:
    """Rows whose responses the shipped model samples itself: tokens of the kind that an update sees."""
    model, rng = load_model("tiny"), random.Random(0)
    torch.manual_seed(0)
    rows = []
    for _ in range(8):
        prompt = torch.tensor([[rng.randrange(model.config.vocab_size) for _ in range(rng.randint(40, 120))]])
        with torch.no_grad():
            out = model.generate(prompt, max_new_tokens=12, do_sample=True, top_k=0, pad_token_id=0)
        rows.append(TokenRow(Prompt(tuple(prompt[0].tolist())), tuple(out[0, prompt.shape[1] :].tolist())))
    return rows


def _naive(model: Any, rows: Sequence[TokenRow]) -> torch.Tensor:
    with torch.no_grad():
        return torch.cat([kit.naive_logprobs(model, row) for row in rows])


def _scored(scorer: Any, rows: Sequence[TokenRow], micro_tokens: int = 512) -> torch.Tensor:
    out: dict[int, torch.Tensor] = {}
    with torch.no_grad():
        for batch in micro_batches(scorer, rows, range(len(rows)), micro_tokens, CPU):
            logp, entropy = scorer.logprobs(batch)
            assert logp.dtype == entropy.dtype == torch.float32
            out |= {row: logp[batch.row_N == place] for place, row in enumerate(batch.rows)}
    return torch.cat([out[row] for row in range(len(rows))])


@pytest.mark.parametrize("scorer", SCORERS)
def test_in_float32_they_are_the_plain_ones(scorer: Any) -> None:
    model, rows = load_model("tiny"), _sampled()
    torch.testing.assert_close(_scored(scorer(model), rows), _naive(model, rows), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("scorer", SCORERS)
def test_in_bfloat16_they_are_as_near_to_the_truth_as_the_plain_ones(scorer: Any) -> None:
    """The truth is float32 with the same weights: what bfloat16 activations cost is not what the scorer adds."""
    model, rows = load_model("tiny").bfloat16(), _sampled()
    plain, found = _naive(model, rows), _scored(scorer(model), rows)
    truth = _naive(load_model("tiny").bfloat16().float(), rows)
    assert float((found - truth).abs().mean()) < 1.25 * float((plain - truth).abs().mean())


def test_in_bfloat16_the_models_own_forward_is_followed_to_the_bit() -> None:
    """Row by row, nothing differs from the plain computation with its head in float32: far within 2e-2 per token.

    Packed, kernels of another shape round other bits of the layers' activations, as they do in any other batch.
    """
    model, rows = load_model("tiny").bfloat16(), _sampled()
    scorer = GenericScorer(model)
    with torch.no_grad():
        wanted = torch.cat([_wide_head(model, row) for row in rows])
    assert scorer.packs
    torch.testing.assert_close(_scored(scorer, rows, 1), wanted, rtol=0, atol=1e-5)
    packed = (_scored(scorer, rows, 4096) - wanted).abs()
    assert float(packed.median()) < 2e-2
    assert float(packed.mean()) < 2e-2


def _wide_head(model: Any, row: TokenRow) -> torch.Tensor:
    hidden = model.model(torch.tensor([[*row.prompt.ids, *row.response_ids]])).last_hidden_state[0].float()
    logp = torch.log_softmax(hidden @ model.lm_head.weight.float().T, dim=-1)
    places = torch.arange(len(row.response_ids)) + len(row.prompt) - 1
    return logp[places, torch.tensor(row.response_ids)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_head_rounds_nothing_in_half_precision(dtype: torch.dtype) -> None:
    """From the same hidden states: 1e-5 from the exact values in float32, and far below 2e-2 in bfloat16."""
    model, rows = load_model("tiny").to(dtype), _sampled()
    batch = collate(rows, units(rows, range(len(rows))), CPU)
    weight = model.get_output_embeddings().weight
    with torch.no_grad():
        hidden = LlamaScorer(model).hidden(batch)
        found, _ = head_scores(weight, None, hidden, batch.target_N)
        exact = torch.log_softmax(hidden.double() @ weight.double().T, dim=-1).gather(1, batch.target_N[:, None])[:, 0]
        rounded = torch.log_softmax((hidden @ weight.T).float(), dim=-1).gather(1, batch.target_N[:, None])[:, 0]
    assert float((found - exact).abs().max()) < 1e-5
    if dtype == torch.bfloat16:
        assert float((rounded - exact).abs().max()) > 1e-2, "a head in bfloat16 would have done"


def _tailed(kind: str) -> Any:
    """A model that does something to its logits."""
    more: dict[str, Any] = {
        "Gemma2": {"final_logit_softcapping": 3.0, "attn_logit_softcapping": 5.0},
        "Granite": {"logits_scaling": 3.0},
        "Cohere": {"logit_scale": 0.3},
        "NanoChat": {"final_logit_softcapping": 3.0},
        "Llama4": {"num_local_experts": 2, "intermediate_size_mlp": 40, "intermediate_size": 40},
    }[kind]
    torch.manual_seed(0)
    config = getattr(transformers, "Llama4TextConfig" if kind == "Llama4" else f"{kind}Config")
    return kit.louder(getattr(transformers, f"{kind}ForCausalLM")(config(**kit.SMALL | more, **kit.IDS)).eval())


def _rows(count: int = 5) -> list[TokenRow]:
    rng = random.Random(3)
    return [TokenRow(kit.prompt(rng, 3, 20), kit.tokens(rng, 1, 5), i) for i in range(count)]


MAKERS: dict[str, Any] = {
    "compact": lambda: LlamaScorer(kit.llama()),
    "packed": lambda: GenericScorer(kit.llama()),
    "whole": lambda: GenericScorer(_tailed("NanoChat")),
    **{
        kind: partial(lambda name: GenericScorer(_tailed(name)), kind)
        for kind in ("Gemma2", "Granite", "Cohere", "Llama4")
    },
}


@pytest.mark.parametrize("temperature", [1.0, 0.6, 1.7])
@pytest.mark.parametrize("kind", list(MAKERS))
def test_they_are_those_of_logits_divided_by_the_temperature(kind: str, temperature: float) -> None:
    """Value, entropy and gradient, whatever the model does to its logits; at 1 to the bit what they are without."""
    scorer, rows = MAKERS[kind](), _rows()
    model = scorer._model
    want, entropies = [], []
    for row in rows:
        ids = torch.tensor([[*row.prompt.ids, *row.response_ids[:-1]]])
        logits = model(input_ids=ids, use_cache=False).logits[0, len(row.prompt) - 1 :].float()
        logp = torch.log_softmax(logits / temperature, -1)
        want.append(logp.gather(1, torch.tensor(row.response_ids)[:, None])[:, 0])
        entropies.append(-(logp.exp() * logp).sum(-1))
    torch.cat(want).sum().backward()
    truth = kit.gradients(model)
    model.zero_grad()
    batch = collate(rows, units(rows, range(len(rows)), share=scorer.shares_prompts), CPU)
    with scorer.step():
        logp_N, entropy_N = scorer.logprobs(batch, temperature)
        logp_N.sum().backward()
    order = batch.rows
    torch.testing.assert_close(logp_N, torch.cat([want[row] for row in order]), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(entropy_N, torch.cat([entropies[row] for row in order]), rtol=1e-4, atol=1e-4)
    kit.same(kit.gradients(model), truth, rtol=1e-3, atol=1e-3)
    if temperature == 1.0:
        assert torch.equal(scorer.logprobs(batch)[0], logp_N)


def test_a_head_of_zeros_is_a_head() -> None:
    model = kit.gpt2()
    with torch.no_grad():
        model.lm_head.weight.zero_()
    assert GenericScorer(model)._tail is not None


@pytest.mark.parametrize("kind", ["Gemma2", "Granite", "Cohere", "Llama4"])
def test_heads_with_a_scale_or_cap_see_response_tokens_alone_and_round_nothing(kind: str) -> None:
    model, rows = _tailed(kind).bfloat16(), _rows()
    scorer = GenericScorer(model)
    batch = collate(rows, units(rows, range(len(rows)), share=False), CPU)
    with torch.no_grad():
        hidden = scorer.hidden(batch)
        exact = copy.deepcopy(model).float()
        with answering(exact.model, hidden[None].float()):
            logits = exact(input_ids=torch.arange(4)[None], use_cache=False).logits[0]
        with _Widest(model.get_output_embeddings().weight) as seen:
            logp_N, _ = scorer.logprobs(batch)
    want = torch.log_softmax(logits, -1).gather(1, batch.target_N[:, None])[:, 0]
    assert float((logp_N - want).abs().max()) < 1e-4
    assert seen.rows == len(batch.target_N)


class _Widest(TorchDispatchMode):
    """Remembers the largest tensor with one number per token of the vocabulary, the head itself apart."""

    def __init__(self, head: torch.Tensor) -> None:
        super().__init__()
        self.vocabulary, self.width = head.shape
        self.rows = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else [out]:
            if isinstance(tensor, torch.Tensor) and tensor.ndim and tensor.shape[-1] == self.vocabulary:
                rows = tensor.numel() // self.vocabulary
                self.rows = max(self.rows, rows if rows != self.width else 0)
        return out


@pytest.mark.parametrize("kind", SCORERS)
def test_no_logits_are_made_of_prompt_tokens(kind: Any) -> None:
    rng, model = random.Random(0), load_model("tiny")
    rows = [TokenRow(kit.prompt(rng, 60, 60), kit.tokens(rng, 5, 5)) for _ in range(4)]
    scorer = kind(model)
    batch = collate(rows, units(rows, range(4), share=scorer.shares_prompts), CPU)
    scorer.logprobs(batch)  # the first call may look at one row as a whole, to find the head
    with scorer.step(), _Widest(model.get_output_embeddings().weight) as seen:
        logp, _ = scorer.logprobs(batch)
        logp.sum().backward()
    assert seen.rows == sum(len(row.response_ids) for row in rows)
