"""Decoding steps of fixed shape, recorded once and replayed.

On a GPU, launching the hundreds of small kernels of a decoding step takes longer than computing them. A step whose
tensors keep their shapes and addresses is recorded as a CUDA graph at its first use and launched as one from then on.
Shapes are rounded up, so that a few recordings serve all batches; rows beyond the live ones compute something that
nobody reads. The compact Llama forward keeps its keys and values in one arena from batch to batch; any other model of
transformers uses its `StaticCache`, into which a batch moves after it was prefilled as always.

`[policy.engine] static = false` (or `wm.engine`, `reward.engine`) turns it off; it changes results by float noise only.

Shapes: R rounded rows, C rounded columns, V vocabulary.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from transformers import StaticCache
from transformers.cache_utils import StaticLayer

from dynaweb.engines.local import decoding, llama

Step = Callable[[], torch.Tensor]
"""Reads and writes tensors at fixed addresses and returns its result at a fixed address. Twice is like once."""
Record = Callable[[Step], Step]
"""Turns a step into one that does the same faster."""


class Recording:
    """A step and what `record` made of it, called in its stead.

    A recording knows addresses and owns nothing: the tensors that the step reads have to live as long as it does.
    """

    def __init__(self, step: Step, record: Record) -> None:
        self._owner = step
        self._replay = record(step)

    def __call__(self) -> torch.Tensor:
        """The step's result."""
        return self._replay()


COLUMNS = 256
"""Caches are as long as a multiple of this."""
MAX_RECORDINGS = 96
"""Recordings of one model; some megabytes each."""

_log = logging.getLogger(__name__)


def rounded_rows(rows: int) -> int:
    """Rows of the fixed shape that serves so many: 1, 2, 3, 4, 6, 8, 12, 16, 24, ..., at most half as many again."""
    grain = 1 << max(0, (rows - 1).bit_length() - 2)
    return -(-rows // grain) * grain


def rounded_columns(columns: int) -> int:
    """Columns of the fixed shape that serves so many."""
    return -(-columns // COLUMNS) * COLUMNS


class CudaGraphs:
    """A `Record` for one GPU. A step that cannot be recorded is used as it is, and no other is tried after it."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._graphs: weakref.WeakSet[Any] = weakref.WeakSet()
        self._pool: Any = None
        self._refused = False

    def __call__(self, step: Step) -> Step:
        """The step as a graph."""
        if self._refused:
            return step
        try:
            return self._recorded(step)
        except RuntimeError as error:
            self._refused = True
            _log.warning("decoding steps cannot be recorded and are launched one by one: %s", str(error).split("\n")[0])
            return step

    def _recorded(self, step: Step) -> Step:
        graph = torch.cuda.CUDAGraph()
        pool = self._shared_pool()
        with torch.cuda.device(self._device):
            # Libraries set themselves up at their first call, which must not be part of a recording.
            side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                step()
            torch.cuda.current_stream().wait_stream(side)
            with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
                result = step()
        self._graphs.add(graph)

        def replay() -> torch.Tensor:
            graph.replay()
            return result

        return replay

    def _shared_pool(self) -> Any:
        """One pool for all: what a recording needs for itself is dead between two launches. It ends with the last
        recording that is kept, and another has to be made then."""
        if not self._graphs:
            self._pool = torch.cuda.graph_pool_handle()
        return self._pool


def recorder_for(device: torch.device) -> Record | None:
    """What records steps on this device; None where there is nothing to gain."""
    return CudaGraphs(device) if device.type == "cuda" else None


Recorders = Callable[[torch.device], Record | None]
"""What records the decoding steps on a device, if anything."""


def no_recorder(device: torch.device) -> None:
    """Steps are launched one by one."""


class View(decoding.Cache):
    """A cache whose tensors belong to an arena."""

    def __init__(self, key: torch.Tensor, value: torch.Tensor) -> None:
        self.key, self.value = key, value


class FixedLlama:
    """The recorded steps of one model, and the arena that they work on. It serves one batch at a time."""

    def __init__(self, weights: llama.Weights, record: Record) -> None:
        self.weights = weights
        # A parameter can be given other memory and stay the same object: what counts is where it was when recorded.
        self._addresses = _weight_addresses(weights)
        self._record = record
        self._steps: dict[tuple[int, int], Recording] = {}
        self._rooms: tuple[torch.Tensor, torch.Tensor] | None = None
        self._columns = 0
        self._ids = self._starts = torch.empty(0)

    def renew(self, weights: llama.Weights) -> bool:
        """Put new values where the recordings look for them; False when they are elsewhere, and this is of no use."""
        if self._addresses != _weight_addresses(weights) or not torch.equal(self.weights.inv_freq, weights.inv_freq):
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


def _weight_addresses(weights: llama.Weights) -> list[tuple[int, torch.dtype]]:
    """Where all those weights are that are the model's own."""
    own = [weights.embed_VD, weights.norm_D, weights.head_VD]
    own += [matrix for layer in weights.layers for matrix in (layer.out, layer.down)]
    return [(tensor.data_ptr(), tensor.dtype) for tensor in own]


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
        self._addresses = _parameter_addresses(model)

    def shape(self, rows: int, columns: int) -> _Shape:
        """The shape for so many rows and columns; recordings are void when weights have moved."""
        if self._addresses != (addresses := _parameter_addresses(self._model)):
            self._addresses = addresses
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
        self._column = torch.zeros((), dtype=torch.long, device=first.device)
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
        self._column.fill_(column)
        if self._step is None:
            self._step = Recording(lambda: self._computed(run), self._record)
        return self._step()

    def _computed(self, run: Forward) -> torch.Tensor:
        for layer in self.cache.layers:
            layer.cumulative_length.copy_(self._column)
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
        logits = self._shape.step(token_B, self._rows, self._position_R, self._column, self._run)
        self._position_R = self._position_R + 1
        self._column += 1
        self.logits = logits[self._rows]

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


def _parameter_addresses(model: nn.Module) -> tuple[int, ...]:
    return tuple(parameter.data_ptr() for parameter in model.parameters())
