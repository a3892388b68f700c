"""An engine behind an OpenAI-compatible server: chat messages in, text out.

Servers take text, not tokens, so this is no `Engine`: what it gives cannot be trained on, and serves as world model,
judge, labeller or a policy to compare with. The `openai` package does the protocol and the retries (busy, overloaded
and unreachable servers, with growing pauses, or as long as the server says); here are the limit of concurrent
requests, replies that are none, the counters, and errors that say what to do. The key comes from the environment, and
goes nowhere but to the server: not into an error either, though the server may repeat it.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import math
import os
import re
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from dynaweb.config.files import MALFORMED
from dynaweb.config.server import Server
from dynaweb.errors import ConfigError, EngineError, InfrastructureError, MissingError
from dynaweb.masking import MASK, SHORTEST, expanded, masked, remember
from dynaweb.plugin.discovery import library

log = logging.getLogger("dynaweb")

VENDOR = "https://api.openai.com/v1"
"""Asked where no address is set."""
MOST_BYTES = 32 * 2**20
"""Longest reply that is read; a longer one is no answer of a model."""
MOST, ROUNDING = 10**9, 1e-3
"""Tokens of a reply, and nats of a token, that are no slip of a server; how far above 0 a log-probability may lie."""
_LOCAL = frozenset({"localhost", "127.0.0.1", "::1", "0.0.0.0"})
NO_KEY = "none"
"""Sent to servers on this machine where no key is set."""
WHOLE = frozenset({"stop", "eos", "end_turn", "stop_sequence", "tool_calls", "function_call"})
"""What servers say of an answer that the model ended; one with `length`, `content_filter` or `abort` is cut."""
_THOUGHT = re.compile(r"\A\s*+(?:<think>)?(.*)</think>", re.DOTALL)
_PAUSES = (0.2, 1.0, 3.0)
"""Seconds before a reply that was none is asked for again."""


class ReplyError(EngineError):
    """What came back is no answer of a chat model: it costs this answer, and never the run."""


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """One question. `messages` are (role, text) pairs; `seed` is kept where the server supports it.

    `images` are PNG files that belong to the last message; `logprobs` says whether log-probabilities are of any use.
    """

    messages: tuple[tuple[str, str], ...]
    max_new_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int = 0
    stop: tuple[str, ...] = ()
    images: tuple[bytes, ...] = ()
    logprobs: bool = True


@dataclass(frozen=True, slots=True)
class ChatReply:
    """The text, whether the model ended it itself, tokens spent, and `logprob`, the mean natural-log probability of the
    new tokens (None where the server does not tell). `reasoning` is what it thought before, and no part of `text`."""

    text: str
    finished: bool
    prompt_tokens: int
    new_tokens: int
    logprob: float | None = None
    reasoning: str = ""


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
        self._headers = {name: expanded(f"server.headers.{name}", text) for name, text in server.headers.items()}
        remember(self._key if self._key != NO_KEY else "", urlsplit(server.base_url).password or "")
        self._local = urlsplit(server.base_url).hostname in _LOCAL
        if not server.base_url and os.environ.get("OPENAI_BASE_URL"):
            log.warning("OPENAI_BASE_URL has no effect; the server is %s unless `base_url` names another", VENDOR)
        self._client: Any = None
        self._limit: asyncio.Semaphore | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def chat(self, request: ChatRequest) -> ChatReply:
        """One answer. A reply that is none is asked for again.

        Raises `InfrastructureError` when the server fails more often than `retries` allows, `ReplyError` when what it
        gives is no answer, `EngineError` when it refuses this request, `ConfigError` when it would refuse every one
        (key, model, address).
        """
        client, limit = self._connected()
        async with limit:
            self.stats.requests += 1
            started = time.monotonic()
            try:
                return self._count(await self._asked(client, request))
            except Exception:
                self.stats.failures += 1
                raise
            finally:
                self.stats.seconds += time.monotonic() - started

    async def whole_text(self, request: ChatRequest) -> str:
        """The text of an answer that the model ended itself; '' where the reply is none, or a part of one."""
        try:
            reply = await self.chat(request)
        except ReplyError as error:
            log.warning("%s", error)
            return ""
        return reply.text if reply.finished else ""

    async def _asked(self, client: Any, request: ChatRequest) -> ChatReply:
        pauses = iter(_PAUSES[: self.server.retries])
        while True:
            try:
                raw = await client.chat.completions.with_raw_response.create(**self._arguments(request))
                self.stats.retries += raw.retries_taken
                reply = read_reply(raw.parse())
                # A server may repeat what it was sent.
                text, thought = (masked(one, addresses=False) for one in (reply.text, reply.reasoning))
                return replace(reply, text=text, reasoning=thought)
            except Exception as error:
                problem = self._as_error(error, request)
                pause = next(pauses, None) if isinstance(problem, ReplyError) else None
                if pause is None:
                    raise problem from None
            self.stats.retries += 1
            await asyncio.sleep(pause)

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
        http = openai.DefaultAsyncHttpxClient(
            limits=_no_idle_connections(openai.DefaultAsyncHttpxClient),
            trust_env=not self._local,
            event_hooks={"response": [_bound]},
        )
        return openai.AsyncOpenAI(
            api_key=self._key,
            base_url=self.server.base_url or VENDOR,
            timeout=self.server.timeout,
            max_retries=self.server.retries,
            default_headers=self._headers,
            http_client=http,
        )

    def _arguments(self, request: ChatRequest) -> dict[str, Any]:
        messages: list[dict[str, Any]] = [{"role": role, "content": text} for role, text in request.messages]
        if request.images:
            text = {"type": "text", "text": messages[-1]["content"]}
            messages[-1]["content"] = [text, *map(_picture, request.images)]
        arguments: dict[str, Any] = {
            "model": self.server.model,
            "messages": messages,
            self.server.token_limit: request.max_new_tokens + self.server.reasoning_tokens,
            "temperature": request.temperature,
            "top_p": request.top_p,
            # Some servers read seeds as signed 32-bit numbers.
            "seed": request.seed % 2**31,
        }
        if request.stop:
            arguments["stop"] = list(request.stop)
        # Many multimodal servers refuse to tell them.
        if self.server.logprobs and request.logprobs and not request.images:
            arguments["logprobs"] = True
        if self.server.reasoning_effort:
            arguments["reasoning_effort"] = self.server.reasoning_effort
        if self.server.extra_body:
            arguments["extra_body"] = dict(self.server.extra_body)
        return arguments

    def _count(self, reply: ChatReply) -> ChatReply:
        self.stats.prompt_tokens += reply.prompt_tokens
        self.stats.new_tokens += reply.new_tokens
        self.stats.cost += cost_of(self.server, reply.prompt_tokens, reply.new_tokens)
        return reply

    @property
    def _where(self) -> str:
        return f"model {self.server.model!r} at {without_login(self.server.base_url) or VENDOR}"

    def _as_error(self, error: Exception, request: ChatRequest | None = None) -> Exception:
        import openai

        if isinstance(error, ReplyError):
            return ReplyError(f"{self._where}: {self._masked(str(error))}")
        why = f"{type(error).__name__}: {self._masked(str(error))}"
        if isinstance(error, openai.AuthenticationError | openai.PermissionDeniedError):
            return ConfigError(f"{self._where} refused the key; put a valid one into ${self.server.key_variable}")
        if isinstance(error, openai.NotFoundError):
            return ConfigError(f"{self._where} does not exist ({why}); check `model` and `base_url`")
        if isinstance(error, openai.BadRequestError | openai.UnprocessableEntityError):
            if request is not None and request.images:
                return EngineError(
                    f"{self._where} refused a request with {len(request.images)} pictures: {why}. If its model reads "
                    "text alone, choose one that sees, or show it none (observation.modality = text for policies, "
                    "reward.pictures = 0 for judges)"
                )
            return EngineError(
                f"{self._where} refused the request: {why}. If it does not know log-probabilities or the limit of "
                "tokens, set `server.logprobs = false` or `server.token_limit`"
            )
        if isinstance(error, openai.APIStatusError) and not _passing(error.status_code):
            return InfrastructureError(f"{self._where} refused the request, which was made once: {why}")
        if isinstance(error, openai.APIResponseValidationError):
            return ReplyError(f"{self._where}: the reply is not what the protocol says: {why}")
        if isinstance(error, openai.APIConnectionError | openai.APIStatusError):
            tries = self.server.retries + 1
            count = "once" if tries == 1 else f"{tries} times, the last time"
            through = f"; it is asked through the proxy {proxy}" if (proxy := self._proxy()) else ""
            return InfrastructureError(f"{self._where} failed {count} with {why}{through}")
        if isinstance(error, (openai.OpenAIError, *MALFORMED)):
            # What a server answers in a form of its own trips the client in any of these ways.
            return ReplyError(f"{self._where}: the reply cannot be read ({why}); is it OpenAI-compatible?")
        return error

    def _proxy(self) -> str:
        """The proxy between here and the server, without its password; '' where there is none."""
        address = urlsplit(self.server.base_url or VENDOR)
        if self._local or proxy_bypass(address.hostname or ""):
            return ""
        proxies = getproxies()
        return without_login(proxies.get(address.scheme) or proxies.get("all") or "")

    def _masked(self, text: str) -> str:
        """A server's words in one line of readable characters, without the secrets that it was sent."""
        for header in self._headers.values():
            if len(header) >= SHORTEST:
                text = text.replace(header, MASK)
        text = masked(text)
        return "".join(sign if sign.isprintable() else " " for sign in " ".join(text[:4000].split()))[:300]


def _picture(data: bytes) -> dict[str, Any]:
    """A picture as part of a message."""
    text = base64.b64encode(data).decode("ascii")
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{text}"}}


def cost_of(server: Server, prompt_tokens: float, new_tokens: float) -> float:
    """The price of so many tokens."""
    return (prompt_tokens * server.price_in + new_tokens * server.price_out) / 1e6


def without_login(address: str) -> str:
    """An address without the user and the password in it."""
    head, at, rest = address.rpartition("@")
    return f"{head.partition('//')[0]}//{rest}" if at and "//" in head else rest


def _key(server: Server) -> str:
    key = os.environ.get(server.key_variable, "").strip()
    if not key.isascii() or not key.isprintable() or " " in key:
        raise ConfigError(
            f"the key in the environment variable {server.key_variable} holds a space, a line break or a character "
            "that no key has; put the key alone into it"
        )
    if key or urlsplit(server.base_url).hostname in _LOCAL:
        return key or NO_KEY
    raise MissingError(
        f"the environment variable {server.key_variable} is not set; put the server's key into it (any word, for a "
        "server that needs none)"
    )


def _passing(status: int) -> bool:
    """Whether a request that failed so may succeed later, so that the client asked again."""
    return status in (408, 409, 429) or status >= 500


async def _bound(response: Any) -> None:
    """Have a reply end with an error where it grows too long."""
    stream, chunks = response.stream, response.stream.__aiter__()

    class Bounded(type(stream).__mro__[-2]):  # type: ignore[misc]
        async def __aiter__(self) -> AsyncIterator[bytes]:
            size = 0
            async for chunk in chunks:
                size += len(chunk)
                if size > MOST_BYTES:
                    raise ReplyError(f"the reply is longer than {MOST_BYTES // 2**20} MiB")
                yield chunk

        async def aclose(self) -> None:
            await stream.aclose()

    response.stream = Bounded()


def _no_idle_connections(client: type) -> Any:
    """The `Limits` of the HTTP library that the openai package was built on, whatever its name."""
    from importlib import import_module

    base = next(one for one in client.__mro__ if one.__name__ == "AsyncClient")
    return import_module(base.__module__.partition(".")[0]).Limits(max_keepalive_connections=0)


def read_reply(answer: Any) -> ChatReply:
    """What a server answered. Raises `ReplyError` where that is no answer of a model."""
    if isinstance(answer, str | bytes) or not hasattr(answer, "choices"):
        raise ReplyError(f"the server gave no JSON of a chat model but {str(answer)[:80]!r}; is `base_url` right?")
    if not answer.choices:
        raise ReplyError(
            f"the server answered without any choice ({getattr(answer, 'error', None) or 'no error either'})"
        )
    choice = answer.choices[0]
    if choice is None or getattr(choice, "message", None) is None:
        raise ReplyError("the server answered with a choice that holds no message")
    text, thought = _text(choice.message)
    logprobs = getattr(choice, "logprobs", None)
    # The client leaves an entry that it cannot read as it came: a token whose log-probability nobody knows.
    known = (getattr(token, "logprob", math.nan) for token in getattr(logprobs, "content", None) or ())
    tokens = [logprob for logprob in known if logprob is not None]
    are_known = bool(tokens) and all(isinstance(one, int | float) and -MOST < one < ROUNDING for one in tokens)
    usage = getattr(answer, "usage", None)
    reason = getattr(choice, "finish_reason", None)
    return ChatReply(
        text=text,
        finished=reason is None or reason in WHOLE,
        prompt_tokens=_tokens(usage, "prompt_tokens", 0),
        new_tokens=_tokens(usage, "completion_tokens", len(tokens)),
        logprob=sum(tokens) / len(tokens) if are_known else None,
        reasoning=thought,
    )


def _text(message: Any) -> tuple[str, str]:
    """Answer and thought of a message: servers give the thought in a field of its own, or before the answer."""
    content = getattr(message, "content", None)
    if isinstance(content, list):
        parts = [part if isinstance(part, dict) else vars(part) for part in content]
        content = "".join(
            str(part.get("text") or "") for part in parts if part.get("type", "text") in ("text", "output_text")
        )
    if content is not None and not isinstance(content, str):
        raise ReplyError(f"the content of the server's message is no text ({type(content).__name__})")
    fields: list[Any] = [getattr(message, name, None) for name in ("reasoning_content", "reasoning")]
    thought: str = next((words for words in fields if isinstance(words, str) and words), "")
    text: str = content or ""
    if (inside := _THOUGHT.match(text)) is not None:
        return text[inside.end() :].lstrip(), thought or inside[1].strip()
    if text.lstrip().startswith("<think>"):
        return "", thought or text.strip()
    return text, thought


def _tokens(usage: Any, name: str, otherwise: int) -> int:
    value = getattr(usage, name, None)
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MOST:
        return value
    return otherwise
