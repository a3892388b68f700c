"""Decoding steps on a processor, for models and batches so small that calling operations takes most of the time.

The same step as `dynaweb.engines.decoding.decode` in fewer and cheaper calls. Torch multiplies the matrices; all else
is numpy on the same memory, where a call costs a third as much, in buffers that are kept from step to step. Matrices
lie transposed, which is how products of few rows read them fastest. One thread does it all: a second one does not make
such steps faster, and on a busy machine the two wait for each other (numpy takes more than one only for far larger
matrices). So what they give does not depend on the number of cores.

Shapes: see `dynaweb.engines.decoding`; D width, F inner width, S = A + C columns that a row sees.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch

from dynaweb.engines import decoding
from dynaweb.engines.llama import Weights, rotary

MAX_ROWS = 32
"""Rows of a step at most: reading the cache takes most of the time of larger ones (`benchmarks/engine.py`)."""
MAX_PARAMETERS = 30_000_000
"""In the layers of a model, at most: they are copied, and in a larger model the products take most of the time."""


def fits(weights: Weights) -> bool:
    """Whether such steps serve these weights."""
    like = weights.embed_VD
    size = sum(getattr(layer, name).numel() for layer in weights.layers for name in ("qkv", "out", "up", "down"))
    return like.device.type == "cpu" and like.dtype == torch.float32 and size <= MAX_PARAMETERS


class SmallSteps:
    """The steps of one model; make it anew when its weights change. Rows beyond `MAX_ROWS` take the usual way."""

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
        cache: decoding.Cache,
        column: int,
        mask_BC: torch.Tensor | None = None,
        shared: decoding.Shared | None = None,
    ) -> torch.Tensor:
        """Logits [B, V]; see `dynaweb.engines.decoding.decode`."""
        rows = len(token_B)
        if rows > MAX_ROWS:
            return decoding.decode(self._weights, token_B, position_B, cache, column, mask_BC, shared)
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
        cache: decoding.Cache,
        column: int,
        mask_BC: torch.Tensor | None,
        shared: decoding.Shared | None,
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
    """`dynaweb.engines.decoding.Shared` on arrays."""

    def __init__(self, shared: decoding.Shared) -> None:
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
