"""A stand-in of the Hugging Face hub that takes commits: what was asked, and the files that it was sent."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Hub:
    """What it was asked for; `status` other than 200 answers everything."""

    url: str = ""
    status: int = 200
    created: list[dict[str, Any]] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)
    repo: str = ""
    tokens: set[str] = field(default_factory=set)

    def answer(self, path: str, body: bytes) -> dict[str, Any]:
        """The answer to a POST."""
        if path == "/api/repos/create":
            wanted = json.loads(body)
            self.created.append(wanted)
            owner, name = wanted.get("organization", "me"), wanted["name"]
            return {"url": f"{self.url}/{owner}/{name}", "name": f"{owner}/{name}"}
        if path == "/api/validate-yaml":
            return {"errors": [], "warnings": []}
        if "/preupload/" in path:
            files = [one["path"] for one in json.loads(body)["files"]]
            return {"files": [{"path": one, "uploadMode": "regular", "shouldIgnore": False} for one in files]}
        self.repo = path.removeprefix("/api/models/").partition("/commit/")[0]
        for line in body.splitlines():
            part = json.loads(line)
            if part["key"] == "file":
                self.files[part["value"]["path"]] = base64.b64decode(part["value"]["content"])
        return {"commitUrl": f"{self.url}/{self.repo}/commit/abc", "commitOid": "abc", "success": True}


@contextmanager
def hub_server() -> Iterator[Hub]:
    """On a free port of 127.0.0.1."""
    hub = Hub()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            hub.tokens.add(self.headers.get("Authorization", ""))
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            answer = hub.answer(self.path, body) if hub.status == 200 else {"error": "not for you"}
            text = json.dumps(answer).encode()
            self.send_response(hub.status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
