"""Sessions on browsers that run elsewhere: reached, checked, shared, replaced, and behind the same host list."""

from __future__ import annotations

import asyncio
import http.client
import json
import logging
import os
import signal
import subprocess
import sys
import time
from base64 import b64decode
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import pytest
import pytest_asyncio
from web_pages import PageServer, acted, names, serving, text_of

from dynaweb.config.sections import Web
from dynaweb.errors import BrowserError, ConfigError, MissingError
from dynaweb.types import Action
from dynaweb.web.chromium.install import find
from dynaweb.web.chromium.pool import BrowserPool, _browser_pid, check_endpoints, pool_of
from dynaweb.web.chromium.serving import BrowserServer

pytestmark = pytest.mark.asyncio(loop_scope="module")

TOKEN = "a-token-of-tests"
DOORS = """<p>home</p><a href=/next>next</a><p id=o></p><img src='http://10.0.0.1/x.png'>
<iframe src='http://elsewhere.test/'></iframe><script>
const frame = document.createElement('iframe');
document.body.append(frame);
o.textContent = [typeof RTCPeerConnection, typeof frame.contentWindow.RTCPeerConnection].join(' ');
new WebSocket('ws://10.0.0.2/');
</script>"""


@pytest.fixture(scope="module")
def server() -> Iterator[PageServer]:
    with serving() as running:
        running.pages["/"] = DOORS
        running.pages["/next"] = "<p>next page</p>"
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browsers() -> AsyncIterator[BrowserServer]:
    async with BrowserServer(sessions=2, token=TOKEN) as served:
        yield served


@pytest.fixture(scope="module")
def devtools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The DevTools of a Chromium that somebody else has started."""
    folder = tmp_path_factory.mktemp("profile")
    command = [str(find().path), "--headless", "--no-sandbox", "--remote-debugging-port=0", f"--user-data-dir={folder}"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        line = next(line for line in process.stderr if "DevTools listening on" in line)
        yield "http://" + line.partition("ws://")[2].partition("/")[0]
        process.kill()


def _address(served: BrowserServer) -> str:
    return f"http://any:{TOKEN}@127.0.0.1:{served.port}"


@pytest.mark.parametrize("hosts", [("*.localhost", "127.0.0.1"), ("site.localhost", "*.example.com")])
@pytest.mark.parametrize("kind", ["served", "devtools"])
async def test_the_host_list_holds_wherever_the_browser_is(
    browsers: BrowserServer, devtools: str, server: PageServer, kind: str, hosts: Sequence[str]
) -> None:
    endpoint = _address(browsers) if kind == "served" else devtools
    async with BrowserPool(endpoints=[endpoint], hosts=tuple(hosts)) as pool:
        session = await pool.session()
        await session.reset()
        await session.goto(server.url())
        await asyncio.sleep(0.3)
        page = await session.observe()
        assert {"home", "next", "undefined undefined"} <= set(names(page))
        assert {"10.0.0.1", "10.0.0.2", "elsewhere.test"} <= set(pool.blocked)
        reason, page = await acted(session, page, "click 'next' []")
        assert (reason, names(page)) == ("", ["next page"])
        assert "not allowed" in await session.act(_goto("http://10.0.0.1/"))
        # What a page of an earlier episode stored is gone.
        await session.goto(server.url("/login"))
        await session.reset()
        server.requests.clear()
        await session.goto(server.url("/next"))
        assert "cookie" not in server.requests[0][2]
        # A download stays where the browser is.
        await session.goto(server.url("/download"))
        assert "a download was offered: bücher.csv" in (await session.observe()).notice
        assert pool.launches == 1


def _goto(url: str) -> Action:
    return Action("goto", text=url)


async def test_several_endpoints_share_sessions_and_one_that_dies_is_replaced(
    browsers: BrowserServer, server: PageServer
) -> None:
    async with BrowserPool(endpoints=[_address(browsers)] * 2) as pool:
        sessions = [await pool.session() for _ in range(4)]
        for session in sessions:
            await session.reset()
            await session.goto(server.url("/next"))
        assert [seat.running.users for seat in pool._seats if seat.running] == [2, 2]
        victim = await _browser_pid(browsers._seats[0].browser)
        os.kill(victim, signal.SIGKILL)
        failed = 0
        for session in sessions:
            try:
                await text_of(session)
            except BrowserError:
                failed += 1
        assert failed == 2
        for session in sessions:
            await session.reset()
            await session.goto(server.url("/next"))
            assert await text_of(session) == "next page"
        assert pool.launches == 3
        for session in sessions:
            await session.close()


async def test_an_endpoint_without_a_browser_is_said_in_one_line(
    browsers: BrowserServer, server: PageServer, caplog: pytest.LogCaptureFixture
) -> None:
    nobody = "http://127.0.0.1:9"
    start = time.perf_counter()
    async with BrowserPool(endpoints=[nobody, server.url(host="127.0.0.1")]) as pool:
        with pytest.raises(BrowserError, match=r"no browser at http://127\.0\.0\.1:9: nobody listens there") as caught:
            await (await pool.session()).reset()
        assert "which is no DevTools" in str(caught.value) and "\n" not in str(caught.value)
    assert time.perf_counter() - start < 20
    with caplog.at_level(logging.WARNING, "dynaweb"):
        async with BrowserPool(endpoints=[nobody, _address(browsers)]) as pool:
            session = await pool.session()
            await session.reset()
            await session.goto(server.url("/next"))
            assert await text_of(session) == "next page"
    assert "no browser at http://127.0.0.1:9" in caplog.text and TOKEN not in caplog.text


async def test_a_browser_that_does_not_come_through_the_filter_is_refused(devtools: str) -> None:
    async with BrowserPool(endpoints=[devtools]) as pool:
        # As from another machine, where nobody listens on that port.
        pool._filter().port = 9
        with pytest.raises(BrowserError, match="the host list would not hold; use `dynaweb web serve`"):
            await (await pool.session()).reset()


async def test_a_served_browser_is_for_one_client_and_free_again_afterwards(
    browsers: BrowserServer, server: PageServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dynaweb.web.chromium.serving.WAIT_SECONDS", 0.5)
    async with BrowserPool(endpoints=[_address(browsers)] * 3) as pool:
        await (await pool.session()).reset()
        assert sorted(bool(seat.running) for seat in pool._seats) == [False, True, True]
        assert [seat.failure.partition(": ")[2] for seat in pool._seats if not seat.running] == [
            "all 2 browsers are in use; serve more with --sessions"
        ]
    for _ in range(100):
        if sum(not seat.lease for seat in browsers._seats) == 2:
            break
        await asyncio.sleep(0.1)
    assert sum(not seat.lease for seat in browsers._seats) == 2


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"Authorization": "Bearer wrong"}, 401),
        ({"Authorization": "Basic !!"}, 401),
        ({"Authorization": f"Bearer {TOKEN}"}, 200),
        ({"Authorization": f"Bearer {TOKEN}", "Origin": "http://evil.test"}, 403),
    ],
)
async def test_who_may_call(browsers: BrowserServer, headers: dict[str, str], status: int) -> None:
    answer = await asyncio.to_thread(_call, browsers.port, headers)
    assert answer[0] == status
    assert ("dynaweb" in answer[1]) == (status == 200)


async def test_without_a_token_only_local_names_are_answered() -> None:
    with pytest.raises(ConfigError, match="needs a token"):
        BrowserServer(host="0.0.0.0")
    served = BrowserServer(sessions=0)
    await served.start()
    assert (await asyncio.to_thread(_call, served.port, {}))[0] == 200
    assert (await asyncio.to_thread(_call, served.port, {"Host": "rebound.test"}))[0] == 403
    with pytest.raises(ConfigError, match="choose another --port"):
        await BrowserServer(sessions=0, port=served.port).start()
    await served.close()


def _call(port: int, headers: dict[str, str]) -> tuple[int, dict[str, object]]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", "/json/version", headers=headers)
    answer = connection.getresponse()
    return answer.status, json.loads(answer.read())


@pytest.mark.parametrize("text", ["", "shop.localhost", "ftp://a:1", "http://", "ws://a:99999", "http://[a", "9222"])
async def test_an_address_that_is_none_is_refused_before_a_browser_is_looked_for(text: str) -> None:
    with pytest.raises(ConfigError, match="no address of a browser"):
        BrowserPool(endpoints=[text])


async def test_endpoints_of_a_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROWSER_TOKEN", TOKEN)
    web = Web(endpoint="http://any:$BROWSER_TOKEN@a.test:1 ws://b.test:2/x?y=1")  # type: ignore[arg-type]
    assert web.endpoint == ("http://any:$BROWSER_TOKEN@a.test:1", "ws://b.test:2/x?y=1")
    endpoints = [seat.endpoint for seat in pool_of(web)._seats]
    assert [str(endpoint) for endpoint in endpoints] == ["http://a.test:1", "ws://b.test:2/x"]
    assert endpoints[0] is not None and "Basic" in endpoints[0].headers["Authorization"]
    monkeypatch.setenv("BROWSER_TOKEN", "a/b@c:d#e")
    endpoint = pool_of(web)._seats[0].endpoint
    assert endpoint is not None and endpoint.address == "http://a.test:1"
    assert b64decode(endpoint.headers["Authorization"].split()[1]) == b"any:a/b@c:d#e"
    monkeypatch.delenv("BROWSER_TOKEN")
    with pytest.raises(MissingError, match=r"web\.endpoint names the environment variable BROWSER_TOKEN"):
        pool_of(web)


async def test_endpoints_are_tried_before_anything_is_spent(browsers: BrowserServer) -> None:
    nobody = "http://127.0.0.1:9"
    versions = await asyncio.to_thread(check_endpoints, Web(endpoint=(nobody, _address(browsers))))
    assert list(versions) == [f"http://127.0.0.1:{browsers.port}"] and all(versions.values())
    with pytest.raises(MissingError, match=r"web\.endpoint: no browser at http://127\.0\.0\.1:9: nobody listens there"):
        await asyncio.to_thread(check_endpoints, Web(endpoint=(nobody,)))


async def test_the_command_serves_and_ends_its_browsers(server: PageServer, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "dynaweb", "web", "serve", "--host", "0.0.0.0", "--port", "0"]
    environment = {**os.environ, "DYNAWEB_SERVE_TOKEN": TOKEN}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stderr is not None
        line = await asyncio.to_thread(process.stderr.readline)
        assert "1 browsers on http://0.0.0.0:" in line and TOKEN not in line
        port = line.partition("0.0.0.0:")[2].partition(";")[0]
        async with BrowserPool(endpoints=[f"http://any:{TOKEN}@127.0.0.1:{port}"]) as pool:
            session = await pool.session()
            await session.reset()
            await session.goto(server.url("/next"))
            assert await text_of(session) == "next page"
            process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(process.wait, 20) == 0
            with pytest.raises(BrowserError):
                await session.observe()
