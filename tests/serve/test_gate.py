"""The gate of a server, around an application that lets everybody in."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from typing import Any

import pytest

from dynaweb.errors import ConfigError, InfrastructureError
from dynaweb.serve.gate import LONGEST, Gate

Headers = dict[str, str]


class Open:
    """Answers every call, and says what it was sent; raises what a test wants."""

    def __init__(self, error: Exception | None = None, answered: bool = False) -> None:
        self.error, self.answered, self.calls, self.texts = error, answered, 0, list[str]()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.calls += 1
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.accept"})
            while (message := await receive())["type"] == "websocket.receive":
                self.texts.append(message["text"])
            return
        await receive()
        if self.error is not None and not self.answered:
            raise self.error
        status = 500 if self.error is not None else 200
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": b"opened"})
        if self.error is not None:
            raise self.error


def scope(kind: str, headers: Headers, path: str = "/reset") -> dict[str, Any]:
    pairs = [(name.lower().encode(), text.encode()) for name, text in headers.items()]
    return {"type": kind, "path": path, "headers": pairs}


def call(gate: Gate, headers: Headers, *, path: str = "/reset", body: bytes = b"{}") -> tuple[int, str]:
    """Status and body of a call."""
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(gate(scope("http", headers, path), receive, send))
    return sent[0]["status"], sent[1]["body"].decode()


@pytest.mark.parametrize("host", ["127.0.0.1:8000", "localhost", "[::1]:8000", "LOCALHOST:1"])
def test_this_machine_is_served(host: str) -> None:
    assert call(Gate(Open()), {"Host": host}) == (200, "opened")
    assert call(Gate(Open()), {"Host": host, "Origin": f"http://{host}"}) == (200, "opened")


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Host": ""},
        {"Host": "evil.example"},
        {"Host": "localhost.evil.example:8000"},
        {"Host": "evil.example@localhost.evil.example"},
        {"Host": "127.0.0.1.nip.io"},
        {"Host": "[::1"},
        {"Host": "127.0.0.1:8000", "Origin": "http://evil.example"},
        {"Host": "127.0.0.1:8000", "Origin": "null"},
        {"Host": "127.0.0.1:8000", "Origin": "http://127.0.0.1:9000"},
        {"Host": "127.0.0.1:8000", "Origin": "http://localhost:8000"},
        {"Host": "evil.example", "Origin": "http://evil.example"},
    ],
)
@pytest.mark.parametrize("kind", ["http", "websocket"])
def test_other_hosts_and_pages_are_refused(headers: Headers, kind: str) -> None:
    app = Open()
    if kind == "http":
        status, body = call(Gate(app), headers)
        assert 400 <= status < 500 and "\n" not in json.loads(body)["detail"]
    else:
        assert talk(Gate(app), headers, [])[-1]["code"] == 1008
    assert app.calls == 0


def talk(gate: Gate, headers: Headers, messages: list[Any], *, pause: float = 0.0) -> list[Any]:
    """What a WebSocket is sent that sends these messages and then is silent."""
    sent: list[Any] = []
    waiting = [{"type": "websocket.connect"}, *messages]

    async def receive() -> Any:
        if not waiting:
            await asyncio.sleep(60)
        await asyncio.sleep(pause)
        return waiting.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(asyncio.wait_for(gate(scope("websocket", headers, "/ws"), receive, send), 20))
    return sent


def test_a_token_opens_for_every_host() -> None:
    def with_token(authorization: str) -> int:
        return call(Gate(Open(), token="t0ken"), {"Host": "box.example:8000", "Authorization": authorization})[0]

    def basic(text: str) -> str:
        return f"Basic {base64.b64encode(text.encode()).decode()}"

    assert with_token("Bearer t0ken") == with_token("bearer t0ken") == with_token(basic("any:t0ken")) == 200
    for wrong in ("", "Bearer", "Bearer t0ke", "Bearer t0ken2", "Bearer ü", basic("t0ken"), basic("t0ken:"), "Basic ?"):
        assert with_token(wrong) == 401
    assert call(Gate(Open(), token="t0ken"), {"Host": "127.0.0.1"})[0] == 401
    page = {"Host": "box.example", "Authorization": "Bearer t0ken", "Origin": "http://evil.example"}
    assert call(Gate(Open(), token="t0ken"), page)[0] == 403


def test_a_silent_session_ends_and_a_busy_one_goes_on() -> None:
    host = {"Host": "localhost"}
    assert talk(Gate(Open(), idle=0.05), host, [])[-1] == {
        "type": "websocket.close",
        "code": 1001,
        "reason": "idle for 0.05 s",
    }
    app, step = Open(), {"type": "websocket.receive", "text": '{"type": "state"}'}
    talk(Gate(app, idle=0.5), host, [step] * 5, pause=0.15)
    assert len(app.texts) == 5


def test_messages_that_are_no_objects_are_given_on_as_nothing() -> None:
    app = Open()
    odd = ["[1]", "3", "{", "[" * 100_000, json.dumps({"x": "y" * LONGEST}), ""]
    messages = [{"type": "websocket.receive", "text": text} for text in odd]
    messages += [{"type": "websocket.receive", "bytes": b"\xff\x00"}, {"type": "websocket.receive", "bytes": b"{}"}]
    talk(Gate(app, idle=0.1), {"Host": "localhost"}, messages)
    assert app.texts == [""] * 7 + ["{}"]


@pytest.mark.parametrize("answered", [False, True])
@pytest.mark.parametrize(
    ("error", "status"),
    [(ConfigError("no task\n is called 'x\x1b'"), 400), (InfrastructureError("a browser"), 503), (KeyError("x"), 500)],
)
def test_errors_are_one_line_and_no_traceback(error: Exception, status: int, answered: bool) -> None:
    code, body = call(Gate(Open(error, answered)), {"Host": "localhost"})
    assert code == status
    assert json.loads(body)["detail"].isprintable()


def test_long_calls_and_closed_paths_are_refused() -> None:
    assert call(Gate(Open()), {"Host": "localhost"}, body=b"x" * (LONGEST + 1))[0] == 413
    for path in ("/mcp", "/mcp/"):
        assert call(Gate(Open(), closed=["/mcp"]), {"Host": "localhost"}, path=path)[0] == 404


@pytest.mark.parametrize(
    "body", ["NaN", "1e400", "-Infinity", '{"seed": NaN}', '{"a": [1, -1e999]}', "[" * 10_000, "{", "\ufffd"]
)
def test_a_body_that_is_no_json_of_finite_numbers_is_refused_in_one_line(body: str) -> None:
    app = Open()
    status, told = call(Gate(app), {"Host": "localhost"}, body=body.encode())
    assert status == 400 and "no JSON that can be read" in told and "\n" not in told and app.calls == 0
    socket_app = Open()

    async def talk() -> None:
        messages = [{"type": "websocket.connect"}, {"type": "websocket.receive", "text": body}]

        async def receive() -> Any:
            return messages.pop(0) if messages else {"type": "websocket.disconnect", "code": 1000}

        async def send(message: Any) -> None:
            """Nobody listens."""

        await Gate(socket_app)(scope("websocket", {"Host": "localhost"}), receive, send)

    asyncio.run(talk())
    assert socket_app.texts == [""]


def test_a_body_that_stops_coming_ends_the_call_and_one_in_pieces_arrives_whole() -> None:
    class Echo(Open):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            self.texts.append((await receive())["body"].decode())
            await super().__call__(scope, receive, send)

    async def talk(*pieces: bytes) -> int:
        messages = [{"type": "http.request", "body": piece, "more_body": piece != b"]"} for piece in pieces]
        sent: list[Any] = []

        async def receive() -> Any:
            return messages.pop(0) if messages else await asyncio.sleep(60)

        async def send(message: Any) -> None:
            sent.append(message)

        app.error = None
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(Gate(app, idle=0.1)(scope("http", {"Host": "localhost"}), receive, send), 1)
        return int(sent[0]["status"]) if sent else 0

    app = Echo()
    assert asyncio.run(talk(b"[", b"1")) == 408 and app.texts == []
    asyncio.run(talk(b"[", b"1", b"]"))
    assert app.texts == ["[1]"]
