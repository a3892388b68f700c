"""Values that a settings class would take and that nobody means, and where in a table an error lies."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from types import NoneType
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

if TYPE_CHECKING:
    from pydantic import BaseModel

_NOTHING = object()


def misfits(model: type[BaseModel], data: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Dotted path, and value with what is wrong: `true` where a number is meant (it would count as 1), and nan.

    Infinity is up to the class: sections of dynaweb refuse it, another package may mean "no limit" by it.
    """
    from pydantic import BaseModel

    for name, info in model.model_fields.items():
        key = name if name in data or info.alias is None else info.alias
        value, kind = data.get(key), info.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel) and isinstance(value, Mapping):
            yield from ((f"{key}.{path}", text) for path, text in misfits(kind, value))
        elif any(isinstance(leaf, bool) for leaf in _leaves(value)) and _is_number(kind):
            yield key, f"{_toml(value)}: must be a number, not true or false"
        elif any(isinstance(leaf, float) and math.isnan(leaf) for leaf in _leaves(value)):
            yield key, f"{_toml(value)}: must be a finite number"


def placed(loc: Sequence[int | str], data: Any) -> list[str]:
    """The path of an error without the marks that pydantic puts in for the kinds of a union."""
    path = []
    for part in loc:
        inner = _inside(data, part)
        if inner is not _NOTHING:
            path.append(str(part))
            data = inner
    return path


def _inside(data: Any, part: int | str) -> Any:
    if isinstance(data, Mapping):
        return data.get(part, _NOTHING)
    if isinstance(data, list | tuple) and isinstance(part, int) and part < len(data):
        return data[part]
    return _NOTHING


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        value = list(value.values())
    if not isinstance(value, list | tuple):
        yield value
        return
    for inner in value:
        yield from _leaves(inner)


def _is_number(kind: Any) -> bool:
    """Whether a field holds numbers, and nothing that may be true or false or have a field that is."""
    kinds = set(_kinds(kind))
    return bool(kinds & {int, float}) and kinds <= {int, float, str, NoneType}


def _kinds(kind: Any) -> Iterator[Any]:
    if get_origin(kind) is Literal:
        yield from map(type, get_args(kind))
        return
    if kind is Any or (isinstance(kind, type) and not get_args(kind)):
        yield kind
    for inner in get_args(kind):
        yield from _kinds(inner)


def _toml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool | float) else repr(value)
