"""Strings on one line: the quoting in single quotes that trees, deltas and actions share, and Python's own.

Written escapes are `\\\\`, `\\'`, `\\n`, `\\r`, `\\t`, `\\xHH` and `\\uHHHH`; the last two only for characters that
break lines, are invisible controls, or cannot be encoded. Everything else (CJK, emoji, quotes of other kinds) stays
as it is, so page text can neither end its string nor begin a line.
"""

from __future__ import annotations

import ast
import re

_NAMED = {"\\": "\\\\", "'": "\\'", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_PLAIN = {"\\": "\\", "'": "'", "n": "\n", "r": "\r", "t": "\t"}
_UNSAFE = re.compile(r"[\\'\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
# A string that is not closed matches too, without its second part: what follows it on the line holds no string either.
_QUOTED = re.compile(r"'((?:[^'\\\n]|\\[^\n])*+)('?)")
_LITERAL = re.compile(r"'(?:[^'\\\n]|\\.)*'|\"(?:[^\"\\\n]|\\.)*\"")
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|([^\n]))")


def quote(text: str) -> str:
    """The text in single quotes on one line; `unquote` gives it back exactly."""
    return f"'{_UNSAFE.sub(_escape, text)}'"


def unquote(quoted: str) -> str:
    """The text of a quoted string that fills the whole argument. Raises `ValueError` if it does not."""
    text, end = scan(quoted, 0)
    if end != len(quoted):
        raise ValueError(f"unexpected {quoted[end:]!r} after the closing quote")
    return text


def scan(line: str, start: int) -> tuple[str, int]:
    """Read the quoted string that begins at `start`: (text, position after it). Raises `ValueError` without one.

    Unknown escapes such as `\\q` keep their backslash: models write them, and nothing is lost.
    """
    match = _QUOTED.match(line, start)
    if match is None or not match[2]:
        raise ValueError(f"a text in single quotes is missing at {line[start : start + 20]!r}")
    body = match[1]
    return (_ESCAPE.sub(_unescape, body) if "\\" in body else body), match.end()


def quoted(text: str) -> list[str]:
    """All texts that stand in single quotes, in order."""
    return [_ESCAPE.sub(_unescape, match[1]) for match in _QUOTED.finditer(text) if match[2]]


def literal(line: str, position: int) -> tuple[str, int]:
    """The Python string that begins there, and the position after it. Raises `ValueError`."""
    match = _LITERAL.match(line, position)
    if match is None:
        raise ValueError(f"expected a Python string at {line[position : position + 20]!r}")
    try:
        return str(ast.literal_eval(match[0])), match.end()
    except (SyntaxError, ValueError):
        raise ValueError(f"not a Python string: {match[0][:40]!r}") from None


def _escape(match: re.Match[str]) -> str:
    char = match[0]
    if char in _NAMED:
        return _NAMED[char]
    return f"\\x{ord(char):02x}" if ord(char) < 0x100 else f"\\u{ord(char):04x}"


def _unescape(match: re.Match[str]) -> str:
    code = match[1] or match[2]
    if code:
        return chr(int(code, 16))
    return _PLAIN.get(match[3], match[0])
