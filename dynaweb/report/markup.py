"""HTML as values: text is escaped unless it is `Html` already, so that forgetting to escape is not possible."""

from __future__ import annotations

import html
import json
import re
from typing import Any

_VOID = frozenset({"br", "hr", "img", "input", "link", "meta"})
# Lone surrogates cannot be encoded; the others are not characters to any HTML parser.
_UNWRITABLE = re.compile("[\ud800-\udfff\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ufffe\uffff]")

_NEGATIVE = re.compile(r"(?<![\w.-])-(?=\.?\d)|(?<=\de)-(?=\d)")


class Html(str):
    """Text that is HTML source."""

    __slots__ = ()


Child = str | Html | None
"""Plain strings are escaped; None is left out."""


def text(value: str) -> Html:
    """Text as HTML source that shows as just that text."""
    return Html(html.escape(_UNWRITABLE.sub("\ufffd", value), quote=True))


def with_minus(words: str) -> str:
    """The words with a minus sign before each negative number; hyphens of names and dates stay."""
    return _NEGATIVE.sub("\N{MINUS SIGN}", words)


def join(*children: Child) -> Html:
    """Children one after the other."""
    return Html("".join(child if isinstance(child, Html) else text(child) for child in children if child is not None))


def el(tag: str, *children: Child, **attributes: str | int | float | bool | None) -> Html:
    """An element. `class_` is `class`, `data_x` is `data-x`; True is a bare attribute, None and False are left out."""
    written = "".join(_attribute(name, value) for name, value in attributes.items())
    if tag in _VOID:
        return Html(f"<{tag}{written}>")
    return Html(f"<{tag}{written}>{join(*children)}</{tag}>")


def _attribute(name: str, value: str | int | float | bool | None) -> str:
    if value is None or value is False:
        return ""
    bare = name.rstrip("_").replace("_", "-")
    return f" {bare}" if value is True else f' {bare}="{text(str(value))}"'


def embed(data: Any, **attributes: str) -> Html:
    """Plain data inside a script element that no browser runs.

    No `<` is left, so that nothing in the data can end the element or begin a comment.
    """
    source = json.dumps(data, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    escaped = source.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    return el("script", Html(escaped), type="application/json", **attributes)
