"""Labels of the options of a native select: each is another one, so that every option can be chosen by its label.

`scripts.LABELS` of `dynaweb.web.chromium` does the same in the page.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher

from dynaweb.web.quoting import quote

_TOLD = 30
"""Labels of the longest list that a refusal tells in full."""
_NEAR = 5


def option_labels(options: Iterable[tuple[str, str]], limit: int) -> list[str]:
    """The labels of (group, name) pairs, in order.

    A name that is cut to `limit` characters, with `/` for `|`, is the label. Equal ones get the label of their group
    before them, and those that are equal still get a number: `Red`, `Red (2)`. No label is longer than `limit`.
    """
    pairs = [(_cut(group, limit), _cut(name, limit)) for group, name in options]
    counts = Counter(name for _, name in pairs)
    taken: set[str] = set()
    labels = []
    for group, name in pairs:
        label = plain = f"{group}: {name}"[:limit].rstrip() if group and counts[name] > 1 else name
        number = 1
        while label in taken:
            number += 1
            suffix = f" ({number})"
            label = f"{plain[: limit - len(suffix)]}{suffix}".strip()
        taken.add(label)
        labels.append(label)
    return labels


def no_option(target: str, label: str, labels: Sequence[str]) -> str:
    """Why a label cannot be chosen: what there is, of a long list the nearest ones."""
    refusal = f"{target} has no option {quote(label)}"
    if len(labels) <= _TOLD:
        return f"{refusal}; it has {' '.join(map(quote, labels))}"
    near = " ".join(map(quote, nearest_labels(label, labels)))
    return f"{refusal}; the nearest of its {len(labels)} are {near}"


def nearest_labels(label: str, labels: Sequence[str]) -> list[str]:
    """Up to five labels that are most like a text: first those that hold it or are held by it."""
    wanted = " ".join(label.split()).casefold()
    matcher = SequenceMatcher(b=wanted, autojunk=False)

    def likeness(other: str) -> tuple[bool, float]:
        text = other.casefold()
        matcher.set_seq1(text)
        inside = bool(wanted and text) and (wanted in text or text in wanted)
        return inside, matcher.ratio()

    return sorted(labels, key=likeness, reverse=True)[:_NEAR]


def _cut(text: str, limit: int) -> str:
    return " ".join(text.split())[:limit].rstrip().replace("|", "/")
