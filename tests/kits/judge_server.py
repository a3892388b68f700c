"""A local server that speaks the OpenAI chat protocol well or badly, and judges as it is told."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = Callable[[dict[str, Any]], str | int | bytes]
SLOW, MALFORMED, EMPTY = 0, b"<html>gateway</html>", b"{}"
"""Answers after a second, with no JSON, and with JSON that is no answer."""


@dataclass
class JudgeServer:
    """Answers in turn, or as a function of the request; a number is a status. The last answer is repeated."""

    answers: list[str | int | bytes | Answer]
    url: str = ""
    requests: list[dict[str, Any]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, request: dict[str, Any]) -> str | int | bytes:
        """The next answer."""
        with self.lock:
            self.requests.append(request)
            answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return answer(request) if callable(answer) else answer


@contextmanager
def judge_server(*answers: str | int | bytes | Answer) -> Iterator[JudgeServer]:
    """A running server; `url` is its base address."""
    state = JudgeServer(list(answers))

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            answer = state.take(request)
            if answer == SLOW:
                threading.Event().wait(1.0)
                answer = "SUCCESS"
            if isinstance(answer, bytes):
                self._send(200, "application/json", answer)
            elif isinstance(answer, int):
                self._send(answer, "application/json", json.dumps({"error": {"message": f"{answer}"}}).encode())
            elif request.get("stream"):
                self._send(200, "text/event-stream", _stream(answer))
            else:
                self._send(200, "application/json", json.dumps(_whole(answer)).encode())

        def _send(self, status: int, kind: str, body: bytes) -> None:
            self.send_response(status)
            for name, value in (("Content-Type", kind), ("Content-Length", str(len(body))), ("Retry-After-Ms", "1")):
                self.send_header(name, value)
            self.end_headers()
            # A client that has lost its patience is gone.
            with suppress(OSError):
                self.wfile.write(body)

        def log_message(self, *args: Any) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    state.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _whole(text: str) -> dict[str, Any]:
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop", "logprobs": None}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    return {"id": "x", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice], "usage": usage}


def _stream(text: str) -> bytes:
    lines = []
    for word in [*text.split(" "), None]:
        delta = {"content": f"{word} "} if word is not None else {}
        choice = {"index": 0, "delta": delta, "finish_reason": None if word is not None else "stop"}
        chunk = {"id": "x", "object": "chat.completion.chunk", "created": 0, "model": "m", "choices": [choice]}
        lines.append(f"data: {json.dumps(chunk)}\n\n")
    return "".join([*lines, "data: [DONE]\n\n"]).encode()
