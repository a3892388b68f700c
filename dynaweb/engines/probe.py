"""The probe: do trainer and engine give the same probabilities to the same tokens?

It stands against weights that never arrive, arrive half, or are not used (an adapter under an old name, a stale cache):
faults that look like slow learning for weeks.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from dynaweb.errors import EngineError

PROMPTS = 4
LENGTH = 48
"""Tokens of one prompt of the probe."""
TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-3}
HALF_TOLERANCE = 0.05


@dataclass(slots=True)
class Probe:
    """Fixed token sequences, the same for every version of the weights; `version` is the last one that passed."""

    prompts: tuple[tuple[int, ...], ...]
    version: int = 0

    @classmethod
    def of(cls, vocabulary: int, context: int) -> Probe:
        """Random tokens of a vocabulary, as long as the context allows."""
        rng = random.Random(0)
        length = max(2, min(LENGTH, context - 1))
        return cls(tuple(tuple(rng.randrange(vocabulary) for _ in range(length)) for _ in range(PROMPTS)))

    def compare(
        self, model: nn.Module, engine: Sequence[Sequence[float]], tolerance: float, version: int
    ) -> dict[str, float]:
        """Differences per token of the engine's log-probabilities; raises `EngineError` when their mean is too large.

        `engine` has one list for each prompt, without its first token. `tolerance` 0 = by the model's precision.
        """
        own = model_logprobs(model, self.prompts)
        apart = [abs(a - b) for left, right in zip(own, engine, strict=True) for a, b in zip(left, right, strict=True)]
        mean, worst = sum(apart) / len(apart), max(apart)
        dtype = next(p.dtype for p in model.parameters() if p.is_floating_point())
        allowed = tolerance or TOLERANCE.get(dtype, HALF_TOLERANCE)
        if not mean <= allowed:
            raise EngineError(
                f"the engine does not have the trainer's weights: after push {version} log-probabilities on fixed"
                f" tokens differ by {mean:.4g} nats on average (at most {worst:.4g}; allowed {allowed:.4g}). Raise"
                " probe_tolerance only if the engine's precision explains it"
            )
        self.version = version
        return {"engine.probe_mean": mean, "engine.probe_max": worst}


def model_logprobs(model: nn.Module, prompts: Sequence[tuple[int, ...]]) -> list[list[float]]:
    """Natural-log probability of every token but the first, of sequences of one length, by the model's own forward."""
    device = next(model.parameters()).device
    ids = torch.tensor([list(prompt) for prompt in prompts], device=device)
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            logp = torch.log_softmax(model(input_ids=ids, use_cache=False).logits[:, :-1].float(), dim=-1)
    finally:
        model.train(training)
    picked: list[list[float]] = logp.gather(2, ids[:, 1:, None])[..., 0].tolist()
    return picked
