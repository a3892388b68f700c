"""Generation with the compact Llama forward: prompts into a cache, then tokens after it.

- The last layer computes queries only where its output is used, and the head sees only those positions.
- Keys are cached transposed, which makes the one-query attention of decoding a plain product.
- On a processor that attention is bound by reading the cache. Rows that share the beginning of their prompt read it
  together: it lies once in a *lane*, and the queries of its rows are one matrix (as in Hydragen, arXiv 2402.05099).

Shapes: B rows, T tokens, H query heads, K key heads, G = H / K, E head width, C columns of the rows' own cache, V
vocabulary; P lanes, N rows of a lane at most, A columns of the lanes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F

from dynaweb.engines.llama import (
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


class Decode(Protocol):
    """`decode` with the weights of a model."""

    def __call__(
        self,
        token_B: torch.Tensor,
        position_B: torch.Tensor,
        cache: Cache,
        column: int,
        mask_BC: torch.Tensor | None = None,
        shared: Shared | None = None,
    ) -> torch.Tensor:
        """Logits [B, V]."""
        ...


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
