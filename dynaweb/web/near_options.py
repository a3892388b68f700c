"""What is said of an option that a list does not have: which ones it has, or of a long list the nearest ones."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher

from dynaweb.web.quoting import quote

_TOLD = 30
"""Labels of the longest list that a refusal tells in full."""
_NEAR = 5
_LONGEST = 240
"""Characters of a wanted label that are compared: labels are half as long, and a reply may hold any text."""


def no_option(target: str, label: str, labels: Sequence[str]) -> str:
    """Why a label cannot be chosen: what there is, of a long list the nearest ones."""
    refusal = f"{target} has no option {quote(label)}"
    if len(labels) <= _TOLD:
        return f"{refusal}; it has {' '.join(map(quote, labels))}"
    near = " ".join(map(quote, nearest_labels(label, labels)))
    return f"{refusal}; the nearest of its {len(labels)} are {near}"


def nearest_labels(label: str, labels: Sequence[str]) -> list[str]:
    """Up to five labels that are most like a text: first those that hold it or are held by it."""
    wanted = " ".join(label.split()).casefold()[:_LONGEST]
    matcher = SequenceMatcher(b=wanted, autojunk=False)

    def likeness(other: str) -> tuple[bool, float]:
        text = other.casefold()
        matcher.set_seq1(text)
        inside = bool(wanted and text) and (wanted in text or text in wanted)
        return inside, matcher.ratio()

    return sorted(labels, key=likeness, reverse=True)[:_NEAR]
