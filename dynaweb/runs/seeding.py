"""Sub-seeds: every random choice of a run derives from its one seed and the words that say what it is for."""

from __future__ import annotations

import hashlib


def derive(seed: int, *labels: str | int) -> int:
    """A 63-bit seed for one purpose, such as `derive(0, "rollout", update, task_id)`.

    The same arguments give the same number on every machine and Python version. Labels keep their type and their
    borders: `("a", "b")`, `("ab",)`, `("1",)` and `(1,)` all differ.
    """
    text = "\x1f".join([str(int(seed)), *(_word(label) for label in labels)])
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def _word(label: str | int) -> str:
    # A separator inside a label would let two label lists meet.
    return f"s{label!r}" if isinstance(label, str) else f"i{int(label)}"
