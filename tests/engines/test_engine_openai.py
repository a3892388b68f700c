"""The engine behind an OpenAI-compatible server, against a local server: retries, limits, counters, keys, errors."""

from __future__ import annotations

import asyncio
import math

import pytest
from chat_server import chat_server

from dynaweb.config.server import Server
from dynaweb.engines.server import ChatRequest, OpenAIEngine, cost_of
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
