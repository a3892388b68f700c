"""WebArena's evaluators as they are upstream, mistakes included, for numbers that compare with published ones.

How they differ from the repaired ones (`dynaweb.web.evaluators`):

| case | upstream | repaired |
| --- | --- | --- |
| ` |OR| ` in `exact_match`, `must_include` of answers | part of the text | alternatives, everywhere |
| `must_include` of `0` in `$0.00` | found, as a part of it | a number stands by itself |
| one reference of one character | a token of the answer; several: any part of it | stands by itself |
| Unicode forms, curly quotes, inner white space | must agree | do not matter |
| an episode without `stop` | graded as it stands, with an empty answer | 0 |
| address: path | the reference anywhere in it (`/a` in `/b/a`, `/ab`) | the same, or below it |
| address: trailing slash | of the whole address, so not before `?` | does not matter |
| address: double slashes, escapes, case of the host | must agree | do not matter |
| address: another rule than `GOLD in PRED` | error | `EXACT` is known |
| judge that says neither right nor wrong | error | ungraded |
| no reference | 1 | ungraded |
"""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlparse

from dynaweb.errors import ConfigError, InfrastructureError
from dynaweb.types import Judgement

if TYPE_CHECKING:
    from dynaweb.web.session import Session
    from dynaweb_env_webarena.judge import MeaningJudge

_TOKEN = re.compile(r"\w+(?:[.,:'’-]\w+)*|[^\w\s]")
_OR = " |OR| "


class Ungraded(Exception):
    """An evaluation needs what is not here; the message says what."""


def clean_answer(text: str) -> str:
    """Outer white space and one pair of outer quotes off, lower case."""
    text = text.strip()
    if (text.startswith("'") and text.endswith("'")) or (text.startswith('"') and text.endswith('"')):
        text = text[1:-1]
    return text.lower()


def exact_match(reference: str, answer: str) -> bool:
    """Whether both are the same once cleaned."""
    return clean_answer(answer) == clean_answer(reference)


def must_include(reference: str, answer: str, *, tokenize: bool = False) -> bool:
    """Whether the reference is a part of the answer; with `tokenize`, one character must be a token of it."""
    wanted, where = clean_answer(reference), clean_answer(answer)
    if tokenize and len(wanted) == 1 and not wanted.isspace():
        return wanted in _TOKEN.findall(where)
    return wanted in where


def url_match(reference: str, url: str, rule: str = "GOLD in PRED") -> bool:
    """Whether any reference's host and path is in the address's, and each query key has one of the values."""
    if rule != "GOLD in PRED":
        raise Ungraded(f"unknown matching rule {rule!r}")
    base, query = _address(url)
    references = [_address(part) for part in reference.split(_OR)]
    wanted: dict[str, set[str]] = {}
    for _, keys in references:
        for key, values in keys.items():
            wanted.setdefault(key, set()).update(values)
    reached = any(part in base for part, _ in references)
    return reached and all(values & set(query.get(key, ())) for key, values in wanted.items())


async def evaluate(
    evaluation: Mapping[str, Any],
    *,
    intent: str,
    answer: str | None,
    url: str,
    session: Session | None,
    judge: MeaningJudge | None,
) -> Judgement:
    """The product of the parts. What needs more than is here (a judge, a function of a site) is ungraded."""
    score, reasons = 1.0, []
    try:
        for kind in evaluation.get("eval_types", ()):
            if kind == "string_match":
                part = await _answer(evaluation, clean_answer(answer or ""), intent, judge)
            elif kind == "url_match":
                part = url_match(
                    str(evaluation["reference_url"]), url, str(evaluation.get("url_note") or "GOLD in PRED")
                )
            elif kind == "program_html":
                part = await _pages(evaluation.get("program_html") or (), session, intent, judge)
            else:
                raise Ungraded(f"unknown eval type {kind!r}")
            score *= float(part)
            reasons.append(f"{kind} {float(part):g}")
    except (Ungraded, InfrastructureError) as error:
        return Judgement(None, why=str(error))
    return Judgement(score, why=", ".join(reasons))


async def _answer(evaluation: Mapping[str, Any], answer: str, intent: str, judge: MeaningJudge | None) -> bool:
    good = True
    for kind, reference in evaluation["reference_answers"].items():
        if kind == "exact_match":
            good &= exact_match(reference, answer)
        elif kind == "must_include":
            good &= all(must_include(part, answer, tokenize=len(reference) == 1) for part in reference)
        elif kind == "fuzzy_match":
            good &= await _fuzzy(reference, evaluation, answer, intent, judge)
    return good


async def _fuzzy(
    reference: Any, evaluation: Mapping[str, Any], answer: str, intent: str, judge: MeaningJudge | None
) -> bool:
    if reference == "N/A":
        if exact_match(reference, answer):
            return True
        return await _required(judge).same_reason(intent, str(evaluation.get("string_note") or ""), answer)
    for part in reference:
        if not await _required(judge).same_meaning(intent, part, answer):
            return False
    return True


def _required(judge: MeaningJudge | None) -> MeaningJudge:
    if judge is None:
        raise Ungraded("fuzzy_match needs a judge: set env.judge.model and env.judge.base_url")
    return judge


async def _pages(
    targets: Sequence[Mapping[str, Any]], session: Session | None, intent: str, judge: MeaningJudge | None
) -> bool:
    good = True
    for target in targets:
        text = html.unescape(await _located(target, session))
        wanted = target["required_contents"]
        if "exact_match" in wanted:
            good &= exact_match(wanted["exact_match"], text)
        elif "must_include" in wanted:
            good &= all(any(must_include(one, text) for one in part.split(_OR)) for part in wanted["must_include"])
        elif "fuzzy_match" in wanted:
            # WebArena-Lite's own: all references are one text.
            good &= await _required(judge).same_meaning(intent, ", ".join(wanted["fuzzy_match"]), text)
        else:
            raise Ungraded(f"unknown required_contents {sorted(wanted)}")
    return good


async def _located(target: Mapping[str, Any], session: Session | None) -> str:
    url, locator = str(target["url"]), str(target["locator"])
    if url.startswith("func") or locator.startswith("func:"):
        raise Ungraded(f"the function {(url if url.startswith('func') else locator)[:60]!r} is not available here")
    if session is None:
        raise Ungraded("program_html needs a live session, and there is none")
    if not locator.strip():
        return await session.html(url)
    if not locator.startswith(("document.", "[...document.")):
        raise Ungraded(f"unknown locator {locator[:60]!r}")
    try:
        for action in target.get("prep_actions") or ():
            await session.evaluate(url, str(action))
        value = await session.evaluate(url, locator)
    except ConfigError:
        return ""
    # Python's names of these two, because upstream takes `str` of what Playwright gives.
    return {None: "None", True: "True", False: "False"}.get(value, str(value)) if not isinstance(value, str) else value


def _address(url: str) -> tuple[str, dict[str, list[str]]]:
    parts = urlparse(url.rstrip("/"))
    return parts.netloc + parts.path, parse_qs(parts.query)
