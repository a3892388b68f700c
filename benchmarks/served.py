"""What benchmarks of the web layer share: pages on a server, and lines of JSON."""

from __future__ import annotations

import functools
import http.server
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar


def report(what: str, **numbers: Any) -> None:
    """One line of JSON on stdout; numbers with four significant digits."""
    rounded = {key: float(f"{value:.4g}") if isinstance(value, float) else value for key, value in numbers.items()}
    sys.stdout.write(json.dumps({"what": what, **rounded}) + "\n")
    sys.stdout.flush()


class _Files(http.server.SimpleHTTPRequestHandler):
    pages: ClassVar[dict[str, str]] = {}

    def log_message(self, format: str, *arguments: object) -> None:
        return

    def do_GET(self) -> None:
        body = self.pages.get(self.path)
        if body is None:
            super().do_GET()
            return
        data = f"<!doctype html><meta charset=utf-8><link rel=icon href='data:,'><body>{body}".encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@contextmanager
def serving(folder: Path, pages: dict[str, str] | None = None) -> Iterator[str]:
    """The address of a server of a folder and of pages given as HTML."""
    _Files.pages = pages or {}
    handler = functools.partial(_Files, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@contextmanager
def serving_files(folder: Path) -> Iterator[str]:
    """The address of a server of a folder, in a process of its own, as a site has it."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1", "--directory", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            _wait_for(port)
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()


def _wait_for(port: int) -> None:
    for _ in range(200):
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise SystemExit("the server of the pages does not start")


def product_rows(count: int) -> str:
    """A shop's list: about thirteen nodes of Chromium's tree a row."""
    row = "<li><h3><a href=/p/{0}>Product {0}</a></h3><p>Price: <b>{0}.50</b></p><button>Add {0}</button></li>"
    return f"<h1>Shop</h1><ul>{''.join(row.format(i) for i in range(count))}</ul>"
