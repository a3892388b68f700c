"""A local server that speaks the OpenAI chat protocol, for tests: scripted answers, recorded requests."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Raw:
    """The bytes of a reply, whatever they are, with its status and type."""

    body: bytes
    status: int = 200
    kind: str = "application/json"


Answer = str | int | Raw


@dataclass
class ChatServer:
    """Answers in turn: a text, a number, which is an error status, or `Raw` bytes. The last answer is repeated."""

    answers: list[Answer]
    logprobs: bool = True
    delay: float = 0.0
    requests: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    url: str = ""
    most: int = 0
    """Requests that were open at once, at most."""
    _open: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, request: dict[str, Any], key: str) -> Answer:
        with self._lock:
            self.requests.append(request)
            self.keys.append(key)
            return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    def enter(self, change: int) -> None:
        with self._lock:
            self._open += change
            self.most = max(self.most, self._open)


@contextmanager
def chat_server(*answers: Answer, logprobs: bool = True, delay: float = 0.0) -> Iterator[ChatServer]:
    """A running server; `url` is its base address."""
    state = ChatServer(list(answers), logprobs, delay)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            state.enter(+1)
            try:
                self._answer()
            finally:
                state.enter(-1)

        def _answer(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            answer = state.take(request, self.headers.get("Authorization", ""))
            if state.delay:
                threading.Event().wait(state.delay)
            state.headers.append(dict(self.headers))
            if isinstance(answer, Raw):
                self._write(answer.status, answer.body, answer.kind)
            elif isinstance(answer, int):
                self._send(answer, {"error": {"message": f"status {answer}"}})
            else:
                self._send(200, completion(answer, request, logprobs=state.logprobs))

        def _send(self, status: int, data: dict[str, Any]) -> None:
            self._write(status, json.dumps(data).encode(), "application/json")

        def _write(self, status: int, body: bytes, kind: str) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Retry-After-Ms", "1")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: Any) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    state.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def completion(text: str, request: dict[str, Any], *, logprobs: bool) -> dict[str, Any]:
    """An answer with one token a word; words beyond the limit are cut."""
    limit = request.get("max_tokens") or request.get("max_completion_tokens")
    words = text.split(" ")
    cut = words[:limit]
    tokens = [{"token": word, "logprob": math.log(0.5), "bytes": None, "top_logprobs": []} for word in cut]
    choice: dict[str, Any] = {
        "index": 0,
        "message": {"role": "assistant", "content": " ".join(cut)},
        "finish_reason": "stop" if len(cut) == len(words) else "length",
        "logprobs": {"content": tokens, "refusal": None} if logprobs and request.get("logprobs") else None,
    }
    usage = {"prompt_tokens": 100, "completion_tokens": len(cut), "total_tokens": 100 + len(cut)}
    return {
        "id": "x",
        "object": "chat.completion",
        "created": 0,
        "model": request["model"],
        "choices": [choice],
        "usage": usage,
    }
