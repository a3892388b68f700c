"""Decoding steps of any model of transformers at fixed shapes, on its `StaticCache`.

A batch is prefilled as always, then its keys and values move into a static cache, where steps can be recorded. Rows
that end go on computing something that nobody reads. Shapes: R rounded rows, C rounded columns, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from transformers import StaticCache
from transformers.cache_utils import StaticLayer

from dynaweb.engines.recording import Record, Recording, rounded_columns, rounded_rows

MAX_TOKENS = 131_072
"""Rows times columns of all caches that one model keeps."""

Forward = Callable[..., torch.Tensor]
"""(ids [B, 1], mask, positions [B, 1], cache) -> float32 logits [B, V]."""


class FixedGeneric:
    """The shapes of one model, the last used last. It serves one batch at a time."""

    def __init__(self, model: nn.Module, record: Record) -> None:
        self._model: Any = model
        self._record = record
        self._shapes: dict[tuple[int, int], _Shape] = {}
        self._places = _places(model)

    def shape(self, rows: int, columns: int) -> _Shape:
        """The shape for so many rows and columns; recordings are void when weights have moved."""
        if self._places != (places := _places(self._model)):
            self._places = places
            self._shapes.clear()
        key = rounded_rows(rows), rounded_columns(columns)
        shape = self._shapes.pop(key, None) or self._new(*key)
        self._shapes[key] = shape
        return shape

    def _new(self, rows: int, columns: int) -> _Shape:
        while self._shapes and sum(r * c for r, c in self._shapes) + rows * columns > MAX_TOKENS:
            self._shapes.pop(next(iter(self._shapes)))
        return _Shape(self._model, rows, columns, self._record)


class _Shape:
    """One static cache, the inputs of its steps, and the recorded step."""

    def __init__(self, model: Any, rows: int, columns: int, record: Record) -> None:
        first = next(model.parameters())
        self.cache: Any = StaticCache(config=model.config, max_cache_len=columns)
        self._rows, self._columns, self._record = rows, columns, record
        self._ids = torch.zeros(rows, 1, dtype=torch.long, device=first.device)
        self._positions = torch.zeros_like(self._ids)
        self._place = torch.zeros((), dtype=torch.long, device=first.device)
        self._mask = torch.zeros(rows, 1, 1, columns, dtype=first.dtype, device=first.device)
        self._step: Recording | None = None

    def fill(self, cache: Any, mask_BT: torch.Tensor) -> None:
        """Take over what a prefill has left: its cache, and which of its columns are tokens."""
        count, width = mask_BT.shape
        for ours, theirs in zip(self.cache.layers, cache.layers, strict=True):
            if ours.keys is None:
                like = [part[:1, :, :1].expand(self._rows, -1, -1, -1) for part in (theirs.keys, theirs.values)]
                ours.lazy_initialization(*like)
            ours.reset()
            ours.keys[:count, :, :width] = theirs.keys
            ours.values[:count, :, :width] = theirs.values
        # Not -inf: rows that are not live see nothing, and a softmax over nothing is not a number.
        self._mask.fill_(torch.finfo(self._mask.dtype).min)
        self._mask[:count, 0, 0, :width].masked_fill_(mask_BT.bool(), 0)

    def step(
        self, token_B: torch.Tensor, rows: torch.Tensor, position_R: torch.Tensor, column: int, run: Forward
    ) -> Any:
        """Logits [R, V] after the tokens of the live `rows`, written to a column; valid until the next step."""
        self._ids[rows, 0] = token_B
        self._positions[: len(position_R), 0] = position_R
        self._mask[..., column] = 0
        self._place.fill_(column)
        if self._step is None:
            self._step = Recording(lambda: self._computed(run), self._record)
        return self._step()

    def _computed(self, run: Forward) -> torch.Tensor:
        for layer in self.cache.layers:
            layer.cumulative_length.copy_(self._place)
        return run(self._ids, self._mask, self._positions, self.cache)


class FixedSession:
    """A batch in a shape. `prefilled` is the session that has computed the prompts."""

    def __init__(self, prefilled: Any, shape: _Shape) -> None:
        self.order: Sequence[int] = prefilled.order
        self.computed: int = prefilled.computed
        self.logits: torch.Tensor = prefilled.logits
        mask_BT = prefilled.mask
        shape.fill(prefilled.cache, mask_BT)
        self._shape, self._run = shape, prefilled.run
        self._column = mask_BT.shape[1]
        self._position_R = mask_BT.sum(-1)
        self._rows = torch.arange(len(mask_BT), device=mask_BT.device)

    def step(self, token_B: torch.Tensor) -> None:
        """One decoding step."""
        found = self._shape.step(token_B, self._rows, self._position_R, self._column, self._run)
        self._position_R = self._position_R + 1
        self._column += 1
        self.logits = found[self._rows]

    def keep(self, rows: Sequence[int]) -> None:
        """Go on with these rows; the others stay where they are."""
        index = torch.tensor(rows, device=self._rows.device)
        self._rows = self._rows[index]
        self.logits = self.logits[index]


def fixable(model: Any) -> bool:
    """Whether every layer attends to all earlier tokens, by a mask that can be given."""
    implementation = getattr(model.config, "_attn_implementation", None)
    if implementation not in ("sdpa", "eager"):
        return False
    layers = StaticCache(config=model.config, max_cache_len=1).layers
    return bool(layers) and all(type(layer) is StaticLayer for layer in layers)


def _places(model: nn.Module) -> tuple[int, ...]:
    return tuple(parameter.data_ptr() for parameter in model.parameters())
