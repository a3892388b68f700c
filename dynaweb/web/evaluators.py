"""WebArena's evaluators: has the episode reached what its task asks for?

`evaluate` takes the `eval` object of a task: `eval_types` names the parts, and the score is their product. A part
that cannot be graded (no judge for `fuzzy_match`, a `func:` locator, an unknown type, a browser that died) makes the
score None with a reason, unless another part is 0 already.

Text is compared after `normalise`: Unicode NFKC, digits of every script, quotes, hyphens, invisible characters, case,
white space. ` |OR| ` separates alternatives in every kind of answer. A reference that is a number or at most two
letters long must stand by itself, so that `0` is not found in `$10.50`, `2` in `H2O` nor `a` in `banana`; a unit may
follow a number (`5kg`). A longer one does not begin or end within a number: `$5` is not found in `$50`.

Addresses: scheme, the port that it stands for, a user, fragment, a trailing and double slashes, and the order of the
query do not matter; every query key of the reference must have one of its values. `url_note` says how paths compare:
`GOLD in PRED` (WebArena's default): the same path or one below it (the root only equals itself); `EXACT`: the same path
and the same query.
"""

from __future__ import annotations

import html
import inspect
import math
import re
import unicodedata
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from dynaweb.errors import ConfigError, InfrastructureError
from dynaweb.types import Judgement
from dynaweb.web.session import Session, with_scheme

Extra = Mapping[str, Callable[[Mapping[str, Any]], Any]]
"""Further eval types: name -> function of the `eval` object, giving a score, a bool or a `Judgement`; may be async."""

Meaning = Callable[[str, str], Awaitable[Judgement]]
"""Whether a text (second) says what a reference (first) says: a judge's verdict, for `fuzzy_match` on pages."""

_OR = " |OR| "
_LOOKALIKES = str.maketrans(
    dict.fromkeys("\u2018\u2019\u201a\u201b\u2032\u02bc\u00b4`", "'")
    | dict.fromkeys("\u201c\u201d\u201e\u201f\u2033\u00ab\u00bb", '"')
    | dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2015\u2043\u2212\ufe58\ufe63\uff0d", "-")
    | {"\u2044": "/", "\u2215": "/", "\u00d7": "x"}
)
"""Characters that look like one of a keyboard."""
_NUMBER = re.compile(r"[-+]?\d+(?:[.,]\d+)*")
_ALPHABET = "a-z\u00df-\u024f\u0370-\u03ff\u0400-\u052f"
"""Letters, in lower case, of scripts that put spaces between words."""
_UNITS = (
    "km|cm|mm|m|mi|ft|in|kg|g|mg|lb|lbs|oz|l|ml|h|hr|hrs|min|mins|s|sec|secs|ms|am|pm|kb|mb|gb|tb|px|usd|eur|gbp|w|v|hz"
)
"""What may follow a number without a space."""
_CONDITION = re.compile(r"(<=|>=|==|<|>)\s*([-+]?(?:\d[\d,]*(?:\.\d+)?|\.\d+))")
_PORTS = {"http": 80, "https": 443}


class _Ungraded(Exception):
    """A part cannot be graded; the message says why."""


async def evaluate(
    evaluation: Mapping[str, Any],
    *,
    answer: str | None,
    url: str,
    session: Session | None,
    extra: Extra | None = None,
    meaning: Meaning | None = None,
) -> Judgement:
    """Grade an episode that has just ended.

    `answer` is the text of its `stop` action (None = it did not stop), `url` the canonical address it ended on,
    `session` the live session for `program_html`, `meaning` what reads its `fuzzy_match`. Never raises for what a task
    says.
    """
    known: Extra = {
        "string_match": lambda spec: string_match(_part_of(spec, "reference_answers", Mapping) or {}, answer),
        "url_match": lambda spec: url_match(
            _part_of(spec, "reference_url", str) or "", url, _part_of(spec, "url_note", str) or ""
        ),
        "program_html": lambda spec: _program_html(_part_of(spec, "program_html", list) or (), session, meaning),
        **(extra or {}),
    }
    try:
        kinds = _texts(_part_of(evaluation, "eval_types", list) or (), "eval_types")
    except _Ungraded as error:
        return Judgement(None, why=f"{error}, so the task cannot be graded")
    score, reasons, unknown = 1.0, [], False
    for kind in kinds:
        part = await _part(kind, evaluation, known)
        reasons.append(f"{kind}: {part.why}")
        if part.score is None:
            unknown = True
        else:
            score *= part.score
    why = "; ".join(reasons)
    return Judgement(None, why=why) if unknown and score > 0 else Judgement(score, why=why)


def _part_of(value: Any, key: str, shape: type) -> Any:
    """What stands under a key of a task's data; None when nothing does. Raises `_Ungraded` for another shape."""
    names: dict[Any, str] = {list: "a list", str: "a text", Mapping: "an object"}
    if not isinstance(value, Mapping):
        raise _Ungraded(f"{str(value)[:60]!r} is no object with {key}")
    part = value.get(key)
    if part is None or isinstance(part, (list, tuple) if shape is list else shape):
        return part
    raise _Ungraded(f"{key} is {names[shape]}, not {str(part)[:60]!r}")


def _texts(value: Any, what: str) -> list[str]:
    """A text or a list of texts as a list; numbers count as texts. Raises `_Ungraded` for anything else, or nothing."""
    items = list(value) if isinstance(value, (list, tuple)) else [value]
    wrong = [item for item in items if isinstance(item, bool) or not isinstance(item, (str, int, float))]
    if wrong or not items:
        raise _Ungraded(f"{what} holds {str(wrong[0])[:60]!r}, which is no text" if wrong else f"there are no {what}")
    return [str(item) for item in items]


def _text(value: Any, what: str) -> str:
    texts = _texts(value, what)
    if len(texts) > 1:
        raise _Ungraded(f"{what} is one text (with ` |OR| ` between alternatives), not {len(texts)}")
    return texts[0]


async def _part(kind: str, evaluation: Mapping[str, Any], known: Extra) -> Judgement:
    if kind not in known:
        return Judgement(None, why=f"unknown eval type; valid are {', '.join(known)}")
    try:
        verdict = known[kind](evaluation)
        if inspect.isawaitable(verdict):
            verdict = await verdict
    except (_Ungraded, InfrastructureError) as error:
        return Judgement(None, why=str(error))
    return verdict if isinstance(verdict, Judgement) else Judgement(float(verdict), why=f"scored {float(verdict):g}")


def normalise(text: str) -> str:
    """The form in which texts are compared."""
    text = unicodedata.normalize("NFKC", str(text)).translate(_LOOKALIKES)
    text = "".join(_digit(char) for char in text if not _is_invisible(char))
    text = " ".join(text.split()).casefold()
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        text = text[1:-1].strip()
    return text


def includes(reference: str, text: str) -> bool:
    """Whether any alternative of the reference stands in the text."""
    where = normalise(text)
    return any(_includes(normalise(part), where) for part in str(reference).split(_OR))


def equals(reference: str, text: str) -> bool:
    """Whether the text is one of the alternatives of the reference."""
    return normalise(text) in {normalise(part) for part in str(reference).split(_OR)}


def string_match(references: Mapping[str, Any], answer: str | None) -> Judgement:
    """Grade an answer against `reference_answers`; without an answer it is 0."""
    if not references:
        return Judgement(None, why="there are no reference_answers")
    if answer is None:
        return Judgement(0.0, why="the episode ended without an answer")
    verdicts = [_answer_part(kind, reference, answer) for kind, reference in references.items()]
    for verdict in verdicts:
        if verdict.score == 0:
            return verdict
    return next((verdict for verdict in verdicts if verdict.score is None), verdicts[-1])


def url_match(reference: str, url: str, note: str = "") -> Judgement:
    """Grade the address an episode ended on against a reference with ` |OR| ` alternatives."""
    if not reference:
        return Judgement(None, why="there is no reference_url")
    exact = note.strip().upper() == "EXACT"
    if any(_same_address(part, url, exact) for part in reference.split(_OR)):
        return Judgement(1.0, why=f"{url} is right")
    return Judgement(0.0, why=f"ended on {url}, expected {reference}")


def _answer_part(kind: str, reference: Any, answer: str) -> Judgement:
    if kind == "exact_match":
        good = equals(_text(reference, kind), answer)
        return Judgement(float(good), why="right" if good else f"{answer!r} is not {reference!r}")
    if kind == "must_include":
        return _all_included(_texts(reference, kind), answer)
    if kind == "fuzzy_match":
        if all(equals(item, answer) for item in _texts(reference, kind)):
            return Judgement(1.0, why="right, word for word")
        return Judgement(None, why="fuzzy_match needs a judge, and none was given")
    if kind == "must_exclude":
        return _none_included(_texts(reference, kind), answer)
    if kind == "one_of":
        good = any(includes(item, answer) for item in _texts(reference, kind))
        return Judgement(float(good), why="one is there" if good else f"none of {reference!r} is there")
    if kind == "required_values":
        return _required(_texts(reference, kind), answer)
    return Judgement(None, why=f"unknown kind of reference answer {kind!r}")


def _none_included(references: Sequence[str], text: str) -> Judgement:
    excluded = [item for item in references if includes(item, text)]
    return Judgement(float(not excluded), why=f"{excluded[0]!r} is there" if excluded else "nothing excluded is there")


def _required(references: Sequence[str], text: str) -> Judgement:
    """Whether a text is a number that fits all conditions, such as `> 5 |OR| == 0`."""
    try:
        value = float(normalise(text).replace(",", ""))
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        return Judgement(0.0, why=f"{text[:80]!r} is no number")
    for reference in references:
        if not any(_fits(value, condition) for condition in reference.split(_OR)):
            return Judgement(0.0, why=f"{value:g} is not {reference}")
    return Judgement(1.0, why=f"{value:g} is right")


def _fits(value: float, condition: str) -> bool:
    match = _CONDITION.fullmatch(condition.strip())
    if match is None:
        raise _Ungraded(f"{condition[:60]!r} is no condition such as `>= 5`")
    sign, bound = match[1], float(match[2].replace(",", ""))
    if math.isclose(value, bound, rel_tol=0.0, abs_tol=1e-8):
        return "=" in sign
    return sign.startswith("<") if value < bound else sign.startswith(">")


def _all_included(references: Sequence[str], text: str) -> Judgement:
    missing = [item for item in references if not includes(item, text)]
    return Judgement(float(not missing), why=f"{missing[0]!r} is missing" if missing else "all is there")


def _includes(reference: str, text: str) -> bool:
    """A reference must not be a piece of a number; a number or a short word must not be a piece of a word either."""
    before = after = ""
    if _NUMBER.fullmatch(reference):
        # Not the `5` of `-5`, while `1-5` has one.
        before = rf"(?<![\d{_ALPHABET}_])(?<!\d[.,])" + ("" if reference[0] in "-+" else "(?<!(?<!\\w)-)")
        after = rf"(?!\d|[.,]\d|_)(?=(?:{_UNITS})?(?![{_ALPHABET}]))"
    else:
        word = len(reference) <= 2 and re.fullmatch(rf"[{_ALPHABET}\d]+", reference)
        if word or reference[:1].isdigit():
            before = rf"(?<![\d{_ALPHABET}_])" if word else r"(?<!\d)(?<!\d[.,])"
        if word or reference[-1:].isdigit():
            after = rf"(?![\d{_ALPHABET}_])" if word else r"(?!\d|[.,]\d)"
    return re.search(before + re.escape(reference) + after, text) is not None


def _digit(char: str) -> str:
    return str(unicodedata.decimal(char)) if not char.isascii() and char.isdecimal() else char


def _is_invisible(char: str) -> bool:
    """Zero-width characters, soft hyphens, marks of direction, selectors of a variant."""
    return not char.isascii() and (unicodedata.category(char) == "Cf" or "\ufe00" <= char <= "\ufe0f")


def _same_address(reference: str, url: str, exact: bool) -> bool:
    gold, pred = _address(reference), _address(url)
    if gold[0] != pred[0]:
        return False
    below = not exact and gold[1] != "/" and pred[1].startswith(gold[1] + "/")
    if gold[1] != pred[1] and not below:
        return False
    if exact:
        return gold[2] == pred[2]
    return all(set(values) & set(pred[2].get(key, ())) for key, values in gold[2].items())


def _address(url: str) -> tuple[str, str, dict[str, list[str]]]:
    """(host, path, query) in the form in which addresses are compared."""
    try:
        parts = urlsplit(with_scheme(url))
        port = parts.port
    except ValueError:
        raise _Ungraded(f"{url[:60]!r} is no address") from None
    host = (parts.hostname or "").rstrip(".")
    if port is not None and port != _PORTS.get(parts.scheme):
        host = f"{host}:{port}"
    path = re.sub(r"/{2,}", "/", unquote(parts.path)).rstrip("/") or "/"
    query = {key: sorted(values) for key, values in parse_qs(parts.query, keep_blank_values=True).items()}
    return host, path, query


async def _program_html(targets: Sequence[Any], session: Session | None, meaning: Meaning | None) -> Judgement:
    if not targets:
        raise _Ungraded("there are no program_html targets")
    if session is None:
        raise _Ungraded("program_html needs a live session, and there is none")
    for target in targets:
        required = _part_of(target, "required_contents", Mapping) or {}
        verdict = await _contents(required, await _located(target, session), meaning)
        if verdict.score != 1.0:
            return Judgement(verdict.score, why=f"{target.get('url')}: {verdict.why}")
    return Judgement(1.0, why="all contents are there")


async def _located(target: Mapping[str, Any], session: Session) -> str:
    """The text that a target's locator selects; '' when it selects nothing."""
    url, locator = str(target.get("url") or "last"), str(target.get("locator") or "").strip()
    if url.startswith("func:") or locator.startswith(("func:", "lambda:")):
        raise _Ungraded(f"the function {(url if url.startswith('func:') else locator)[:60]!r} is not available here")
    if not locator:
        return html.unescape(await session.html(url))
    if not locator.startswith(("document", "[...document")):
        raise _Ungraded(f"unknown locator {locator[:60]!r}; it starts with document or [...document, or is empty")
    try:
        for preparation in _part_of(target, "prep_actions", list) or ():
            await session.evaluate(url, str(preparation))
        content = await session.evaluate(url, locator)
    except ConfigError:
        return ""
    return html.unescape("" if content is None else str(content))


async def _contents(required: Mapping[str, Any], text: str, meaning: Meaning | None) -> Judgement:
    if "exact_match" in required:
        good = equals(_text(required["exact_match"], "exact_match"), text)
        return Judgement(float(good), why="right" if good else f"{text[:80]!r} is not {required['exact_match']!r}")
    if "must_include" in required:
        return _all_included(_texts(required["must_include"], "must_include"), text)
    if "must_exclude" in required:
        return _none_included(_texts(required["must_exclude"], "must_exclude"), text)
    if "required_values" in required:
        return _required(_texts(required["required_values"], "required_values"), text)
    if "fuzzy_match" in required:
        wanted = _texts(required["fuzzy_match"], "fuzzy_match")
        if all(includes(item, text) for item in wanted):
            return Judgement(1.0, why="all is there, word for word")
        if meaning is None:
            raise _Ungraded("fuzzy_match needs a judge, and none was given")
        return await meaning(", ".join(wanted), text)
    valid = "exact_match, must_include, must_exclude, required_values, fuzzy_match"
    raise _Ungraded(f"unknown required_contents {sorted(required)}; valid are {valid}")
