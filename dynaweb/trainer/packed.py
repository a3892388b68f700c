"""Prompts and answers of a micro-batch in one row without padding, through the compact Llama forward, on a GPU.

Each prompt is computed once, however many answers it has; variable-length attention keeps the sequences apart, and
`torch.compile` fuses the operations between products. The results are those of `LlamaScorer`, within rounding.

Shapes: T packed tokens, K packed keys, H query heads, G key heads, E head width, D width, N response tokens.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
import torch._functorch.config as functorch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable

from dynaweb.engines.local import llama
from dynaweb.engines.local.llama import HALF, widen
from dynaweb.trainer.batching import WIDEST_HEAD, MicroBatch, knows_groups, varlen
from dynaweb.trainer.recompute import recomputed

_log = logging.getLogger(__name__)

KEPT = 0.6
"""Share of activations that a compiled part keeps at most: products are kept, and norms and gates, which cost little,
are made again in the backward pass. A third of the memory."""


@dataclass(frozen=True, slots=True)
class Ends:
    """Where sequences of queries and keys end: starts [U+1] of both (int32) and the longest of each."""

    query_start: torch.Tensor
    key_start: torch.Tensor
    longest_query: int
    longest_key: int

    @classmethod
    def of(cls, queries: Sequence[int], keys: Sequence[int], device: torch.device) -> Ends:
        """Of the lengths of sequences in their order."""
        starts = [np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32) for lengths in (queries, keys)]
        query, key = (torch.from_numpy(start).to(device) for start in starts)
        return cls(query, key, max(queries), max(keys))


@dataclass(frozen=True, slots=True)
class Packing:
    """The order of a micro-batch's tokens in one row, and what each may look at.

    First come units with one answer (prefix and tail are one sequence), then the prefixes of the other units, then the
    tails of these: each of them is a sequence of its own, whose keys are a copy of its unit's prefix and its own.
    `ids_T` are token ids, `position_T` positions. Keys of the first `shared` tokens stand for themselves, behind them
    are those of the tokens `copied_K`. `tail_T` are the tokens of tails, which are all that the last layer computes:
    there the keys of prefixes of their own are left out, so its copies begin at `shared_last`. `response_N` is where
    among the tails the predictor of each response token is, in the order of `MicroBatch.flat_N`.
    """

    ids_T: torch.Tensor
    position_T: torch.Tensor
    shared: int
    shared_last: int
    copied_K: torch.Tensor | None
    ends: Ends
    tail_T: torch.Tensor
    last_ends: Ends
    response_N: torch.Tensor

    @classmethod
    def of(cls, batch: MicroBatch) -> Packing:
        """Lay the tokens of a micro-batch out."""
        device = batch.prefix_UP.device
        width, tail_width = batch.prefix_UP.shape[1], batch.tail_UQ.shape[1]
        tails_at = batch.prefix_UP.numel()
        units = [_Unit(unit, *lengths) for unit, lengths in enumerate(batch.lengths)]
        single, several = ([u for u in units if (len(u.rows) == 1) is one] for one in (True, False))
        order = _Order()
        for unit in single:
            prefix = order.add(unit.index * width, 0, unit.prefix, prefix=True)
            order.add(tails_at + unit.index * tail_width, unit.prefix, unit.rows[0])
            order.sequence(unit.prefix + unit.rows[0], unit.prefix + unit.rows[0], tail=unit.rows[0])
        shared_last = order.count
        starts: dict[int, int] = {}
        for unit in several:
            if unit.prefix:
                starts[unit.index] = order.add(unit.index * width, 0, unit.prefix, prefix=True)
                order.sequence(unit.prefix, unit.prefix)
        shared, copies = order.count, []
        for unit in several:
            column = 0
            for length in unit.rows:
                if unit.prefix:
                    prefix = starts[unit.index]
                    copies.append(np.arange(prefix, prefix + unit.prefix))
                own = order.add(tails_at + unit.index * tail_width + column, unit.prefix, length)
                copies.append(np.arange(own, own + length))
                order.sequence(length, unit.prefix + length, tail=length)
                column += length

        def tensor(parts: Sequence[np.ndarray]) -> torch.Tensor:
            return torch.from_numpy(np.concatenate(parts).astype(np.int64)).to(device)

        ids = torch.cat([batch.prefix_UP.flatten(), batch.tail_UQ.flatten()])
        return cls(
            ids_T=ids.index_select(0, tensor(order.source)),
            position_T=tensor(order.position),
            shared=shared,
            shared_last=shared_last,
            copied_K=tensor(copies) if copies else None,
            ends=Ends.of(order.queries, order.keys, device),
            tail_T=tensor(order.tail),
            last_ends=Ends.of(order.last_queries, order.last_keys, device),
            response_N=tensor([_ranks(batch, single, several)]),
        )


@dataclass(frozen=True, slots=True)
class _Unit:
    """A unit of the micro-batch: number of prefix tokens and of tail tokens of each of its rows."""

    index: int
    prefix: int
    rows: tuple[int, ...]


class _Order:
    """Tokens in the order of the packed row, and the lengths of its sequences."""

    def __init__(self) -> None:
        self.count = 0
        self.source: list[np.ndarray] = []
        self.position: list[np.ndarray] = []
        self.tail: list[np.ndarray] = []
        self.queries: list[int] = []
        self.keys: list[int] = []
        self.last_queries: list[int] = []
        self.last_keys: list[int] = []

    def add(self, source: int, position: int, length: int, *, prefix: bool = False) -> int:
        """Tokens from `source` on among prefixes and tails; returns where they begin."""
        start = self.count
        self.source.append(np.arange(source, source + length))
        self.position.append(np.arange(position, position + length))
        if not prefix:
            self.tail.append(np.arange(start, start + length))
        self.count += length
        return start

    def sequence(self, queries: int, keys: int, tail: int = 0) -> None:
        """One more sequence, of which the last layer computes `tail` tokens."""
        self.queries.append(queries)
        self.keys.append(keys)
        if tail:
            self.last_queries.append(tail)
            self.last_keys.append(keys)


def _ranks(batch: MicroBatch, single: Sequence[_Unit], several: Sequence[_Unit]) -> np.ndarray:
    """Where among the tails, as packed, the tail tokens of each unit are, in the order of units."""
    starts: dict[int, int] = {}
    at = 0
    for unit in (*single, *several):
        starts[unit.index] = at
        at += sum(unit.rows)
    return np.concatenate(
        [np.arange(starts[unit], starts[unit] + sum(rows)) for unit, (_, rows) in enumerate(batch.lengths)]
    )


def runs_packed(model: Any) -> bool:
    """Whether `PackedScorer` is the one for this model: compact Llama weights in half precision on a GPU whose torch
    has variable-length attention."""
    weight = next(model.parameters())
    return (
        weight.is_cuda
        and weight.dtype in HALF
        and varlen() is not None
        and not llama.unsupported(model, largest=None)
        and model.config.head_dim <= WIDEST_HEAD
    )


def packed_hidden(weights: llama.Weights, packing: Packing, *, checkpointing: bool = False) -> torch.Tensor:
    """Final hidden states [N, D] that predict the response tokens.

    With `checkpointing` the backward pass makes each layer's activations again, and only their inputs stay in memory.
    """
    x_TD = F.embedding(packing.ids_T, weights.embed_VD)
    angle = packing.position_T[:, None, None].float() * weights.inv_freq
    turn = angle.cos() * weights.rope_scale, angle.sin() * weights.rope_scale
    layers, parts = weights.layers, _parts(x_TD.device.type)
    if checkpointing:
        for index in range(len(layers)):
            x_TD = recomputed(partial(_block, weights, index, packing, turn), x_TD)
    else:
        heads = parts.enter(x_TD, layers[0].qkv, *turn, weights.eps, weights.heads, weights.kv_heads)
        for layer, following in pairwise(layers):
            mixed = _mixed(packing, heads, final=False)
            rest = (layer.out, layer.up, layer.down, following.qkv, *turn)
            x_TD, *heads = parts.cross(x_TD, mixed, *rest, weights.eps, weights.heads, weights.kv_heads)
        x_TD = _finish(weights, packing, x_TD, heads)
    return llama.normalise(x_TD.index_select(0, packing.response_N), weights.eps) * weights.norm_D


def _block(
    weights: llama.Weights, index: int, packing: Packing, turn: tuple[torch.Tensor, torch.Tensor], x_TD: torch.Tensor
) -> torch.Tensor:
    """One layer by itself; the last one gives tails only."""
    parts, layer = _parts(x_TD.device.type), weights.layers[index]
    heads = parts.enter(x_TD, layer.qkv, *turn, weights.eps, weights.heads, weights.kv_heads)
    if index == len(weights.layers) - 1:
        return _finish(weights, packing, x_TD, heads)
    mixed = _mixed(packing, heads, final=False)
    out: torch.Tensor = parts.leave(x_TD, mixed, layer.out, layer.up, layer.down, weights.eps)
    return out


def _finish(
    weights: llama.Weights, packing: Packing, x_TD: torch.Tensor, heads: Sequence[torch.Tensor]
) -> torch.Tensor:
    """What the last layer makes of the tails."""
    query, key, value = heads
    mixed = _mixed(packing, (query.index_select(0, packing.tail_T), key, value), final=True)
    tail_TD, layer = x_TD.index_select(0, packing.tail_T), weights.layers[-1]
    out: torch.Tensor = _parts(x_TD.device.type).leave(tail_TD, mixed, layer.out, layer.up, layer.down, weights.eps)
    return out


def _mixed(packing: Packing, heads: Sequence[torch.Tensor], *, final: bool) -> torch.Tensor:
    """Attention [T, H*E] of the queries over all that they may look at."""
    query, key, value = heads
    if packing.copied_K is not None:
        own = packing.shared_last if final else packing.shared
        key, value = (_Copied.apply(x, packing.copied_K, own) for x in (key, value))  # type: ignore[no-untyped-call]
    return attend(query, key, value, packing.last_ends if final else packing.ends).flatten(1)


class _Copied(torch.autograd.Function):
    """The first `own` keys and behind them copies of those of tokens [K]; gradients of copies add up in float32."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, copied_K: torch.Tensor, own: int) -> torch.Tensor:
        ctx.save_for_backward(copied_K)
        ctx.own, ctx.count = own, len(x)
        return torch.cat([x[:own], x.index_select(0, copied_K)])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (copied_K,) = ctx.saved_tensors
        (grad,), own = grads, ctx.own
        copies = widen(grad[own:])
        out = copies.new_zeros(ctx.count, *grad.shape[1:])
        out[:own] = grad[:own]
        return out.index_add_(0, copied_K, copies).to(grad.dtype), None, None


def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, ends: Ends) -> torch.Tensor:
    """Causal attention [T, H, E] of each sequence's queries, the last of its keys; scales are in the queries."""
    if not query.is_cuda:
        return _attend_each(query, key, value, ends)
    kernel: Any = varlen()
    more: dict[str, Any] = {"scale": 1.0, "window_size": (-1, 0)}
    if query.shape[1] != key.shape[1] and knows_groups(kernel):
        more["enable_gqa"] = True
    starts = (ends.query_start, ends.key_start, ends.longest_query, ends.longest_key)
    out: torch.Tensor = kernel(query, key, value, *starts, **more)
    return out


def _attend_each(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, ends: Ends) -> torch.Tensor:
    """The same, sequence by sequence: to compare with."""
    out = []
    starts = zip(ends.query_start.tolist(), ends.key_start.tolist(), strict=True)
    for (a, c), (b, d) in pairwise(starts):
        seen = torch.ones(b - a, d - c, dtype=torch.bool, device=query.device).tril((d - c) - (b - a))
        q, k, v = (x.transpose(0, 1)[None] for x in (query[a:b], key[c:d], value[c:d]))
        grouped = query.shape[1] != key.shape[1]
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=1.0, enable_gqa=grouped)
        out.append(mixed[0].transpose(0, 1))
    return torch.cat(out)


# What lies between attentions, in plain operations: `torch.compile` fuses these and finds their gradients, which the
# hand-written ones of `dynaweb.engines.local.llama` would keep it from.


def _enter(
    x_TD: torch.Tensor, qkv: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, eps: float, heads: int, kv_heads: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Turned queries [T, H, E] and keys [T, G, E], and values [T, G, E]."""
    projected = F.linear(_normalised(x_TD, eps), qkv).view(x_TD.shape[0], heads + 2 * kv_heads, -1)
    query, key, value = torch.split(projected, [heads, kv_heads, kv_heads], 1)
    return _turned(query, cos, sin), _turned(key, cos, sin), value


def _turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    pairs = widen(x).unflatten(-1, (-1, 2))  # type: ignore[no-untyped-call]
    a, b = pairs[..., 0], pairs[..., 1]
    return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2).to(x.dtype)


def _leave(
    x_TD: torch.Tensor, mixed: torch.Tensor, out: torch.Tensor, up: torch.Tensor, down: torch.Tensor, eps: float
) -> torch.Tensor:
    """Output projection, residuals and the feed-forward part: the block's output [T, D]."""
    x_TD = torch.addmm(x_TD, mixed, out.T)
    gate, value = F.linear(_normalised(x_TD, eps), up).chunk(2, -1)
    return torch.addmm(x_TD, F.silu(gate) * value, down.T)


def _cross(
    x_TD: torch.Tensor,
    mixed: torch.Tensor,
    out: torch.Tensor,
    up: torch.Tensor,
    down: torch.Tensor,
    qkv: torch.Tensor,
    *more: Any,
) -> tuple[torch.Tensor, ...]:
    """From one layer's attention to the next one's: `_leave` and `_enter`. `more` is the rest of `_enter`."""
    x_TD = _leave(x_TD, mixed, out, up, down, more[2])
    return x_TD, *_enter(x_TD, qkv, *more)


def _normalised(x_TD: torch.Tensor, eps: float) -> torch.Tensor:
    wide = widen(x_TD)
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)).to(x_TD.dtype)


class _Parts(NamedTuple):
    """What lies between attentions, compiled or as it is."""

    enter: Callable[..., Any]
    leave: Callable[..., Any]
    cross: Callable[..., Any]


@cache
def _parts(device: str) -> _Parts:
    """The parts, compiled on GPUs: numbers of tokens may change, widths may not."""
    parts = _Parts(_enter, _leave, _cross)
    return _Parts(*map(_compiled, parts)) if device == "cuda" else parts


def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function compiled for any number of tokens; as it is, with a warning, where it cannot be compiled."""
    compiled: Callable[..., Any] = torch.compile(function)
    fallen = False

    def call(x_TD: torch.Tensor, *args: Any) -> Any:
        nonlocal fallen
        if fallen:
            return function(x_TD, *args)
        for value in (x_TD, *args):
            if isinstance(value, torch.Tensor) and len(value) == len(x_TD):
                torch._dynamo.maybe_mark_dynamic(value, 0)
        try:
            with functorch.patch(activation_memory_budget=KEPT):
                return compiled(x_TD, *args)
        except torch._dynamo.exc.TorchDynamoException as error:
            _log.warning("updates run without torch.compile, which failed: %s", str(error).splitlines()[0][:200])
            fallen = True
            return function(x_TD, *args)

    return call
