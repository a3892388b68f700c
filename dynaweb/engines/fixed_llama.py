"""Decoding steps of the compact Llama forward at fixed shapes and addresses.

Keys and values live in one arena for each model, which is kept from batch to batch; a batch sees the first rows of it.
Rows beyond the live ones compute something that nobody reads. Shapes: R rounded rows, C rounded columns, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dynaweb.engines import decoding, llama
from dynaweb.engines.recording import MAX_RECORDINGS, Record, Recording, Step, rounded_columns, rounded_rows


class View(decoding.Cache):
    """A cache whose tensors belong to an arena."""

    def __init__(self, key: torch.Tensor, value: torch.Tensor) -> None:
        self.key, self.value = key, value


class FixedLlama:
    """The recorded steps of one model, and the arena that they work on. It serves one batch at a time."""

    def __init__(self, weights: llama.Weights, record: Record) -> None:
        self.weights = weights
        # A parameter can be given other memory and stay the same object: what counts is where it was when recorded.
        self._places = _places(weights)
        self._record = record
        self._steps: dict[tuple[int, int], Recording] = {}
        self._rooms: tuple[torch.Tensor, torch.Tensor] | None = None
        self._columns = 0
        self._ids = self._starts = torch.empty(0)

    def renew(self, weights: llama.Weights) -> bool:
        """Put new values where the recordings look for them; False when they are elsewhere, and this is of no use."""
        if self._places != _places(weights) or not torch.equal(self.weights.inv_freq, weights.inv_freq):
            return False
        with torch.inference_mode():
            for ours, theirs in zip(self.weights.layers, weights.layers, strict=True):
                ours.qkv.copy_(theirs.qkv)
                ours.up.copy_(theirs.up)
        return True

    def cache(self, rows: int, columns: int) -> decoding.Cache:
        """An empty cache for a batch, which ends the one before."""
        self._columns = rounded_columns(columns)
        cache = self._view(rounded_rows(rows), self._columns)
        # Masked columns count 0 times what they hold: a value that is not finite would not stay masked.
        cache.key.zero_()
        cache.value.zero_()
        return cache

    def step(self, token_B: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor:
        """Logits [B, V] after one more token in each of the first B rows; valid until the next step."""
        live, rows = len(lengths), rounded_rows(len(lengths))
        self._ids[:live, 0] = token_B
        # A start left behind by another batch may lie outside this one's columns.
        self._starts[:rows] = torch.tensor([*lengths, *[0] * (rows - live)], device=self._starts.device)
        key = (rows, self._columns)
        if key not in self._steps:
            if len(self._steps) >= MAX_RECORDINGS:
                self._steps.clear()
            self._steps[key] = Recording(self._step(*key), self._record)
        return self._steps[key]()[:live]

    def _step(self, rows: int, columns: int) -> Step:
        view = self._view(rows, columns)
        ids, starts = self._ids[:rows], self._starts[:rows]
        zero = torch.zeros_like(starts)
        weights = self.weights
        return lambda: decoding.extend(weights, ids, starts, zero, view, slice(0, rows), columns)

    def _view(self, rows: int, columns: int) -> decoding.Cache:
        key, value = self._room(rows * columns)
        layers, kv, width = len(self.weights.layers), self.weights.kv_heads, self.weights.head_dim
        size = rows * columns * kv * width
        return View(
            key[:, :size].view(layers, rows, kv, width, columns),
            value[:, :size].view(layers, rows, kv, columns, width),
        )

    def _room(self, tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values [layers, at least tokens * K * E]; a larger arena than before makes recordings void."""
        width = self.weights.kv_heads * self.weights.head_dim
        if self._rooms is None or self._rooms[0].shape[1] < tokens * width:
            self._steps.clear()
            self._rooms = None
            like = self.weights.embed_VD
            room = 1 << (tokens - 1).bit_length()
            layers = len(self.weights.layers)
            self._rooms = like.new_zeros(layers, room * width), like.new_zeros(layers, room * width)
            self._ids = torch.zeros(room, 1, dtype=torch.long, device=like.device)
            self._starts = torch.zeros(room, dtype=torch.long, device=like.device)
        return self._rooms


class FixedLlamaSession:
    """A batch whose steps are recorded; rows that end are overwritten by the last ones, so the live rows stay together.

    Each row stores its next token behind its own last one.
    """

    def __init__(
        self,
        fixed: FixedLlama,
        cache: decoding.Cache,
        lengths: Sequence[int],
        logits: torch.Tensor,
        order: Sequence[int],
    ) -> None:
        self.logits = logits
        self.order = order
        self.computed = sum(lengths)
        self._fixed = fixed
        self._cache = cache
        self._lengths = list(lengths)

    def step(self, token_B: torch.Tensor) -> None:
        """One decoding step of all live rows."""
        self.logits = self._fixed.step(token_B, self._lengths)
        self._lengths = [length + 1 for length in self._lengths]

    def keep(self, rows: Sequence[int]) -> None:
        """Go on with these rows, as made by `survivors`."""
        self._cache.keep(rows, max(self._lengths))
        self.logits = self.logits[list(rows)]
        self._lengths = [self._lengths[row] for row in rows]


def _places(weights: llama.Weights) -> list[tuple[int, torch.dtype]]:
    """Where all those weights are that are the model's own."""
    own = [weights.embed_VD, weights.norm_D, weights.head_VD]
    own += [matrix for layer in weights.layers for matrix in (layer.out, layer.down)]
    return [(tensor.data_ptr(), tensor.dtype) for tensor in own]
