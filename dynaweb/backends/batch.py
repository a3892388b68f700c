"""Cut token rows into micro-batches: by number of tokens, little padding, shared prompts once.

A *unit* is a prompt with all responses that answer it (the rollouts of one task share their first page). It is computed
as one prefix, the prompt without its last token, and one tail per row: the prompt's last token and the response without
its last token. Each token of a tail predicts one response token, so nothing else has to reach the output head.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dynaweb.protocols import TokenRow
from dynaweb.seeding import derive

TAIL_TOKENS = 512
"""Tails of one unit; more rows of the same prompt form another unit (attention among tails is quadratic)."""
MAX_PADDING = 0.12
"""A micro-batch is closed early when one more unit would raise its padding above this share."""


@dataclass(frozen=True, slots=True)
class Unit:
    """A prompt and the indices of the rows that answer it; `tail` counts their response tokens."""

    prompt: tuple[int, ...]
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
    `tokens` counts the real ones, of prefixes and tails.
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
    answers: dict[tuple[int, ...], list[int]] = {}
    out = []
    for index in chosen:
        row = rows[index]
        if not row.response_ids:
            continue
        if not row.prompt_ids:
            raise ValueError(f"row {index} has a response but no prompt; the first response token needs one before it")
        if share:
            answers.setdefault(row.prompt_ids, []).append(index)
        else:
            out.append(Unit(row.prompt_ids, (index,), len(row.response_ids)))
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


def plan(found: Sequence[Unit], micro_tokens: int, *, packed: bool = False) -> list[list[Unit]]:
    """Micro-batches of at most `micro_tokens` tokens (one unit at least), similar sizes together.

    Counted are padded tokens; with `packed` the real ones, whatever their padding would be.
    """
    fits = _fits_packed if packed else _fits
    ordered = sorted(found, key=lambda unit: (_octave(unit.tail), len(unit.prompt), unit.tail, unit.rows))
    if packed:
        ordered = sorted(found, key=lambda unit: (unit.size, unit.rows))
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


def collate(rows: Sequence[TokenRow], part: Sequence[Unit], device: torch.device) -> MicroBatch:
    """The tensors of one micro-batch. Padding is token 0 behind each prefix and each tail."""
    order = tuple(index for unit in part for index in unit.rows)
    lengths = [len(rows[index].response_ids) for index in order]
    width = max(1, *(len(unit.prompt) - 1 for unit in part))
    tail_width = max(unit.tail for unit in part)

    def tensor(values: Sequence[Any]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.long, device=device)

    return MicroBatch(
        rows=order,
        prefix_UP=tensor([_padded(unit.prompt[:-1], width, 0) for unit in part]),
        prefix_U=tensor([len(unit.prompt) - 1 for unit in part]),
        tail_UQ=tensor([_padded(_tail_ids(rows, unit), tail_width, 0) for unit in part]),
        position_UQ=tensor([_padded(_tail_positions(rows, unit), tail_width, 0) for unit in part]),
        segment_UQ=tensor([_padded(_tail_segments(rows, unit), tail_width, -1) for unit in part]),
        flat_N=tensor([place * tail_width + i for place, unit in enumerate(part) for i in range(unit.tail)]),
        target_N=tensor([token for index in order for token in rows[index].response_ids]),
        row_N=tensor([place for place, length in enumerate(lengths) for _ in range(length)]),
        column_N=tensor([column for length in lengths for column in range(length)]),
        tokens=sum(unit.size for unit in part),
    )


def _padded(values: Sequence[int], width: int, filler: int) -> list[int]:
    return [*values, *[filler] * (width - len(values))]


def _tail_ids(rows: Sequence[TokenRow], unit: Unit) -> list[int]:
    return [token for index in unit.rows for token in (unit.prompt[-1], *rows[index].response_ids[:-1])]


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
    for place in range(step * count, (step + 1) * count):
        epoch, offset = divmod(place, size)
        out.append(_permutation(size, derive(seed, "epoch", epoch))[offset])
    return out


_permutations: dict[tuple[int, int], list[int]] = {}


def _permutation(size: int, seed: int) -> list[int]:
    if (size, seed) not in _permutations:
        order = list(range(size))
        random.Random(seed).shuffle(order)
        if len(_permutations) >= 8:
            _permutations.pop(next(iter(_permutations)))
        _permutations[size, seed] = order
    return _permutations[size, seed]
