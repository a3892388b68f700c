"""Log-probabilities of response tokens, with gradients, without a [batch, length, vocabulary] tensor.

`LlamaScorer` computes each prompt once however many responses it has, and the last layer and the output head only where
a response token is predicted; `PackedScorer` does so on a GPU, without padding. `GenericScorer` serves any other causal
language model of transformers: rows are packed without padding where the model allows it, and the output head is at
response positions. All give the same gradients.

Shapes: see `dynaweb.trainer.batching.MicroBatch`; D width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import product
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd.function import once_differentiable

from dynaweb.engines.local import llama
from dynaweb.engines.local.architecture import RopeLimit, body_of, near, refuse_unfit, rope_limit
from dynaweb.engines.local.llama import HALF, widen
from dynaweb.engines.local.sessions import seen
from dynaweb.protocols import TokenRow, Vision
from dynaweb.trainer import batching, packed
from dynaweb.trainer.batching import Layout, MicroBatch, Windows, packable, packed_attention, run_packed
from dynaweb.trainer.models import frozen
from dynaweb.trainer.recompute import recomputed, recomputing

HEAD_ELEMENTS = 1 << 25
"""Logits that exist at once."""


class Scorer(Protocol):
    """Computes micro-batches with one kind of model; `shares_prompts` tells how rows should be grouped, `packs` whether
    padding is left out of what it computes, `rope` which lengths must not meet in a micro-batch, and `vision` how the
    model sees (None: it reads text alone)."""

    shares_prompts: bool
    rope: RopeLimit | None
    vision: Vision | None

    @property
    def packs(self) -> bool:
        """Whether a micro-batch costs its real tokens, not the padded ones."""
        ...

    def step(self) -> AbstractContextManager[None]:
        """Around all micro-batches of one optimizer step; gradients are complete when it is left."""
        ...

    def logprobs(self, batch: MicroBatch, temperature: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
        """Natural-log probability and entropy [N] of the response tokens, float32; only the first has a gradient.

        Both are of the distribution that tokens are drawn from: logits are divided by the temperature.
        """
        ...

    def hidden(self, batch: MicroBatch) -> torch.Tensor:
        """Final hidden states [N, D] that predict the response tokens, in the model's precision, with gradient."""
        ...


def scorer_for(model: nn.Module, *, checkpointing: bool = False, vision: Vision | None = None) -> Scorer:
    """The fastest scorer that serves the model; with `checkpointing` it makes activations again in backward passes.

    With `vision` it takes rows whose prompts have images. Raises `ConfigError` for a model that is not causal.
    """
    if vision is not None:
        return GenericScorer(model, checkpointing=checkpointing, vision=vision)
    if packed.runs_packed(model):
        return PackedScorer(model, checkpointing=checkpointing)
    if llama.unsupported(model):
        return GenericScorer(model, checkpointing=checkpointing)
    return LlamaScorer(model, checkpointing=checkpointing)


def micro_batches(
    scorer: Scorer, rows: Sequence[TokenRow], chosen: Sequence[int], micro_tokens: int, device: torch.device
) -> list[MicroBatch]:
    """The chosen rows as micro-batches of at most `micro_tokens` tokens, as the scorer counts and groups them.

    Rows whose prompts have images are computed one by one, so that no family's way of padding or sharing images plays a
    part. Raises `EngineError` for such a row where the scorer cannot see.
    """
    units = batching.units(rows, chosen, share=scorer.shares_prompts)
    seeing = [unit for unit in units if unit.prompt.images]
    parts = [
        part
        for alike in batching.apart([unit for unit in units if not unit.prompt.images], scorer.rope)
        for part in batching.plan(alike, micro_tokens, packed=scorer.packs)
    ]
    parts += [[unit] for alike in batching.apart(seeing, scorer.rope) for unit in alike]
    sees = scorer.vision is not None
    return [batching.collate(rows, part, device, sees=sees) for part in parts]


class LlamaScorer:
    """Prefix and tails of each unit on the compact Llama forward."""

    shares_prompts = True
    packs = False
    rope: RopeLimit | None = None
    vision: Vision | None = None

    def __init__(self, model: nn.Module, *, checkpointing: bool = False) -> None:
        self._model = model
        self._checkpointing = checkpointing
        self._proxies: llama.Proxies | None = None

    @contextmanager
    def step(self) -> Iterator[None]:
        """Fuse the weights once for all micro-batches, and send their gradients on at the end."""
        self._proxies = llama.Proxies(self._model)
        try:
            yield
            self._proxies.push()
        finally:
            self._proxies = None

    def logprobs(self, batch: MicroBatch, temperature: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probabilities and entropies [N] of response tokens."""
        weights = self._weights()
        hidden_ND = self._predictors(weights, batch)
        return head_scores(weights.head_VD, None, hidden_ND, batch.target_N, Tail(temperature=temperature))

    def hidden(self, batch: MicroBatch) -> torch.Tensor:
        """Final hidden states [N, D] that predict the response tokens."""
        return self._predictors(self._weights(), batch)

    def _predictors(self, weights: llama.Weights, batch: MicroBatch) -> torch.Tensor:
        hidden = shared_hidden(weights, batch, checkpointing=self._checkpointing)
        hidden_ND = hidden.flatten(0, 1).index_select(0, batch.flat_N)
        return llama.normalise(hidden_ND, weights.eps) * weights.norm_D

    def _weights(self) -> llama.Weights:
        return llama.fuse(self._model) if self._proxies is None else self._proxies.weights


class PackedScorer(LlamaScorer):
    """The same without padding, with variable-length attention and fused operations: for half precision on a GPU."""

    packs = True

    def _predictors(self, weights: llama.Weights, batch: MicroBatch) -> torch.Tensor:
        return packed.packed_hidden(weights, packed.Packing.of(batch), checkpointing=self._checkpointing)


def shared_hidden(weights: llama.Weights, batch: MicroBatch, *, checkpointing: bool = False) -> torch.Tensor:
    """Final hidden states [U, Q, D] of the tails, each of which sees its prefix and its own earlier tokens."""
    columns = torch.arange(batch.prefix_UP.shape[1], device=batch.prefix_UP.device)
    turns = llama.rotary(weights, columns), llama.rotary(weights, batch.position_UQ)
    mask = tail_mask(batch)
    prefix, tail = F.embedding(batch.prefix_UP, weights.embed_VD), F.embedding(batch.tail_UQ, weights.embed_VD)
    for index, layer in enumerate(weights.layers):
        block = partial(_block, weights, layer, turns, mask, index == len(weights.layers) - 1)
        prefix, tail = recomputed(block, prefix, tail) if checkpointing else block(prefix, tail)
    return tail


def _block(
    weights: llama.Weights,
    layer: llama.Layer,
    turns: tuple[torch.Tensor, torch.Tensor],
    mask: torch.Tensor,
    final: bool,
    prefix: torch.Tensor,
    tail: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """One layer; the final one leaves the prefixes as they are, since nothing looks at them any more."""
    if final:
        prefix_key, prefix_value = llama.project_keys(weights, layer, prefix, turns[0])
    else:
        query, prefix_key, prefix_value = llama.project(weights, layer, prefix, turns[0])
        prefix = llama.finish(weights, layer, prefix, llama.attend(query, prefix_key, prefix_value, is_causal=True))
    query, key, value = llama.project(weights, layer, tail, turns[1])
    keys, values = torch.cat([prefix_key, key], dim=1), torch.cat([prefix_value, value], dim=1)
    return prefix, llama.finish(weights, layer, tail, llama.attend(query, keys, values, attn_mask=mask))


def tail_mask(batch: MicroBatch) -> torch.Tensor:
    """Bool [U, 1, Q, P+Q]: tail tokens see their whole prefix, and themselves and earlier tokens of their own row."""
    columns = torch.arange(batch.prefix_UP.shape[1], device=batch.prefix_UP.device)
    prefix = (columns < batch.prefix_U[:, None])[:, None, :].expand(-1, batch.tail_UQ.shape[1], -1)
    same = batch.segment_UQ[:, :, None] == batch.segment_UQ[:, None, :]
    return torch.cat([prefix, same.tril()], dim=-1)[:, None]


class GenericScorer:
    """The model's own forward; one row per unit. Rows are packed without padding where the model can take that, and
    sees nothing: its attention would have to be changed and put back between passes."""

    shares_prompts = False

    def __init__(self, model: nn.Module, *, checkpointing: bool = False, vision: Vision | None = None) -> None:
        self._model: Any = model
        self._checkpointing = checkpointing
        self.vision = vision
        self._body = body_of(model)
        self.rope = rope_limit(model)
        with frozen(model):
            refuse_unfit(model)

    @property
    def packs(self) -> bool:
        """Whether rows are packed. Not where head and body are not apart: the whole model pads."""
        return self._windows is not None

    @cached_property
    def _windows(self) -> Windows | None:
        """The windows of attention layers, where rows are packed: read and tried once."""
        if self._tail is None or self.vision is not None:
            return None
        with frozen(self._model):
            return packable(self._model, self._body)

    @contextmanager
    def step(self) -> Iterator[None]:
        """Attention and layers stay as the passes need them until the backward passes are over."""
        with ExitStack() as stack:
            if self.packs:
                stack.enter_context(packed_attention(self._model))
            if self._checkpointing:
                stack.enter_context(recomputing(self._model))
            yield

    def logprobs(self, batch: MicroBatch, temperature: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probabilities and entropies [N] of response tokens."""
        if self._tail is not None:
            # Read anew each time: where weights are sharded, the head's are other tensors while they are whole.
            head, tail = self._model.get_output_embeddings(), replace(self._tail, temperature=temperature)
            return head_scores(head.weight, head.bias, self.hidden(batch), batch.target_N, tail)
        joined = Joined.of(batch)
        logits = self._model(**self._inputs(batch, joined)).logits
        return token_scores(logits.flatten(0, 1).index_select(0, joined.flat_N), batch.target_N, temperature)

    def hidden(self, batch: MicroBatch) -> torch.Tensor:
        """Final hidden states [N, D] that predict the response tokens."""
        joined = Joined.of(batch)
        windows = self._windows
        if windows is None:
            hidden: torch.Tensor = self._body(**self._inputs(batch, joined)).last_hidden_state
            return hidden.flatten(0, 1).index_select(0, joined.flat_N)
        layout = Layout.of(joined.mask_UL)
        with packed_attention(self._model):
            hidden_TD = run_packed(self._body, joined.ids_UL[joined.mask_UL], layout, windows)
        return hidden_TD.index_select(0, joined.packed_N)

    def _inputs(self, batch: MicroBatch, joined: Joined) -> dict[str, Any]:
        """What a forward pass of whole rows takes, images among it."""
        inputs = {"input_ids": joined.ids_UL, "attention_mask": joined.mask_UL.long(), "use_cache": False}
        if batch.seen is None or self.vision is None:
            return inputs
        return {**inputs, **seen(self._model, self.vision, [batch.seen], joined.ids_UL)}

    @cached_property
    def _tail(self) -> Tail | None:
        """What follows the head, which is used apart from the body only where together they are the model."""
        with frozen(self._model), torch.no_grad():
            return None if self._body is None else tail_of(self._model, self._body)


@dataclass(frozen=True, slots=True)
class Joined:
    """Whole rows [U, L], padded on the right, and the index of each response token's predictor: `flat_N` among all
    U*L tokens, `packed_N` among the real ones."""

    ids_UL: torch.Tensor
    mask_UL: torch.Tensor
    flat_N: torch.Tensor
    packed_N: torch.Tensor

    @classmethod
    def of(cls, batch: MicroBatch) -> Joined:
        """Prefixes and tails of a micro-batch put together; each unit must be one row."""
        count, width = batch.prefix_UP.shape
        real_UQ = batch.segment_UQ >= 0
        lengths = batch.prefix_U + real_UQ.sum(-1)
        length = int(lengths.max())
        ids_UL = batch.prefix_UP.new_zeros(count, max(length, width))
        ids_UL[:, :width] = batch.prefix_UP
        unit, column = real_UQ.nonzero(as_tuple=True)
        ids_UL[unit, batch.position_UQ[unit, column]] = batch.tail_UQ[unit, column]
        mask_UL = torch.arange(length, device=ids_UL.device) < lengths[:, None]
        tail = batch.tail_UQ.shape[1]
        owner = torch.div(batch.flat_N, tail, rounding_mode="floor")
        position = batch.position_UQ[owner, batch.flat_N % tail]
        packed = (lengths.cumsum(0) - lengths)[owner] + position
        return cls(ids_UL[:, :length], mask_UL, owner * length + position, packed)


# The output head on agent tokens only: log-probabilities in float32, without keeping logits or a wide head. Shapes: N
# response tokens, D width, V vocabulary.


@dataclass(frozen=True, slots=True)
class Tail:
    """What makes logits of the head's products x: cap tanh(scale x / cap) / temperature; scale x without a cap."""

    scale: float = 1.0
    cap: float | None = None
    temperature: float = 1.0


PLAIN = Tail()


SCALES = ("logit_scale", "logits_scaling", "lm_head_multiplier")
"""What models multiply their logits by, or divide them by, in their configurations' words."""
CAPS = ("final_logit_softcapping", "logits_soft_cap")
"""The same for soft caps."""
LOUD = 30.0
"""Standard deviation of the logits on which a head is tried: a cap shows."""


def tail_of(model: Any, body: Any) -> Tail | None:
    """What follows the model's output head, where that is a scale or cap that its configuration names, or nothing;
    None where the model makes anything else of hidden states. Tried on hidden states that the body never gave."""
    linear = model.get_output_embeddings()
    if not isinstance(linear, nn.Linear):
        return None
    weight, bias = linear.weight, linear.bias
    draw = torch.Generator().manual_seed(0)
    hidden = torch.randn(1, 4, weight.shape[1], generator=draw).to(weight)
    size = float(F.linear(hidden, weight).float().std())
    hidden = hidden * (LOUD / size if size > 0 else 1.0)
    ids = torch.arange(4, device=weight.device)[None]
    with answering(body, hidden) as own_states:
        try:
            whole = model(input_ids=ids, use_cache=False).logits
        except Exception:  # of any model's code, which was not written for this
            return None
    if not own_states:
        # The model asks a part of the body, not the body itself: then only what it gives can be compared.
        whole, hidden = model(input_ids=ids, use_cache=False).logits, body(input_ids=ids, use_cache=False)[0]
    plain = F.linear(hidden, weight, bias)
    if whole.shape != plain.shape:
        return None
    if torch.equal(whole, plain):
        return PLAIN
    if not own_states:
        return None
    config = model.config.get_text_config()
    scales, caps = (_numbers(config, names) for names in (SCALES, CAPS))
    for scale, cap in product([1.0, *scales, *(1 / scale for scale in scales)], [*caps, None]):
        tail = Tail(scale, cap)
        if near(whole, _Head(weight, bias, tail).logits(hidden[0])[None], half=1e-2, full=1e-5):
            return tail
    return None


def _numbers(config: Any, names: Sequence[str]) -> list[float]:
    """The numbers, 0 left out, that a configuration has by these names."""
    values = (getattr(config, name, None) for name in names)
    return [float(value) for value in values if isinstance(value, int | float) and value]


@contextmanager
def answering(body: Any, hidden_ULD: torch.Tensor) -> Iterator[list[torch.Tensor]]:
    """While it lasts, the body gives these hidden states, whatever it is asked. Gives a list of its own ones."""
    forward, own_states = body.forward, list[torch.Tensor]()

    def answer(*args: Any, **named: Any) -> Any:
        out = forward(*args, **named)
        own_states.append(out.last_hidden_state)
        out.last_hidden_state = hidden_ULD
        return out

    own = "forward" in vars(body)
    body.forward = answer
    try:
        yield own_states
    finally:
        if own:
            body.forward = forward
        else:
            del body.forward


def token_scores(
    logits_NV: torch.Tensor, target_N: torch.Tensor, temperature: float = 1.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probability [N] of the targets and entropy [N] (nats, detached) of logits."""
    wide_NV = widen(logits_NV)
    logp_NV = torch.log_softmax(wide_NV if temperature == 1.0 else wide_NV / temperature, dim=-1)
    return logp_NV.gather(1, target_N[:, None])[:, 0], _entropy(logp_NV.detach())


def head_scores(
    weight_VD: torch.Tensor,
    bias_V: torch.Tensor | None,
    hidden_ND: torch.Tensor,
    target_N: torch.Tensor,
    tail: Tail = PLAIN,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`token_scores` of the output head on hidden states, computed in float32 at least.

    A head in half precision would round logits of about 10 by up to 0.03, more than policies move in an update. Logits
    are made in parts of `HEAD_ELEMENTS` and made again in the backward pass, where the gradient of the head adds up in
    float32; what stays in between is the hidden states and one number per token.
    """
    return _HeadScores.apply(hidden_ND, weight_VD, bias_V, target_N, tail)  # type: ignore[no-any-return,no-untyped-call]


class _HeadScores(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_ND: torch.Tensor,
        weight_VD: torch.Tensor,
        bias_V: torch.Tensor | None,
        target_N: torch.Tensor,
        tail: Tail,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        ctx.tail = tail
        head = _Head(weight_VD, bias_V, tail)
        logps, entropies, sums = [], [], []
        for part in head.parts(len(hidden_ND)):
            logits = head.logits(hidden_ND[part])
            sums.append(logits.logsumexp(-1))
            logits -= sums[-1][:, None]
            logps.append(logits.gather(1, target_N[part, None])[:, 0])
            entropies.append(_entropy(logits))
        sum_N = torch.cat(sums) if sums else hidden_ND.new_zeros(0)
        ctx.save_for_backward(hidden_ND, weight_VD, bias_V, target_N, sum_N)
        logp_N = torch.cat(logps) if logps else widen(hidden_ND.new_zeros(0))
        entropy_N = torch.cat(entropies) if entropies else torch.zeros_like(logp_N)
        ctx.mark_non_differentiable(entropy_N)
        return logp_N, entropy_N

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_N: torch.Tensor, _: Any) -> tuple[torch.Tensor | None, ...]:
        """d logp / d logits = [v = target] - p_v."""
        hidden_ND, weight_VD, bias_V, target_N, sum_N = ctx.saved_tensors
        head = _Head(weight_VD, bias_V, ctx.tail)
        grad_hidden = torch.empty_like(hidden_ND) if ctx.needs_input_grad[0] else None
        grad_weight = torch.zeros_like(head.weight, dtype=sum_N.dtype) if ctx.needs_input_grad[1] else None
        grad_bias = torch.zeros_like(bias_V, dtype=sum_N.dtype) if ctx.needs_input_grad[2] else None
        for part in head.parts(len(hidden_ND)):
            logits = head.logits(hidden_ND[part])
            slope = head.slope(logits)
            grad = (logits - sum_N[part, None]).exp_().mul_(-grad_N[part, None])
            grad.scatter_add_(1, target_N[part, None], grad_N[part, None].to(grad.dtype))
            if slope is not None:
                grad *= slope
            if grad_hidden is not None:
                grad_hidden[part] = head.times(grad)
            if grad_weight is not None:
                head.add_outer(grad_weight, grad, hidden_ND[part])
            if grad_bias is not None:
                grad_bias += grad.sum(0)
        return (
            grad_hidden,
            None if grad_weight is None else grad_weight.to(weight_VD.dtype),
            None if grad_bias is None else grad_bias.to(bias_V.dtype),
            None,
            None,
        )


class _Head:
    """Products with the head whose sums are float32: on a GPU half-precision factors stay as they are, and the head is
    not copied; elsewhere they are widened for a while."""

    def __init__(self, weight_VD: torch.Tensor, bias_V: torch.Tensor | None, tail: Tail) -> None:
        mm: Any = torch.ops.aten.mm
        self._native = weight_VD.is_cuda and weight_VD.dtype in HALF and "dtype" in mm.overloads()
        self.weight = weight_VD if self._native else widen(weight_VD)
        self._bias = None if bias_V is None else widen(bias_V)
        self._tail = tail

    def parts(self, count: int) -> list[slice]:
        """Slices of `count` tokens that bound the logits."""
        rows = max(1, HEAD_ELEMENTS // len(self.weight))
        return [slice(i, i + rows) for i in range(0, count, rows)]

    def logits(self, hidden_ND: torch.Tensor) -> torch.Tensor:
        """Logits [N, V], float32 or wider."""
        logits, tail = self._products(hidden_ND), self._tail
        if tail.scale != 1.0:
            logits *= tail.scale
        if tail.cap is not None:
            logits = logits.div_(tail.cap).tanh_().mul_(tail.cap)
        return logits if tail.temperature == 1.0 else logits.div_(tail.temperature)

    def slope(self, logits_NV: torch.Tensor) -> torch.Tensor | float | None:
        """What logits grow by with the products that they are made of; None for 1 everywhere."""
        tail = self._tail
        factor = tail.scale / tail.temperature
        if tail.cap is None:
            return None if factor == 1.0 else factor
        return (1 - (logits_NV * (tail.temperature / tail.cap)).square()).mul_(factor)

    def _products(self, hidden_ND: torch.Tensor) -> torch.Tensor:
        if not self._native:
            return F.linear(widen(hidden_ND), self.weight, self._bias)
        logits = torch.mm(hidden_ND, self.weight.T, out_dtype=torch.float32)
        return logits if self._bias is None else logits.add_(self._bias)

    def times(self, grad_NV: torch.Tensor) -> torch.Tensor:
        """The gradient [N, D] of the hidden states."""
        return grad_NV.to(self.weight.dtype) @ self.weight

    def add_outer(self, total_VD: torch.Tensor, grad_NV: torch.Tensor, hidden_ND: torch.Tensor) -> None:
        """Add grad^T x hidden, the head's gradient, in float32."""
        if self._native:
            total_VD += torch.mm(grad_NV.T.to(hidden_ND.dtype), hidden_ND, out_dtype=torch.float32)
        else:
            total_VD.addmm_(grad_NV.T, hidden_ND.to(grad_NV.dtype))


def _entropy(logp_NV: torch.Tensor) -> torch.Tensor:
    """Entropy [N] in nats of log-probabilities."""
    return -(logp_NV.exp() * logp_NV).sum(-1)
