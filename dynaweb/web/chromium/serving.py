"""A pool of Chromiums for sessions of other machines: what `dynaweb web serve` runs.

One port, HTTP. A client (`dynaweb.web.chromium.endpoints`) takes a browser and speaks to its DevTools; what the browser
connects to goes back to the client, whose filter decides about hosts. Nothing is reached from this machine:

    GET  /json/version       what this is, and how many browsers are free
    POST /sessions           a browser for the caller alone: {"id", "proxy"}; 503 where none becomes free in time
    GET  /devtools/ID        a WebSocket to its DevTools; the browser is ended with it, and another one is started
    GET  /tunnel/ID          a connection that waits for one of the browser and then carries it

Calls of web pages (with `Origin`) are refused. Without a token only calls by a local host name are answered.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import json
import logging
import secrets
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from dynaweb import __version__
from dynaweb.errors import BrowserError, ConfigError, MissingError
from dynaweb.web.chromium.browser import FLAGS
from dynaweb.web.chromium.endpoints import OFFERS
from dynaweb.web.chromium.install import find
from dynaweb.web.chromium.network import arguments

if TYPE_CHECKING:
    from playwright.async_api import Browser, Playwright

log = logging.getLogger("dynaweb")

LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})
"""Names of this machine, which no page elsewhere can have."""
WAIT_SECONDS = 10.0
"""Seconds that a call waits for a browser to become free, and a connection of a browser for a tunnel."""
CLAIM_SECONDS = 30.0
"""Seconds after which a browser that was taken but not spoken to is free again."""
_CHUNK = 2**16
_LAUNCH_SECONDS = 60.0
_DEVTOOLS_SECONDS = 15.0
_SILENCE = {"TCP_KEEPIDLE": 20, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 45_000}
"""After 20 s of silence a client is asked every 10 s and given up at the third time without an answer; or 45 s (ms
here) after something was sent to it that it never confirmed."""
_NOWHERE = 9
"""A port that nobody listens on: what does not go through a client's filter goes nowhere."""

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass(eq=False)
class _Tunnel:
    """A connection of a client that waits to carry one of its browser's."""

    streams: Streams
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class _Refused(Exception):
    def __init__(self, status: int, line: str) -> None:
        super().__init__(line)
        self.status = status


@dataclass(eq=False)
class _Seat:
    """A browser, and the client that has it."""

    browser: Browser
    devtools: str
    """Its WebSocket on this machine."""
    lease: str = ""
    """What the client calls it; '' while it is free."""
    spoken_to: bool = False
    proxy: asyncio.Server | None = None
    tunnels: asyncio.Queue[_Tunnel] = field(default_factory=asyncio.Queue)
    tasks: set[asyncio.Task[Any]] = field(default_factory=set)


class BrowserServer:
    """Serves `sessions` browsers on `host`:`port` (0 = any free one). `browser`: path of a Chromium, '' = look for one.

    `token` is what calls must send, as `Authorization: Bearer TOKEN` or as the password of the address.
    """

    def __init__(
        self, *, sessions: int = 1, host: str = "127.0.0.1", port: int = 0, token: str = "", browser: str = ""
    ) -> None:
        if not token and host not in LOCAL:
            raise ConfigError(f"serving browsers on {host} needs a token, because whoever calls has a browser here")
        self.sessions, self.host, self.port = sessions, host, port
        self._token, self._path = token, browser
        self._playwright: Playwright | None = None
        self._server: asyncio.Server | None = None
        self._seats: list[_Seat] = []
        self._free: asyncio.Queue[_Seat] = asyncio.Queue()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closing = False

    async def __aenter__(self) -> BrowserServer:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Start every browser, then listen. Raises `BrowserError`, `ConfigError` for the port, `MissingError`."""
        try:
            from playwright.async_api import async_playwright
        except ImportError:
            raise MissingError("Playwright is not installed: pip install 'dynaweb[web]'") from None
        try:
            # The port is taken first, so that one that is in use costs no browser; calls are answered at the end.
            with self._listening():
                self._server = await asyncio.start_server(self._serve, self.host, self.port, start_serving=False)
            self.port = self._server.sockets[0].getsockname()[1]
            self._playwright = await async_playwright().start()
            for _ in range(self.sessions):
                await self._add()
            with self._listening():
                await self._server.start_serving()
        except BaseException:
            await self.close()
            raise

    @contextmanager
    def _listening(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise ConfigError(
                f"{self.host}:{self.port} cannot be listened on ({error.strerror or error}); choose another --port"
            ) from None

    async def close(self) -> None:
        """End everything; calling it twice is allowed."""
        self._closing = True
        if self._server is not None:
            self._server.close()
        for seat in list(self._seats):
            await self._end(seat)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        playwright, self._playwright = self._playwright, None
        if playwright is not None:
            with suppress(Exception):
                await asyncio.wait_for(playwright.stop(), 5.0)

    # --- browsers ---

    async def _add(self) -> None:
        """Start one more browser. Raises `BrowserError`."""
        assert self._playwright is not None
        chosen = find(self._path)
        args = [*FLAGS, *arguments((), _NOWHERE), "--remote-debugging-port=0"]
        browser: Browser | None = None
        try:
            # The driver keeps the time: it ends a browser that is too slow, which nobody here knows of yet.
            browser = await self._playwright.chromium.launch(
                executable_path=str(chosen.path),
                headless=True,
                args=args,
                handle_sigint=False,
                timeout=1000 * _LAUNCH_SECONDS,
            )
            seat = _Seat(browser, await asyncio.wait_for(_devtools(browser), _DEVTOOLS_SECONDS))
            browser.on("disconnected", lambda _: self._do(self._replace(seat)))
            if not browser.is_connected():
                raise BrowserError("it ended at once")
        except BaseException as error:
            if browser is not None:
                with suppress(Exception):
                    await asyncio.wait_for(browser.close(), 5.0)
            if not isinstance(error, Exception):
                raise
            lines = str(error).splitlines() or [type(error).__name__]
            raise BrowserError(f"{chosen.path} (found by: {chosen.origin}) did not start: {lines[0]}") from None
        self._seats.append(seat)
        self._free.put_nowait(seat)

    async def _replace(self, seat: _Seat) -> None:
        """End a browser and start another one."""
        if seat not in self._seats:
            return
        await self._end(seat)
        pause = 1.0
        while not self._closing:
            try:
                return await self._add()
            except BrowserError as error:
                log.warning("%s; tried again in %g s", error, pause)
                await asyncio.sleep(pause)
                pause = min(2 * pause, 60.0)

    async def _end(self, seat: _Seat) -> None:
        if seat in self._seats:
            self._seats.remove(seat)
        seat.lease = ""
        if seat.proxy is not None:
            seat.proxy.close()
        for task in seat.tasks:
            task.cancel()
        while not seat.tunnels.empty():
            seat.tunnels.get_nowait().ended.set()
        with suppress(Exception):
            await asyncio.wait_for(seat.browser.close(), 5.0)

    async def _take(self) -> _Seat:
        """A browser that is free and alive."""
        async with asyncio.timeout(WAIT_SECONDS):
            while True:
                seat = await self._free.get()
                if seat in self._seats and seat.browser.is_connected():
                    return seat

    async def _unclaimed(self, seat: _Seat, lease: str) -> None:
        await asyncio.sleep(CLAIM_SECONDS)
        if seat.lease == lease and not seat.spoken_to:
            await self._replace(seat)

    def _do(self, work: Any) -> None:
        if self._closing:
            work.close()
            return
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- calls ---

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None  # a server runs it as one
        self._tasks.add(task)
        _notice_silence(writer.get_extra_info("socket"))
        try:
            await self._answer(reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError, asyncio.CancelledError):
            pass  # either side has gone, or the server ends
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), WAIT_SECONDS)
        try:
            method, path, headers = _request(head)
            self._admit(headers)
            call = self._call(method, path)
            await call(head, reader, writer)
        except _Refused as refusal:
            await _reply(writer, refusal.status, {"error": str(refusal)})

    def _admit(self, headers: Mapping[str, str]) -> None:
        if "origin" in headers:
            raise _Refused(403, "web pages are not served")
        if self._token:
            if not hmac.compare_digest(_token_of(headers).encode(), self._token.encode()):
                raise _Refused(401, "the token is missing or wrong: have it as the password of web.endpoint")
        elif (urlsplit(f"//{headers.get('host', '')}").hostname or "") not in LOCAL:
            raise _Refused(403, "without a token only calls to localhost are answered")

    def _call(
        self, method: str, path: str
    ) -> Callable[[bytes, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
        kind, _, lease = path.strip("/").partition("/")
        if (method, path) == ("GET", "/json/version"):
            return self._version
        if (method, path) == ("POST", "/sessions"):
            return self._session
        seat = next((seat for seat in self._seats if lease and seat.lease == lease), None)
        if method == "GET" and kind in ("devtools", "tunnel"):
            if seat is None:
                raise _Refused(404, "there is no such session; it may have ended")
            work = self._speak if kind == "devtools" else self._wait
            return lambda head, reader, writer: work(seat, head, reader, writer)
        raise _Refused(404, "here are GET /json/version, POST /sessions, /devtools/ID and /tunnel/ID")

    async def _version(self, _: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        version = next((seat.browser.version for seat in self._seats), "")
        free = sum(not seat.lease for seat in self._seats)
        facts = {"Browser": f"Chrome/{version}", OFFERS: __version__, "sessions": self.sessions, "free": free}
        await _reply(writer, 200, facts)

    async def _session(self, _: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            seat = await self._take()
        except TimeoutError:
            raise _Refused(503, f"all {self.sessions} browsers are in use; serve more with --sessions") from None
        seat.lease = secrets.token_urlsafe(24)
        seat.proxy = await asyncio.start_server(lambda *streams: self._connected(seat, streams), "127.0.0.1", 0)
        self._do(self._unclaimed(seat, seat.lease))
        await _reply(writer, 200, {"id": seat.lease, "proxy": seat.proxy.sockets[0].getsockname()[1]})

    async def _speak(
        self, seat: _Seat, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """DevTools, byte for byte, until either side ends it."""
        if seat.spoken_to:
            raise _Refused(409, "somebody speaks to this browser already")
        seat.spoken_to = True
        try:
            parts = urlsplit(seat.devtools)
            inner = await asyncio.open_connection(parts.hostname, parts.port)
            lines = head.decode("latin-1").split("\r\n")
            dropped = ("host:", "authorization:", "content-length:")
            headers = [line for line in lines[1:] if not line.lower().startswith(dropped)]
            request = [f"GET {parts.path} HTTP/1.1", f"Host: {parts.netloc}", *headers]
            inner[1].write("\r\n".join(request).encode("latin-1"))
            await _join((reader, writer), inner)
        finally:
            self._do(self._replace(seat))

    async def _wait(self, seat: _Seat, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A tunnel waits for a connection of the browser, which carries it to its end."""
        writer.write(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: dynaweb-tunnel\r\n\r\n")
        await writer.drain()
        tunnel = _Tunnel((reader, writer))
        seat.tunnels.put_nowait(tunnel)
        await tunnel.ended.wait()

    async def _connected(self, seat: _Seat, streams: Streams) -> None:
        """The browser connects: to the client, through the next tunnel."""
        task = asyncio.current_task()
        assert task is not None  # a server runs it as one
        seat.tasks.add(task)
        tunnel: _Tunnel | None = None
        try:
            while tunnel is None or tunnel.streams[0].at_eof() or tunnel.streams[1].is_closing():
                if tunnel is not None:
                    tunnel.ended.set()
                tunnel = await asyncio.wait_for(seat.tunnels.get(), WAIT_SECONDS)
            tunnel.streams[1].write(b"+")
            await _join(streams, tunnel.streams)
        except (OSError, TimeoutError, asyncio.CancelledError):
            pass  # the client has gone, and its browser goes too
        finally:
            seat.tasks.discard(task)
            streams[1].close()
            if tunnel is not None:
                tunnel.ended.set()


async def serve(*, sessions: int, host: str, port: int, token: str, browser: str) -> None:
    """Serve until SIGINT or SIGTERM; says on stderr where."""
    ended = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    async with BrowserServer(sessions=sessions, host=host, port=port, token=token, browser=browser) as server:
        sys.stderr.write(f"{sessions} browsers on http://{host}:{server.port}; Ctrl-C ends it\n")
        sys.stderr.flush()
        await ended.wait()


async def _join(one: Streams, other: Streams) -> None:
    """Copy both ways until both have ended."""
    try:
        await asyncio.gather(_pump(one[0], other[1]), _pump(other[0], one[1]))
    finally:
        for _, writer in (one, other):
            writer.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(_CHUNK):
            writer.write(data)
            await writer.drain()
    finally:
        with suppress(OSError, RuntimeError):
            writer.write_eof()


async def _reply(writer: asyncio.StreamWriter, status: int, body: Mapping[str, Any]) -> None:
    text = json.dumps(body).encode()
    head = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: {len(text)}\r\nConnection: close\r\n\r\n".encode() + text)
    await writer.drain()


def _request(head: bytes) -> tuple[str, str, dict[str, str]]:
    try:
        first, *lines = head.decode("latin-1").rstrip().split("\r\n")
        method, target, _ = first.split(" ")
        pairs = (line.partition(":") for line in lines)
        return method, urlsplit(target).path, {key.strip().lower(): text.strip() for key, _, text in pairs}
    except ValueError:
        raise _Refused(400, "this is no HTTP request") from None


def _token_of(headers: Mapping[str, str]) -> str:
    kind, _, value = headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer":
        return value.strip()
    with suppress(binascii.Error, ValueError):
        return base64.b64decode(value, validate=True).decode().partition(":")[2]
    return ""


def _notice_silence(connection: socket.socket) -> None:
    """Have a connection fail within a minute once the machine at its other end has gone without a word.

    Without this the browser of such a client would be in use for ever, or for hours.
    """
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _SILENCE.items():
        if hasattr(socket, name):  # not every system has all of them
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


async def _devtools(browser: Browser) -> str:
    """The address of a browser's DevTools, whose port it chose itself and wrote into its profile."""
    cdp = await browser.new_browser_cdp_session()
    words = (await cdp.send("SystemInfo.getInfo"))["commandLine"]
    await cdp.detach()
    profile = str(words).partition("--user-data-dir=")[2].partition(" --")[0]
    file = Path(profile) / "DevToolsActivePort"
    for _ in range(100):
        lines = file.read_text().split() if file.exists() else []
        if len(lines) == 2:
            return f"ws://127.0.0.1:{lines[0]}{lines[1]}"
        await asyncio.sleep(0.05)
    raise BrowserError(f"its DevTools do not answer: {file} names no port")
