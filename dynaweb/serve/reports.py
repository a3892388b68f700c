"""`dynaweb view`: the report of a run, or of a matrix with its cells, on loopback while the work goes on.

Nothing but reports is served: no file, no other method than GET, no other host than this machine (a page elsewhere that
resolves to loopback is refused by its host name).
"""

from __future__ import annotations

import hashlib
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock
from typing import Any

from dynaweb.errors import CheckpointError, ConfigError, DynawebError
from dynaweb.masking import masked, printable

HOSTS = ("127.0.0.1", "localhost", "[::1]")
WATCHED = ("status.json", "metrics.jsonl", "summary.json", "matrix.json", "cells/*/status.json", "outcomes/*.json")
"""What a run, or a matrix with its cells, writes as it goes on; trajectories besides."""


class Pages:
    """Reports of one folder by address, made anew when what they show has changed."""

    def __init__(self, folder: Path, each: int | None) -> None:
        self.folder, self.each = folder, each
        self._cached: dict[Path, tuple[str, str]] = {}
        self._lock = Lock()
        if not self.is_matrix and not (folder / "status.json").exists():
            raise CheckpointError(
                f"{folder} is neither a run folder nor one of a matrix; give the folder that a run made"
            )

    @property
    def is_matrix(self) -> bool:
        """Whether the folder is that of a matrix."""
        return (self.folder / "matrix.json").exists()

    def page(self, address: str) -> str | None:
        """The report at an address, None when there is none."""
        folder = self._folder_of(address, "report.html")
        if folder is None:
            return None
        stamp = stamp_of(folder)
        with self._lock:
            if self._cached.get(folder, ("", ""))[0] != stamp:
                self._cached[folder] = stamp, self._make(folder, stamp)
            return self._cached[folder][1]

    def version(self, address: str) -> str | None:
        """The stamp of the report beside whose address `version` stands."""
        folder = self._folder_of(address, "version")
        return stamp_of(folder) if folder is not None else None

    def _folder_of(self, address: str, name: str) -> Path | None:
        """The folder of a run: the root, or a cell of a matrix by its id."""
        parts = [part for part in address.split("?")[0].split("/") if part]
        if parts in ([], [name]):
            return self.folder
        if len(parts) in (2, 3) and parts[0] == "cells" and parts[1].isalnum() and parts[2:] in ([], [name]):
            cell = self.folder / "cells" / parts[1]
            return cell if self.is_matrix and (cell / "status.json").exists() else None
        return None

    def _make(self, folder: Path, stamp: str) -> str:
        if folder == self.folder and self.is_matrix:
            from dynaweb.matrix import MatrixFolder
            from dynaweb.matrix.page import matrix_page
            from dynaweb.matrix.results import results

            matrix = MatrixFolder(folder)
            return matrix_page(results(matrix.read_plan(), matrix), folder, stamp=stamp)
        from dynaweb.report import gather, render

        return render(gather(folder, each=self.each), stamp=stamp)


def _is_folder(address: str) -> bool:
    """Whether an address names the folder of a cell without the slash that browsers resolve links by."""
    path = address.partition("?")[0]
    return path != "/" and not path.endswith(("/", "report.html"))


def stamp_of(folder: Path) -> str:
    """A short text that changes when a run or a matrix has gone on."""
    paths = [path for pattern in (*WATCHED, "trajectories/*.gz") for path in sorted(folder.glob(pattern))]
    facts = "\n".join(f"{path.relative_to(folder)} {_state(path)}" for path in paths)
    return hashlib.sha256(facts.encode()).hexdigest()[:16]


def _state(path: Path) -> str:
    try:
        state = path.stat()
    except FileNotFoundError:  # the outcome of a cell goes when its next attempt starts
        return "gone"
    return f"{state.st_size} {state.st_mtime_ns}"


def server_for(folder: Path, *, each: int | None, port: int = 0) -> ThreadingHTTPServer:
    """A server on 127.0.0.1, not yet serving; port 0 takes a free one.

    Raises `CheckpointError` when the folder is none of a run or matrix, `ConfigError` when the port is taken.
    """
    pages = Pages(folder, each)

    class Handler(BaseHTTPRequestHandler):
        """Answers GET with reports."""

        def do_GET(self) -> None:
            """A report, or its version."""
            host = (self.headers.get("Host") or "").rsplit(":", 1)[0]
            if host not in HOSTS:
                self._answer(403, "text/plain", "only this machine may look")
                return
            try:
                text, kind = pages.version(self.path), "text/plain"
                if text is None or not self.path.split("?")[0].endswith("version"):
                    text, kind = pages.page(self.path), "text/html"
            except (DynawebError, OSError) as error:
                self._answer(500, "text/plain", printable(masked(str(error))))
                return
            if text is not None and kind == "text/html" and _is_folder(self.path):
                # Its own addresses are relative.
                self._answer(301, "text/plain", "", location=f"{self.path.partition('?')[0]}/")
                return
            self._answer(200 if text is not None else 404, kind, text or "there is no such page")

        def _answer(self, status: int, kind: str, text: str, **more: str) -> None:
            body = text.encode("utf-8")
            self.send_response(status)
            headers = {"Content-Type": f"{kind}; charset=utf-8", "Content-Length": str(len(body))}
            headers |= {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY"}
            for name, value in (headers | more).items():
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
