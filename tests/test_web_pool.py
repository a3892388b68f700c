"""Browsers that are found, started, shared, killed and cleaned: nothing leaks from one episode to the next."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import pytest_asyncio
from web_pages import PageServer, serving

from dynaweb.errors import BrowserError, ConfigError, InfrastructureError, MissingError
from dynaweb.types import Action
from dynaweb.web import browser as browser_module
from dynaweb.web import chromium
from dynaweb.web import context as context_module
from dynaweb.web.browser import BrowserPool
from dynaweb.web.chromium_session import ChromiumSession
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
        running.pages["/spin"] = "<button onclick='setTimeout(() => { while (1); }, 0)'>Spin</button>"
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool() -> AsyncIterator[BrowserPool]:
    async with BrowserPool() as pool:
        yield pool


async def text_of(session: ChromiumSession) -> str:
    """All names on the current page."""
    return " ".join(node.name for node in (await session.observe()).nodes)


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
    assert time.perf_counter() - start < 5
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


async def test_canonical_addresses(server: PageServer) -> None:
    urls = UrlMap({server.url("").rstrip("/"): "http://site.localhost"})
    assert urls.canonical(server.url("/a?b#c")) == "http://site.localhost/a?b#c"
    assert urls.real("site.localhost/a") == server.url("/a")
    assert urls.real("http://other.localhost/a") == "http://other.localhost/a"
    assert (with_scheme("localhost:80/x"), with_scheme("about:blank")) == ("http://localhost:80/x", "about:blank")
    async with BrowserPool(urls=urls, view="full") as pool:
        session = await pool.session()
        await session.reset()
        await session.goto("http://site.localhost/next")
        page = await session.observe()
        assert page.url == page.tabs[0].url == "http://site.localhost/next"


async def test_a_killed_browser_is_started_again(server: PageServer) -> None:
    async with BrowserPool() as pool:
        session, other = await pool.session(), await pool.session()
        for one in (session, other):
            await one.reset()
            await one.goto(server.url())
        await session.observe()
        _kill_browsers_of(pool)
        with pytest.raises(InfrastructureError):
            for _ in range(50):
                await session.act(Action("wait"))
                await asyncio.sleep(0.02)
        with pytest.raises(InfrastructureError):
            await other.observe()
        start = time.perf_counter()
        for one in (session, other):
            await one.reset()
            await one.goto(server.url())
            assert "home" in await text_of(one)
        assert pool.launches == 2
        assert time.perf_counter() - start < 10


async def test_a_crashed_page_is_replaced(server: PageServer) -> None:
    async with BrowserPool() as pool:
        session = await pool.session()
        await session.reset()
        await session.goto(server.url())
        with pytest.raises(InfrastructureError):
            asyncio.get_running_loop().create_task(_crash(session))
            for _ in range(100):
                await asyncio.sleep(0.02)
                await session.observe()
        await session.reset()
        await session.goto(server.url())
        assert "home" in await text_of(session)
        assert pool.launches == 1


async def test_a_script_that_does_not_end_is_stopped(server: PageServer) -> None:
    async with BrowserPool(timeout=0.2, deadline=1.0) as pool:
        session = await pool.session()
        await session.reset()
        await session.goto(server.url("/spin"))
        page = await session.observe()
        start = time.perf_counter()
        await session.act(Action("click", page.nodes[0].id))
        page = await session.observe()
        assert page.nodes[0].name == "Spin"
        assert "did not end within 1 s and was stopped" in page.notice
        assert (await session.observe()).notice == ""
        assert time.perf_counter() - start < 6
        assert not session._open.dirty  # type: ignore[union-attr]


async def test_a_page_that_hangs_while_it_loads_is_stopped(server: PageServer) -> None:
    server.pages["/stuck"] = "<p>before</p><script>while (1);</script><p>after</p>"
    async with BrowserPool(timeout=0.3, deadline=1.0) as pool:
        session = await pool.session()
        await session.reset()
        start = time.perf_counter()
        await session.goto(server.url("/stuck"))
        page = await session.observe()
        assert page.nodes[0].name == "before"
        assert "was stopped" in page.notice
        assert time.perf_counter() - start < 6


async def test_a_page_that_spins_for_ever_costs_one_episode(server: PageServer) -> None:
    server.pages["/spins"] = "<button onclick='setInterval(() => { while (1); }, 0)'>Spin</button>"
    async with BrowserPool(timeout=0.2, deadline=1.0) as pool:
        session, other = await pool.session(), await pool.session()
        for one in (session, other):
            await one.reset()
            await one.goto(server.url("/spins"))
        page = await session.observe()
        start = time.perf_counter()
        with pytest.raises(InfrastructureError):
            await session.act(Action("click", page.nodes[0].id))
            await session.observe()
        await session.reset()
        await session.goto(server.url())
        assert "home" in await text_of(session)
        assert time.perf_counter() - start < 12
        assert "Spin" in await text_of(other)
        assert pool.launches == 1


async def test_a_browser_that_does_not_let_go_is_ended(server: PageServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context_module, "_CLOSE_SECONDS", 0.5)
    async with BrowserPool() as pool:
        session = await pool.session()
        await session.reset()
        await session.goto(server.url())
        opened = session._open
        assert opened is not None

        async def hang() -> None:
            await asyncio.sleep(60)

        monkeypatch.setattr(opened.context, "close", hang)
        opened.spoil()
        await session.reset()
        await session.goto(server.url())
        assert "home" in await text_of(session)
        assert pool.launches == 2


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


FORGETFUL = """
import asyncio, sys
from dynaweb.web.browser import BrowserPool
pool = BrowserPool()

async def play():
    session = await pool.session()
    await session.reset()
    await session.goto(sys.argv[1])
    return pool._running.browser_pid

pids = [asyncio.run(play()) for _ in range(2)]
asyncio.run(pool.close())
print(*pids)
"""


async def test_a_pool_that_was_not_closed_leaves_no_browser(server: PageServer) -> None:
    command = [sys.executable, "-c", FORGETFUL, server.url()]
    done = await asyncio.to_thread(
        lambda: subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    )
    pids = {int(word) for word in done.stdout.split()}
    assert len(pids) == 2
    for _ in range(100):
        if not pids & set(dict(filter(None, map(_parent_of, Path("/proc").iterdir())))):
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"browsers are still running: {pids}")


def _executable(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\nexit 1\n")
    path.chmod(0o755)
    return path


async def _crash(session: ChromiumSession) -> None:
    opened = session._open
    assert opened is not None
    with suppress(Exception):
        await asyncio.wait_for(opened.current.cdp.send("Page.crash"), 5)


def _kill_browsers_of(pool: BrowserPool) -> None:
    """Kill the browser processes below this one, and nothing else."""
    assert sys.platform == "linux"
    assert pool.launches == 1
    parents = dict(filter(None, map(_parent_of, Path("/proc").iterdir())))
    mine = {os.getpid()}
    for pid in sorted(parents):
        if parents[pid][0] in mine:
            mine.add(pid)
    for pid in mine - {os.getpid()}:
        if "chrom" in parents[pid][1]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _parent_of(folder: Path) -> tuple[int, tuple[int, str]] | None:
    """(pid, (parent's pid, name)) of a folder of /proc."""
    with suppress(OSError, ValueError):
        stat = (folder / "stat").read_text()
        name, _, rest = stat.partition("(")[2].rpartition(")")
        if rest.split()[0] != "Z":
            return int(folder.name), (int(rest.split()[1]), name)
    return None


async def test_an_interrupt_right_after_the_launch_ends_the_browser(monkeypatch: pytest.MonkeyPatch) -> None:
    started = []
    pid_of = browser_module._browser_pid

    async def interrupted(browser: object) -> int:
        started.append(await pid_of(browser))  # type: ignore[arg-type]
        raise asyncio.CancelledError

    monkeypatch.setattr(browser_module, "_browser_pid", interrupted)
    session = await BrowserPool().session()
    with pytest.raises(asyncio.CancelledError):
        await session.reset()
    assert started[0] > 0
    for _ in range(100):
        if not Path(f"/proc/{started[0]}").exists():
            return
        await asyncio.sleep(0.05)
    raise AssertionError("the browser is still running")
