"""Repairs of the lenient delta parser: spelling that can be meant in one way only."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dynaweb.types import Change, Keep, Observation, Op
from dynaweb.web.quoting import scan

# fmt: off
PROPERTIES = frozenset({
    "atomic", "autocomplete", "busy", "checked", "current", "description", "disabled", "editable", "expanded",
    "focusable", "focused", "hasPopup", "haspopup", "hidden", "invalid", "keyshortcuts", "level", "live", "modal",
    "multiline", "multiselectable", "options", "orientation", "placeholder", "pressed", "readonly", "relevant",
    "required", "roledescription", "selected", "settable", "sort", "total", "url", "valuemax", "valuemin", "valuetext",
})
# fmt: on
"""Properties of accessibility trees. The lenient parser drops others, unless the old page has them."""

_FENCE = re.compile(r"`{3}\w*")
_START = re.compile(r"([=~+])\s*")
_INNER_QUOTE = re.compile(r"(?<=[^\W_])'(?=[^\W_])")
_NUMBER = re.compile(r"\s*\[[0-9]+\]")
_RANGE = re.compile(r"[\s,]*\[?([0-9]{1,9})(?![0-9])\]?(?:\s*[-\u2013]\s*\[?([0-9]{1,9})(?![0-9])\]?)?")
_WORD = re.compile(r"[A-Za-z_][\w-]*(?:=[^\s'=]+)?")
_STRING = re.compile(r"(=|of(?=\s*'))?\s*(?=')")
_CHANGE = re.compile(r"~\s*\[?([0-9]{1,9})\]?")
_ADD = re.compile(r"\+ (?:[0-9]{1,4} )?[A-Za-z][\w-]* ?(?=')")


@dataclass(frozen=True, slots=True)
class Mended:
    """A line after mending ('' when it says nothing) and what was done to it."""

    line: str
    notes: tuple[str, ...]


def known_keys(before: Observation) -> frozenset[str]:
    """The property names that a new node may have."""
    return PROPERTIES.union(key for node in before.nodes for key, _ in node.props)


def mend_line(line: str) -> Mended:
    """The line as it was most likely meant. What cannot be mended is returned as it is, for the parser to refuse."""
    text = line.strip()
    if not text or _FENCE.fullmatch(text):
        return Mended("", ("line without content left out",))
    notes = ["spelling mended"]
    text = _START.sub(lambda match: f"{match[1]} ", text, count=1) if text[0] in "=~+" else text
    text = _close_quotes(text, notes)
    if text.startswith("+ ") and (head := _ADD.match(text)) is not None:
        text = _mend_add(text, head.end(), notes)
    elif (change := _CHANGE.match(text)) is not None:
        text = f"~ [{change[1]}]{_mend_tail(text[change.end() :], notes)}"
    elif text.startswith(("title ", "notice ")):
        word, _, rest = text.partition(" ")
        text = f"{word} {rest.strip()}"
    return Mended(text, tuple(notes))


def mend_keep(line: str) -> list[tuple[int, int]]:
    """The runs of a line such as `=[3-9], 12`. Raises `ValueError` when other things than numbers are there."""
    runs: list[tuple[int, int]] = []
    text, position = line[1:].rstrip(), 0
    while position < len(text):
        match = _RANGE.match(text, position)
        if match is None:
            raise ValueError("expected numbers of old nodes, such as `= [1]-[9]`")
        runs.append((int(match[1]), int(match[2] or match[1])))
        position = match.end()
    if not runs:
        raise ValueError("expected numbers of old nodes, such as `= [1]-[9]`")
    return runs


def mend_changes(ops: Sequence[Op], changes: Mapping[int, Change]) -> list[Op]:
    """The edits with each change, by the number of its node, where that is kept already; its run is split."""
    numbers, mended = sorted(changes), list[Op]()
    for op in ops:
        if isinstance(op, Change):
            mended.append(changes.get(op.id, op))
        elif isinstance(op, Keep):
            first = op.first
            for number in numbers[bisect_left(numbers, op.first) : bisect_right(numbers, op.last)]:
                if first < number:
                    mended.append(Keep(first, number - 1))
                mended.append(changes[number])
                first = number + 1
            if first <= op.last:
                mended.append(Keep(first, op.last))
        else:
            mended.append(op)
    return mended


def _close_quotes(text: str, notes: list[str]) -> str:
    """Escape quotes inside words and close a string that the line's end cuts off."""
    if _is_open(text):
        # A letter stands before each of them, so none is escaped already.
        escaped = _INNER_QUOTE.sub("\\\\'", text)
        if escaped != text and not _is_open(escaped):
            notes.append("quote inside a word escaped")
            return escaped
        notes.append("missing quote put at the end of the line")
        return f"{text}'"
    return text


def _is_open(text: str) -> bool:
    """Whether the number of quotes outside escapes is odd."""
    return (len(re.sub(r"\\.", "", text)) - len(re.sub(r"\\.|'", "", text))) % 2 == 1


def _mend_add(text: str, start: int, notes: list[str]) -> str:
    """A `+` line whose name begins at `start`: one space before the name, no number after it, a clean tail."""
    try:
        _, end = scan(text, start)
    except ValueError:
        return text
    head, name, tail = text[:start].rstrip(), text[start:end], text[end:]
    number = _NUMBER.match(tail)
    if number is not None:
        notes.append("number of a new node left out")
        tail = tail[number.end() :]
    return f"{head} {name}{_mend_tail(tail, notes)}"


def _mend_tail(tail: str, notes: list[str]) -> str:
    """The value, options and words of a tail with single spaces between them; anything else is left out."""
    parts: list[str] = []
    position = 0
    while position < len(tail):
        part, position = _tail_part(tail, position)
        if part is None:
            notes.append("text that is no value and no property left out")
        elif part:
            parts.append(part)
    return "".join(_in_order(parts))


def _tail_part(tail: str, position: int) -> tuple[str | None, int]:
    """The next piece in its canonical form ('' for a space, None for one that means nothing), and where it ends."""
    if tail[position].isspace():
        return "", position + 1
    match = _STRING.match(tail, position)
    if match is not None:
        try:
            _, end = scan(tail, match.end())
        except ValueError:
            return None, len(tail)
        return f" {match[1]} {tail[match.end() : end]}" if match[1] else f" {tail[match.end() : end]}", end
    word = _WORD.match(tail, position)
    if word is not None:
        return f" {word[0]}", word.end()
    return None, position + 1


def _in_order(parts: list[str]) -> list[str]:
    """One value, first; strings only in the list of options; the rest as it came."""
    value = next((part for part in parts if part.startswith(" = ")), None)
    ordered: list[str] = [] if value is None else [value]
    in_options = False
    for part in parts:
        if part.startswith(" = "):
            continue
        if part.startswith(" '") and not in_options:
            continue
        in_options = part.startswith((" of '", " '"))
        ordered.append(part)
    return ordered
