"""`dynaweb view`: the pages over a folder of runs (`dynaweb.serve.site`), on loopback while the work goes on.

Nothing but pages is served: no file as it lies there, no other method than GET, no other host than this machine (a page
elsewhere that resolves to loopback is refused by its host name).
"""

from __future__ import annotations

import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from dynaweb.errors import ConfigError, DynawebError
from dynaweb.masking import masked, printable
from dynaweb.serve.site import AddressError, Answer, Site, split_address

HOSTS = ("127.0.0.1", "localhost", "[::1]")
PROTECTION = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY"}


def server_for(folder: Path, *, port: int = 0) -> ThreadingHTTPServer:
    """A server on 127.0.0.1, not yet serving; port 0 takes a free one.

    Raises `CheckpointError` when the folder holds no run and no matrix, `ConfigError` when the port is taken.
    """
    site = Site(folder)

    class Handler(BaseHTTPRequestHandler):
        """Answers GET with pages and their data."""

        def do_GET(self) -> None:
            """What stands at the address."""
            host = (self.headers.get("Host") or "").rsplit(":", 1)[0]
            if host not in HOSTS:
                self._answer(403, Answer("only this machine may look", "text/plain"))
                return
            # A page elsewhere may name an address here as its script, and run what it holds; a link may lead here.
            foreign = self.headers.get("Sec-Fetch-Site") in ("cross-site", "same-site")
            if foreign and self.headers.get("Sec-Fetch-Mode") != "navigate":
                self._answer(403, Answer("only pages of this server may ask", "text/plain"))
                return
            try:
                if site.is_folder(self.path):
                    # Its own addresses are relative.
                    parts = split_address(self.path)
                    query = f"?{parts.query}" if parts.query else ""
                    self._answer(301, Answer("", "text/plain"), location=f"{parts.path}/{query}")
                    return
                answer = site.answer(self.path)
            except AddressError as error:
                self._answer(400, Answer(printable(masked(str(error))), "text/plain"))
                return
            except (DynawebError, OSError) as error:
                self._answer(500, Answer(printable(masked(str(error))), "text/plain"))
                return
            if answer is None:
                self._answer(404, Answer("there is no such page", "text/plain"))
            else:
                self._answer(200, answer)

        def _answer(self, status: int, answer: Answer, **more: str) -> None:
            body = answer.body
            self.send_response(status)
            charset = "; charset=utf-8" if answer.text or not body else ""
            headers = {"Content-Type": f"{answer.kind}{charset}", "Content-Length": str(len(body))}
            for name, value in (headers | PROTECTION | more).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Quiet: stderr is for what a person should know."""

    class Server(ThreadingHTTPServer):
        """One that says nothing of browsers which leave while a page is sent."""

        def handle_error(self, request: Any, client_address: Any) -> None:
            if not isinstance(sys.exception(), ConnectionError):
                super().handle_error(request, client_address)

    try:
        return Server(("127.0.0.1", port), Handler)
    except OSError as error:
        raise ConfigError(f"port {port} cannot be used: {error.strerror}; choose another with --port") from error
