"""Browsers elsewhere that hang, fail to start or lose connections: nobody waits for them, and nothing is left open."""

from __future__ import annotations

import asyncio
import gc
import socket
import time
import warnings
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from web_pages import serving, text_of

from dynaweb.errors import BrowserError, ConfigError
from dynaweb.web.chromium import serving as server_module
from dynaweb.web.chromium.endpoints import SPARE, Endpoint, Tunnels, ask
from dynaweb.web.chromium.network import FilteringProxy
from dynaweb.web.chromium.pool import BrowserPool
from dynaweb.web.chromium.serving import BrowserServer

Reply = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any]


class Peer:
    """A server that answers as a test wants, and the connections that are open there."""

    def __init__(self, reply: Reply) -> None:
        self.reply = reply
        self.calls = 0
        self.open: set[asyncio.StreamWriter] = set()
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.calls += 1
        self.open.add(writer)
        try:
            await reader.readuntil(b"\r\n\r\n")
            await self.reply(reader, writer)
            await reader.read()
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self.open.discard(writer)
            writer.close()


@asynccontextmanager
async def peer(reply: Reply) -> AsyncIterator[Peer]:
    running = Peer(reply)
    listening = await asyncio.start_server(running.serve, "127.0.0.1", 0)
    running.port = listening.sockets[0].getsockname()[1]
    try:
        yield running
    finally:
        listening.close()
        for writer in list(running.open):
            writer.close()
        await until(lambda: not running.open)


async def until(holds: Callable[[], bool], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it did not come to that in time"
        await asyncio.sleep(0.02)


async def silence(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """No answer."""


async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A tunnel is there, and waits."""
    writer.write(b"HTTP/1.1 101 Switching Protocols\r\n\r\n")


# --- the pool ---


async def test_an_endpoint_that_hangs_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dynaweb.web.chromium.pool._PATIENCE", 3.0)
    with serving() as site:
        site.pages["/"] = "<p>home</p>"
        async with peer(silence) as dead, BrowserServer(sessions=1) as served:
            addresses = [f"http://127.0.0.1:{dead.port}", f"http://127.0.0.1:{served.port}"]
            async with BrowserPool(endpoints=addresses) as pool:
                sessions = [await pool.session() for _ in range(3)]
                begun = time.monotonic()
                await asyncio.gather(*(session.reset() for session in sessions))
                assert time.monotonic() - begun < 20
                for session in sessions:
                    await session.goto(site.url())
                    assert await text_of(session) == "home"
                # It is known not to answer by now: whoever comes next does not wait at all.
                assert dead.calls == 1 and pool._seats[0].filling is not None
                begun = time.monotonic()
                seat, running = await pool._ensure()
                assert time.monotonic() - begun < 1.5
                assert (seat, running.users) == (pool._seats[1], 3)
                assert "has not answered yet" in pool._seats[0].failure
                begun = time.monotonic()
            # Closing waits for no attempt either, and leaves none behind.
            assert time.monotonic() - begun < 15
            await until(lambda: not dead.open)


async def test_the_reason_of_an_attempt_is_that_of_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody has a browser: the end of each attempt is waited for, and said."""
    monkeypatch.setattr("dynaweb.web.chromium.pool._PATIENCE", 0.1)
    monkeypatch.setattr("dynaweb.web.chromium.endpoints.CONNECT_SECONDS", 0.5)
    async with peer(silence) as dead:
        addresses = [f"http://127.0.0.1:{dead.port}", "http://127.0.0.1:9"]
        async with BrowserPool(endpoints=addresses) as pool:
            with pytest.raises(BrowserError, match=r"did not answer within 0\.5 s; .*:9: nobody listens there"):
                await pool._ensure()


async def test_what_is_missing_here_is_raised_and_no_reason_of_an_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(BrowserPool, "_launch", broken)
    async with BrowserPool(endpoints=["http://127.0.0.1:9"]) as pool:
        for _ in range(2):
            with pytest.raises(ZeroDivisionError, match="a bug"):
                await pool._ensure()


# --- answers ---


@pytest.mark.parametrize(
    ("pieces", "value"),
    [
        ([b"Content-Length: 9\r\n\r\n", b'{"a"', b": 12}"], {"a": 12}),
        ([b'content-length:  9 \r\nX: y\r\n\r\n{"a": 12}', b" and more, which is none of it"], {"a": 12}),
        ([b"X: y\r\n\r\n", b'{"a"', b": 12}", b""], {"a": 12}),
        ([b"Content-Length: 9\r\n\r\n", b'{"a"', b""], "its answer ends after 4 of 9 bytes"),
        ([b"Content-Length: ten\r\n\r\n"], "the length of its answer is none"),
        ([b"Content-Length: -1\r\n\r\n"], "the length of its answer is none"),
        ([b"Content-Length: 9999999999\r\n\r\n"], "the length of its answer is none"),
    ],
)
async def test_an_answer_is_read_whole(pieces: list[bytes], value: object) -> None:
    """In pieces, in one, without a length (to the end, which b"" is) and too short."""

    async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n")
        for piece in pieces:
            if not piece:
                writer.close()
            else:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0.03)

    async with peer(reply) as other:
        asking = asyncio.wait_for(ask(Endpoint.read(f"http://127.0.0.1:{other.port}"), "GET", "/json/version"), 5)
        if isinstance(value, dict):
            assert await asking == value
        else:
            with pytest.raises(OSError, match=str(value)):
                await asking


# --- tunnels ---


@asynccontextmanager
async def tunnels_to(other: Peer) -> AsyncIterator[Tunnels]:
    proxy = FilteringProxy(("127.0.0.1",)).start()
    tunnels = Tunnels(Endpoint.read(f"http://127.0.0.1:{other.port}"), "lease", proxy)
    try:
        yield tunnels
    finally:
        tunnels.close()
        proxy.close()


async def test_tunnels_that_are_lost_are_opened_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dynaweb.web.chromium.endpoints._PAUSES", (0.05, 0.1))
    async with peer(accept) as other, tunnels_to(other) as tunnels:
        await tunnels.open()
        assert len(other.open) == SPARE

        async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 503 Service Unavailable\r\n\r\n")

        # Three idle ones are lost, and none can be opened for a while.
        other.reply, calls = refuse, other.calls
        for writer in list(other.open)[:3]:
            writer.close()
        await until(lambda: other.calls >= calls + 9)
        other.reply = accept
        await until(lambda: len(other.open) == SPARE)
        # One that carries something is followed by another at once.
        next(iter(other.open)).write(b"+")
        await until(lambda: len(other.open) == SPARE + 1)
        tunnels.close()
        await until(lambda: not other.open)
        calls = other.calls
        await asyncio.sleep(0.3)
        assert other.calls == calls


@pytest.mark.parametrize("how", ["one is refused", "one is cut", "one is silent, and the attempt ends"])
async def test_first_tunnels_that_cannot_all_be_opened_leave_nothing_open(how: str) -> None:
    async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if other.calls < 5:
            await accept(reader, writer)
        elif how == "one is refused":
            writer.write(b"HTTP/1.1 404 Not Found\r\n\r\n")
        elif how == "one is cut":
            writer.close()

    async with peer(reply) as other, tunnels_to(other) as tunnels:
        with pytest.raises((OSError, TimeoutError)):
            async with asyncio.timeout(1.0):
                await tunnels.open()
        tunnels.close()
        await until(lambda: not other.open)


async def test_a_proxy_that_is_closed_at_once_leaves_no_tunnel_behind() -> None:
    """Its loop ends only when the tunnels have ended, those that are still being opened too."""
    for waits in (0.0, 0.0, 0.001, 0.01, 0.03) * 4:
        async with peer(accept) as other:
            proxy = FilteringProxy(("127.0.0.1",)).start()
            tunnels = Tunnels(Endpoint.read(f"http://127.0.0.1:{other.port}"), "lease", proxy)
            await tunnels.open()
            next(iter(other.open)).write(b"+")  # another tunnel is on its way
            await asyncio.sleep(waits)
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                tunnels.close()
                proxy.close()
                gc.collect()
        assert [str(one.message) for one in told if one.category is ResourceWarning] == []


# --- the server ---


async def test_a_browser_whose_devtools_fail_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Any] = []

    async def fails(browser: Any) -> str:
        started.append(browser)
        raise FileNotFoundError("no DevToolsActivePort")

    async with BrowserServer(sessions=2) as served:
        first, second = (seat.devtools for seat in served._seats)
        assert first.startswith("ws://127.0.0.1:") and first != second
        with monkeypatch.context() as patch:
            patch.setattr(server_module, "_devtools", fails)
            served._do(served._replace(served._seats[0]))
            await until(lambda: len(started) == 1, 20)
            await until(lambda: not any(browser.is_connected() for browser in started))
            with pytest.raises(BrowserError, match="did not start: no DevToolsActivePort"):
                await served._add()
            assert not started[-1].is_connected()
        await until(lambda: len(served._seats) == 2, 20)


async def test_the_server_listens_once_its_browsers_run(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = []

    async def add(self: BrowserServer) -> None:
        with socket.socket() as probe:
            refused.append(probe.connect_ex(("127.0.0.1", self.port)))

    monkeypatch.setattr(BrowserServer, "_add", add)
    async with BrowserServer(sessions=2) as served:
        assert len(refused) == 2 and all(refused)
        with socket.create_connection(("127.0.0.1", served.port)):
            pass
        # A port that is taken costs no browser.
        with pytest.raises(ConfigError, match="choose another --port"):
            await BrowserServer(sessions=1, port=served.port).start()
        assert len(refused) == 2


async def test_a_client_that_says_nothing_more_is_given_up_within_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, int] = {}

    async def answer(self: BrowserServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = writer.get_extra_info("socket")
        options["on"] = connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        for name in server_module._SILENCE:
            options[name] = connection.getsockopt(socket.IPPROTO_TCP, getattr(socket, name))

    monkeypatch.setattr(BrowserServer, "_answer", answer)
    async with BrowserServer(sessions=0) as served:
        _, writer = await asyncio.open_connection("127.0.0.1", served.port)
        await until(lambda: len(options) == 5)
        writer.close()
    assert options["on"]
    assert options["TCP_KEEPIDLE"] + options["TCP_KEEPINTVL"] * options["TCP_KEEPCNT"] <= 60
    assert 0 < options["TCP_USER_TIMEOUT"] <= 60_000
