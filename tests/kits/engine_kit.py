"""Small random language models and token rows for the tests of engines and backends."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import torch
import transformers
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from dynaweb.engines.vllm.probe import model_logprobs
from dynaweb.protocols import GenerateRequest, TokenRow
from dynaweb.types import Prompt

VOCABULARY = 96
SMALL: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
}
"""Configuration of a small model of any Llama-like kind."""
IDS = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
"""Their special tokens would be outside of so small a vocabulary."""


def llama(
    seed: int = 0, *, kv_heads: int = 4, tied: bool = True, layers: int = 3, positions: int = 256, **changes: Any
) -> Any:
    """A random Llama with scales that are not 1, so that a forgotten norm shows."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=kv_heads,
        max_position_embeddings=positions,
        tie_word_embeddings=tied,
        **changes,
    )
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.uniform_(0.5, 1.5)
            else:
                parameter.mul_(6)
    return model


def gpt2(seed: int = 0) -> Any:
    """A random model that the compact forward does not know; has dropout."""
    torch.manual_seed(seed)
    config = GPT2Config(vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, n_positions=256)
    return GPT2LMHeadModel(config).eval()


def louder(model: Any) -> Any:
    """The model with larger matrices, so that a token that should not be seen shows in what comes out."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(4)
    return model


def mamba(seed: int = 0) -> Any:
    """A random recurrent model, whose state can be neither padded nor shared."""
    torch.manual_seed(seed)
    config: Any = transformers.MambaConfig(vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, **IDS)
    return transformers.MambaForCausalLM(config).eval()


def longrope(seed: int = 0) -> Any:
    """A random model whose rotary frequencies are others beyond 16 tokens."""
    factors = {"short_factor": [1.0] * 4, "long_factor": [1.5, 4.0, 9.0, 30.0]}
    rope = {"rope_type": "longrope", "rope_theta": 100.0, "original_max_position_embeddings": 16, **factors}
    torch.manual_seed(seed)
    config = transformers.Phi3Config(**SMALL, original_max_position_embeddings=16, rope_parameters=rope, **IDS)
    return louder(transformers.Phi3ForCausalLM(config).eval())


def prompt(rng: random.Random, low: int, high: int) -> Prompt:
    """A prompt of random token ids, `low` to `high` of them."""
    return Prompt(tokens(rng, low, high))


def tokens(rng: random.Random, low: int, high: int) -> tuple[int, ...]:
    """Random token ids, `low` to `high` of them."""
    return tuple(rng.randrange(VOCABULARY) for _ in range(rng.randint(low, high)))


def rows_of(seed: int = 0, *, trajectories: int = 4, steps: int = 3, share: bool = True) -> list[TokenRow]:
    """Rows of some trajectories; with `share`, all of them start on the same page."""
    rng = random.Random(seed)
    first = prompt(rng, 20, 20)
    return [
        TokenRow(first if share and step == 0 else prompt(rng, 1, 30), tokens(rng, 1, 6), trajectory)
        for trajectory in range(trajectories)
        for step in range(steps)
    ]


def naive_logprobs(model: Any, row: TokenRow) -> torch.Tensor:
    """Log-probabilities of a row's response, the plain way, with gradients."""
    ids = torch.tensor([[*row.prompt.ids, *row.response_ids]])
    logp = torch.log_softmax(model(ids).logits[0].float(), dim=-1)
    places = range(len(row.prompt) - 1, len(row.prompt) + len(row.response_ids) - 1)
    return torch.stack([logp[place, token] for place, token in zip(places, row.response_ids, strict=True)])


def gradients(model: Any) -> dict[str, torch.Tensor]:
    """Copies of all gradients by name; zeros where there is none."""
    return {name: torch.zeros_like(p) if p.grad is None else p.grad.clone() for name, p in model.named_parameters()}


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor], *, rtol: float = 1e-4, atol: float = 1e-6) -> None:
    """Assert that two sets of gradients or parameters agree, relative to the largest entry of each tensor."""
    assert a.keys() == b.keys()
    for name, value in a.items():
        bound = max(atol * float(b[name].abs().max()), 1e-9)
        torch.testing.assert_close(value, b[name], rtol=rtol, atol=bound, msg=lambda text, name=name: f"{name}: {text}")


async def apart(engine: Any, prompts: Sequence[Prompt]) -> float:
    """The largest difference between log-probabilities that came with sampled tokens, and the model's own."""
    requests = [GenerateRequest(prompt, 5, 1.0, 1.0, seed) for seed, prompt in enumerate(prompts)]
    done = await asyncio.gather(*map(engine.generate, requests))
    whole = [(*prompt.ids, *completion.token_ids) for prompt, completion in zip(prompts, done, strict=True)]
    own = model_logprobs(engine.model, whole)
    pairs = [pair for row, one in zip(own, done, strict=True) for pair in zip(row[2:], one.logprobs, strict=True)]
    return max(abs(a - b) for a, b in pairs)
