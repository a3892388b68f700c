"""Which tokens come next, and where they end.

Drawing takes one uniform number for each token from the request's own seed, then the inverse of the cumulative
distribution: what is drawn depends on the seed and the distribution, never on the order or the number of requests that
share a batch. A completion ends where the first of its stop texts is complete.

Shapes: B rows, V vocabulary entries, N tokens drawn at most.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from dynaweb.errors import DivergedError, EngineError
from dynaweb.protocols import Completion, GenerateRequest

_KEY_BITS = 128


def uniforms(seed: int, count: int) -> np.ndarray:
    """`count` float64 numbers in [0, 1) from Philox keyed by `seed`; a longer draw starts with the shorter one."""
    return np.random.Generator(np.random.Philox(key=seed % (1 << _KEY_BITS))).random(count)


@dataclass(frozen=True, slots=True)
class Sampler:
    """The sampling settings of the rows of one batch.

    `uniform_BN` float64, `temperature_B` and `top_p_B` float32, `greedy_B` bool. Temperature 0 is greedy; the
    log-probability reported for a greedy token is that of the model's own distribution (temperature 1).
    """

    uniform_BN: torch.Tensor
    temperature_B: torch.Tensor
    top_p_B: torch.Tensor
    greedy_B: torch.Tensor
    some_greedy: bool
    all_greedy: bool
    some_nucleus: bool
    unwritten_V: torch.Tensor | None = None
    """True for ids that stand for no text, which are never drawn; None = there are none."""

    @classmethod
    def of(
        cls, requests: Sequence[GenerateRequest], device: torch.device, unwritten_V: torch.Tensor | None = None
    ) -> Sampler:
        """A sampler with one row per request."""
        count = max(request.max_new_tokens for request in requests)
        uniform_BN = np.stack([uniforms(request.seed, count) for request in requests])
        greedy = [request.temperature <= 0 for request in requests]
        top_p = [1.0 if request.temperature <= 0 else request.top_p for request in requests]
        temperature = [request.temperature if request.temperature > 0 else 1.0 for request in requests]
        return cls(
            uniform_BN=torch.from_numpy(uniform_BN).to(device),
            temperature_B=torch.tensor(temperature, dtype=torch.float32, device=device),
            top_p_B=torch.tensor(top_p, dtype=torch.float32, device=device),
            greedy_B=torch.tensor(greedy, device=device),
            some_greedy=any(greedy),
            all_greedy=all(greedy),
            some_nucleus=any(p < 1.0 for p in top_p),
            unwritten_V=unwritten_V,
        )

    def draw(self, logits_BV: torch.Tensor, rows: torch.Tensor, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Tokens [B] and their natural-log probabilities [B] (float32) for the sampler rows `rows` [B] at `step`."""
        if self.unwritten_V is not None:
            logits_BV = logits_BV.masked_fill(self.unwritten_V, float("-inf"))
        logp_BV = torch.log_softmax(logits_BV.float() / self.temperature_B[rows, None], dim=-1)
        if self.some_nucleus:
            logp_BV = nucleus(logp_BV, self.top_p_B[rows])
        if self.all_greedy:
            token_B = logp_BV.argmax(-1)
        else:
            token_B = invert(logp_BV, self.uniform_BN[rows, step])
            if self.some_greedy:
                token_B = torch.where(self.greedy_B[rows], logp_BV.argmax(-1), token_B)
        return token_B, logp_BV.gather(1, token_B[:, None])[:, 0]


def unwritten(tokenizer: Any, rows: int) -> tuple[int, ...]:
    """The ids below `rows` that stand for no text of a tokenizer: many vocabularies are padded to a round size."""
    known = set(tokenizer.get_vocab().values()) if hasattr(tokenizer, "get_vocab") else set(range(rows))
    return tuple(number for number in range(rows) if number not in known)


def nucleus(logp_BV: torch.Tensor, top_p_B: torch.Tensor) -> torch.Tensor:
    """Keep the smallest set of most likely tokens whose probability reaches `top_p_B`, renormalised; others -inf."""
    sorted_BV, order_BV = logp_BV.sort(dim=-1, descending=True, stable=True)
    mass_BV = sorted_BV.exp()
    before_BV = mass_BV.double().cumsum(-1) - mass_BV
    cut_BV = torch.zeros_like(logp_BV, dtype=torch.bool)
    cut_BV.scatter_(1, order_BV, (before_BV >= top_p_B[:, None]) & (top_p_B[:, None] < 1.0))
    return torch.log_softmax(logp_BV.masked_fill(cut_BV, float("-inf")), dim=-1)


def invert(logp_BV: torch.Tensor, uniform_B: torch.Tensor) -> torch.Tensor:
    """The first token [B] whose cumulative probability exceeds the uniform number; never one of probability 0."""
    cumulative_BV = logp_BV.exp().double().cumsum(-1)
    total_B = cumulative_BV[:, -1]
    # Rounding may lift the mark to the total itself, which no entry exceeds.
    mark_B = torch.minimum(uniform_B * total_B, torch.nextafter(total_B, torch.zeros_like(total_B)))
    token_B = torch.searchsorted(cumulative_BV, mark_B[:, None], right=True)[:, 0]
    # Of a distribution that is not a number nothing is found: `refuse_divergence` tells of it by its probability.
    return token_B.clamp_(max=logp_BV.shape[1] - 1)


def refuse_divergence(logps: Iterable[float]) -> None:
    """Raise `DivergedError` where a log-probability is no number: the weights, or what they give, are not finite."""
    if any(map(math.isnan, logps)):
        raise DivergedError(
            "the model diverged: the probabilities of its next token are not numbers; lower the learning rate of the "
            "stage that trained it (rl.lr, sft.lr or wm_fit.lr), or look at its weights"
        )


Decode = Callable[[list[int]], str]


def need_decoder(request: GenerateRequest, decode: Decode | None) -> None:
    """Raise `EngineError` for stop texts where nobody can read tokens."""
    if request.stop and decode is None:
        raise EngineError("stop texts need an engine that knows the tokenizer; use stop_ids")


def complete(tokens: Sequence[int], stop: Sequence[str], decode: Decode) -> bool:
    """Whether the text of the tokens holds a stop text."""
    text = decode(list(tokens))
    return any(word in text for word in stop)


def cut(completion: Completion, stop: Sequence[str], decode: Decode) -> Completion:
    """A completion up to the token that completes a stop text; the whole of it where there is none."""
    tokens = completion.token_ids
    if not stop or not complete(tokens, stop, decode):
        return completion
    # Once complete, a text stays complete, so halving finds the first token.
    low, high = 1, len(tokens)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if complete(tokens[:middle], stop, decode) else (middle + 1, high)
    return replace(completion, token_ids=tokens[:low], logprobs=completion.logprobs[:low], finished=True)
