"""Text to tokens for compact prompts, such that no text can become a mark.

A page, an answer or a goal is data: a link named `<yes>` or `x' [3]` must not turn into the tokens that say YES or that
number an element. So the special marks are never read from text, and what stands in quotes is encoded without any mark
but the two that names contain by themselves (`: ` and `.localhost/`). Pieces are cached: pages repeat themselves.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import Any

from dynaweb.policy import tokenizer as marks

CACHED = 65_536
"""Pieces of text whose tokens are remembered."""

_SPLIT = re.compile(r"'((?:[^'\\\n]|\\.)*)'")
_INNER = (": ", ".localhost/")
_INNER_SPLIT = re.compile("(" + "|".join(re.escape(mark) for mark in _INNER) + ")")


class Encoder:
    """Encodes compact text with a backend tokenizer (`tokenizers.Tokenizer`), which is not changed."""

    def __init__(self, backend: Any) -> None:
        from tokenizers import Tokenizer

        text = backend.to_str()
        self._whole = Tokenizer.from_str(text)
        self._whole.encode_special_tokens = True
        plain = json.loads(text)
        plain["added_tokens"] = [token for token in plain["added_tokens"] if token["special"]]
        self._plain = Tokenizer.from_str(json.dumps(plain))
        self._plain.encode_special_tokens = True
        self._inner = {mark: backend.token_to_id(mark) for mark in _INNER}
        self._outside = lru_cache(CACHED)(self._encode_outside)
        self._inside = lru_cache(CACHED)(self._encode_inside)

    def words(self, text: str) -> list[int]:
        """Tokens of free text, such as a goal: structure marks are read, special marks are not."""
        return list(self._outside(text))

    def lines(self, text: str) -> list[int]:
        """Tokens of `compact` text: marks outside of quotes, plain text inside of them."""
        ids: list[int] = []
        end = 0
        for quoted in _SPLIT.finditer(text):
            ids += self._outside(text[end : quoted.start() + 1])
            ids += self._inside(quoted[1])
            end = quoted.end() - 1
        return [*ids, *self._outside(text[end:])]

    def _encode_outside(self, text: str) -> tuple[int, ...]:
        return tuple(self._whole.encode(text, add_special_tokens=False).ids)

    def _encode_inside(self, text: str) -> tuple[int, ...]:
        ids: list[int] = []
        for piece in _INNER_SPLIT.split(text):
            mark = self._inner.get(piece)
            ids += [mark] if mark is not None else self._plain.encode(piece, add_special_tokens=False).ids
        return tuple(ids)


def specials(backend: Any) -> dict[str, int | None]:
    """The ids of the special marks; None for those that the tokenizer lacks."""
    return {name: backend.token_to_id(name) for name in marks.SPECIAL}
