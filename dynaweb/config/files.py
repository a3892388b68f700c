"""Files that people name or keep: JSON documents of a known kind, and paths as people write them."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from dynaweb.errors import CheckpointError, ConfigError, DynawebError

T = TypeVar("T", dict[str, Any], list[Any])

KINDS: dict[type, str] = {dict: "a table", list: "a list"}
RESTORE = "restore it from a copy"
MALFORMED = (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, RecursionError)
"""What code that expects one shape of data raises for another."""


def read_json(
    path: Path,
    kind: type[T],
    *,
    error: type[DynawebError] = CheckpointError,
    advice: str = RESTORE,
    finite: bool = False,
) -> T:
    """The JSON document in a file. Raises `error`, naming the file, unless it can be read and is of that kind.

    `finite` as for `parse_json`.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as failure:
        what = "get the right to it (chmod, chown)" if isinstance(failure, PermissionError) else advice
        raise error(f"{path} cannot be read ({failure.strerror}); {what}") from failure
    except UnicodeDecodeError as failure:
        raise error(f"{path} is damaged (it is not UTF-8 text: {failure.reason}); {advice}") from failure
    try:
        return parse_json(text, kind, finite=finite)
    except ValueError as failure:
        raise error(f"{path} is damaged ({failure}); {advice}") from failure


def parse_json(text: str, kind: type[T], *, finite: bool = False) -> T:
    """The JSON document in a text. Raises `ValueError` unless it is one, and of that kind.

    No whole number has more digits than a float can have. With `finite`, as in records that dynaweb writes, there is no
    NaN and no infinity either.
    """
    try:
        document = (_FINITE if finite else _ANY).decode(text)
    except RecursionError as failure:
        raise ValueError("it is nested too deep") from failure
    if not isinstance(document, kind):
        what = KINDS.get(type(document)) or repr(document)[:40]
        raise ValueError(f"it holds {what} where {KINDS[kind]} belongs")
    return document


def _integer(digits: str) -> int:
    if len(digits) > FLOAT_DIGITS:
        raise ValueError(f"it holds a whole number of {len(digits)} digits")
    return int(digits)


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"it holds {digits:.20}, which is no finite number")
    return number


FLOAT_DIGITS = sys.float_info.max_10_exp
"""Of a whole number in a document: one of so many digits is a finite `float` too."""
_ANY = json.JSONDecoder(parse_int=_integer)
_FINITE = json.JSONDecoder(parse_int=_integer, parse_float=_finite, parse_constant=_finite)


@contextmanager
def understood(path: Path, *, advice: str = RESTORE) -> Iterator[None]:
    """Inside, what a document lacks or holds in a wrong place becomes a `CheckpointError` that names its file."""
    try:
        yield
    except MALFORMED as failure:
        what = f"{type(failure).__name__}: {failure}"
        raise CheckpointError(f"{path} is damaged (it does not hold what it should: {what}); {advice}") from failure


def expanded(path: str | Path) -> Path:
    """A path with `~` replaced. Raises `ConfigError` when there is no such user."""
    try:
        return Path(path).expanduser()
    except RuntimeError as failure:
        raise ConfigError(f"{path}: the home of that user is not known; write the whole path") from failure
