"""Which prompts of a batch share their beginning, so that it is computed once.

The rollouts of one task start on the same page, and a world model sees the same page with different actions: in both
cases most tokens of the prompts are the same. Pure Python, no torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from dynaweb.types import Prompt

Ids = tuple[int, ...]

MIN_SHARED = 32
"""Shorter common beginnings are not worth a second pass."""
MIN_SHARE = 0.5
"""Smallest common part of a prompt that is worth it."""
SLOT_COST = 0.1
"""What one more row in a lane costs each step, against reading the lane (measured on a processor)."""
MIN_SPARED = 1000
"""Cached tokens that lanes must spare in each step to be worth their own work (measured on a processor)."""


def spans(lengths: Sequence[int], limit: int) -> Iterator[slice]:
    """Cut a sequence of lengths into slices whose padded size (count x longest) stays within `limit`."""
    start, widest = 0, 0
    for index, length in enumerate(lengths):
        widest = max(widest, length)
        if index > start and (index - start + 1) * widest > limit:
            yield slice(start, index)
            start, widest = index, length
    if start < len(lengths):
        yield slice(start, len(lengths))


def common_length(a: Prompt, b: Prompt) -> int:
    """Tokens of the longest common beginning; prompts with different pictures have none."""
    low, high = 0, min(len(a), len(b)) if a.images == b.images else 0
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if a.ids[low:middle] == b.ids[low:middle] else (low, middle - 1)
    return low


@dataclass(frozen=True, slots=True)
class Tail:
    """What row `row` adds to a shared beginning of `start` tokens; at least one token."""

    row: int
    ids: Ids
    start: int


@dataclass(frozen=True, slots=True)
class Plan:
    """How to compute the prompts of a batch. Rows are indices into the prompts; every row is in exactly one place.

    `prefixes` pairs a shared beginning with its rows, whose rests are in `tails` (shortest first); `whole` pairs the
    ids of a distinct prompt with the rows that are equal to it (shortest first). `order` is the order in which rows
    come out.
    """

    prefixes: tuple[tuple[Ids, tuple[int, ...]], ...]
    tails: tuple[Tail, ...]
    whole: tuple[tuple[Ids, tuple[int, ...]], ...]

    @classmethod
    def of(cls, prompts: Sequence[Prompt]) -> Plan:
        """Find groups of prompts that share enough."""
        rows: dict[Prompt, list[int]] = {}
        for row, prompt in enumerate(prompts):
            rows.setdefault(prompt, []).append(row)
        prefixes, tails, whole = [], [], []
        for group, length in _groups(sorted(rows, key=lambda prompt: (prompt.images, prompt.ids))):
            if len(group) == 1:
                whole.append((group[0].ids, tuple(rows[group[0]])))
                continue
            members = [row for prompt in group for row in rows[prompt]]
            prefixes.append((group[0].ids[:length], tuple(members)))
            tails += [Tail(row, prompts[row].ids[length:], length) for row in members]
        return cls(
            tuple(sorted(prefixes, key=lambda pair: len(pair[0]))),
            tuple(sorted(tails, key=lambda tail: len(tail.ids))),
            tuple(sorted(whole, key=lambda pair: len(pair[0]))),
        )

    @property
    def order(self) -> tuple[int, ...]:
        """Rows in the order in which they are computed."""
        return (*(tail.row for tail in self.tails), *(row for _, rows in self.whole for row in rows))

    @property
    def computed(self) -> int:
        """Prompt tokens that go through the model."""
        shared = sum(len(prefix) for prefix, _ in self.prefixes)
        return shared + sum(len(tail.ids) for tail in self.tails) + sum(len(prompt) for prompt, _ in self.whole)

    @property
    def beginnings(self) -> tuple[tuple[Ids, tuple[int, ...]], ...]:
        """What rows have in common with each other, and the rows: `prefixes`, then `whole`."""
        return (*self.prefixes, *self.whole)

    @property
    def columns(self) -> int:
        """Columns that a cache needs for the prompts, padding of tails included."""
        tail = max((tail.start for tail in self.tails), default=0) + self.widest
        return max(tail, *(len(prompt) for prompt, _ in self.whole), 0)

    @property
    def widest(self) -> int:
        """Tokens of the longest tail."""
        return max((len(tail.ids) for tail in self.tails), default=0)

    def lanes(self) -> Lanes | None:
        """The cheapest way to read beginnings together; None where each row had better read its own."""
        sizes = [len(rows) for _, rows in self.beginnings]
        limits = [1 << power for power in range(max(sizes).bit_length() + 1)]
        limit = min(limits, key=lambda one: sum(-(-size // one) for size in sizes) * (1 + SLOT_COST * one))
        spared = sum(len(prompt) * (len(rows) - -(-len(rows) // limit)) for prompt, rows in self.beginnings)
        return Lanes.of(self.beginnings, limit) if spared >= MIN_SPARED else None


@dataclass(frozen=True, slots=True)
class Lanes:
    """Where beginnings lie that several rows read: row `r` reads the first `lengths[r]` tokens of lane `lane[r]`."""

    lane: Mapping[int, int]
    lengths: Mapping[int, int]
    count: int
    width: int

    @classmethod
    def of(cls, beginnings: Sequence[tuple[Ids, tuple[int, ...]]], limit: int) -> Lanes:
        """Lanes of at most `limit` rows, evenly filled, in the order of the beginnings."""
        lane: dict[int, int] = {}
        count = 0
        for _, rows in beginnings:
            needed = -(-len(rows) // limit)
            lane.update((row, count + index % needed) for index, row in enumerate(rows))
            count += needed
        lengths = {row: len(prompt) for prompt, rows in beginnings for row in rows}
        return cls(lane, lengths, count, max(lengths.values()))


def _groups(prompts: Sequence[Prompt]) -> Iterator[tuple[list[Prompt], int]]:
    """Cut distinct prompts, sorted by pictures and tokens, into groups, each with the length that its members share."""
    group: list[Prompt] = []
    shared = 0
    for prompt in prompts:
        common = min(shared, common_length(group[-1], prompt), len(prompt) - 1) if group else 0
        if group and common >= max(MIN_SHARED, MIN_SHARE * max(len(prompt), len(group[0]))):
            group.append(prompt)
            shared = common
            continue
        if group:
            yield group, shared
        group, shared = [prompt], len(prompt) - 1
    if group:
        yield group, shared
