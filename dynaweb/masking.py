"""Masking of secrets: the one place that knows what is secret, and takes it out of all that is written or shown.

Which settings are secret is declared at the settings themselves:

    token: Annotated[str, Secret()]                         # the value
    key_variable: Annotated[str, Secret("variable")]        # the value of the environment variable that is named
    headers: Annotated[dict[str, str], Secret("headers")]   # values of `$NAME` in it, and those of `Authorization`...

`secret_paths` finds them in a table of settings, before it is checked, and has their values remembered. All that
leaves the process goes through `masked`: files (`dynaweb.runs.atomic`, `dynaweb.runs.jsonl`), the log, failures
(`dynaweb.events`), replies of servers, and the streams of the command line. User and password in an address are masked
wherever it stands. Pages and tasks are data and stay as they are. `printable` escapes what could steer a terminal.

Settings are declared wherever plugins are listed, so what only masking needs is imported where it is used.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, get_args

from dynaweb.errors import MissingError

if TYPE_CHECKING:
    from logging import LogRecord

MASK = "***"
SHORTEST = 6
"""Letters of the shortest secret that is looked for in texts: a shorter one would take ordinary words out of them. The
setting itself is masked whatever its length."""

# As texts, which `re` compiles at their first use and keeps.
_VARIABLE = r"\$([A-Za-z_]\w*)"
_OTHERS = (
    *("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "WANDB_API_KEY", "MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN"),
    "DYNAWEB_SERVE_TOKEN",
)
"""Variables with secrets that no setting names: packages read them by themselves, and send them to their servers."""
_USER = r"(?<=://)[^\s/?#\"'<>\\]*@"
_TELLING = r"(?i)auth|cookie|key|token|secret|passw|credential|session"
"""Names of headers whose text is a secret."""
_STEERING = "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]|\r(?!\n)"

_secrets: set[str] = set()
_pattern: re.Pattern[str] | None = None


class Secret:
    """Marks a field of settings: its value is a secret, names a `variable` that holds one, or is a table of `headers`.

    In headers `$NAME` stands for an environment variable: it may be shown, what the variable holds may not.
    """

    __slots__ = ("kind",)

    def __init__(self, kind: Literal["value", "variable", "headers"] = "value") -> None:
        self.kind = kind


def remember(*secrets: str) -> None:
    """From now on these texts are masked, also as JSON, HTML, Python, addresses and base64 write them."""
    import base64
    import html
    import json
    from urllib.parse import quote, quote_plus

    global _pattern
    watch_log()
    for secret in secrets:
        text = secret.strip()
        if len(text) < SHORTEST:
            continue
        written = (json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1], repr(text)[1:-1])
        forms = {text, *written, *(json.dumps(one)[1:-1] for one in written), *(repr(one)[1:-1] for one in written)}
        # Servers in PHP and for HTML escape more in JSON.
        forms |= {one.replace("/", "\\/") for one in written}
        forms |= {re.sub("[<>&']", lambda sign: f"\\u{ord(sign[0]):04x}", one) for one in written}
        forms |= {html.escape(text), html.escape(text, quote=False)}
        for one in (quote(text), quote(text, safe=""), quote_plus(text)):
            forms |= {one, re.sub("%..", lambda sign: sign[0].lower(), one)}
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            forms.add(encode(text.encode()).decode().rstrip("="))
        if not forms <= _secrets:
            _secrets.update(forms)
            _pattern = re.compile("|".join(map(_whole, sorted(_secrets, key=len, reverse=True))))


def masked(text: str, *, addresses: bool = True) -> str:
    """A text with `***` for every secret and, with `addresses`, for user and password of every address in it."""
    if _pattern is not None:
        text = _pattern.sub(MASK, text)
    if addresses and "://" in text and "@" in text:
        text = re.sub(_USER, f"{MASK}@", text)
    return text


def masked_data(data: Any) -> Any:
    """Plain data whose texts are `masked`; keys and numbers stay."""
    if isinstance(data, str):
        return masked(data)
    if isinstance(data, Mapping):
        return {key: masked_data(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [masked_data(value) for value in data]
    return data


def forget() -> None:
    """Forget every secret."""
    global _pattern
    _secrets.clear()
    _pattern = None


def printable(text: str) -> str:
    """A text whose control characters, but line breaks and tabs, are escapes: it cannot steer a terminal."""
    return re.sub(_STEERING, lambda sign: ascii(sign[0])[1:-1], text)


def is_masked(value: Any) -> bool:
    """Whether a setting was masked, so that its value is not known."""
    return isinstance(value, str) and (value == MASK or f"://{MASK}@" in value)


def expanded(path: str, text: str, *, address: bool = False) -> str:
    """The text of a setting with the environment variables that it names as `$NAME`. Raises `MissingError`.

    In an `address`, what stands for a user, a password, a part of the path or of the query is quoted, so that any
    character may be in it. A variable may also hold `USER:PASSWORD`, the host with its port, or the whole address.
    """
    missing = [name for name in re.findall(_VARIABLE, text) if name not in os.environ]
    if missing:
        raise MissingError(f"{path} names the environment variable {missing[0]}, which is not set")

    def value(name: re.Match[str]) -> str:
        content = os.environ[name[1]].strip()
        return _quoted(content, text, name.start()) if address else content

    return re.sub(_VARIABLE, value, text)


def _quoted(value: str, address: str, position: int) -> str:
    """The value of a variable as the place in the address where its name begins wants it."""
    from urllib.parse import quote

    begin = address.find("://") + 3
    if not 3 <= begin <= position:
        return value
    end = min((at for sign in "/?#" if (at := address.find(sign, begin)) >= 0), default=len(address))
    login = address.rfind("@", begin, end)
    if position < login:
        # A user name has no colon: one in the value is that before the password.
        return quote(value, safe="" if ":" in address[begin:position] else ":")
    if position < end:
        return value
    return quote(value, safe="/" if "?" not in address[:position] else "")


def secret_paths(model: Any, data: Mapping[str, Any], above: str) -> set[str]:
    """Dotted paths of the settings that are secret themselves; all secrets of the table are remembered.

    `model` is the pydantic class of the table, `data` its plain values, unchecked, and `above` its own path.
    """
    watch_log()
    paths = set()
    for path, value, kind in _marked(model, data, above):
        names = re.findall(_VARIABLE, value)
        if kind == "variable":
            remember(os.environ.get(value, ""))
        elif kind == "value":
            remember(value)
            paths.add(path)
        else:
            remember(*(os.environ.get(name, "") for name in names))
            if kind == "headers" and not names and re.search(_TELLING, path.rpartition(".")[2]):
                remember(value)
                paths.add(path)
    for _, value in _leaves(above, data):
        if "@" in value and "://" in value:
            _remember_login(value)
    return paths


def _remember_login(address: str) -> None:
    from urllib.parse import unquote, urlsplit

    user, _, password = address.partition("://")[2].rpartition("@")[0].partition(":")
    try:
        parts = urlsplit(address)
        user, password = parts.username or user, parts.password or password
    except ValueError:  # no address, but it may have been meant as one
        pass
    remember(password, unquote(password), f"{unquote(user)}:{unquote(password)}")


def _marked(model: Any, data: Mapping[str, Any], above: str) -> Iterator[tuple[str, str, str]]:
    """Path, text and kind of the values that a table's class marks, of tables inside of it too."""
    for name, info in model.model_fields.items():
        key = name if name in data or info.alias is None else info.alias
        mark = next((note for note in info.metadata if isinstance(note, Secret)), None)
        if mark is not None:
            value = data.get(key, info.default)
            yield from ((path, text, mark.kind) for path, text in _leaves(f"{above}.{key}", value))
            continue
        value = data.get(key, {})
        for inner in _tables(info.annotation):
            if isinstance(value, Mapping) and inner is info.annotation:
                yield from _marked(inner, value, f"{above}.{key}")
            elif isinstance(value, Mapping):
                tables = ((part, table) for part, table in value.items() if isinstance(table, Mapping))
                for part, table in tables:
                    yield from _marked(inner, table, f"{above}.{key}.{part}")


def _tables(kind: Any) -> Iterator[Any]:
    if isinstance(kind, type) and hasattr(kind, "model_fields"):
        yield kind
    for inner in get_args(kind):
        yield from _tables(inner)


def _leaves(path: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _leaves(f"{path}.{key}", inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _leaves(path, inner)
    elif isinstance(value, str | int) and not isinstance(value, bool):
        yield path, str(value)


def _whole(secret: str) -> str:
    """A pattern that finds a secret; one of digits alone is no part of a longer number."""
    return rf"(?<![\d.]){secret}(?![\d.])" if secret.isdigit() else re.escape(secret)


def watch_log() -> None:
    """Mask the records of dynaweb's logger from now on, whoever handles them."""
    import logging

    logger = logging.getLogger("dynaweb")
    if _masked_record not in logger.filters:
        logger.addFilter(_masked_record)
        remember(*(os.environ.get(name, "") for name in _OTHERS))


def _masked_record(record: LogRecord) -> bool:
    record.msg, record.args = printable(masked(record.getMessage())), None
    return True
