"""The probe: do trainer and engine give the same log-probabilities on fixed tokens, after new weights went over?

It stands against weights that never arrive, arrive half, or are not used (an adapter under an old name, a stale cache):
faults that look like slow learning for weeks.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from dynaweb.errors import EngineError

PROMPTS = 4
LENGTH = 48
"""Tokens of one prompt of the probe."""
TIMES = 8.0
"""So many times its own rounding may the engine's be: it orders the same sums otherwise, and rounds more of them."""
LEAST = {"cpu": 1e-3, "cuda": 0.02}
"""Nats that are always allowed: on CUDA, products of float32 numbers are rounded to fewer digits (TF32)."""
HALF = 0.05
"""Nats that are allowed in half precision to models too large for a copy in float32."""
LARGEST = 3_000_000_000
"""Weights of the largest model that is copied to see its own rounding."""


@dataclass(slots=True)
class Probe:
    """Token sequences that the model itself would write, the same for every version of the weights.

    Of tokens that it would never write half precision knows little, since their probabilities are tiny: a difference
    there tells of rounding, not of weights. `version` is the last one that passed; `rounding` the model's own (nats).
    """

    prompts: tuple[tuple[int, ...], ...]
    rounding: float | None = None
    version: int = 0

    @classmethod
    def of(cls, model: nn.Module, vocabulary: int, context: int) -> Probe:
        """Sequences that the model samples, each from another first token, as long as the context allows."""
        rng = random.Random(0)
        length = max(2, min(LENGTH, context - 1))
        prompts: list[tuple[int, ...]] = [(rng.randrange(vocabulary),) for _ in range(PROMPTS)]
        while len(prompts[0]) < length:
            marks = [rng.random() for _ in prompts]
            cumulative = _next_logprobs(model, prompts).double().exp().cumsum(-1)
            for i, mark in enumerate(marks):
                chosen = int(torch.searchsorted(cumulative[i], mark * float(cumulative[i, -1])))
                prompts[i] = (*prompts[i], min(chosen, vocabulary - 1))
        return cls(tuple(prompts), _own_rounding(model, prompts))

    def compare(
        self,
        model: nn.Module,
        engine: Sequence[Sequence[float]],
        tolerance: float,
        version: int,
        *,
        own: Sequence[Sequence[float]] | None = None,
    ) -> dict[str, float]:
        """Differences per token of the engine's log-probabilities; raises `EngineError` when their mean is too large.

        `engine` has one list for each prompt, without its first token, and so has `own`, the model's (None: computed
        here). `tolerance` 0 = by the model's own rounding.
        """
        mean, worst = _apart(model_logprobs(model, self.prompts) if own is None else own, engine)
        allowed = tolerance or self._allowed(model)
        if not tolerance and not mean <= allowed:
            # Rounding grows with the weights, and was measured with the first ones.
            self.rounding = _own_rounding(model, self.prompts)
            allowed = self._allowed(model)
        if not mean <= allowed:
            raise EngineError(
                f"the engine does not have the trainer's weights: after push {version} log-probabilities on fixed"
                f" tokens differ by {mean:.4g} nats on average (at most {worst:.4g}; allowed {allowed:.4g}). Raise"
                " probe_tolerance only if the engine's precision explains it"
            )
        self.version = version
        return {"engine.probe_mean": mean, "engine.probe_max": worst, "engine.probe_allowed": allowed}

    def _allowed(self, model: nn.Module) -> float:
        least = LEAST[next(model.parameters()).device.type]
        return max(least, HALF if self.rounding is None else TIMES * self.rounding)


def _apart(left: Sequence[Sequence[float]], right: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Mean and largest difference of two tables of log-probabilities."""
    each = [abs(a - b) for one, two in zip(left, right, strict=True) for a, b in zip(one, two, strict=True)]
    return sum(each) / len(each), max(each)


def _own_rounding(model: nn.Module, prompts: Sequence[tuple[int, ...]]) -> float | None:
    """By how much the model's precision moves its own log-probabilities; None for one too large to be copied."""
    if next(p.dtype for p in model.parameters() if p.is_floating_point()) in (torch.float32, torch.float64):
        return 0.0
    if sum(parameter.numel() for parameter in model.parameters()) > LARGEST:
        return None
    wide = copy.deepcopy(model).float()
    return _apart(model_logprobs(model, prompts), model_logprobs(wide, prompts))[0]


def _next_logprobs(model: nn.Module, prompts: Sequence[tuple[int, ...]]) -> torch.Tensor:
    """Natural-log probabilities of the token after each of some sequences of one length, on the CPU."""
    return _logprobs(model, prompts)[:, -1].cpu()


def model_logprobs(model: nn.Module, prompts: Sequence[tuple[int, ...]]) -> list[list[float]]:
    """Natural-log probability of every token but the first, of sequences of one length, by the model's own forward."""
    logp = _logprobs(model, prompts)[:, :-1]
    ids = torch.tensor([list(prompt) for prompt in prompts], device=logp.device)
    picked: list[list[float]] = logp.gather(2, ids[:, 1:, None])[..., 0].tolist()
    return picked


def _logprobs(model: nn.Module, prompts: Sequence[tuple[int, ...]]) -> torch.Tensor:
    ids = torch.tensor([list(prompt) for prompt in prompts], device=next(model.parameters()).device)
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            return torch.log_softmax(model(input_ids=ids, use_cache=False).logits.float(), dim=-1)
    finally:
        model.train(training)
