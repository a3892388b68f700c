"""Labels of the options of a native select: each is another one, so that every option can be chosen by its label.

`scripts.LABELS` of `dynaweb.web.chromium` does the same in the page.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable


def option_labels(options: Iterable[tuple[str, str]], limit: int) -> list[str]:
    """The labels of (group, name) pairs, in order.

    A name that is cut to `limit` characters, with `/` for `|`, is the label. Equal ones get the label of their group
    before them, and those that are equal still get a number: `Red`, `Red (2)`. No label is longer than `limit`.
    """
    pairs = [(_cut(group, limit), _cut(name, limit)) for group, name in options]
    counts = Counter(name for _, name in pairs)
    taken: set[str] = set()
    free: dict[tuple[str, int], int] = {}
    labels = []
    for group, name in pairs:
        label = f"{group}: {name}"[:limit].rstrip() if group and counts[name] > 1 else name
        if label in taken:
            label = _numbered(label, limit, taken, free)
        taken.add(label)
        labels.append(label)
    return labels


def _numbered(plain: str, limit: int, taken: set[str], free: dict[tuple[str, int], int]) -> str:
    """The label with the first number that is free, from 2 on.

    `free` holds, by what stands before a number and by its digits, below which none is, so that each is tried once.
    """
    digits = 1
    while True:
        start = plain[: limit - digits - len(" ()")]
        number = free.get((start, digits), max(2, 10 ** (digits - 1)))
        while number < 10**digits and (label := f"{start} ({number})".strip()) in taken:
            number += 1
        free[start, digits] = number
        if number < 10**digits:
            return label
        digits += 1


def _cut(text: str, limit: int) -> str:
    return " ".join(text.split())[:limit].rstrip().replace("|", "/")
