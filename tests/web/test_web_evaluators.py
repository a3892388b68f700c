"""WebArena's evaluators: verdicts, and "could not grade" kept apart from 0."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dynaweb.errors import BrowserError, ConfigError
from dynaweb.types import Action, Judgement, Observation
from dynaweb.web.evaluators import equals, evaluate, includes, normalise, url_match


class Pages:
    """A session whose pages are given as HTML and whose expressions are given as values."""

    def __init__(self, html: Mapping[str, str], values: Mapping[str, Any] | None = None) -> None:
        self._html = html
        self._values = values or {}

    async def html(self, url: str) -> str:
        if url not in self._html:
            raise BrowserError(f"{url} could not be loaded")
        return self._html[url]

    async def evaluate(self, url: str, script: str) -> Any:
        if script not in self._values:
            raise ConfigError(f"the expression {script} failed")
        return self._values[script]

    async def reset(self, *, headers: Mapping[str, str] | None = None, storage_state: Path | None = None) -> None: ...
    async def goto(self, url: str) -> None: ...
    async def observe(self) -> Observation:
        return Observation("", ())

    async def act(self, action: Action) -> str:
        return ""

    async def close(self) -> None: ...


async def grade(evaluation: Mapping[str, Any], answer: str | None = "", url: str = "", **more: Any) -> Judgement:
    return await evaluate(evaluation, answer=answer, url=url, session=more.pop("session", None), **more)


def answers(**references: Any) -> dict[str, Any]:
    return {"eval_types": ["string_match"], "reference_answers": references}


@pytest.mark.parametrize(
    ("reference", "answer", "score"),
    [
        ("Wool Scarf", " wool  scarf ", 1),
        ("Wool Scarf", "'Wool Scarf'", 1),
        ("Wool Scarf", "\u201cWool Scarf\u201d", 1),
        ("Wool Scarf", "Wool Scarf, 12.50", 0),
        ("N/A", "n/a", 1),
        ("N/A", "0", 0),
        ("Łódź", "ŁÓDŹ", 1),
        ("caf\u00e9", "cafe\u0301", 1),
        ("12", "\u0661\u0662", 1),
        ("a |OR| b", "B", 1),
        ("$0.00", "0", 0),
        ("", "", 1),
    ],
)
async def test_exact_match(reference: str, answer: str, score: float) -> None:
    assert (await grade(answers(exact_match=reference), answer)).score == score
    assert equals(reference, answer) == bool(score)


@pytest.mark.parametrize(
    ("reference", "answer", "score"),
    [
        (["0"], "$0.00", 0),
        (["0"], "it is 0.", 1),
        (["12.50"], "12.50 EUR", 1),
        (["12.5"], "12.50", 0),
        (["5"], "15", 0),
        (["a"], "banana", 0),
        (["a"], "answer: A!", 1),
        (["wool", "silk"], "Silk and wool", 1),
        (["wool", "silk"], "wool", 0),
        (["wool |OR| silk"], "silk", 1),
        ("wool", "lambswool", 1),
    ],
)
async def test_must_include(reference: Any, answer: str, score: float) -> None:
    assert (await grade(answers(must_include=reference), answer)).score == score


async def test_an_episode_without_an_answer_is_zero() -> None:
    verdict = await grade(answers(exact_match="x"), None)
    assert (verdict.score, verdict.why) == (0, "string_match: the episode ended without an answer")


async def test_fuzzy_match_without_a_judge_is_ungraded_unless_it_is_word_for_word() -> None:
    assert (await grade(answers(fuzzy_match=["about 5 km"]), "five km")).score is None
    assert (await grade(answers(fuzzy_match="N/A"), "n/a")).score == 1
    both = answers(must_include=["x"], fuzzy_match=["y"])
    assert (await grade(both, "nothing")).score == 0
    assert (await grade(both, "x")).score is None


@pytest.mark.parametrize(
    ("reference", "url", "note", "score"),
    [
        ("http://shop.localhost/cart", "http://shop.localhost/cart/", "", 1),
        ("http://shop.localhost/cart", "https://shop.localhost//cart#top", "", 1),
        ("http://shop.localhost/cart", "http://shop.localhost/cart/1", "GOLD in PRED", 1),
        ("http://shop.localhost/cart", "http://shop.localhost/cart/1", "EXACT", 0),
        ("http://shop.localhost/p/1", "http://shop.localhost/p/12", "", 0),
        ("http://shop.localhost/", "http://shop.localhost/cart", "", 0),
        ("http://shop.localhost", "http://shop.localhost/", "EXACT", 1),
        ("http://shop.localhost/s?q=a&q=b", "http://shop.localhost/s?page=2&q=b", "", 1),
        ("http://shop.localhost/s?q=a", "http://shop.localhost/s?q=c", "", 0),
        ("http://shop.localhost/s?q=a", "http://shop.localhost/s?q=a&page=2", "EXACT", 0),
        ("http://shop.localhost/s?q=w+s", "http://shop.localhost/s?q=w%20s", "EXACT", 1),
        ("http://shop.localhost/caf%C3%A9", "http://shop.localhost/café", "", 1),
        ("http://a.localhost/x |OR| http://b.localhost/y", "http://b.localhost/y", "", 1),
        ("http://shop.localhost/cart", "http://forum.localhost/cart", "", 0),
        ("http://h.x/a", "http://h.x:80/a", "", 1),
        ("http://h.x:80/a", "h.x/a", "EXACT", 1),
        ("h.x/a", "https://h.x:443/a", "", 1),
        ("http://h.x/a", "http://H.x./a", "", 1),
        ("http://h.x/a", "http://u:p@h.x:/a", "", 1),
        ("http://[::1]:80/a", "http://[::1]/a", "", 1),
        ("http://h.x:81/a", "http://h.x/a", "", 0),
        ("http://h.x:443/a", "http://h.x/a", "", 0),
    ],
)
async def test_url_match(reference: str, url: str, note: str, score: float) -> None:
    evaluation = {"eval_types": ["url_match"], "reference_url": reference, "url_note": note}
    assert (await grade(evaluation, url=url)).score == score
    assert url_match(reference, url, note).score == score


def html_task(**target: Any) -> dict[str, Any]:
    return {"eval_types": ["program_html"], "program_html": [{"url": "last", "locator": "", **target}]}


async def test_program_html_reads_pages_and_locators() -> None:
    pages = Pages(
        {"last": "<p>Caf&eacute; &amp; more</p>", "http://a/": "<b>x</b>"},
        {"document.title": " Shop ", "[...document.x]": 3},
    )
    for target, score in (
        ({"required_contents": {"must_include": ["café & more"]}}, 1),
        ({"required_contents": {"must_include": ["tea |OR| café"]}}, 1),
        ({"required_contents": {"must_include": ["tea"]}}, 0),
        ({"url": "http://a/", "required_contents": {"must_include": ["<b>x</b>"]}}, 1),
        ({"locator": "document.title", "required_contents": {"exact_match": "shop"}}, 1),
        ({"locator": "[...document.x]", "required_contents": {"exact_match": "3"}}, 1),
        ({"locator": "document.gone.x", "required_contents": {"exact_match": "shop"}}, 0),
        ({"locator": "func:shopping_get_latest_order_url()", "required_contents": {"exact_match": "x"}}, None),
        ({"url": "func:reddit_get_post_url('__last__')", "required_contents": {"exact_match": "x"}}, None),
        ({"url": "http://dead/", "required_contents": {"must_include": ["x"]}}, None),
        ({"required_contents": {"other": "x"}}, None),
        ({"required_contents": {"fuzzy_match": ["CAFÉ", "more"]}}, 1),
        ({"required_contents": {"fuzzy_match": ["tea"]}}, None),
        ({"locator": "$('x')", "required_contents": {"exact_match": "x"}}, None),
    ):
        verdict = await grade(html_task(**target), session=pages)
        assert (verdict.score, target) == (score, target)
        assert verdict.why


async def test_a_score_is_the_product_of_its_parts() -> None:
    evaluation = {
        "eval_types": ["string_match", "url_match"],
        "reference_answers": {"exact_match": "5"},
        "reference_url": "http://a/x",
    }
    assert (await grade(evaluation, "5", "http://a/x")).score == 1
    assert (await grade(evaluation, "5", "http://a/y")).score == 0
    assert (await grade(evaluation, "6", "http://a/x")).score == 0


async def test_what_cannot_be_graded_says_why() -> None:
    for evaluation, why in (
        ({}, "no eval_types"),
        ({"eval_types": ["telepathy"]}, "valid are string_match, url_match, program_html"),
        ({"eval_types": ["string_match"]}, "no reference_answers"),
        ({"eval_types": ["url_match"]}, "no reference_url"),
        (html_task(required_contents={"must_include": ["x"]}), "needs a live session"),
        ({"eval_types": ["string_match"], "reference_answers": {"llm": "x"}}, "unknown kind"),
    ):
        verdict = await grade(evaluation, "x", "http://a/")
        assert verdict.score is None
        assert why in verdict.why
    known_zero = {"eval_types": ["telepathy", "url_match"], "reference_url": "http://a/x"}
    assert (await grade(known_zero, url="http://a/y")).score == 0
    assert (await grade(known_zero, url="http://a/x")).score is None


STRING, URL = {"eval_types": ["string_match"]}, {"eval_types": ["url_match"]}


@pytest.mark.parametrize(
    ("evaluation", "why"),
    [
        (None, "'None' is no object with eval_types"),
        ([], "no object with eval_types"),
        ("string_match", "no object with eval_types"),
        ({"eval_types": None}, "no eval_types"),
        ({"eval_types": "string_match"}, "eval_types is a list, not 'string_match'"),
        ({"eval_types": [None]}, "eval_types holds 'None'"),
        ({"eval_types": [["string_match"]]}, "which is no text"),
        (STRING | {"reference_answers": ["a"]}, "reference_answers is an object"),
        (STRING | {"reference_answers": "a"}, "reference_answers is an object"),
        (STRING | {"reference_answers": {}}, "no reference_answers"),
        (STRING | {"reference_answers": {"exact_match": None}}, "exact_match holds 'None'"),
        (STRING | {"reference_answers": {"exact_match": {"a": 1}}}, "which is no text"),
        (STRING | {"reference_answers": {"exact_match": ["x", "y"]}}, "exact_match is one text"),
        (STRING | {"reference_answers": {"must_include": []}}, "there are no must_include"),
        (STRING | {"reference_answers": {"must_include": [None]}}, "must_include holds 'None'"),
        (STRING | {"reference_answers": {"fuzzy_match": []}}, "there are no fuzzy_match"),
        (URL | {"reference_url": ["http://a/"]}, "reference_url is a text"),
        (URL | {"reference_url": "http://["}, "'http://[' is no address"),
        (URL | {"reference_url": "http://a/x", "url_note": 3}, "url_note is a text"),
        ({"eval_types": ["program_html"], "program_html": {"url": "last"}}, "program_html is a list"),
        ({"eval_types": ["program_html"], "program_html": ["last"]}, "'last' is no object"),
        ({"eval_types": ["program_html"], "program_html": [None]}, "'None' is no object"),
        (html_task(required_contents="x"), "required_contents is an object"),
        (html_task(required_contents={"must_include": {}}), "which is no text"),
        (html_task(required_contents={"exact_match": []}), "there are no exact_match"),
        (html_task(locator="document.x", prep_actions="document.y", required_contents={}), "prep_actions is a list"),
    ],
)
async def test_what_a_task_says_in_another_shape_is_ungraded(evaluation: Any, why: str) -> None:
    verdict = await grade(evaluation, "x", "http://a/", session=Pages({"last": "x"}))
    assert verdict.score is None
    assert why in verdict.why


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.just("http://["),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
_KEYED = {
    "reference_answers": _JSON
    | st.dictionaries(st.sampled_from(["exact_match", "must_include", "fuzzy_match"]), _JSON),
    "reference_url": _JSON,
    "url_note": _JSON,
    "program_html": _JSON
    | st.lists(
        st.fixed_dictionaries(
            {},
            optional={
                "url": _JSON,
                "locator": _JSON | st.just("document.title"),
                "prep_actions": _JSON,
                "required_contents": _JSON
                | st.dictionaries(st.sampled_from(["exact_match", "must_include", "fuzzy_match"]), _JSON),
            },
        ),
        max_size=2,
    ),
}


@settings(max_examples=400, deadline=None)
@given(
    st.lists(st.sampled_from(["string_match", "url_match", "program_html"]), max_size=2) | _JSON,
    st.fixed_dictionaries({}, optional=_KEYED),
)
def test_no_task_makes_it_raise(kinds: Any, evaluation: dict[str, Any]) -> None:
    session = Pages({"last": "<p>x</p>"}, {"document.title": None})
    verdict = asyncio.run(grade({"eval_types": kinds, **evaluation}, "x", "http://a/", session=session))
    assert verdict.why and (verdict.score is None or 0.0 <= verdict.score <= 1.0)


async def test_extra_types_may_be_plain_or_async() -> None:
    async def later(evaluation: Mapping[str, Any]) -> Judgement:
        return Judgement(evaluation["wanted"], why="checked")

    extra = {"later": later, "now": lambda evaluation: evaluation["wanted"] == 1.0}
    for wanted in (1.0, 0.0):
        verdict = await grade({"eval_types": ["later", "now"], "wanted": wanted}, extra=extra)
        assert verdict.score == wanted
    assert "later: checked" in verdict.why


def test_normalisation() -> None:
    assert normalise(' "\u00abA\u00a0 B\u00bb" ') == '"a b"'
    assert normalise("\uff11\uff12") == "12"
    assert includes("straße", "Große STRASSE 5")


@pytest.mark.parametrize(
    ("reference", "text"),
    [
        ("5", "5kg"),
        ("3", "at 3pm"),
        ("10", "$10"),
        ("5", "1-5"),
        ("-5", "it is \u22125 now"),
        ("3", "\u51713\u4e2a"),
        ("\u5317\u4eac", "\u6211\u5728\u5317\u4eac\u5e02"),
        ("19", "covid-19"),
        ("1,000", "1,000 items"),
        ("no", "No."),
    ],
)
def test_numbers_and_short_words_that_stand_by_themselves(reference: str, text: str) -> None:
    assert includes(reference, text)


@pytest.mark.parametrize(
    ("reference", "text"),
    [
        ("2", "H2O"),
        ("3", "step3"),
        ("2", "CO2"),
        ("3", "a 3D film"),
        ("12", "the 12th"),
        ("10", "10amp"),
        ("7", "item_7"),
        ("3", "\u043c\u0438\u04403"),
        ("5", "-5"),
        ("-5", "1-5"),
        ("$5", "$50"),
        ("5%", "15%"),
        ("step 3", "step 30"),
        ("no", "know"),
    ],
)
def test_pieces_of_numbers_and_words_are_not_the_reference(reference: str, text: str) -> None:
    assert not includes(reference, text)


@pytest.mark.parametrize(
    ("reference", "text"),
    [
        ("a-b", "a\u2011b"),
        ("co-op", "co\u2013op"),
        ("-5", "\u22125"),
        ("a-b", "a\uff0db"),
        ("tea", "t\u200be\u00ada\ufeff"),
        ("tea", "\u202atea\u202c"),
        ("2x3", "2\u00d73"),
        ("1/2", "\u00bd"),
        ("don't", "don\u2032t"),
    ],
)
def test_characters_that_look_alike_are_alike(reference: str, text: str) -> None:
    assert equals(reference, text)
    assert equals(text, reference)
    assert not equals(reference, text + "x")
