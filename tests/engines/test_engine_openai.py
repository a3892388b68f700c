"""The engine behind an OpenAI-compatible server, against a local server: retries, limits, counters, keys, errors."""

from __future__ import annotations

import asyncio
import json
import math
from typing import Any

import pytest
from chat_server import Raw, chat_server, completion

from dynaweb.config.server import Server
from dynaweb.engines import server as server_engine
from dynaweb.engines.server import ChatRequest, OpenAIEngine, ReplyError, cost_of
from dynaweb.errors import ConfigError, EngineError, InfrastructureError, MissingError

pytest.importorskip("openai")
ASK = ChatRequest((("system", "Be brief."), ("user", "Hello?")), max_new_tokens=8, temperature=0.3, top_p=0.9, seed=7)


def engine(url: str, **settings: object) -> OpenAIEngine:
    return OpenAIEngine(Server(model="m", base_url=url, **settings))  # type: ignore[arg-type]


def test_a_request_says_everything_and_the_reply_is_counted() -> None:
    with chat_server("one two three") as server:
        asked = engine(server.url, price_in=2.0, price_out=10.0)
        reply = asyncio.run(asked.chat(ASK))
        again = asyncio.run(asked.chat(ASK))  # in another event loop
    assert (reply.text, reply.finished, reply.new_tokens, reply.prompt_tokens) == ("one two three", True, 3, 100)
    assert reply.logprob == pytest.approx(math.log(0.5))
    assert again == reply
    sent = server.requests[0]
    assert sent["messages"] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello?"}]
    assert (sent["model"], sent["max_tokens"], sent["temperature"], sent["top_p"]) == ("m", 8, 0.3, 0.9)
    assert (sent["seed"], sent["logprobs"]) == (7, True)
    # Nobody reads the alternatives of a token, and not every server tells so many.
    assert "top_logprobs" not in sent
    stats = asked.stats
    assert (stats.requests, stats.prompt_tokens, stats.new_tokens, stats.retries, stats.failures) == (2, 200, 6, 0, 0)
    assert stats.cost == pytest.approx(cost_of(asked.server, 200, 6)) == pytest.approx(4.6e-4)


def test_a_cut_answer_and_a_server_without_probabilities() -> None:
    with chat_server("a b c d e f g h i j", logprobs=False) as server:
        reply = asyncio.run(engine(server.url, logprobs=False, token_limit="max_completion_tokens").chat(ASK))
        assert (reply.finished, reply.new_tokens, reply.logprob) == (False, 8, None)
        assert asyncio.run(engine(server.url).chat(ASK)).logprob is None
    assert "logprobs" not in server.requests[0] and server.requests[0]["max_completion_tokens"] == 8


def test_busy_servers_are_asked_again_and_the_retries_are_counted() -> None:
    with chat_server(429, 503, 500, "fine") as server:
        asked = engine(server.url, retries=3)
        assert asyncio.run(asked.chat(ASK)).text == "fine"
    assert (asked.stats.retries, len(server.requests)) == (3, 4)


@pytest.mark.parametrize(
    ("answer", "error", "words"),
    [
        (503, InfrastructureError, "failed 2 times"),
        (401, ConfigError, r"refused the key.*\$OPENAI_API_KEY"),
        (404, ConfigError, "does not exist.*base_url"),
        (400, EngineError, "server.logprobs = false"),
    ],
)
def test_errors_say_what_to_do(answer: int, error: type[Exception], words: str) -> None:
    with chat_server(answer) as server:
        asked = engine(server.url, retries=1)
        with pytest.raises(error, match=words):
            asyncio.run(asked.chat(ASK))
    assert asked.stats.failures == 1
    assert len(server.requests) == (2 if answer == 503 else 1)


def test_a_server_that_is_not_there_and_one_that_hangs() -> None:
    with chat_server("x") as server:
        gone = server.url
    with pytest.raises(InfrastructureError, match="APIConnectionError"):
        asyncio.run(engine(gone, retries=0).chat(ASK))
    with chat_server("late", delay=1.0) as server, pytest.raises(InfrastructureError, match="APITimeoutError"):
        asyncio.run(engine(server.url, retries=0, timeout=0.1).chat(ASK))


@pytest.mark.parametrize("limit", [1, 3])
def test_no_more_requests_at_once_than_allowed(limit: int) -> None:
    async def many(asked: OpenAIEngine) -> None:
        await asyncio.gather(*(asked.chat(ASK) for _ in range(9)))

    with chat_server("x", delay=0.03) as server:
        asyncio.run(many(engine(server.url, concurrency=limit)))
    assert server.most == limit


def test_the_key_comes_from_the_environment_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(MissingError, match="OPENAI_API_KEY is not set"):
        engine("https://api.example.com/v1")
    with pytest.raises(MissingError, match=r"server\.model"):
        OpenAIEngine(Server())
    monkeypatch.setenv("MY_KEY", "secret-1")
    with chat_server("x") as server:
        asyncio.run(engine(server.url, key_variable="MY_KEY").chat(ASK))
        asyncio.run(engine(server.url).chat(ASK))
    assert server.keys == ["Bearer secret-1", "Bearer none"]
    assert "secret-1" not in repr(Server(model="m", key_variable="MY_KEY").model_dump())


def body(**choice: Any) -> Raw:
    """A reply of the protocol, but for what one choice has otherwise."""
    data = completion("fine", {"model": "m"}, logprobs=False)
    data["choices"][0] |= choice
    return Raw(json.dumps(data).encode())


def changed(**fields: Any) -> Raw:
    """A reply of the protocol, but for some of its fields."""
    return Raw(json.dumps(completion("fine", {"model": "m"}, logprobs=False) | fields).encode())


ODD = {
    "an HTML page": Raw(b"<html><body>Log in</body></html>", kind="text/html"),
    "an HTML page called JSON": Raw(b"<html></html>"),
    "broken JSON": Raw(b'{"choices": [{"mess'),
    "no bytes": Raw(b""),
    "a list": Raw(b"[]"),
    "a number": Raw(b"3"),
    "null": Raw(b"null"),
    "no choices and an error": changed(choices=None, error={"message": "model is loading"}),
    "an empty list of choices": changed(choices=[]),
    "a choice that is null": changed(choices=[None]),
    "choices that are a text": changed(choices="fine"),
    "a message that is null": body(message=None),
    "content that is a number": body(message={"role": "assistant", "content": 3}),
    "bytes that are no text": Raw(b"\xff\xfe\x00"),
}


@pytest.mark.parametrize("name", ODD)
def test_a_reply_that_is_none_costs_one_answer(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked for again, and is an error of its own kind where that does not help."""
    monkeypatch.setattr(server_engine, "_PAUSES", (0.0, 0.0, 0.0))
    with chat_server(ODD[name], ODD[name], "fine") as server:
        asked = engine(server.url)
        assert asyncio.run(asked.chat(ASK)).text == "fine"
        assert (asked.stats.retries, asked.stats.failures) == (2, 0)
    with chat_server(ODD[name]) as server:
        asked = engine(server.url, retries=1)
        with pytest.raises(ReplyError, match="model 'm' at"):
            asyncio.run(asked.chat(ASK))
        assert (len(server.requests), asked.stats.failures) == (2, 1)
        assert asyncio.run(asked.whole_text(ASK)) == ""


@pytest.mark.parametrize(
    "reply",
    [
        changed(usage=None),
        changed(usage={"prompt_tokens": None, "completion_tokens": None, "total_tokens": None}),
        body(
            message={"role": "assistant", "content": [{"type": "text", "text": "fi"}, {"type": "text", "text": "ne"}]}
        ),
        body(message={"role": "assistant", "content": "<think>hm\nfine?</think>\n\nfine"}),
        body(message={"role": "assistant", "content": "fine", "reasoning_content": "hm\nfine?"}),
        body(logprobs={"content": None}),
        body(finish_reason=None),
    ],
)
def test_replies_of_several_habits_are_read(reply: Raw) -> None:
    with chat_server(reply) as server:
        answer = asyncio.run(engine(server.url, retries=0).chat(ASK))
    assert (answer.text, answer.finished) == ("fine", True)
    assert answer.reasoning in ("", "hm\nfine?")


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-1", "-0.5", "1e999", "true", "1" * 400, '"7"', "[1]"])
def test_numbers_of_a_server_that_are_none_count_as_unknown(number: str) -> None:
    text = body(logprobs={"content": [{"token": "a", "logprob": "ODD", "bytes": None, "top_logprobs": []}]}).body
    usage = changed(usage={"prompt_tokens": "ODD", "completion_tokens": "ODD", "total_tokens": 3}).body
    replies = [Raw(reply.replace(b'"ODD"', number.encode())) for reply in (text, usage)]
    with chat_server(*replies) as server:
        asked = engine(server.url, retries=0, price_in=1.0, price_out=1.0)
        first, second = (asyncio.run(asked.chat(ASK)) for _ in range(2))
    assert first.text == second.text == "fine" and (first.logprob is None or math.isfinite(first.logprob))
    # Some versions of the client read these two as the numbers that they stand for.
    taken = {"true": 1, '"7"': 7}.get(number, 0)
    assert second.prompt_tokens in (0, taken) and 0 <= second.new_tokens < 100 and math.isfinite(asked.stats.cost)


def test_a_reply_that_nests_too_deep_is_no_answer() -> None:
    deep = Raw(b'{"choices":' + b"[" * 100_000)
    with chat_server(deep) as server, pytest.raises(ReplyError, match="cannot be read"):
        asyncio.run(engine(server.url, retries=0).chat(ASK))


@pytest.mark.parametrize("reason", ["length", "content_filter", "abort", "error"])
def test_an_answer_that_the_model_did_not_end_is_not_whole(reason: str) -> None:
    with chat_server(body(finish_reason=reason)) as server:
        asked = engine(server.url)
        assert not asyncio.run(asked.chat(ASK)).finished
        assert asyncio.run(asked.whole_text(ASK)) == ""


def test_a_thought_that_does_not_end_is_no_answer() -> None:
    cut = body(message={"role": "assistant", "content": "<think>YES or"}, finish_reason="length")
    with chat_server(cut) as server:
        assert asyncio.run(engine(server.url).chat(ASK)).text == ""


def test_what_a_server_knows_beyond_the_protocol_is_a_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEAM_TOKEN", " abc123 ")
    with chat_server("x") as server:
        asked = engine(
            server.url,
            headers={"X-Team": "$TEAM_TOKEN"},
            extra_body={"top_k": 20},
            reasoning_effort="low",
            reasoning_tokens=100,
        )
        asyncio.run(asked.chat(ASK))
    sent = server.requests[0]
    assert (sent["top_k"], sent["reasoning_effort"], sent["max_tokens"]) == (20, "low", 108)
    assert {name.lower(): text for name, text in server.headers[0].items()}["x-team"] == "abc123"
    monkeypatch.delenv("TEAM_TOKEN")
    with pytest.raises(MissingError, match="TEAM_TOKEN, which is not set"):
        engine(server.url, headers={"X-Team": "$TEAM_TOKEN"})


@pytest.mark.parametrize("key", ["two words", "with\nbreak", "schlüssel"])
def test_keys_that_cannot_be_one_are_refused(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", key)
    with pytest.raises(ConfigError, match="OPENAI_API_KEY holds a space"):
        engine("https://api.example.com/v1")


def test_keys_are_stripped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "  secret-12345\n")
    with chat_server("x") as server:
        asyncio.run(engine(server.url).chat(ASK))
    assert server.keys == ["Bearer secret-12345"]


@pytest.mark.parametrize("status", [400, 402, 500])
def test_no_secret_and_no_control_character_stands_in_an_error(status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that repeats what it was sent."""
    monkeypatch.setenv("OPENAI_API_KEY", "secret-12345")
    echo = Raw(
        json.dumps({"error": {"message": "no Bearer secret-12345 for \x1b[31m team-98765\u0000"}}).encode(), status
    )
    with chat_server(echo) as server:
        asked = engine(server.url.replace("//", "//user:passw0rd@"), retries=0, headers={"X-Team": "team-98765"})
        with pytest.raises((EngineError, InfrastructureError)) as error:
            asyncio.run(asked.chat(ASK))
    text = str(error.value)
    assert not any(secret in text for secret in ("secret-12345", "team-98765", "passw0rd"))
    assert "no Bearer *** for" in text and text.isprintable()
    assert error.value.__cause__ is None


def test_errors_that_are_not_retried_say_once() -> None:
    with chat_server(402) as server, pytest.raises(InfrastructureError, match="made once"):
        asyncio.run(engine(server.url, retries=3).chat(ASK))
    assert len(server.requests) == 1
    with chat_server(503) as server, pytest.raises(InfrastructureError, match="failed once"):
        asyncio.run(engine(server.url, retries=0).chat(ASK))


def test_a_server_on_this_machine_is_asked_without_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "")
    with chat_server("x") as server:
        assert asyncio.run(engine(server.url).chat(ASK)).text == "x"


def test_a_proxy_that_fails_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy"):
        monkeypatch.setenv(name, "http://me:passw0rd@127.0.0.1:9")
    monkeypatch.setenv("OPENAI_API_KEY", "secret-12345")
    monkeypatch.setenv("NO_PROXY", "")
    with pytest.raises(InfrastructureError, match=r"through the proxy http://127\.0\.0\.1:9") as error:
        asyncio.run(engine("http://models.example.com/v1", retries=0).chat(ASK))
    assert "passw0rd" not in str(error.value)


def test_another_address_in_the_environment_does_not_redirect(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    monkeypatch.setenv("OPENAI_API_KEY", "secret-12345")
    asked = OpenAIEngine(Server(model="m"))
    assert str(asked._connect().base_url).startswith("https://api.openai.com/")
    assert "OPENAI_BASE_URL has no effect" in caplog.text


def test_a_reply_without_end_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_engine, "MOST_BYTES", 10_000)
    with chat_server("word " * 4000) as server, pytest.raises(ReplyError, match="longer than"):
        asyncio.run(engine(server.url, retries=0).chat(ChatRequest((("user", "x"),), 9000)))
