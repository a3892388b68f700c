"""Hints for mistyped names: the nearest valid ones, then all of them."""

from __future__ import annotations

from collections.abc import Iterable

SHOWN = 40
"""Names that a hint lists; more would hide what it says."""


def nearest(word: str, valid: Iterable[str], *, count: int = 3) -> list[str]:
    """The valid words that look most like `word`, best first; empty when none is near."""
    from difflib import get_close_matches  # only needed once something is wrong

    by_fold = {name.casefold(): name for name in valid}
    # Of two letters, one wrong is half.
    cutoff = 0.5 if len(word) <= 3 else 0.6
    return [by_fold[match] for match in get_close_matches(word.casefold(), by_fold, n=count, cutoff=cutoff)]


def hint(word: str, valid: Iterable[str]) -> str:
    """A clause for an error message: `did you mean 'x'? valid: a, x` (or `there is none` when nothing is valid).

    Of a long list only the beginning is shown.
    """
    names = sorted(set(valid))
    if not names:
        return "there is none"
    near = nearest(word, names)
    question = f"did you mean {' or '.join(repr(name) for name in near)}? " if near else ""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"{question}valid: {', '.join(names[:SHOWN])}{more}"
