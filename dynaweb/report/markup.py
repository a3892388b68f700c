"""HTML as values: text is escaped unless it is `Html` already, so that forgetting to escape is not possible.

Elements, and what sections of a report are made of: headings, tables, folds, and names in words.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Sequence
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


def section(title: str, lead: str, *children: Child) -> Html:
    """A section with its heading, which links to itself; an empty `lead` is left out."""
    return el("section", heading(title), el("p", lead, class_="lead") if lead else None, *children, id=anchor(title))


def heading(title: str) -> Html:
    """The heading of the section whose id is `anchor(title)`, with a link to it."""
    link = el("a", href=f"#{anchor(title)}", class_="anchor", aria_label=f"link to the section {title}")
    return el("h2", title, link)


def anchor(title: str) -> str:
    """The id of the section of a title: its words in lower case with `-` between them."""
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-") or "section"


def table(head: Sequence[tuple[str, str]], rows: Sequence[Html], *, stack: bool = True) -> Html:
    """A table; `stack` turns rows into cards in a narrow window (cells then show their `data-label`)."""
    cells = [el("th", label, class_=kind or None, scope="col") for label, kind in head]
    return el("table", el("thead", el("tr", *cells)), el("tbody", join(*rows)), class_="stack" if stack else None)


def fold(summary: str, head: Sequence[tuple[str, str]], rows: Sequence[Html]) -> Html:
    """A table that opens at a click."""
    card = el("div", el("div", table(head, rows, stack=False), class_="scroll"), class_="card")
    return el("details", el("summary", summary), card)


def code_row(*cells: str) -> Html:
    """A row of names as a program writes them."""
    return el("tr", *[el("td", el("code", cell)) for cell in cells])


NAMES = {
    "sft": "SFT",
    "rl": "RL",
    "bc": "BC",
    "kl": "KL",
    "lr": "Learning rate",
    "wm": "World model",
    "demos": "Demonstrations",
    "explore": "Exploration",
    "eval": "Evaluation",
}
"""Words of stage and metric names that people write otherwise."""


def words(name: str) -> str:
    """A metric's or stage's name for people."""
    parts = [NAMES.get(part, part) for part in name.replace("_", " ").replace("-", " ").replace("/", " / ").split()]
    bare = " ".join(parts)
    return bare[:1].upper() + bare[1:]
