"""The probe: do trainer and engine give the same log-probabilities on fixed tokens, after new weights went over?

It stands against weights that never arrive, arrive half, or are not used (an adapter under an old name, a stale cache):
faults that look like slow learning for weeks.

Of a model that sees, a fixed reply to a fixed picture is compared too, and by itself: weights that see move nothing
else.
"""

from __future__ import annotations

import copy
import hashlib
import io
import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from dynaweb.engines.local.sessions import seen
from dynaweb.errors import EngineError
from dynaweb.protocols import Vision
from dynaweb.types import Image, Prompt

PROMPTS = 4
LENGTH = 48
"""Tokens of one prompt of the probe."""
REPLY = 12
"""Tokens of the reply to the picture."""
SIZE = 96, 64
"""Width and height of the picture, in pixels."""
TIMES = 8.0
"""So many times its own rounding may the engine's be: it orders the same sums otherwise, and rounds more of them."""
LEAST = {"cpu": 1e-3, "cuda": 0.02}
"""Nats that are always allowed: on CUDA, products of float32 numbers are rounded to fewer digits (TF32)."""
HALF = 0.05
"""Nats that are allowed in half precision to models too large for a copy in float32."""
LARGEST = 3_000_000_000
"""Weights of the largest model that is copied to see its own rounding."""

Rows = Sequence[Sequence[float]]
"""Log-probabilities of tokens in nats, one list for each prompt."""


@dataclass(slots=True)
class Seeing:
    """A picture of noise in a user's turn, and a reply that the model itself would write (`prompt`, its last `REPLY`
    tokens). `vision` reads the picture; `rounding` is the model's own on the reply (nats)."""

    prompt: Prompt
    vision: Vision
    rounding: float | None = None

    @classmethod
    def of(cls, model: nn.Module, vision: Vision, context: int) -> Seeing:
        """Raises `EngineError` where the context has no room for the picture."""
        image, data = _noise(*SIZE)
        own = vision.reading(lambda image: data)
        prompt, rng = own.example(image), random.Random(0)
        if len(prompt) + REPLY >= context:
            raise EngineError(
                f"a picture of {SIZE[0]}x{SIZE[1]} pixels and a short reply take {len(prompt) + REPLY} tokens, and the "
                f"context has {context}; raise max_model_len, or set observation.modality = text"
            )
        for _ in range(REPLY):
            logp = _logprobs_seen(model, own, prompt)[-1].cpu()
            prompt = replace(prompt, ids=(*prompt.ids, _drawn(logp, rng.random(), vision.unwritten)))
        made = cls(prompt, own)
        made.rounding = _own_rounding(model, made.said)
        return made

    def said(self, model: nn.Module) -> Rows:
        """What the model says of the reply, by its own forward pass."""
        logp = _logprobs_seen(model, self.vision, self.prompt)[-REPLY - 1 : -1]
        ids = torch.tensor(self.prompt.ids[-REPLY:], device=logp.device)
        return [logp.gather(1, ids[:, None])[:, 0].tolist()]


@dataclass(slots=True)
class Probe:
    """Token sequences that the model itself would write, the same for every version of the weights.

    Of tokens that it would never write half precision knows little, since their probabilities are tiny: a difference
    there tells of rounding, not of weights. `version` is the last one that passed; `rounding` the model's own (nats).
    `seeing` is the same for a picture, where the model sees.
    """

    prompts: tuple[tuple[int, ...], ...]
    rounding: float | None = None
    version: int = 0
    seeing: Seeing | None = None

    @classmethod
    def of(cls, model: nn.Module, vocabulary: int, context: int, vision: Vision | None = None) -> Probe:
        """Sequences that the model samples, each from another first token, as long as the context allows."""
        rng = random.Random(0)
        length = max(2, min(LENGTH, context - 1))
        # One that stands for an image has no meaning without it.
        never = () if vision is None else vision.unwritten
        written = [token for token in range(vocabulary) if token not in never]
        prompts: list[tuple[int, ...]] = [(written[rng.randrange(len(written))],) for _ in range(PROMPTS)]
        while len(prompts[0]) < length:
            marks = [rng.random() for _ in prompts]
            logp = _next_logprobs(model, prompts)
            prompts = [(*one, _drawn(logp[i], marks[i], never)) for i, one in enumerate(prompts)]
        made = cls(tuple(prompts))
        made.rounding = _own_rounding(model, made.texts)
        made.seeing = None if vision is None else Seeing.of(model, vision, context)
        return made

    def texts(self, model: nn.Module) -> Rows:
        """What the model says of the sequences."""
        return model_logprobs(model, self.prompts)

    def said(self, model: nn.Module) -> Rows:
        """What the model says of the sequences, and of the reply to the picture."""
        return [*self.texts(model), *(self.seeing.said(model) if self.seeing else ())]

    def compare(
        self,
        model: nn.Module,
        engine: Rows,
        tolerance: float,
        version: int,
        *,
        own: Rows | None = None,
    ) -> dict[str, float]:
        """Differences per token of the engine's log-probabilities; raises `EngineError` when their mean is too large.

        `engine` has one list for each prompt, without its first token, and so has `own`, the model's (None: computed
        here); a last list is of the reply to the picture, where there is one. `tolerance` 0 = by the model's own
        rounding.
        """
        own = self.said(model) if own is None else own
        count = len(self.prompts)
        mean, worst = _apart(own[:count], engine[:count])
        allowed = tolerance or _allowed(model, self.rounding)
        if not tolerance and not mean <= allowed:
            # Rounding grows with the weights, and was measured with the first ones.
            self.rounding = _own_rounding(model, self.texts)
            allowed = _allowed(model, self.rounding)
        _refuse(mean, worst, allowed, f"after push {version} log-probabilities on fixed tokens")
        gap = {"engine.probe_mean": mean, "engine.probe_max": worst, "engine.probe_allowed": allowed}
        if self.seeing is not None:
            mean, worst = _apart(own[count:], engine[count:])
            allowed = tolerance or _allowed(model, self.seeing.rounding)
            if not tolerance and not mean <= allowed:
                self.seeing.rounding = _own_rounding(model, self.seeing.said)
                allowed = _allowed(model, self.seeing.rounding)
            _refuse(mean, worst, allowed, f"after push {version} log-probabilities of a fixed reply to a picture")
            gap |= {"engine.probe_picture": mean}
        self.version = version
        return gap


def _refuse(mean: float, worst: float, allowed: float, what: str) -> None:
    if not mean <= allowed:
        raise EngineError(
            f"the engine does not have the trainer's weights: {what} differ by {mean:.4g} nats on average (at most"
            f" {worst:.4g}; allowed {allowed:.4g}). Raise probe_tolerance only if the engine's precision explains it"
        )


def _allowed(model: nn.Module, rounding: float | None) -> float:
    least = LEAST[next(model.parameters()).device.type]
    return max(least, HALF if rounding is None else TIMES * rounding)


def _noise(width: int, height: int) -> tuple[Image, bytes]:
    """A picture of coloured noise, always the same, as a PNG."""
    from PIL import Image as Pillow

    stream = io.BytesIO()
    picture = Pillow.frombytes("RGB", (width, height), random.Random(0).randbytes(3 * width * height))
    picture.save(stream, "PNG")
    return Image(hashlib.sha256(stream.getvalue()).hexdigest(), width, height), stream.getvalue()


def _drawn(logp_V: torch.Tensor, mark: float, never: Collection[int]) -> int:
    """The token at a share `mark` of the probabilities, none of `never`."""
    chance = logp_V.double().exp()
    chance[list(never)] = 0.0
    cumulative = chance.cumsum(-1)
    return min(int(torch.searchsorted(cumulative, mark * float(cumulative[-1]), right=True)), len(logp_V) - 1)


def _apart(left: Rows, right: Rows) -> tuple[float, float]:
    """Mean and largest difference of two tables of log-probabilities."""
    each = [abs(a - b) for one, two in zip(left, right, strict=True) for a, b in zip(one, two, strict=True)]
    return sum(each) / len(each), max(each)


def _own_rounding(model: nn.Module, said: Callable[[nn.Module], Rows]) -> float | None:
    """By how much the model's precision moves its own log-probabilities; None for one too large to be copied."""
    if next(p.dtype for p in model.parameters() if p.is_floating_point()) in (torch.float32, torch.float64):
        return 0.0
    if sum(parameter.numel() for parameter in model.parameters()) > LARGEST:
        return None
    return _apart(said(model), said(copy.deepcopy(model).float()))[0]


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
    return _forward(model, ids)


def _logprobs_seen(model: nn.Module, vision: Vision, prompt: Prompt) -> torch.Tensor:
    """Of the token after each one of a prompt with images."""
    ids = torch.tensor([list(prompt.ids)], device=next(model.parameters()).device)
    return _forward(model, ids, **seen(model, vision, [prompt], ids))[0]


def _forward(model: nn.Module, ids: torch.Tensor, **inputs: torch.Tensor) -> torch.Tensor:
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            logits = model(input_ids=ids, **inputs, use_cache=False).logits
            return torch.log_softmax(logits.float(), dim=-1)
    finally:
        model.train(training)
