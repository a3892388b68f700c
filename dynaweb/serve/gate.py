"""The gate of a server: who may call it (host, origin, token), for how long a call may idle, and how errors are told.

An ASGI application around another one, such as that of OpenEnv, which lets everybody in. What it holds:

- On loopback, only local host names are answered: a page elsewhere whose name resolves to this machine has another one
  (DNS rebinding). Elsewhere each call needs the token, as `Authorization: Bearer TOKEN` or as the password of the
  address, `http://any:TOKEN@host:8000`.
- A browser says which page calls (`Origin`); pages that are not of this server are refused.
- A WebSocket from which nothing comes for `idle` seconds is closed, so that its session is free again.
- A bad call is answered by 4xx and one line; an error of the environment by 503 and one line.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import json
import logging
import math
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any
from urllib.parse import urlsplit

from dynaweb.errors import ConfigError, DynawebError
from dynaweb.masking import masked, printable

log = logging.getLogger("dynaweb")

LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})
"""Host names of this machine, which no page elsewhere can have."""
IDLE = 900.0
"""Seconds for which a WebSocket may be silent by default: longer than an update between two episodes takes."""
LONGEST = 2**20
"""Bytes of the longest message that is taken."""

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]


class Refusal(Exception):
    """A call that is not served: an HTTP status and one line."""

    def __init__(self, status: int, line: str) -> None:
        super().__init__(line)
        self.status = status


class Gate:
    """Lets calls through to `app`. Without a `token` only local host names are answered; `idle` 0 waits for ever.

    `closed` are the paths of `app` that are not served.
    """

    def __init__(self, app: App, *, token: str = "", idle: float = IDLE, closed: Iterable[str] = ()) -> None:
        self._app, self._token, self._idle, self._closed = app, token, idle, frozenset(closed)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Serve one connection, by the protocol ASGI 3."""
        if scope["type"] == "http":
            await self._http(scope, receive, send)
        elif scope["type"] == "websocket":
            await self._websocket(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _http(self, scope: Message, receive: Receive, send: Send) -> None:
        begun, held = False, list[Message]()

        async def sending(message: Message) -> None:
            nonlocal begun
            # Starlette answers an exception by 500 before it lets it through.
            if held or message.get("status") == 500:
                held.append(message)
                return
            begun = True
            await send(message)

        try:
            self._check(scope)
            await self._app(scope, await _body(receive, self._idle), sending)
        except Exception as error:
            if begun:
                raise
            refusal = _refusal(error)
            await _answer(send, refusal.status, str(refusal))
            return
        for message in held:
            await send(message)

    async def _websocket(self, scope: Message, receive: Receive, send: Send) -> None:
        try:
            self._check(scope)
        except Refusal as refusal:
            log.warning("a connection was refused: %s", refusal)
            await receive()
            await send({"type": "websocket.close", "code": 1008, "reason": str(refusal)[:100]})
            return

        async def receiving() -> Message:
            try:
                message = await asyncio.wait_for(receive(), self._idle or None)
            except TimeoutError:
                log.warning("a session was closed: nothing came from its client for %g s", self._idle)
                await send({"type": "websocket.close", "code": 1001, "reason": f"idle for {self._idle:g} s"})
                return {"type": "websocket.disconnect", "code": 1001}
            return _text_of_object(message) if message["type"] == "websocket.receive" else message

        await self._app(scope, receiving, send)

    def _check(self, scope: Message) -> None:
        """Raises `Refusal`."""
        headers = {name.decode("latin-1").lower(): text.decode("latin-1") for name, text in scope["headers"]}
        hosts = [text for name, text in scope["headers"] if name.lower() == b"host"]
        host = headers.get("host", "")
        if len(hosts) != 1 or (not self._token and _name_of(f"//{host}") not in LOCAL):
            raise Refusal(421, f"the host {host[:100]!r} is not served; call http://127.0.0.1 or http://localhost")
        if "origin" in headers and headers["origin"].partition("://")[2] != host:
            raise Refusal(403, f"pages of {headers['origin'][:100]!r} may not call this server")
        if self._token and not _is_token(headers.get("authorization", ""), self._token):
            raise Refusal(401, "the token is missing or wrong; send it as `Authorization: Bearer TOKEN`")
        if scope["path"].rstrip("/") in self._closed:
            raise Refusal(404, f"{scope['path']} is not served here")


def is_local(host: str) -> bool:
    """Whether only this machine can reach a server that listens on `host`."""
    return host in LOCAL


def _name_of(address: str) -> str:
    try:
        return urlsplit(address).hostname or ""
    except ValueError:
        return ""


def _is_token(authorization: str, token: str) -> bool:
    kind, _, text = authorization.partition(" ")
    if kind.lower() == "basic":
        try:
            text = base64.b64decode(text, validate=True).decode().partition(":")[2]
        except (binascii.Error, UnicodeDecodeError):
            return False
    return hmac.compare_digest(text.encode(), token.encode())


async def _body(receive: Receive, idle: float) -> Receive:
    """The same call once its body is here. Raises `Refusal` for one that is too long, too slow or no JSON of numbers
    that are finite: OpenEnv answers these by 500."""
    body, more = bytearray(), True
    while more:
        try:
            message = await asyncio.wait_for(receive(), idle or None)
        except TimeoutError:
            raise Refusal(408, f"nothing more of the call came for {idle:g} s") from None
        if message["type"] != "http.request":
            return _again(message, receive)
        body += message.get("body", b"")
        more = message.get("more_body", False)
        if len(body) > LONGEST:
            raise Refusal(413, f"the call is longer than {LONGEST} bytes")
    try:
        if body:
            _finite_json(body.decode("utf-8", "replace"))
    except (ValueError, RecursionError) as error:
        raise Refusal(400, f"the body of the call is no JSON that can be read ({str(error)[:100]})") from None
    return _again({"type": "http.request", "body": bytes(body), "more_body": False}, receive)


def _again(first: Message, receive: Receive) -> Receive:
    """What comes after a message that was taken already, with it."""
    waiting = [first]

    async def receiving() -> Message:
        return waiting.pop() if waiting else await receive()

    return receiving


def _finite_json(text: str) -> Any:
    """Raises `ValueError` for what is no JSON, and for numbers that are none or infinite; `RecursionError`."""
    return json.loads(text, parse_float=_finite, parse_constant=_finite)


def _finite(number: str) -> float:
    if not math.isfinite(value := float(number)):
        raise ValueError(f"{number[:20]} is no finite number")
    return value


def _text_of_object(message: Message) -> Message:
    """A message whose text is a JSON object; '', which the application refuses as no JSON, where it is none."""
    text = message.get("text")
    if text is None:
        text = (message.get("bytes") or b"").decode("utf-8", "replace")
    try:
        fits = len(text) <= LONGEST and isinstance(_finite_json(text), dict)
    except (ValueError, RecursionError):
        fits = False
    return {"type": "websocket.receive", "text": text if fits else ""}


def _refusal(error: Exception) -> Refusal:
    """What a call is told about an error: those that the caller made are 4xx."""
    if isinstance(error, Refusal):
        return error
    line = printable(masked(" ".join(str(error).split())))
    if isinstance(error, ConfigError):
        return Refusal(400, line)
    if isinstance(error, DynawebError):
        return Refusal(503, line)
    log.error("a call failed: %s: %s", type(error).__name__, line)
    return Refusal(500, f"the server failed ({type(error).__name__}); its log says more")


async def _answer(send: Send, status: int, line: str) -> None:
    body = json.dumps({"detail": line}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
