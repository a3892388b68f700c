"""The words of the project as plain JSON data, and back, exactly.

A dataclass becomes an object of its fields, without those that hold their default; `Node` and `Tab`, of which there
are most, become arrays without the defaults at their end. The outermost object, and every value inside a free mapping
such as `Step.info`, carries its class under `"$"`; the same key marks the few Python values that JSON lacks (tuples,
non-finite numbers, mappings with other keys). `Node.ref` is a handle into a browser that is long gone: it is left out.

Files of version 0.1 are read too: what decided rewards and reports stood in `Step.info` and `Trajectory.info` there,
and becomes `facts`. A value whose `info` has such a key of its own is written with its `facts`, which tells it from
those files.

A `Prompt` without images that was not cut is the array of its ids; a `Step` keeps it as `prompt_ids`, as version 0.1
did.

With `pages`, an observation is replaced by what `pages.put` returns for it: so a store writes a page only once.
"""

from __future__ import annotations

import math
import sys
import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass, replace
from functools import cache
from typing import Any, Literal, Protocol, TypeVar, Union, get_args, get_origin, get_type_hints

import dynaweb.types as words

T = TypeVar("T")
Json = Any
"""Plain data: None, bool, int, float, str, list, dict with str keys."""

TAG = "$"
PAGE = "@"
"""Key of a reference to a page that a store keeps elsewhere."""

_ARRAYS: frozenset[type] = frozenset({words.Node, words.Tab})
_LEFT_OUT = frozenset({(words.Node, "ref")})
_STORED_AS: dict[tuple[type, str], str] = {(words.Step, "prompt"): "prompt_ids"}
"""Fields that are stored under another name."""


class Pages(Protocol):
    """Where observations are kept when they are not written in place."""

    def put(self, page: Json) -> Json:
        """Keep a page (plain data); returns its reference, which is plain data too."""
        ...

    def get(self, reference: Json) -> words.Observation:
        """The observation of a reference that `put` gave."""
        ...


def to_json(value: object, pages: Pages | None = None) -> Json:
    """Any value of `dynaweb.types` as plain data that names its class.

    Raises `TypeError` for a value that could not be read back, such as an array or a path inside `info`.
    """
    return _encode_free(value, pages)


def from_json(data: Json, pages: Pages | None = None) -> Any:
    """What `to_json` was given. Raises `ValueError` for data that it cannot have written."""
    return _decode_free(data, pages)


def read(data: Json, expected: type[T], pages: Pages | None = None) -> T:
    """`from_json` for a caller who knows what it must be. Raises `ValueError` if it is something else."""
    value = from_json(data, pages)
    if not isinstance(value, expected):
        raise ValueError(f"expected {expected.__name__} data, got {type(value).__name__}")
    return value


def read_page(data: Json) -> words.Observation:
    """The observation whose data was given to `Pages.put`. Raises `ValueError`."""
    page: words.Observation = _of_class(words.Observation).decode(data, None)
    return page


@dataclass(frozen=True, slots=True)
class _Codec:
    """How values of one annotated type are written and read."""

    encode: Callable[[Any, Pages | None], Json]
    decode: Callable[[Json, Pages | None], Any]


def _encode_free(value: Any, pages: Pages | None) -> Json:
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {TAG: "float", "v": repr(value)}
    if isinstance(value, list):
        return [_encode_free(item, pages) for item in value]
    if isinstance(value, tuple):
        return {TAG: "tuple", "v": [_encode_free(item, pages) for item in value]}
    if isinstance(value, Mapping):
        return _encode_mapping(value, pages)
    return _encode_tagged(value, pages)


def _encode_mapping(value: Mapping[Any, Any], pages: Pages | None) -> Json:
    if TAG not in value and all(isinstance(key, str) for key in value):
        return {key: _encode_free(item, pages) for key, item in value.items()}
    pairs = [[_encode_free(key, pages), _encode_free(item, pages)] for key, item in value.items()]
    return {TAG: "map", "v": pairs}


def _encode_tagged(value: object, pages: Pages | None) -> Json:
    name = type(value).__name__
    if _classes().get(name) is not type(value):
        known = ", ".join(sorted(_classes()))
        raise TypeError(f"cannot write a {name} ({value!r:.80}) as JSON; plain data and these classes can be: {known}")
    data = _of_class(_classes()[name]).encode(value, pages)
    return {TAG: name, "v": data} if isinstance(data, list) else {TAG: name, **data}


def _decode_free(data: Json, pages: Pages | None) -> Any:
    if isinstance(data, list):
        return [_decode_free(item, pages) for item in data]
    if not isinstance(data, dict):
        return data
    if TAG not in data:
        return {key: _decode_free(item, pages) for key, item in data.items()}
    return _decode_tagged(data, pages)


def _decode_tagged(data: dict[str, Json], pages: Pages | None) -> Any:
    tag = data[TAG]
    if tag == "tuple":
        return tuple(_decode_free(item, pages) for item in data["v"])
    if tag == "float":
        return float(data["v"])
    if tag == "map":
        return {_decode_free(key, pages): _decode_free(item, pages) for key, item in data["v"]}
    if tag not in _classes():
        raise ValueError(f"unknown class {tag!r} in JSON data; was it written by a newer version of dynaweb?")
    cls = _classes()[tag]
    body = data["v"] if data.keys() == {TAG, "v"} else {key: item for key, item in data.items() if key != TAG}
    return _of_class(cls).decode(body, pages)


@cache
def _classes() -> dict[str, type]:
    """Every class that can be written, by name."""
    return {cls.__name__: cls for cls in vars(words).values() if isinstance(cls, type) and is_dataclass(cls)}


@cache
def _of_class(cls: type) -> _Codec:
    hints = get_type_hints(cls)
    stored = [item for item in fields(cls) if (cls, item.name) not in _LEFT_OUT]
    parts = [(item.name, _default(item), _of_hint(hints[item.name])) for item in stored]
    if cls in _ARRAYS:
        return _array_codec(cls, parts)
    plain = _object_codec(cls, parts)
    if cls is words.Prompt:
        return _prompt_codec(plain)
    if cls in _FACTS_IN_INFO:
        return _facts_codec(plain, cls)
    return _paged(plain) if cls is words.Observation else plain


def _default(item: Field[Any]) -> Any:
    if item.default_factory is not MISSING:
        return item.default_factory()
    return item.default


_Parts = list[tuple[str, Any, _Codec]]


def _array_codec(cls: type, parts: _Parts) -> _Codec:
    def encode(value: Any, pages: Pages | None) -> Json:
        data = [codec.encode(getattr(value, name), pages) for name, _, codec in parts]
        while len(data) > 1 and _equal(getattr(value, parts[len(data) - 1][0]), parts[len(data) - 1][1]):
            data.pop()
        return data

    def decode(data: Json, pages: Pages | None) -> Any:
        if not isinstance(data, list) or len(data) > len(parts):
            raise ValueError(f"{cls.__name__} data must be an array of at most {len(parts)} values, got {data!r:.80}")
        return _build(cls, {parts[at][0]: parts[at][2].decode(item, pages) for at, item in enumerate(data)})

    return _Codec(encode, decode)


def _object_codec(cls: type, parts: _Parts) -> _Codec:
    stored = [(_STORED_AS.get((cls, name), name), name, default, codec) for name, default, codec in parts]
    codecs = {key: (name, codec) for key, name, _, codec in stored}

    def encode(value: Any, pages: Pages | None) -> Json:
        values = ((key, getattr(value, name), default, codec) for key, name, default, codec in stored)
        return {key: codec.encode(item, pages) for key, item, default, codec in values if not _equal(item, default)}

    def decode(data: Json, pages: Pages | None) -> Any:
        if not isinstance(data, dict) or not data.keys() <= codecs.keys():
            unknown = sorted(data.keys() - codecs.keys()) if isinstance(data, dict) else type(data).__name__
            raise ValueError(f"{cls.__name__} data must be an object with keys {', '.join(codecs)}; got {unknown}")
        known = ((*codecs[key], item) for key, item in data.items())
        return _build(cls, {name: codec.decode(item, pages) for name, codec, item in known})

    return _Codec(encode, decode)


def _equal(value: Any, default: Any) -> bool:
    """Same value and same type, so that `1`, `1.0` and `True` come back as what they were."""
    return type(value) is type(default) and bool(value == default)


def _build(cls: type, values: dict[str, Any]) -> Any:
    try:
        return cls(**values)
    except TypeError as error:
        raise ValueError(f"{cls.__name__} data is incomplete: {error}") from None


def _prompt_codec(plain: _Codec) -> _Codec:
    def encode(value: words.Prompt, pages: Pages | None) -> Json:
        return plain.encode(value, pages) if value.images or value.cut else list(value.ids)

    def decode(data: Json, pages: Pages | None) -> words.Prompt:
        prompt: words.Prompt = plain.decode({"ids": data} if isinstance(data, list) else data, pages)
        return prompt

    return _Codec(encode, decode)


_NUMBER, _MAYBE = (int, float), (int, float, type(None))
_FACTS_IN_INFO: Mapping[type, Mapping[str, tuple[str, tuple[type, ...]]]] = {
    words.Step: {
        **{name: (name, (bool,)) for name in ("dreamed", "recalled", "imagined")},
        **{name: (name, (str,)) for name in ("world_model_error", "untrusted", "blocked", "screenshot")},
        **{name: (name, _MAYBE) for name in ("logprob", "confidence")},
        "tokens": ("tokens", (int,)),
        "step_reward": ("reward", _NUMBER),
    },
    words.Trajectory: {
        "verdict": ("verdict", (dict,)),
        "failure": ("failure", (str,)),
        "update": ("update", (int,)),
        "screenshots": ("screenshots", (list, tuple)),
    },
}
"""Keys of `info` that held facts in version 0.1, each with the field of `facts` that it became and what it was."""


def _facts_codec(plain: _Codec, cls: type) -> _Codec:
    keys = _FACTS_IN_INFO[cls]

    def encode(value: Any, pages: Pages | None) -> Json:
        data = plain.encode(value, pages)
        return data if "facts" in data or not keys.keys() & value.info.keys() else {**data, "facts": {}}

    def decode(data: Json, pages: Pages | None) -> Any:
        value = plain.decode(data, pages)
        # What cannot be a fact is a plugin's own, and stays where it is.
        old = {key for key in keys if key in value.info and isinstance(value.info[key], keys[key][1])}
        if "verdict" in old and not {"score"} <= value.info["verdict"].keys() <= {"score", "probability", "why"}:
            old.remove("verdict")
        if "facts" in data or not old:
            return value
        facts = {keys[key][0]: value.info[key] for key in old}
        if "verdict" in facts:
            facts["verdict"] = words.Judgement(**facts["verdict"])
        if "screenshots" in facts:
            facts["screenshots"] = tuple(facts["screenshots"])
        info = {key: item for key, item in value.info.items() if key not in old}
        return replace(value, info=info, facts=replace(value.facts, **facts))

    return _Codec(encode, decode)


def _paged(plain: _Codec) -> _Codec:
    """An observation in place, or `{"@": reference}` when there is somewhere to keep it."""

    def encode(value: Any, pages: Pages | None) -> Json:
        data = plain.encode(value, pages)
        return data if pages is None else {PAGE: pages.put(data)}

    def decode(data: Json, pages: Pages | None) -> Any:
        if not isinstance(data, dict) or PAGE not in data:
            return plain.decode(data, pages)
        if pages is None:
            raise ValueError("the data refers to pages that are kept elsewhere; read it through the store it is from")
        return pages.get(data[PAGE])

    return _Codec(encode, decode)


_FREE = _Codec(_encode_free, _decode_free)
_NUMBERS: frozenset[type] = frozenset({int, float, bool})
_SCALARS: frozenset[type] = _NUMBERS | {str, type(None)}
_LARGEST = 10**sys.float_info.max_10_exp
"""A whole number is smaller, so that it can be a float."""


@cache
def _of_scalars(members: frozenset[type]) -> _Codec:
    """Numbers stand for each other, as in Python; a text does not stand for a number, nor null for either."""
    numbers = _NUMBERS if members & _NUMBERS else frozenset[type]()
    # Most of a page are texts and small numbers, of which there are very many.
    plain = frozenset(members - {int, float}) | (numbers & {bool})

    def decode(data: Json, pages: Pages | None) -> Any:
        if type(data) in plain:
            return data
        if type(data) is int and numbers and -_LARGEST < data < _LARGEST:
            return data
        value = _decode_free(data, None) if isinstance(data, dict) else data
        if type(value) is float and numbers and (float in members or value.is_integer()):
            return value
        names = " or ".join(sorted(member.__name__ for member in members))
        raise ValueError(f"{data!r:.80} stands where {names} belongs")

    return _Codec(_encode_free if float in members else _as_it_is, decode)


def _as_it_is(value: Any, pages: Pages | None) -> Json:
    return value


def _of_literal(values: tuple[Any, ...]) -> _Codec:
    def decode(data: Json, pages: Pages | None) -> Any:
        if type(data) not in _SCALARS or data not in values:
            raise ValueError(f"{data!r:.80} is none of {', '.join(map(str, values))}")
        return data

    return _Codec(_as_it_is, decode)


def _decode_mapping(data: Json, pages: Pages | None) -> Any:
    value = _decode_free(data, pages)
    if not isinstance(value, Mapping):
        raise ValueError(f"{data!r:.80} stands where an object belongs")
    return value


_MAPPING = _Codec(_encode_free, _decode_mapping)


@cache
def _of_hint(hint: Any) -> _Codec:
    """The codec of an annotation; unions of classes and free mappings name the class of each value."""
    origin = get_origin(hint)
    if hint in _SCALARS:
        return _of_scalars(frozenset({hint}))
    if origin is Literal:
        return _of_literal(get_args(hint))
    if origin is Mapping:
        return _MAPPING
    if isinstance(hint, type) and is_dataclass(hint):
        return _of_class(hint)
    if origin in (Union, types.UnionType):
        return _of_union(get_args(hint))
    return _of_tuple(get_args(hint)) if origin is tuple else _FREE


def _of_union(members: tuple[Any, ...]) -> _Codec:
    rest = tuple(member for member in members if member is not type(None))
    if all(member in _SCALARS for member in rest):
        return _of_scalars(frozenset(members))
    return _optional(_of_hint(rest[0])) if len(rest) == 1 else _FREE


def _optional(inner: _Codec) -> _Codec:
    return _Codec(
        lambda value, pages: None if value is None else inner.encode(value, pages),
        lambda data, pages: None if data is None else inner.decode(data, pages),
    )


def _of_tuple(members: tuple[Any, ...]) -> _Codec:
    if len(members) == 2 and members[1] is Ellipsis:
        return _of_row(members[0])
    each = [_of_hint(member) for member in members]
    return _Codec(
        lambda value, pages: [codec.encode(item, pages) for codec, item in zip(each, value, strict=True)],
        lambda data, pages: tuple([codec.decode(item, pages) for codec, item in zip(each, data, strict=True)]),
    )


def _of_row(member: Any) -> _Codec:
    """Any number of values of one kind; numbers, such as token ids, are taken as they are."""
    inner = _of_hint(member)
    plain = {int: frozenset({int}), float: _NUMBERS}.get(member, frozenset())

    def encode(value: Any, pages: Pages | None) -> Json:
        return list(value) if inner.encode is _as_it_is else [inner.encode(item, pages) for item in value]

    def decode(data: Json, pages: Pages | None) -> Any:
        if not isinstance(data, list):
            raise ValueError(f"{data!r:.80} stands where a list belongs")
        if data and plain.issuperset(map(type, data)) and min(data) > -_LARGEST and max(data) < _LARGEST:
            return tuple(data)
        return tuple([inner.decode(item, pages) for item in data])

    return _Codec(encode, decode)
