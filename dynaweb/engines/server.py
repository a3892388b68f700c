"""An engine behind an OpenAI-compatible server: chat messages in, text out.

Servers take text, not tokens, so this is no `Engine`: what it gives cannot be trained on, and serves as world model,
judge, labeller or a policy to compare with. The `openai` package does the protocol and the retries (busy, overloaded
and unreachable servers, with growing pauses, or as long as the server says); here are the limit of concurrent
requests, the counters, and errors that say what to do. The key comes from the environment, and from nowhere else.
"""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from dynaweb.errors import ConfigError, EngineError, InfrastructureError, MissingError
from dynaweb.plugin.discovery import library

if TYPE_CHECKING:
    from dynaweb.config.server import Server

_LOCAL = frozenset({"localhost", "127.0.0.1", "::1", "0.0.0.0"})


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """One question. `messages` are (role, text) pairs; `seed` is kept where the server supports it."""

    messages: tuple[tuple[str, str], ...]
    max_new_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int = 0
    stop: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ChatReply:
    """The text, whether the model ended it itself, tokens spent, and `logprob`, the mean natural-log probability of the
    new tokens (None where the server does not tell)."""

    text: str
    finished: bool
    prompt_tokens: int
    new_tokens: int
    logprob: float | None = None


@dataclass(slots=True)
class ServerStats:
    """What a server was asked and what it cost; `seconds` add up over requests that ran side by side."""

    requests: int = 0
    retries: int = 0
    failures: int = 0
    prompt_tokens: int = 0
    new_tokens: int = 0
    cost: float = 0.0
    seconds: float = 0.0


class OpenAIEngine:
    """Asks one model of one server. Safe to share between coroutines; a new event loop gets connections of its own."""

    def __init__(self, server: Server) -> None:
        if not server.model:
            raise MissingError("no model of the server is named; set `server.model`, such as openai/gpt-oss-120b")
        self.server = server
        self.stats = ServerStats()
        self._key = _key(server)
        self._client: Any = None
        self._limit: asyncio.Semaphore | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def chat(self, request: ChatRequest) -> ChatReply:
        """One answer.

        Raises `InfrastructureError` when the server fails more often than `retries` allows, `EngineError` when it
        refuses this request, `ConfigError` when it would refuse every one (key, model, address).
        """
        client, limit = self._connected()
        async with limit:
            started = time.monotonic()
            self.stats.requests += 1
            try:
                raw = await client.chat.completions.with_raw_response.create(**self._arguments(request))
                self.stats.retries += raw.retries_taken
                answer = raw.parse()
            except Exception as error:
                self.stats.failures += 1
                raise self._as_error(error) from error
            finally:
                self.stats.seconds += time.monotonic() - started
        return self._count(_reply(answer))

    async def close(self) -> None:
        """Close the connections; a later request opens new ones."""
        client, self._client, self._loop = self._client, None, None
        if client is not None:
            await client.close()

    def _connected(self) -> tuple[Any, asyncio.Semaphore]:
        loop = asyncio.get_running_loop()
        if self._client is None or self._limit is None or self._loop is not loop:
            self._client, self._limit, self._loop = self._connect(), asyncio.Semaphore(self.server.concurrency), loop
        return self._client, self._limit

    def _connect(self) -> Any:
        openai = library("openai", "server", what="a model server")
        # Idle connections would outlive the event loop of a run; against the seconds of an answer they save nothing.
        http = openai.DefaultAsyncHttpxClient(limits=_no_idle_connections(openai.DefaultAsyncHttpxClient))
        return openai.AsyncOpenAI(
            api_key=self._key,
            base_url=self.server.base_url or None,
            timeout=self.server.timeout,
            max_retries=self.server.retries,
            http_client=http,
        )

    def _arguments(self, request: ChatRequest) -> dict[str, Any]:
        arguments: dict[str, Any] = {
            "model": self.server.model,
            "messages": [{"role": role, "content": text} for role, text in request.messages],
            self.server.token_limit: request.max_new_tokens,
            "temperature": request.temperature,
            "top_p": request.top_p,
            # Some servers read seeds as signed 32-bit numbers.
            "seed": request.seed % 2**31,
        }
        if request.stop:
            arguments["stop"] = list(request.stop)
        if self.server.logprobs:
            arguments["logprobs"] = True
        return arguments

    def _count(self, reply: ChatReply) -> ChatReply:
        self.stats.prompt_tokens += reply.prompt_tokens
        self.stats.new_tokens += reply.new_tokens
        self.stats.cost += cost_of(self.server, reply.prompt_tokens, reply.new_tokens)
        return reply

    @property
    def _where(self) -> str:
        return f"model {self.server.model!r} at {self.server.base_url or 'the default address'}"

    def _as_error(self, error: Exception) -> Exception:
        import openai

        if isinstance(error, openai.AuthenticationError | openai.PermissionDeniedError):
            return ConfigError(f"{self._where} refused the key; put a valid one into ${self.server.key_variable}")
        if isinstance(error, openai.NotFoundError):
            return ConfigError(f"{self._where} does not exist ({_short(error)}); check `model` and `base_url`")
        if isinstance(error, openai.BadRequestError):
            return EngineError(
                f"{self._where} refused the request: {_short(error)}. If it does not know log-probabilities or the "
                "limit of tokens, set `server.logprobs = false` or `server.token_limit`"
            )
        if isinstance(error, openai.OpenAIError):
            tries = self.server.retries + 1
            return InfrastructureError(f"{self._where} failed {tries} times, the last time with {_short(error)}")
        return error


def cost_of(server: Server, prompt_tokens: float, new_tokens: float) -> float:
    """The price of so many tokens."""
    return (prompt_tokens * server.price_in + new_tokens * server.price_out) / 1e6


def _key(server: Server) -> str:
    key = os.environ.get(server.key_variable, "")
    if key or urlsplit(server.base_url).hostname in _LOCAL:
        return key or "none"
    raise MissingError(
        f"the environment variable {server.key_variable} is not set; put the server's key into it (any word, for a "
        "server that needs none)"
    )


def _no_idle_connections(client: type) -> Any:
    """The `Limits` of the HTTP library that the openai package was built on, whatever its name."""
    from importlib import import_module

    base = next(one for one in client.__mro__ if one.__name__ == "AsyncClient")
    return import_module(base.__module__.partition(".")[0]).Limits(max_keepalive_connections=0)


def _reply(answer: Any) -> ChatReply:
    if not answer.choices:
        raise EngineError("the server answered without any choice; is it OpenAI-compatible?")
    choice = answer.choices[0]
    tokens = choice.logprobs.content if choice.logprobs is not None and choice.logprobs.content else []
    usage = answer.usage
    return ChatReply(
        text=choice.message.content or "",
        finished=choice.finish_reason != "length",
        prompt_tokens=usage.prompt_tokens if usage is not None else 0,
        new_tokens=usage.completion_tokens if usage is not None else len(tokens),
        logprob=sum(token.logprob for token in tokens) / len(tokens) if tokens else None,
    )


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
