"""Generation with the compact Llama forward: prompts into a cache, then tokens after it.

- The last layer computes queries only where its output is used, and the head sees only those positions.
- Keys are cached transposed, which makes the one-query attention of decoding a plain product.
- On a processor that attention is bound by reading the cache. Rows that share the beginning of their prompt read it
  together: it lies once in a *lane*, and the queries of its rows are one matrix (as in Hydragen, arXiv 2402.05099).
- Models and batches so small that calling operations takes most of the time decode on a processor by `SmallSteps`, the
  same step in fewer and cheaper calls. Torch multiplies the matrices; all else is numpy on the same memory, where a
  call costs a third as much, in buffers that are kept from step to step. Matrices lie transposed, which is how products
  of few rows read them fastest. One thread does it all: a second one does not make such steps faster, and on a busy
  machine the two wait for each other (numpy takes more than one only for far larger matrices). So what they give does
  not depend on the number of cores.

Shapes: B rows, T tokens, H query heads, K key heads, G = H / K, E head width, C columns of the rows' own cache, V
vocabulary; P lanes, N rows of a lane at most, A columns of the lanes, S = A + C; D width, F inner width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from dynaweb.engines.local.llama import (
    Weights,
    attend,
    finish,
    logits,
    project,
    project_keys,
    project_query,
    rotary,
)

Rows = slice | torch.Tensor


class Cache:
    """Preallocated keys [layers, B, K, E, C] and values [layers, B, K, C, E] of a batch that is being decoded.

    The first `ragged` columns are zeros, since rows may leave some of them unwritten that others read. `columns` are
    there from the start, `limit` at most: a cache that is not much wider than what is read of it is read faster.
    """

    def __init__(self, weights: Weights, rows: int, columns: int, *, ragged: int, limit: int | None = None) -> None:
        layers, kv, width = len(weights.layers), weights.kv_heads, weights.head_dim
        like = weights.embed_VD
        self.key = like.new_empty(layers, rows, kv, width, columns)
        self.value = like.new_empty(layers, rows, kv, columns, width)
        self.key[..., :ragged].zero_()
        self.value[:, :, :, :ragged].zero_()
        self._limit = columns if limit is None else limit

    def reserve(self, column: int, rows: int) -> None:
        """Make sure that there is such a column; where there is none, only the first `rows` rows are kept."""
        if column < self.key.shape[-1]:
            return
        columns = min(self._limit, 2 * column)
        layers, _, kv, width, _ = self.key.shape
        key = self.key.new_empty(layers, rows, kv, width, columns)
        value = self.value.new_empty(layers, rows, kv, columns, width)
        key[..., :column] = self.key[:, :rows, :, :, :column]
        value[:, :, :, :column] = self.value[:, :rows, :, :column]
        self.key, self.value = key, value

    def write(self, layer: int, rows: Rows, key: torch.Tensor, value: torch.Tensor) -> None:
        """Store keys and values [B, T, K, E] in the first T columns of B rows."""
        length = key.shape[1]
        self.key[layer][rows, :, :, :length] = key.permute(0, 2, 3, 1)
        self.value[layer][rows, :, :length] = value.transpose(1, 2)

    def keep(self, rows: Sequence[int], columns: int) -> None:
        """Put these rows first, with their first `columns` columns.

        Rows that are in place stay untouched; none is overwritten before it is read when they come from `survivors`.
        """
        for target, source in enumerate(rows):
            if source != target:
                self.key[:, target, :, :, :columns] = self.key[:, source, :, :, :columns]
                self.value[:, target, :, :columns] = self.value[:, source, :, :columns]


@dataclass(frozen=True, slots=True)
class Target:
    """Where a prefill stores its keys and values: sequence `owner[i]` goes to the i-th of the cache rows `rows`."""

    cache: Cache
    rows: Rows
    owner: torch.Tensor

    def write(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> None:
        """Store one layer's keys and values [B, T, K, E] in every row that shares them."""
        self.cache.write(layer, self.rows, key.index_select(0, self.owner), value.index_select(0, self.owner))


@dataclass(frozen=True, slots=True)
class Shared:
    """What B rows share of their prompts, in P lanes of a cache.

    `length_B` counts the tokens of each row that lie in its lane, `columns` those of the longest; `row_PKN` and
    `slot_BK` lead from the heads of rows to their slots in the lanes and back (empty slots read any row).
    """

    cache: Cache
    columns: int
    length_B: torch.Tensor
    row_PKN: torch.Tensor
    slot_BK: torch.Tensor

    @classmethod
    def of(cls, cache: Cache, lanes: Sequence[int], lengths: Sequence[int]) -> Shared:
        """Row b reads the first `lengths[b]` columns of lane `lanes[b]`; all rows of a lane read as many."""
        device, kv = cache.key.device, cache.key.shape[2]
        rank, count = [], [0] * (max(lanes) + 1)
        for lane in lanes:
            rank.append(count[lane])
            count[lane] += 1
        lane_B, rank_B = torch.tensor(lanes), torch.tensor(rank)
        head_K = torch.arange(kv)
        slot_BK = (lane_B[:, None] * kv + head_K) * max(count) + rank_B[:, None]
        row_PKN = torch.zeros(len(count) * kv * max(count), dtype=torch.long)
        row_PKN[slot_BK] = torch.arange(len(lanes))[:, None] * kv + head_K
        parts = (torch.tensor(lengths), row_PKN.view(len(count), kv, -1), slot_BK)
        return cls(cache, max(lengths), *(part.to(device) for part in parts))

    def score(self, layer: int, query: torch.Tensor) -> torch.Tensor:
        """Products [B, K, R, A] of queries [B, K, R, E] with the shared keys, not masked yet."""
        rows, kv, each, width = query.shape
        lanes, _, slots = self.row_PKN.shape
        keys = self.cache.key[layer, :lanes, :, :, : self.columns]
        gathered = query.reshape(rows * kv, each * width).index_select(0, self.row_PKN.view(-1))
        score = gathered.view(lanes, kv, slots * each, width) @ keys
        return score.view(lanes * kv * slots, each, -1).index_select(0, self.slot_BK.view(-1)).view(rows, kv, each, -1)

    def mix(self, layer: int, weight: torch.Tensor) -> torch.Tensor:
        """Sums [B, K, R, E] of the shared values with the weights [B, K, R, A]."""
        rows, kv, each, columns = weight.shape
        lanes, _, slots = self.row_PKN.shape
        values = self.cache.value[layer, :lanes, :, :columns]
        gathered = weight.reshape(rows * kv, each, columns).index_select(0, self.row_PKN.view(-1))
        mixed = gathered.view(lanes, kv, slots * each, columns) @ values
        return mixed.view(lanes * kv * slots, each, -1).index_select(0, self.slot_BK.view(-1)).view(rows, kv, each, -1)


def prefill(
    weights: Weights, ids_BT: torch.Tensor, last_B: torch.Tensor | None, target: Target | None = None
) -> torch.Tensor | None:
    """Logits [B, V] after each sequence, None without `last_B` (the index of each sequence's last token).

    Sequences are padded on the right, where causal attention keeps padding out of everything that is used.
    """
    turn = rotary(weights, torch.arange(ids_BT.shape[1], device=ids_BT.device))
    x = F.embedding(ids_BT, weights.embed_VD)
    for index, layer in enumerate(weights.layers[:-1]):
        query, key, value = project(weights, layer, x, turn)
        if target is not None:
            target.write(index, key, value)
        x = finish(weights, layer, x, attend(query, key, value, is_causal=True))
    layer = weights.layers[-1]
    key, value = project_keys(weights, layer, x, turn)
    if target is not None:
        target.write(len(weights.layers) - 1, key, value)
    if last_B is None:
        return None
    x = x[torch.arange(len(x), device=x.device), last_B][:, None]
    query = project_query(weights, layer, x, turn[last_B][:, None])
    seen = torch.arange(ids_BT.shape[1], device=ids_BT.device) <= last_B[:, None]
    mixed = attend(query, key, value, attn_mask=seen[:, None, None])
    return logits(weights, finish(weights, layer, x, mixed)[:, 0])


def extend(
    weights: Weights,
    ids_BT: torch.Tensor,
    start_B: torch.Tensor,
    last_B: torch.Tensor,
    cache: Cache,
    rows: slice,
    columns: int,
    shared: Shared | None = None,
) -> torch.Tensor:
    """Logits [B, V] after T more tokens in each of B cache rows.

    Row b's tokens are stored from column `start_B[b]` on and see all columns before their own; those behind
    `last_B[b]` (an index into its T tokens) are padding, overwritten later. `columns` bounds the columns looked at.
    Before its own columns a row sees those that it shares.
    """
    position_BT = start_B[:, None] + torch.arange(ids_BT.shape[1], device=ids_BT.device)
    mask_BTC = hidden(position_BT + 1, columns, cache.key.dtype)
    turn = rotary(weights, position_BT if shared is None else position_BT + shared.length_B[:, None])
    if shared is not None:
        mask_BA = hidden(shared.length_B, shared.columns, cache.key.dtype)
        mask_BTC = torch.cat([mask_BA[:, None].expand(-1, ids_BT.shape[1], -1), mask_BTC], dim=-1)
    batch = torch.arange(len(ids_BT), device=ids_BT.device)
    x = F.embedding(ids_BT, weights.embed_VD)
    for index, layer in enumerate(weights.layers):
        query, key, value = project(weights, layer, x, turn)
        keys, values = cache.key[index, rows], cache.value[index, rows]
        keys[batch[:, None], :, :, position_BT] = key
        values[batch[:, None], :, position_BT] = value
        if index == len(weights.layers) - 1:
            x, query, mask_BTC = (part[batch, last_B][:, None] for part in (x, query, mask_BTC))
        own = keys[..., :columns], values[:, :, :columns]
        x = finish(weights, layer, x, _attend_cached(query, *own, mask_BTC, index, shared))
    return logits(weights, x[:, 0])


def decode(
    weights: Weights,
    token_B: torch.Tensor,
    position_B: torch.Tensor,
    cache: Cache,
    column: int,
    mask_BC: torch.Tensor | None = None,
    shared: Shared | None = None,
) -> torch.Tensor:
    """Logits [B, V] after one more token at `position_B` of each of the first B cache rows, stored in `column`.

    The columns up to there are seen; `mask_BC` hides some of the first ones (the shared ones come before them).
    """
    rows = len(token_B)
    cache.reserve(column, rows)
    turn = rotary(weights, position_B)[:, None]
    mask_B1C = None if mask_BC is None else mask_BC[:, None]
    x = F.embedding(token_B, weights.embed_VD)[:, None]
    seen = column + 1
    cached = zip(cache.key[:, :rows, :, :, :seen].unbind(), cache.value[:, :rows, :, :seen].unbind(), strict=True)
    for index, (layer, (keys, values)) in enumerate(zip(weights.layers, cached, strict=True)):
        query, key, value = project(weights, layer, x, turn)
        keys.select(-1, column).copy_(key[:, 0])
        values.select(-2, column).copy_(value[:, 0])
        x = finish(weights, layer, x, _attend_cached(query, keys, values, mask_B1C, index, shared))
    return logits(weights, x[:, 0])


Decode = Callable[..., torch.Tensor]
"""`decode` with the weights of a model."""


def hidden(length: torch.Tensor, columns: int, dtype: torch.dtype) -> torch.Tensor:
    """[..., C]: 0 for the first `length` [...] columns, -inf for those behind them."""
    behind = torch.arange(columns, device=length.device) >= length[..., None]
    return torch.zeros(behind.shape, dtype=dtype, device=length.device).masked_fill_(behind, float("-inf"))


def _attend_cached(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask_BTC: torch.Tensor | None,
    layer: int,
    shared: Shared | None,
) -> torch.Tensor:
    """Attention of [B, T, H, E] over cached keys [B, K, E, C] and values [B, K, C, E]; returns [B, T, H, E].

    The mask [B, T, <= A + C] is that of the first columns; shared ones come first.
    """
    rows, length, heads, width = query.shape
    kv = keys.shape[1]
    grouped = query.view(rows, length, kv, heads // kv, width).transpose(1, 2).reshape(rows, kv, -1, width)
    score = grouped @ keys
    if shared is not None:
        score = torch.cat([shared.score(layer, grouped), score], dim=-1)
    if mask_BTC is not None:
        masked = score.view(rows, kv, length, heads // kv, -1)[..., : mask_BTC.shape[-1]]
        masked.add_(mask_BTC[:, None, :, None])
    weight = torch.softmax(score, dim=-1)
    if shared is None:
        mixed = weight @ values
    else:
        common = shared.columns
        mixed = weight[..., common:] @ values + shared.mix(layer, weight[..., :common])
    return mixed.view(rows, kv, length, heads // kv, width).transpose(1, 2).reshape(rows, length, heads, width)


SMALL_ROWS = 32
"""Rows of a step at most: reading the cache takes most of the time of larger ones (`benchmarks/engine.py`)."""
SMALL_PARAMETERS = 30_000_000
"""In the layers of a model, at most: they are copied, and in a larger model the products take most of the time."""


def small(weights: Weights) -> bool:
    """Whether small steps serve these weights."""
    like = weights.embed_VD
    size = sum(getattr(layer, name).numel() for layer in weights.layers for name in ("qkv", "out", "up", "down"))
    return like.device.type == "cpu" and like.dtype == torch.float32 and size <= SMALL_PARAMETERS


class SmallSteps:
    """The steps of one model; make it anew when its weights change. Rows beyond `SMALL_ROWS` take the usual way."""

    @torch.no_grad()
    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        self._layers = [_Matrices.of(weights, index) for index in range(len(weights.layers))]
        self._head_DV = (weights.head_VD * weights.norm_D).T.contiguous()
        self._embed_VD = weights.embed_VD.detach().numpy()
        self._buffers: dict[int, _Buffers] = {}
        self._turns = np.empty((0, 1, weights.head_dim // 2), np.complex64)

    def __call__(
        self,
        token_B: torch.Tensor,
        position_B: torch.Tensor,
        cache: Cache,
        column: int,
        mask_BC: torch.Tensor | None = None,
        shared: Shared | None = None,
    ) -> torch.Tensor:
        """Logits [B, V]; see `decode`."""
        rows = len(token_B)
        if rows > SMALL_ROWS:
            return decode(self._weights, token_B, position_B, cache, column, mask_BC, shared)
        cache.reserve(column, rows)
        buffers = self._buffers.get(rows) or self._buffers.setdefault(rows, _Buffers(self._weights, rows))
        np.take(self._embed_VD, token_B.numpy(), axis=0, out=buffers.x, mode="clip")
        attention = _Attention(buffers, cache, column, mask_BC, shared)
        turn = self._turn(position_B.numpy())
        with one_thread():
            for index, matrices in enumerate(self._layers):
                torch.mm(buffers.normalised(), matrices.qkv, out=buffers.qkv_T)
                attention(index, turn)
                torch.addmm(buffers.x_T, buffers.mixed_T, matrices.out, out=buffers.x_T)
                torch.mm(buffers.normalised(), matrices.up, out=buffers.up_T)
                buffers.gate()
                torch.addmm(buffers.x_T, buffers.inner_T, matrices.down, out=buffers.x_T)
            return torch.mm(buffers.normalised(), self._head_DV)

    def _turn(self, position_B: np.ndarray) -> np.ndarray:
        """Rotations [B, 1, E/2] from a table, which grows where it must."""
        last = int(position_B.max())
        if last >= len(self._turns):
            self._turns = rotary(self._weights, torch.arange(2 * last + 2)).numpy()
        turn_B: np.ndarray = self._turns[position_B]
        return turn_B


@contextmanager
def one_thread() -> Iterator[None]:
    """Torch computes with one thread meanwhile."""
    threads = torch.get_num_threads()
    if threads == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@dataclass(frozen=True, slots=True)
class _Matrices:
    """`qkv` [D, (H+2K)E], `out` [HE, D], `up` [D, 2F] whose gates are halved (see `_Buffers.gate`), `down` [F, D]."""

    qkv: torch.Tensor
    out: torch.Tensor
    up: torch.Tensor
    down: torch.Tensor

    @classmethod
    def of(cls, weights: Weights, index: int) -> _Matrices:
        """Of one layer."""
        layer = weights.layers[index]
        up = layer.up.clone()
        up[: layer.down.shape[1]] *= 0.5
        return cls(*(matrix.T.contiguous() for matrix in (layer.qkv, layer.out, up, layer.down)))


class _Buffers:
    """What B rows compute with. A name with `_T` is the tensor on the memory of the array or arrays of that name."""

    def __init__(self, weights: Weights, rows: int) -> None:
        width, inner = weights.embed_VD.shape[1], weights.layers[0].down.shape[1]
        heads, kv, each = weights.heads, weights.kv_heads, weights.head_dim
        self.x_T, self._normal_T = torch.empty(rows, width), torch.empty(rows, width)
        self.qkv_T, self.mixed_T = torch.empty(rows, (heads + 2 * kv) * each), torch.empty(rows, heads * each)
        self.up_T, self.inner_T = torch.empty(rows, 2 * inner), torch.empty(rows, inner)
        self.x, self._normal, self._inner = self.x_T.numpy(), self._normal_T.numpy(), self.inner_T.numpy()
        up = self.up_T.numpy()
        self._gate, self._up = up[:, :inner], up[:, inner:]
        split = self.qkv_T.numpy().reshape(rows, heads + 2 * kv, each)
        self.query = split[:, :heads].reshape(rows, kv, heads // kv, each)
        self.key, self.value = split[:, heads : heads + kv], split[:, heads + kv :]
        self.pairs = split[:, : heads + kv].view(np.complex64)
        self.mixed = self.mixed_T.numpy().reshape(self.query.shape)
        self.total = np.empty((*self.query.shape[:3], 1), np.float32)
        self._square, self._size = np.empty((rows, width), np.float32), np.empty((rows, 1), np.float32)
        self._eps, self._scale = np.float32(weights.eps * width), np.float32(width**0.5)

    def normalised(self) -> torch.Tensor:
        """x / sqrt(mean(x^2) + eps) [B, D]."""
        np.multiply(self.x, self.x, out=self._square)
        size = np.add.reduce(self._square, axis=1, keepdims=True, out=self._size)
        np.add(size, self._eps, out=size)
        np.sqrt(size, out=size)
        np.divide(self._scale, size, out=size)
        np.multiply(self.x, size, out=self._normal)
        return self._normal_T

    def gate(self) -> None:
        """silu(gate) * up as h (1 + tanh h) * up with h = gate / 2, which cannot overflow."""
        np.tanh(self._gate, out=self._inner)
        np.add(self._inner, 1.0, out=self._inner)
        np.multiply(self._inner, self._gate, out=self._inner)
        np.multiply(self._inner, self._up, out=self._inner)


class _Attention:
    """Attention of one step: call it with a layer and rotations; it reads and writes the buffers and the cache."""

    def __init__(
        self,
        buffers: _Buffers,
        cache: Cache,
        column: int,
        mask_BC: torch.Tensor | None,
        shared: Shared | None,
    ) -> None:
        rows = len(buffers.x)
        self._buffers = buffers
        self._keys = cache.key.numpy()[:, :rows, :, :, : column + 1]
        self._values = cache.value.numpy()[:, :rows, :, : column + 1]
        self._mask = None if mask_BC is None else mask_BC.numpy()[:, None, None]
        self._lanes = None if shared is None else _Lanes(shared)
        common = 0 if shared is None else shared.columns
        self._score = np.empty((*buffers.total.shape[:3], common + column + 1), np.float32)
        self._common, self._own = self._score[..., :common], self._score[..., common:]

    def __call__(self, layer: int, turn: np.ndarray) -> None:
        buffers, score, keys, values = self._buffers, self._score, self._keys[layer], self._values[layer]
        np.multiply(buffers.pairs, turn, out=buffers.pairs)
        keys[..., -1] = buffers.key
        values[:, :, -1] = buffers.value
        np.matmul(buffers.query, keys, out=self._own)
        if self._lanes is not None:
            self._lanes.score(layer, buffers.query, self._common)
        if self._mask is not None:
            seen = score[..., : self._mask.shape[-1]]
            np.add(seen, self._mask, out=seen)
        np.subtract(score, np.maximum.reduce(score, axis=-1, keepdims=True), out=score)
        np.exp(score, out=score)
        np.matmul(self._own, values, out=buffers.mixed)
        if self._lanes is not None:
            self._lanes.add_mix(layer, self._common, buffers.mixed)
        np.divide(buffers.mixed, np.add.reduce(score, axis=-1, keepdims=True, out=buffers.total), out=buffers.mixed)


class _Lanes:
    """`Shared` on arrays."""

    def __init__(self, shared: Shared) -> None:
        self._lanes, self._kv, self._slots = shared.row_PKN.shape
        self._keys = shared.cache.key.numpy()[:, : self._lanes, :, :, : shared.columns]
        self._values = shared.cache.value.numpy()[:, : self._lanes, :, : shared.columns]
        self._row, self._slot = shared.row_PKN.numpy().reshape(-1), shared.slot_BK.numpy().reshape(-1)
        # Each row has the lane of its own number.
        self._apart = self._slots == 1 and np.array_equal(self._slot, np.arange(len(self._row)))

    def score(self, layer: int, query: np.ndarray, out: np.ndarray) -> None:
        """Products of queries [B, K, G, E] with the shared keys, into [B, K, G, A]."""
        if self._apart:
            np.matmul(query, self._keys[layer], out=out)
        else:
            out[...] = self._scattered(np.matmul(self._gathered(query), self._keys[layer]), query)

    def add_mix(self, layer: int, weight: np.ndarray, out: np.ndarray) -> None:
        """Sums of the shared values with the weights [B, K, G, A], added to [B, K, G, E]."""
        if self._apart:
            out += np.matmul(weight, self._values[layer])
        else:
            out += self._scattered(np.matmul(self._gathered(weight), self._values[layer]), weight)

    def _gathered(self, rows: np.ndarray) -> np.ndarray:
        """[B, K, G, *] as [P, K, N G, *]."""
        flat = rows.reshape(len(self._slot), -1).take(self._row, axis=0)
        return flat.reshape(self._lanes, self._kv, -1, rows.shape[-1])

    def _scattered(self, slots: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """The opposite, in the shape of `rows` but for the last axis."""
        flat = slots.reshape(len(self._row), -1).take(self._slot, axis=0)
        return flat.reshape(*rows.shape[:3], -1)
