"""Python calls with literal arguments, read without `ast`: what the grammars `webrl` and `browsergym` are made of.

Python's own parser recurses, warns about escapes and rejects line breaks inside strings; models write all of that.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from dynaweb.web.actions.rules import Refused, misspelt

Literal = str | float | bool | None | list["Literal"]

_NAME = re.compile(r"[A-Za-z_]\w*")
_KEY = re.compile(r"\s*([A-Za-z_]\w*)\s*=(?!=)\s*")
_SPACE = re.compile(r"\s*")
_STRING = re.compile(r"\"((?:[^\"\\]|\\.)*)\"|'((?:[^'\\]|\\.)*)'", re.DOTALL)
_LONG_STRING = re.compile(r"""(?P<quotes>\"{3}|'{3})(?P<body>(?:[^\\]|\\.)*?)(?P=quotes)""", re.DOTALL)
_NUMBER = re.compile(r"-?(?:[0-9]{1,15}(?:\.[0-9]{0,15})?|\.[0-9]{1,15})")
_WORD = re.compile(r"(?:True|False|None|true|false|null)\b")
_WORDS: dict[str, bool | None] = {
    "True": True,
    "true": True,
    "False": False,
    "false": False,
    "None": None,
    "null": None,
}
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL)
_PLAIN = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\", "'": "'", '"': '"', "0": "\0", "\n": ""}
_UNSAFE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_NAMED = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


@dataclass(slots=True)
class Call:
    """`name(*positional, **keywords)`."""

    name: str
    positional: list[Literal] = field(default_factory=list)
    keywords: dict[str, Literal] = field(default_factory=dict)

    def bind(self, names: Sequence[str]) -> dict[str, Literal]:
        """Arguments by name, positional ones in the order of `names`. Raises `ValueError` for any that is unknown."""
        if len(self.positional) > len(names):
            raise ValueError(f"{self.name} takes at most {len(names)} arguments, not {len(self.positional)}")
        bound = dict(zip(names, self.positional, strict=False))
        for key, value in self.keywords.items():
            if key not in names or key in bound:
                known = ", ".join(names) or "no arguments"
                raise ValueError(f"{self.name} has no free argument {key[:40]}; it takes {known}")
            bound[key] = value
        return bound


def find_calls(text: str, names: Sequence[str]) -> Iterator[tuple[Call | str, int]]:
    """Calls of `names` at line starts, in order: the call, or why it cannot be read, and where it begins.

    A call inside a string of another call is not found. Quotes, list marks, backticks and a tag before a call are
    skipped.
    """
    start = re.compile(rf"^[ \t>*`-]*(?:<[a-z_]+>[ \t]*)?({'|'.join(names)})[ \t]*\(", re.MULTILINE)
    position = 0
    while (match := start.search(text, position)) is not None:
        try:
            call, position = _read_call(text, match[1], match.end())
            yield call, match.start()
        except ValueError as error:
            position = match.end()
            yield f"{match[1]}: {error}", match.start()


def last_calls(reply: str, names: Sequence[str], valid: Sequence[str], example: str) -> tuple[Call, Call | None]:
    """The last call of a reply, and the one before it where that can be read. Raises `Refused`.

    `valid` are those of `names` that are worth a suggestion; `example` is what could have been written.
    """
    calls = [call for call, _ in find_calls(reply, names)]
    last_line = reply.strip().rpartition("\n")[2].strip()
    if not calls and last_line:
        raise Refused(misspelt(last_line, tuple(valid)))
    last = calls[-1] if calls else "the reply is empty"
    if isinstance(last, str):
        raise Refused(f"{last}; write for example {example}")
    before = calls[-2] if len(calls) > 1 else None
    return last, before if isinstance(before, Call) else None


def single(text: str) -> str:
    """The text as a Python string in single quotes on one line."""
    return f"'{_escape(text, chr(39))}'"


def double(text: str) -> str:
    """The text as a Python string in double quotes on one line."""
    return f'"{_escape(text, chr(34))}"'


def _escape(text: str, quote: str) -> str:
    return _UNSAFE.sub(_escape_char, text.replace("\\", "\\\\").replace(quote, f"\\{quote}"))


def _escape_char(match: re.Match[str]) -> str:
    code = ord(match[0])
    return _NAMED.get(match[0]) or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")


def _read_call(text: str, name: str, position: int) -> tuple[Call, int]:
    call = Call(name)
    position = _skip(text, position)
    while not text.startswith(")", position):
        key = _KEY.match(text, position)
        value, position = _read_value(text, key.end() if key else position)
        if key:
            call.keywords[key[1]] = value
        elif call.keywords:
            raise ValueError("an argument without a name follows one with a name")
        else:
            call.positional.append(value)
        position = _skip(text, position)
        if text.startswith(",", position):
            position = _skip(text, position + 1)
        elif not text.startswith(")", position):
            raise ValueError(f"a comma or ) is missing at {text[position : position + 20]!r}")
    return call, position + 1


def _read_value(text: str, position: int) -> tuple[Literal, int]:
    if text.startswith("[", position):
        return _read_list(text, position + 1)
    string = _LONG_STRING.match(text, position) or _STRING.match(text, position)
    if string:
        body = string[2] if string[1] is None or string.re is _LONG_STRING else string[1]
        return (_ESCAPE.sub(_unescape, body) if "\\" in body else body), string.end()
    number = _NUMBER.match(text, position)
    if number:
        return float(number[0]), number.end()
    word = _WORD.match(text, position)
    if word:
        return _WORDS[word[0]], word.end()
    raise ValueError(f"expected a string in quotes or a number at {text[position : position + 20]!r}")


def _read_list(text: str, position: int) -> tuple[list[Literal], int]:
    items: list[Literal] = []
    position = _skip(text, position)
    while not text.startswith("]", position):
        if text.startswith("[", position):
            raise ValueError("lists inside lists have no meaning here")
        item, position = _read_value(text, position)
        items.append(item)
        position = _skip(text, position)
        if text.startswith(",", position):
            position = _skip(text, position + 1)
        elif not text.startswith("]", position):
            raise ValueError(f"a comma or ] is missing at {text[position : position + 20]!r}")
    return items, position + 1


def _unescape(match: re.Match[str]) -> str:
    code = match[1] or match[2] or match[3]
    if code:
        return chr(int(code, 16)) if int(code, 16) <= 0x10FFFF else match[0]
    return _PLAIN.get(match[4], match[0])


def _skip(text: str, position: int) -> int:
    match = _SPACE.match(text, position)
    return position if match is None else match.end()


def as_text(value: Literal) -> str:
    """A literal as text; numbers without a trailing `.0`. Raises `ValueError` for None and lists."""
    if isinstance(value, str):
        return value
    if value is None or isinstance(value, list):
        raise ValueError(f"expected a text, not {value!r}"[:80])
    if isinstance(value, bool):
        return str(value)
    return str(int(value)) if value == int(value) else str(value)
