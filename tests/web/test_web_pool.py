"""Browsers that are found, started, shared and cleaned: nothing leaks from one episode to the next."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from web_pages import PageServer, serving, text_of

from dynaweb.errors import BrowserError, ConfigError, MissingError
from dynaweb.types import Action
from dynaweb.web.chromium import install as chromium
from dynaweb.web.chromium.pool import BrowserPool
from dynaweb.web.session import Session, UrlMap, with_scheme

pytestmark = pytest.mark.asyncio(loop_scope="module")

STORING = """<p id=p></p><script>
p.textContent = [document.cookie, localStorage.a, sessionStorage.a, history.length].join('|');
document.cookie = 'user=ann'; localStorage.a = 1; sessionStorage.a = 1;
</script>"""


@pytest.fixture(scope="module")
def server() -> Iterator[PageServer]:
    with serving() as running:
        running.pages["/"] = "<p>home</p><a href=/next>next</a>"
        running.pages["/next"] = "<p>next</p>"
        running.pages["/storing"] = STORING
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool() -> AsyncIterator[BrowserPool]:
    async with BrowserPool() as pool:
        yield pool


async def test_twenty_episodes_share_a_context_and_leak_nothing(pool: BrowserPool, server: PageServer) -> None:
    session = await pool.session()
    assert isinstance(session, Session)
    seen = set()
    for episode in range(20):
        await session.reset(headers={"X-Dynaweb-World": str(episode)})
        await session.goto(server.url("/login" if episode % 2 else "/storing"))
        if not episode % 2:
            seen.add(await text_of(session))
        assert (await session.act(Action("go_back"))) == "there is no page to go back to"
        server.requests.clear()
        await session.goto(server.url())
        headers = server.requests[0][2]
        assert headers["x-dynaweb-world"] == str(episode)
    assert seen == {"|||2"}
    assert pool.launches == 1
    await session.close()
    await session.close()


@pytest.mark.parametrize("path", ["/writes", "/frames"])
async def test_a_page_that_writes_while_it_is_left_leaks_nothing(
    pool: BrowserPool, server: PageServer, path: str
) -> None:
    server.pages["/writes"] = """<p id=p></p><script>
    p.textContent = [localStorage.a, sessionStorage.a, document.cookie].join('|');
    const write = () => { sessionStorage.a = localStorage.a = 1; document.cookie = 'a=1' };
    for (const kind of ['pagehide', 'beforeunload', 'unload', 'visibilitychange']) addEventListener(kind, write);
    setInterval(write, 1);
    </script>"""
    other = server.url("/writes", host="other.localhost")
    server.pages["/frames"] = f"<iframe src='{other}'></iframe><iframe src=/writes></iframe>"
    session = await pool.session()
    for episode in range(4):
        await session.reset()
        await session.goto(other if episode % 2 else server.url("/writes"))
        assert await text_of(session) == "||"
        await session.goto(server.url(path))
        await session.observe()
    await session.close()


async def test_a_closed_session_gives_its_context_to_the_next(pool: BrowserPool, server: PageServer) -> None:
    first = await pool.session()
    await first.reset(headers={"X-Test": "1"})
    await first.goto(server.url("/login"))
    await first.close()
    second = await pool.session()
    await second.reset()
    server.requests.clear()
    await second.goto(server.url())
    assert "cookie" not in server.requests[0][2]
    assert "x-test" not in server.requests[0][2]
    await second.close()


async def test_a_session_that_was_not_reset_says_so(pool: BrowserPool) -> None:
    with pytest.raises(BrowserError, match="call reset"):
        await (await pool.session()).observe()


async def test_sessions_run_side_by_side(pool: BrowserPool, server: PageServer) -> None:
    async def play(number: int) -> str:
        session = await pool.session()
        await session.reset()
        server.pages[f"/s{number}"] = f"<p>page {number}</p>"
        await session.goto(server.url(f"/s{number}"))
        text = await text_of(session)
        await session.close()
        return text

    assert await asyncio.gather(*map(play, range(6))) == [f"page {number}" for number in range(6)]


async def test_hosts_off_the_list_are_refused_and_counted(pool: BrowserPool, server: PageServer) -> None:
    server.pages["/out"] = (
        "<a href='http://example.com/'>out</a><img src='http://10.0.0.1/x.png'>"
        "<link rel=stylesheet href='//cdn.test/a.css'>"
        "<p>still here</p>"
    )
    session = await pool.session()
    await session.reset()
    start = time.perf_counter()
    await session.goto(server.url("/out"))
    await asyncio.sleep(0.3)
    page = await session.observe()
    assert "still here" in [node.name for node in page.nodes]
    assert "cdn.test" in page.notice
    assert {"cdn.test", "10.0.0.1"} <= set(pool.blocked)
    assert await session.act(Action("click", page.nodes[0].id)) == ""
    page = await session.observe()
    assert page.nodes[0].name == "This page is not available"
    assert "example.com was refused" in page.notice
    assert "not allowed" in await session.act(Action("goto", text="http://example.org/"))
    assert pool.blocked["example.org"] == 1
    assert time.perf_counter() - start < 15
    await session.close()


async def test_an_open_list_uses_a_guard(server: PageServer) -> None:
    async with BrowserPool(hosts=("site.localhost", "*.example.com")) as pool:
        server.pages["/mixed"] = f"<p>mixed</p><iframe src='{server.url('/', host='other.localhost')}'></iframe>"
        session = await pool.session()
        await session.reset()
        await session.goto(server.url("/mixed"))
        await asyncio.sleep(0.2)
        assert "mixed" in await text_of(session)
        assert pool.blocked == {"other.localhost": 1}
        assert pool.allows("https://www.example.com/x")
        assert not pool.allows("https://example.com.evil.test/")


async def test_canonical_addresses(pool: BrowserPool, server: PageServer, monkeypatch: pytest.MonkeyPatch) -> None:
    urls = UrlMap({server.url("").rstrip("/"): "http://site.localhost"})
    assert urls.canonical(server.url("/a?b#c")) == "http://site.localhost/a?b#c"
    assert urls.real("site.localhost/a") == server.url("/a")
    assert urls.real("http://other.localhost/a") == "http://other.localhost/a"
    assert (with_scheme("localhost:80/x"), with_scheme("about:blank")) == ("http://localhost:80/x", "about:blank")
    monkeypatch.setattr(pool, "urls", urls)
    monkeypatch.setattr(pool, "view", "full")
    session = await pool.session()
    await session.reset()
    await session.goto("http://site.localhost/next")
    page = await session.observe()
    assert page.url == page.tabs[0].url == "http://site.localhost/next"
    await session.close()


async def test_the_browser_is_replaced_after_enough_episodes(server: PageServer) -> None:
    async with BrowserPool(recycle=3) as pool:
        sessions = [await pool.session() for _ in range(2)]
        for _ in range(4):
            for session in sessions:
                await session.reset()
                await session.goto(server.url())
                assert "home" in await text_of(session)
        assert pool.launches >= 3
        assert len(pool._retired) <= 1


async def test_a_stored_login_is_used_once(pool: BrowserPool, server: PageServer, tmp_path: Path) -> None:
    state = tmp_path / "login.json"
    state.write_text(
        '{"cookies": [{"name": "user", "value": "ann", "domain": "site.localhost", "path": "/", "expires": -1, '
        '"httpOnly": false, "secure": false, "sameSite": "Lax"}], "origins": []}'
    )
    session = await pool.session()
    for stored, expected in ((state, "user=ann"), (None, None)):
        await session.reset(storage_state=stored)
        server.requests.clear()
        await session.goto(server.url())
        assert server.requests[0][2].get("cookie") == expected
    state.write_text('{"cookies": ')
    with pytest.raises(ConfigError, match="log in and save it again"):
        await session.reset(storage_state=state)
    await session.close()


async def test_a_finder_names_what_it_tried(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PLAYWRIGHT_BROWSERS_PATH", str(tmp_path / "none"))
    monkeypatch.delenv(chromium.ENVIRONMENT_VARIABLE, raising=False)
    monkeypatch.setattr(chromium, "_MAC_APPS", ())
    with pytest.raises(MissingError, match="python -m playwright install chromium") as caught:
        chromium.find()
    assert caught.value.exit_code == 3
    on_path = _executable(tmp_path / "chromium")
    assert chromium.find() == chromium.Chromium(on_path, "PATH")
    own = _executable(tmp_path / "none/chromium-1200/chrome-linux/chrome")
    assert chromium.find() == chromium.Chromium(own, "playwright")
    newer = _executable(tmp_path / "none/chromium-1300/chrome-linux/chrome")
    assert chromium.find().path == newer
    shell = _executable(tmp_path / "none/chromium_headless_shell-1200/chrome-linux/headless_shell")
    assert chromium.find().path == shell
    monkeypatch.setenv(chromium.ENVIRONMENT_VARIABLE, str(on_path))
    assert chromium.find().origin == "environment"
    assert chromium.find(str(newer)) == chromium.Chromium(newer, "setting web.browser")
    with pytest.raises(MissingError, match="not an executable file"):
        chromium.find(str(tmp_path / "nothing"))


async def test_a_browser_that_does_not_start_is_an_error(tmp_path: Path) -> None:
    broken = _executable(tmp_path / "chromium")
    async with BrowserPool(browser=str(broken)) as pool:
        with pytest.raises(BrowserError, match="did not start"):
            await (await pool.session()).reset()


async def test_one_pool_serves_several_event_loops(server: PageServer) -> None:
    pool = BrowserPool()

    async def play() -> str:
        session = await pool.session()
        await session.reset()
        await session.goto(server.url())
        text = await text_of(session)
        await session.close()
        await pool.close()
        return text

    for _ in range(2):
        assert await asyncio.to_thread(lambda: asyncio.run(play())) == "home next"


def _executable(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\nexit 1\n")
    path.chmod(0o755)
    return path
