"""A tiny web server for tests of the driver: pages are given as HTML, requests are recorded."""

from __future__ import annotations

import threading
import time
from base64 import b64decode
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

from dynaweb.types import Action, Observation
from dynaweb.web.actions.grammar import parse_action
from dynaweb.web.chromium.pool import BrowserPool
from dynaweb.web.chromium.session import ChromiumSession
from dynaweb.web.session import Session


class PageServer(ThreadingHTTPServer):
    """Serves `pages` by path; some paths misbehave on purpose (see `_Handler`)."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.pages: dict[str, str] = {}
        self.files: dict[str, tuple[str, str | bytes]] = {}
        """Other answers by path: content type and content."""
        self.delays: dict[str, float] = {}
        """Seconds that the answer of a path takes."""
        self.headers: dict[str, dict[str, str]] = {}
        """Headers of a path; one with `Location` redirects (303)."""
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        """(method, path with query, headers in lower case)."""
        self.forms: list[dict[str, list[str]]] = []
        """Bodies of POST requests."""
        self.signed_in: set[str] = set()
        """Values of the cookie `user` that `/account` accepts."""

    def url(self, path: str = "/", host: str = "site.localhost") -> str:
        """The address of a path."""
        return f"http://{host}:{self.server_port}{path}"

    def handle_error(self, request: object, client_address: object) -> None:
        """A browser that hangs up is part of the tests."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: PageServer

    def log_message(self, format: str, *args: object) -> None:
        return

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        self.server.forms.append(parse_qs(body, keep_blank_values=True))
        self.do_GET()

    def do_GET(self) -> None:
        headers = {key.lower(): value for key, value in self.headers.items()}
        self.server.requests.append((self.command, self.path, headers))
        path = urlsplit(self.path).path
        time.sleep(self.server.delays.get(path, 0.0))
        more = self.server.headers.get(path, {})
        if path == "/loop":
            self._send(302, "", Location="/loop")
        elif path == "/hang":
            time.sleep(8)
        elif path == "/download":
            self._send(200, "data", **{"Content-Disposition": "attachment; filename*=UTF-8''b%C3%BCcher.csv"})
        elif path == "/file":
            self._send_file(int(urlsplit(self.path).query))
        elif path == "/login":
            self._send(200, "<p>in</p>", **{"Set-Cookie": "user=ann; Path=/"})
        elif path == "/sign-in":
            user = f"user{len(self.server.signed_in)}"
            self.server.signed_in.add(user)
            self._send(200, "<p>Welcome</p>", **{"Set-Cookie": f"user={user}; Path=/; Max-Age=3600"})
        elif path == "/account":
            user = headers.get("cookie", "").removeprefix("user=")
            self._send(200, f"<h1>Hello {user}</h1>" if user in self.server.signed_in else "<h1>Please sign in</h1>")
        elif path == "/private":
            self._send(401, "<p>no entry</p>", **{"WWW-Authenticate": "Basic"})
        elif path == "/auth" and "authorization" in headers:
            self._send(200, f"<p>in as {b64decode(headers['authorization'].split()[1]).decode()}</p>")
        elif path == "/auth":
            self._send(401, "<p>no entry</p>", **{"WWW-Authenticate": 'Basic realm="auth"'})
        elif path == "/to-auth":
            self._send(302, "", Location=self.server.url("/auth").replace("://", "://u:p@"))
        elif "Location" in more:
            self._send(303, "", **more)
        elif path in self.server.files:
            kind, content = self.server.files[path]
            body = content if isinstance(content, bytes) else content.encode()
            self._send_body(200, body, **{"Content-Type": kind, **more})
        elif path.startswith("/empty/"):
            self.send_response(int(path.removeprefix("/empty/")))
            self.send_header("Content-Length", "0")
            self.end_headers()
        elif path in self.server.pages:
            self._send(200, self.server.pages[path], **more)
        else:
            self._send(404, f"<title>{path}</title><h1>Not found {path}</h1>")

    def _send_file(self, size: int) -> None:
        """A download of that many bytes, in pieces."""
        self.send_response(200)
        self.send_header("Content-Type", "application/octet-stream")
        self.send_header("Content-Disposition", 'attachment; filename="../data.bin"')
        self.send_header("Content-Length", str(size))
        self.end_headers()
        for start in range(0, size, 100_000):
            self.wfile.write(b"x" * min(100_000, size - start))

    def _send(self, status: int, text: str, **headers: str) -> None:
        body = f"<!doctype html><html><head><meta charset=utf-8><link rel=icon href='data:,'></head>{text}".encode()
        self._send_body(status, body, **headers)

    def _send_body(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for key, value in {
            "Content-Type": "text/html; charset=utf-8",
            "Content-Length": str(len(body)),
            **headers,
        }.items():
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def serving() -> Iterator[PageServer]:
    """A running server."""
    with PageServer() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def names(page: Observation) -> list[str]:
    """The names of all elements of a page that have one."""
    return [node.name for node in page.nodes if node.name]


def reply_of(page: Observation, reply: str) -> Action:
    """The action of a compact reply; the number is left open as `[]` and taken from the element of that name."""
    if "[]" in reply:
        name = reply.split("'")[1]
        node = next(node for node in page.nodes if node.name == name and node.role not in ("text", "heading"))
        reply = reply.replace("[]", f"[{node.id}]", 1)
    action = parse_action(reply, page)
    assert isinstance(action, Action), action
    return action


@asynccontextmanager
async def one_session(timeout: float) -> AsyncIterator[ChromiumSession]:
    """A session of a pool of its own, that waits so many seconds for a document."""
    async with BrowserPool(timeout=timeout) as pool:
        session = await pool.session()
        await session.reset()
        yield session
        await session.close()


async def opened(session: Session, server: PageServer, html: str) -> Observation:
    """Start an episode on HTML that is served at `/`."""
    await session.reset()
    server.pages["/"] = html
    await session.goto(server.url())
    return await session.observe()


async def acted(session: Session, page: Observation, reply: str) -> tuple[str, Observation]:
    """Do what a reply says, and look: (reason, next page)."""
    return await session.act(reply_of(page, reply)), await session.observe()


async def text_of(session: Session) -> str:
    """All names on the current page."""
    return " ".join(node.name for node in (await session.observe()).nodes)
