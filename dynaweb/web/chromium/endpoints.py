"""Browsers that run elsewhere: which addresses there are, how sessions reach them, and how the host list is held there.

An *endpoint* is the address of a Playwright server (`ws://`), of a Chromium's DevTools, or of `dynaweb web serve` (both
`http://`). Wherever the browser is, all its connections go through the `FilteringProxy` of this process, so that the
host list holds as it does here and sites of this machine can be played:

- `dynaweb web serve` carries them back over connections that this side opens (`Tunnels`).
- Any other browser has to reach the proxy's port itself: on this machine it does, from another one through a port that
  is forwarded back (`ssh -R`), for which `web.proxy_port` fixes the number.

Whether they do is tried before an endpoint is used: a page that only this proxy has is opened there. WebRTC, which has
sockets of its own, is taken from pages.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from base64 import b64encode
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit, urlunsplit

from dynaweb.errors import BrowserError, ConfigError
from dynaweb.masking import masked
from dynaweb.web.chromium.browser import FLAGS, Running
from dynaweb.web.quoting import quote

if TYPE_CHECKING:
    from playwright.async_api import Playwright

    from dynaweb.web.chromium.network import FilteringProxy

CONNECT_SECONDS = 15.0
"""Seconds that an endpoint may take to give a browser, and that browser to open its first page."""
SPARE = 8
"""Tunnels that wait for a connection of the browser."""
OFFERS = "dynaweb"
"""The key of `/json/version` that tells `dynaweb web serve` from a Chromium."""
_LONGEST = 2**20
_PAUSES = (0.5, 10.0)
"""Seconds before a tunnel that was lost, or could not be opened, is tried again: at first, and at most."""

NO_WEBRTC = "for (const name of ['RTCPeerConnection', 'webkitRTCPeerConnection', 'WebTransport']) delete window[name];"
"""JavaScript: takes from a page what connects past a proxy."""


@dataclass(frozen=True)
class Endpoint:
    """The address of browsers elsewhere. A user and a password in it are sent as basic authentication."""

    address: str
    """As it is connected to, without user and password."""
    headers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, text: str) -> Endpoint:
        """Read an address as a setting has it. Raises `ConfigError`."""
        try:
            parts = urlsplit(text.strip())
            valid = parts.scheme in ("ws", "wss", "http", "https") and parts.hostname and (parts.port or True)
        except ValueError:
            valid = False
        if not valid:
            raise ConfigError(
                f"web.endpoint {quote(masked(text))} is no address of a browser: write ws://HOST:PORT for a Playwright "
                "server, http://HOST:PORT for DevTools or `dynaweb web serve`"
            )
        address = urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, parts.query, ""))
        if parts.username is None:
            return cls(address)
        login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        return cls(address, {"Authorization": f"Basic {b64encode(login.encode()).decode()}"})

    def __str__(self) -> str:
        return urlunsplit((*urlsplit(self.address)[:3], "", ""))

    @property
    def is_playwright(self) -> bool:
        """Whether Playwright's own protocol is spoken there."""
        return self.address.startswith("ws")

    async def connect(self, playwright: Playwright, proxy: FilteringProxy) -> Running:
        """A browser of this endpoint whose connections go through the proxy. Raises `BrowserError` with one line."""
        tunnels: Tunnels | None = None
        running: Running | None = None
        try:
            async with asyncio.timeout(2 * CONNECT_SECONDS):
                limit = 1000 * CONNECT_SECONDS
                port = proxy.port
                if self.is_playwright:
                    launch = {"x-playwright-launch-options": json.dumps({"args": list(FLAGS), "headless": True})}
                    headers = {**self.headers, **launch}
                    browser = await playwright.chromium.connect(self.address, headers=headers, timeout=limit)
                else:
                    offer = await ask(self, "GET", "/json/version")
                    address = self.address
                    if OFFERS in offer:
                        lease = await ask(self, "POST", "/sessions")
                        port = int(lease["proxy"])
                        address = self._below(f"/devtools/{lease['id']}").replace("http", "ws", 1)
                        tunnels = Tunnels(self, str(lease["id"]), proxy)
                        await tunnels.open()
                    browser = await playwright.chromium.connect_over_cdp(
                        address, headers=dict(self.headers), timeout=limit
                    )
                running = Running(playwright, browser, asyncio.get_running_loop(), endpoint=str(self))
                running.proxy_port, running.tunnels = port, tunnels
                await self._try_out(running, proxy)
        except BaseException as error:
            if running is not None:
                await running.close()
            elif tunnels is not None:
                tunnels.close()
            if not isinstance(error, Exception):
                raise
            raise BrowserError(f"no browser at {self}: {_reason(error)}") from None
        return running

    async def _try_out(self, running: Running, proxy: FilteringProxy) -> None:
        """Open the page that only the proxy of this process has."""
        context = await running.browser.new_context(**running.context_options)
        try:
            page = await context.new_page()
            answer = await page.goto(f"http://{proxy.check_host}/", timeout=1000 * CONNECT_SECONDS)
            if answer is None or await answer.text() != proxy.check_text:
                raise BrowserError("its pages do not come through the filter of hosts")
        except Exception:
            raise BrowserError(
                f"its pages do not reach the filter of hosts on port {running.proxy_port} here, so that the host list "
                "would not hold; use `dynaweb web serve` there, or forward that port back (web.proxy_port)"
            ) from None
        finally:
            with suppress(Exception):
                await asyncio.wait_for(context.close(), CONNECT_SECONDS)

    def _below(self, path: str) -> str:
        parts = urlsplit(self.address)
        return urlunsplit((parts.scheme, parts.netloc, parts.path.rstrip("/") + path, parts.query, ""))


async def ask(endpoint: Endpoint, method: str, path: str) -> dict[str, Any]:
    """The JSON object that an endpoint answers with. Raises `BrowserError` for anything else, and `OSError`."""
    reader, writer = await _dial(endpoint, method, path, {"Connection": "close"})
    try:
        status, head = await read_head(reader)
        body = await _body(reader, head)
    finally:
        writer.close()
    try:
        answer = json.loads(body)
    except ValueError:
        answer = None
    if status != 200 or not isinstance(answer, dict):
        why = answer.get("error") if isinstance(answer, dict) else None
        raise BrowserError(str(why or f"it answers {method} {path} with the status {status}, which is no DevTools"))
    return answer


async def read_head(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """The status of an HTTP answer and its head. Raises `OSError` for what is no such answer."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        return int(head.split(b" ", 2)[1]), head
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError, IndexError):
        raise OSError("it does not speak HTTP") from None


async def _body(reader: asyncio.StreamReader, head: bytes) -> bytes:
    """The body of an HTTP answer: as long as its head says, else to the end of the connection. Raises `OSError`."""
    lines = (line.partition(b":") for line in head.lower().split(b"\r\n"))
    try:
        length = next((int(text) for key, _, text in lines if key.strip() == b"content-length"), None)
        if not 0 <= (length or 0) <= _LONGEST:
            raise ValueError
        if length is not None:
            return await reader.readexactly(length)
    except ValueError:
        raise OSError("the length of its answer is none") from None
    except asyncio.IncompleteReadError as error:
        raise OSError(f"its answer ends after {len(error.partial)} of {error.expected} bytes") from None
    body = b""
    while len(body) <= _LONGEST and (piece := await reader.read(_LONGEST)):
        body += piece
    return body


async def _dial(
    endpoint: Endpoint, method: str, path: str, more: Mapping[str, str]
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection on which one request was sent."""
    parts = urlsplit(endpoint._below(path))
    secure = parts.scheme == "https"
    port = parts.port or (443 if secure else 80)
    context = ssl.create_default_context() if secure else None
    opening = asyncio.open_connection(parts.hostname, port, ssl=context)
    reader, writer = await asyncio.wait_for(opening, CONNECT_SECONDS)
    target = urlunsplit(("", "", parts.path, parts.query, ""))
    headers = {"Host": parts.netloc, **endpoint.headers, "Content-Length": "0", **more}
    lines = [f"{method} {target} HTTP/1.1", *(f"{key}: {text}" for key, text in headers.items())]
    try:
        writer.write("\r\n".join([*lines, "", ""]).encode())
        await writer.drain()
    except BaseException:
        writer.close()
        raise
    return reader, writer


class Tunnels:
    """Connections to `dynaweb web serve` that carry what its browser connects to, back to the proxy of this process.

    A few always wait: one that gets a connection of the browser, or is lost, is followed by another, which is tried
    until it can be opened. They live in the proxy's loop.
    """

    def __init__(self, endpoint: Endpoint, lease: str, proxy: FilteringProxy) -> None:
        self._endpoint, self._lease, self._proxy = endpoint, lease, proxy
        self._closed = False
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Open the first ones. Raises `OSError` where that cannot be."""
        dialled = asyncio.run_coroutine_threadsafe(self._first(), self._proxy.loop)
        await asyncio.wrap_future(dialled)

    def close(self) -> None:
        """End them all; calling it twice is allowed."""
        self._closed = True
        with suppress(RuntimeError):
            self._proxy.loop.call_soon_threadsafe(lambda: [task.cancel() for task in self._tasks])

    async def _first(self) -> None:
        await asyncio.gather(*(self._task(self._open_one()) for _ in range(SPARE)))

    def _task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Work that ends with the tunnels."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _open_one(self) -> None:
        reader, writer = await self._connect()
        if self._closed:
            writer.close()
        else:
            self._task(self._carry(reader, writer))

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        upgrade = {"Connection": "Upgrade", "Upgrade": "dynaweb-tunnel"}
        reader, writer = await _dial(self._endpoint, "GET", f"/tunnel/{self._lease}", upgrade)
        try:
            status, _ = await asyncio.wait_for(read_head(reader), CONNECT_SECONDS)
            if status != 101:
                raise OSError(f"the tunnel is refused with the status {status}")
        except BaseException:
            writer.close()
            raise
        return reader, writer

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            try:
                # One byte says that the browser connects.
                await reader.readexactly(1)
            except (OSError, asyncio.IncompleteReadError):
                self._task(self._follow(_PAUSES[0]))
                return
            self._task(self._follow(0))
            await self._proxy.serve(reader, writer)
        finally:
            writer.close()

    async def _follow(self, pause: float) -> None:
        """Open another tunnel after a pause, and try again until there is one or all end."""
        while not self._closed:
            await asyncio.sleep(pause)
            try:
                return await self._open_one()
            except (OSError, TimeoutError):
                pause = min(max(2 * pause, _PAUSES[0]), _PAUSES[1])


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return f"it did not answer within {CONNECT_SECONDS:g} s"
    if isinstance(error, ConnectionRefusedError):
        return "nobody listens there"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return masked(lines[0] if lines else type(error).__name__)
