"""MiniWoB's pages: where they are, what they are called, and the server that gives them to the browser."""

from __future__ import annotations

import errno
import os
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import PackageNotFoundError, files, version
from pathlib import Path
from typing import TYPE_CHECKING

from dynaweb.errors import ConfigError, InfrastructureError, MissingError
from dynaweb.web.session import UrlMap

if TYPE_CHECKING:
    from dynaweb.protocols import BrowserSettings

ORIGIN = "http://miniwob.localhost"
"""The canonical address of the pages, whatever the port is."""
SITE = "miniwob"
TIMING = frozenset(
    {
        # Things move by themselves, or a reaction counts: the outcome depends on when frames are drawn.
        "ascending-numbers",
        "button-delay",
        "chase-circle",
        "drag-cube",
        "hover-shape",
        "moving-items",
        "simon-says",
        "stock-market",
    }
)
"""Tasks that depend on timing (upstream issue 82); every other one stands still while an agent thinks."""


LOAD_SECONDS = 30.0
"""Seconds that a page may take to load. It is served from here and ends, so a late one only says that the machine is
busy; a page that is read half loaded has no episode to start."""


def patience(web: BrowserSettings) -> float:
    """Seconds that a page may take to load under the recipe's browser settings."""
    return max(web.action_timeout, LOAD_SECONDS)


class Pages:
    """The tasks of one folder of pages."""

    def __init__(self, folder: str = "") -> None:
        """Raises `MissingError` without the package `miniwob`, `ConfigError` for a folder without pages."""
        self.folder = Path(folder) if folder else _installed()
        self.names: tuple[str, ...] = tuple(sorted(page.stem for page in (self.folder / "miniwob").glob("*.html")))
        if not self.names:
            raise ConfigError(f"{self.folder} holds no MiniWoB pages: there is no miniwob/*.html in it")
        self.edition = f"package {version('miniwob')}" if not folder else f"folder {self.folder}"
        """What the pages are, for caches."""

    def url(self, name: str) -> str:
        """The canonical address of a task's page."""
        return f"{ORIGIN}/miniwob/{name}.html"


def _installed() -> Path:
    try:
        listed = files("miniwob") or []
    except PackageNotFoundError:
        raise MissingError("the pages of MiniWoB++ are not installed: pip install 'dynaweb[miniwob]'") from None
    core = next((file for file in listed if file.match("html/core/core.js")), None)
    if core is None:
        raise MissingError("the installed package miniwob brings no pages (html/core/core.js); install miniwob>=1.0")
    return Path(str(core.locate())).parent.parent


class _Quiet(SimpleHTTPRequestHandler):
    """Static files, kept alive, without a log line for each."""

    protocol_version = "HTTP/1.1"

    def guess_type(self, path: str | os.PathLike[str]) -> str:
        """The pages are UTF-8 and do not say so."""
        kind = super().guess_type(path)
        return f"{kind}; charset=utf-8" if kind == "text/html" else kind

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: object, client_address: object) -> None:
        """A browser that closes a connection early is no news."""


class PageServer:
    """Serves a folder on loopback until `stop`."""

    def __init__(self, folder: Path, port: int = 0) -> None:
        """Raises `InfrastructureError` when the port is taken."""
        try:
            self._server = _Server(("127.0.0.1", port), partial(_Quiet, directory=str(folder)))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            raise InfrastructureError(f"port {port} is taken; set the port to 0 for any free one") from None
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), name="miniwob", daemon=True)
        self._thread.start()

    @property
    def urls(self) -> UrlMap:
        """Real and canonical address."""
        return UrlMap({f"http://miniwob.localhost:{self._server.server_port}": ORIGIN})

    def stop(self) -> None:
        """End it."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
