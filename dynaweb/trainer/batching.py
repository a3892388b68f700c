"""Micro-batches of token rows: cut by number of tokens, little padding, shared prompts once, or packed in one row.

A *unit* is a prompt with all responses that answer it (the rollouts of one task share their first page). It is computed
as one prefix, the prompt without its last token, and one tail per row: the prompt's last token and the response without
its last token. Each token of a tail predicts one response token, so nothing else has to reach the output head.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from dynaweb.engines.local.architecture import RopeLimit, attention_named, has_plain_cache, near, read_attention
from dynaweb.engines.local.llama import HALF
from dynaweb.errors import TrainingError
from dynaweb.protocols import TokenRow, text_ids
from dynaweb.runs.seeding import derive
from dynaweb.types import Prompt

TAIL_TOKENS = 512
"""Tails of one unit; more rows of the same prompt form another unit (attention among tails is quadratic)."""
MAX_PADDING = 0.12
"""A micro-batch is closed early when one more unit would raise its padding above this share."""


_permutations: dict[tuple[int, int], list[int]] = {}
NAME = "dynaweb_packed"
"""What transformers calls the attention below."""
Windows = Mapping[nn.Module, int | None]
"""Tokens that each attention layer's tokens see, themselves counted; None = all before them."""
WIDEST_HEAD = 256
"""Head width that the variable-length kernel takes at most."""


@dataclass(frozen=True, slots=True)
class Unit:
    """A prompt and the indices of the rows that answer it; `tail` counts their response tokens."""

    prompt: Prompt
    rows: tuple[int, ...]
    tail: int

    @property
    def size(self) -> int:
        """Tokens to compute."""
        return len(self.prompt) - 1 + self.tail


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Tensors of some units. U units, P prefix columns, Q tail columns, N response tokens, R rows, T longest response.

    `prefix_UP` and `tail_UQ` hold token ids, `prefix_U` the prefix lengths, `position_UQ` the positions of tail tokens
    and `segment_UQ` which row of its unit a tail token belongs to (-1 = padding). `flat_N` indexes the U*Q tail tokens
    in the order of rows; token n belongs to the batch's row `rows[row_N[n]]` and is its response token `column_N[n]`.
    `tokens` counts the real ones, of prefixes and tails; `lengths` holds those of each unit: of its prefix, and of the
    tail of each of its rows. A unit whose prompt has images is a micro-batch of its own: `seen` is that prompt.
    """

    rows: tuple[int, ...]
    prefix_UP: torch.Tensor
    prefix_U: torch.Tensor
    tail_UQ: torch.Tensor
    position_UQ: torch.Tensor
    segment_UQ: torch.Tensor
    flat_N: torch.Tensor
    target_N: torch.Tensor
    row_N: torch.Tensor
    column_N: torch.Tensor
    tokens: int
    lengths: tuple[tuple[int, tuple[int, ...]], ...]
    seen: Prompt | None = None

    @property
    def padded_tokens(self) -> int:
        """Its tokens, padding included."""
        return self.prefix_UP.numel() + self.tail_UQ.numel()

    def spread(self, values_N: torch.Tensor) -> torch.Tensor:
        """Lay per-token values [N, ...] out as rows [R, T, ...], zero where a response is shorter; keeps gradients."""
        width = int(self.column_N.max()) + 1
        empty = values_N.new_zeros(len(self.rows), width, *values_N.shape[1:])
        return empty.index_put((self.row_N, self.column_N), values_N)

    def mask(self) -> torch.Tensor:
        """Bool [R, T]: where `spread` put values."""
        return self.spread(torch.ones_like(self.row_N, dtype=torch.bool))


def units(rows: Sequence[TokenRow], chosen: Sequence[int], *, share: bool = True) -> list[Unit]:
    """Group the chosen rows by prompt (each on its own without `share`); rows without a response are left out."""
    answers: dict[Prompt, list[int]] = {}
    out = []
    for index in chosen:
        row = rows[index]
        if not row.response_ids:
            continue
        if not row.prompt:
            raise ValueError(f"row {index} has a response but no prompt; the first response token needs one before it")
        if share:
            answers.setdefault(row.prompt, []).append(index)
        else:
            out.append(Unit(row.prompt, (index,), len(row.response_ids)))
    for prompt, indices in answers.items():
        out += [Unit(prompt, part, _tail(rows, part)) for part in _split(rows, indices)]
    return out


def _tail(rows: Sequence[TokenRow], part: Sequence[int]) -> int:
    return sum(len(rows[index].response_ids) for index in part)


def _split(rows: Sequence[TokenRow], indices: Sequence[int]) -> Iterator[tuple[int, ...]]:
    part: list[int] = []
    for index in indices:
        if part and _tail(rows, part) + len(rows[index].response_ids) > TAIL_TOKENS:
            yield tuple(part)
            part = []
        part.append(index)
    yield tuple(part)


def apart(waiting: Sequence[Unit], rope: RopeLimit | None) -> list[list[Unit]]:
    """Units that may meet in a micro-batch: where rotary frequencies switch at a length, those on one side of it.

    The length of a row is that of what predicts its last token. Raises `TrainingError` for a row beyond a length from
    which on each has frequencies of its own.
    """
    if rope is None:
        return [list(waiting)]
    short = [unit for unit in waiting if unit.size <= rope.length]
    long = [unit for unit in waiting if unit.size > rope.length]
    if long and rope.kind == "grows":
        raise TrainingError(
            f"a row of {long[0].size} tokens is longer than the {rope.length} up to which the rotary frequencies of"
            " this model (rope_type 'dynamic') are the same for all rows; shorten the page or the history"
        )
    return [part for part in (short, long) if part]


def plan(waiting: Sequence[Unit], micro_tokens: int, *, packed: bool = False) -> list[list[Unit]]:
    """Micro-batches of at most `micro_tokens` tokens (one unit at least), similar sizes together.

    Counted are padded tokens; with `packed` the real ones, whatever their padding would be.
    """
    fits = _fits_packed if packed else _fits
    ordered = sorted(waiting, key=lambda unit: (_octave(unit.tail), len(unit.prompt), unit.tail, unit.rows))
    if packed:
        ordered = sorted(waiting, key=lambda unit: (unit.size, unit.rows))
    parts: list[list[Unit]] = []
    for unit in ordered:
        if parts and fits([*parts[-1], unit], micro_tokens):
            parts[-1].append(unit)
        else:
            parts.append([unit])
    return parts


def _octave(length: int) -> int:
    """Tails of about the same size: 1-16, 17-32, 33-64, ..."""
    return max(4, (length - 1).bit_length())


def _fits(part: Sequence[Unit], micro_tokens: int) -> bool:
    padded = len(part) * (max(len(unit.prompt) for unit in part) - 1 + max(unit.tail for unit in part))
    padding = 1 - sum(unit.size for unit in part) / padded
    return padded <= micro_tokens and (padding <= MAX_PADDING or padded <= micro_tokens // 4)


def _fits_packed(part: Sequence[Unit], micro_tokens: int) -> bool:
    return sum(unit.size for unit in part) <= micro_tokens


def collate(rows: Sequence[TokenRow], part: Sequence[Unit], device: torch.device, *, sees: bool = False) -> MicroBatch:
    """The tensors of one micro-batch. Padding is token 0 behind each prefix and each tail.

    Raises `EngineError` for prompts with images where the scorer does not `see` them, and `ValueError` where one that
    has some shares its micro-batch.
    """
    if not sees:
        for unit in part:
            text_ids(unit.prompt, "the trainer")
    images = [unit.prompt for unit in part if unit.prompt.images]
    if images and len(part) > 1:
        raise ValueError("a prompt with images shares its micro-batch with others; it is computed by itself")
    order = tuple(index for unit in part for index in unit.rows)
    lengths = [len(rows[index].response_ids) for index in order]
    width = max(1, *(len(unit.prompt) - 1 for unit in part))
    tail_width = max(unit.tail for unit in part)

    def tensor(values: Sequence[Any]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.long, device=device)

    return MicroBatch(
        rows=order,
        prefix_UP=tensor([_padded(unit.prompt.ids[:-1], width, 0) for unit in part]),
        prefix_U=tensor([len(unit.prompt) - 1 for unit in part]),
        tail_UQ=tensor([_padded(_tail_ids(rows, unit), tail_width, 0) for unit in part]),
        position_UQ=tensor([_padded(_tail_positions(rows, unit), tail_width, 0) for unit in part]),
        segment_UQ=tensor([_padded(_tail_segments(rows, unit), tail_width, -1) for unit in part]),
        flat_N=tensor([at * tail_width + i for at, unit in enumerate(part) for i in range(unit.tail)]),
        target_N=tensor([token for index in order for token in rows[index].response_ids]),
        row_N=tensor([row for row, length in enumerate(lengths) for _ in range(length)]),
        column_N=tensor([column for length in lengths for column in range(length)]),
        tokens=sum(unit.size for unit in part),
        lengths=tuple(
            (len(unit.prompt) - 1, tuple(len(rows[index].response_ids) for index in unit.rows)) for unit in part
        ),
        seen=images[0] if images else None,
    )


def _padded(values: Sequence[int], width: int, filler: int) -> list[int]:
    return [*values, *[filler] * (width - len(values))]


def _tail_ids(rows: Sequence[TokenRow], unit: Unit) -> list[int]:
    return [token for index in unit.rows for token in (unit.prompt.ids[-1], *rows[index].response_ids[:-1])]


def _tail_positions(rows: Sequence[TokenRow], unit: Unit) -> list[int]:
    start = len(unit.prompt) - 1
    return [start + column for index in unit.rows for column in range(len(rows[index].response_ids))]


def _tail_segments(rows: Sequence[TokenRow], unit: Unit) -> list[int]:
    return [local for local, index in enumerate(unit.rows) for _ in rows[index].response_ids]


def draw(size: int, count: int, *, seed: int, step: int) -> list[int]:
    """`count` of `size` indices for optimizer step `step`: every index once before any comes again.

    Depends on its arguments only, so a resumed run goes on where it stopped without any stored position.
    """
    if size < 1:
        raise ValueError("there is nothing to draw from")
    out = []
    for draw_number in range(step * count, (step + 1) * count):
        epoch, offset = divmod(draw_number, size)
        out.append(_permutation(size, derive(seed, "epoch", epoch))[offset])
    return out


def _permutation(size: int, seed: int) -> list[int]:
    if (size, seed) not in _permutations:
        order = list(range(size))
        random.Random(seed).shuffle(order)
        if len(_permutations) >= 8:
            _permutations.pop(next(iter(_permutations)))
        _permutations[size, seed] = order
    return _permutations[size, seed]


# Sequences of any length side by side in one row, without padding, through a model of transformers. Everything but
# attention looks at tokens one by one, so it runs on exactly the tokens that there are. Attention keeps the sequences
# apart: by torch's variable-length kernel where there is one (half precision on CUDA), else on a padded view of
# queries, keys and values, which is right everywhere. Positions start anew in each sequence.
#
# Shapes: U sequences, L tokens of the longest, T packed tokens, H query heads, K key heads, E head width.


class CannotPackError(ValueError):
    """A model whose attention cannot be told where sequences end."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Where sequences lie: `start` [U+1] (int32) among packed tokens, `slot_T` each token in the U*L padded ones."""

    start: torch.Tensor
    longest: int
    slot_T: torch.Tensor

    @classmethod
    def of(cls, mask_UL: torch.Tensor) -> Layout:
        """Of sequences that are padded on the right."""
        lengths = mask_UL.sum(-1)
        start = F.pad(lengths.cumsum(0), (1, 0)).to(torch.int32)
        return cls(start, mask_UL.shape[1], mask_UL.flatten().nonzero()[:, 0])

    @property
    def position_T(self) -> torch.Tensor:
        """Position of each token in its sequence."""
        return self.slot_T % self.longest

    def padded(self, x_T: torch.Tensor) -> torch.Tensor:
        """[T, ...] as [U, L, ...], 0 behind each sequence."""
        rows = len(self.start) - 1
        flat = x_T.new_zeros(rows * self.longest, *x_T.shape[1:]).index_copy(0, self.slot_T, x_T)
        return flat.view(rows, self.longest, *x_T.shape[1:])

    def packed(self, x_UL: torch.Tensor) -> torch.Tensor:
        """The opposite of `padded`."""
        return x_UL.flatten(0, 1).index_select(0, self.slot_T)


def attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, layout: Layout, scale: float | None, window: int | None
) -> torch.Tensor:
    """Causal attention of [T, H, E] over [T, K, E] within each sequence; `window` tokens back at most."""
    grouped = query.shape[1] != key.shape[1]
    kernel = varlen()
    if kernel is not None and query.is_cuda and query.dtype in HALF and query.shape[-1] <= WIDEST_HEAD:
        ends = (layout.start, layout.start, layout.longest, layout.longest)
        back = -1 if window is None else window - 1
        more: dict[str, Any] = {"scale": scale, "window_size": (back, 0)}
        if grouped and knows_groups(kernel):
            more["enable_gqa"] = True
        elif grouped:
            key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], dim=1) for x in (key, value))
        out: torch.Tensor = kernel(query, key, value, *ends, **more)
        return out
    q, k, v = (layout.padded(x).transpose(1, 2) for x in (query, key, value))
    seen = None if window is None or window >= layout.longest else _band(layout.longest, window, query.device)
    mixed = F.scaled_dot_product_attention(
        q, k, v, attn_mask=seen, is_causal=seen is None, scale=scale, enable_gqa=grouped
    )
    return layout.packed(mixed.transpose(1, 2))


def _band(length: int, window: int, device: torch.device) -> torch.Tensor:
    """Bool [L, L]: each token sees itself and the `window` - 1 before it."""
    ones = torch.ones(length, length, dtype=torch.bool, device=device)
    return ones.tril() & ones.triu(1 - window)


@cache
def varlen() -> Callable[..., Any] | None:
    """torch's variable-length attention, where the installed torch has one with all that is needed."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    wanted = {"scale", "window_size"}
    return varlen_attn if wanted <= inspect.signature(varlen_attn).parameters.keys() else None


@cache
def knows_groups(kernel: Callable[..., Any]) -> bool:
    """Whether it takes fewer heads of keys than of queries; else they are repeated."""
    return "enable_gqa" in inspect.signature(kernel).parameters


def _attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    *,
    scaling: float | None = None,
    layout: Layout | None = None,
    windows: Windows | None = None,
    **more: Any,
) -> tuple[torch.Tensor, None]:
    """`attend` as transformers calls it: [1, H, T, E] in, [1, T, H, E] out."""
    if layout is None or windows is None or module not in windows or len(query) != 1 or attention_mask is not None:
        raise CannotPackError(f"{type(module).__name__} gives attention something that packing does not know")
    heads = [x[0].transpose(0, 1) for x in (query, key, value)]
    return attend(heads[0], heads[1], heads[2], layout, scaling, windows[module])[None], None


@contextmanager
def packed_attention(model: nn.Module) -> Iterator[None]:
    """While it lasts, the model's attention is the one above: give it `layout` and `windows` beside its inputs."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, _attention)
    with attention_named(model, NAME):
        yield


def packable(model: Any, body: Any) -> Windows | None:
    """The windows of the model's attention layers where its sequences can be packed; None where they cannot.

    They can where each mask was read and says no more than a window, attention has no twist such as a soft cap, nothing
    but keys and values is remembered of earlier tokens (no recurrence or convolution, whose traces half precision would
    hide), and packed sequences give what each gives alone: tried on short ones.
    """
    attention = read_attention(model)
    if attention is None or attention.twists or not attention.windows or not has_plain_cache(model):
        return None
    device = next(model.parameters()).device
    lengths = (19, 5, 3)
    ids = (torch.arange(1, 1 + sum(lengths), device=device) * 5) % model.config.get_text_config().vocab_size
    layout = Layout.of(torch.arange(max(lengths), device=device) < torch.tensor(lengths, device=device)[:, None])
    try:
        with torch.no_grad():
            alone = [body(input_ids=part[None], use_cache=False).last_hidden_state[0] for part in ids.split(lengths)]
            with packed_attention(model):
                packed = run_packed(body, ids, layout, attention.windows)
    except Exception:  # of any model's code, which was not written for this
        return None
    return attention.windows if near(packed, torch.cat(alone)) else None


def run_packed(body: Any, ids_T: torch.Tensor, layout: Layout, windows: Windows) -> torch.Tensor:
    """Last hidden states [T, D] of packed tokens; within `packed_attention`."""
    inputs = {"input_ids": ids_T[None], "position_ids": layout.position_T[None], "use_cache": False}
    hidden: torch.Tensor = body(**inputs, layout=layout, windows=windows).last_hidden_state
    return hidden[0]
