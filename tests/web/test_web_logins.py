"""Stored logins: fresh for every episode, checked, and made anew once when they are gone."""

from __future__ import annotations

import asyncio
import stat
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from web_pages import PageServer, names, serving

from dynaweb.errors import ConfigError, InfrastructureError
from dynaweb.web.chromium.logins import Login, Logins, Shows
from dynaweb.web.chromium.pool import BrowserPool
from dynaweb.web.chromium.session import ChromiumSession

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def server() -> Iterator[PageServer]:
    with serving() as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool() -> AsyncIterator[BrowserPool]:
    async with BrowserPool() as pool:
        yield pool


def login_of(server: PageServer, path: Path, form: str = "/sign-in") -> Login:
    async def log_in(session: ChromiumSession) -> None:
        await session.goto(server.url(form))

    return Login(path, Shows(server.url("/account"), "Hello"), log_in)


async def test_a_login_is_made_once_and_used_for_every_episode(
    pool: BrowserPool, server: PageServer, tmp_path: Path
) -> None:
    logins, login = Logins(), login_of(server, tmp_path / "auth" / "ann.json")
    for _ in range(3):
        session = await pool.session()
        await logins.open(session, login)
        assert names(await session.observe())[0].startswith("Hello user")
        # The agent signs out: the next episode is signed in all the same.
        await session.evaluate("last", "document.cookie = 'user=; Max-Age=0'")
        await session.close()
    assert logins.renewed == 1
    assert stat.S_IMODE(login.path.stat().st_mode) == 0o600
    session = await pool.session()
    await session.reset()
    await session.goto(server.url("/account"))
    assert names(await session.observe()) == ["Please sign in"]
    await session.close()


async def test_an_expired_or_broken_login_is_renewed_once_for_all(
    pool: BrowserPool, server: PageServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    logins, login = Logins(), login_of(server, tmp_path / "ann.json")
    for spoil in ("expired", "broken"):
        server.signed_in.clear()
        if spoil == "broken":
            login.path.write_text('{"cookies": ')
        before = logins.renewed
        sessions = [await pool.session() for _ in range(3)]
        await asyncio.gather(*(logins.open(session, login) for session in sessions))
        for session in sessions:
            assert names(await session.observe())[0].startswith("Hello user")
            await session.close()
        assert logins.renewed == before + 1
    # The first login of all replaced nothing.
    assert [record.message for record in caplog.records] == [
        "the login of ann.json does not hold any more; signing in anew"
    ]


async def test_a_login_that_does_not_work_is_an_error(pool: BrowserPool, server: PageServer, tmp_path: Path) -> None:
    session = await pool.session()
    path = tmp_path / "ann.json"
    with pytest.raises(InfrastructureError, match="/account shows 'Hello'; check the user name"):
        await Logins().open(session, login_of(server, path, form="/nowhere"))
    assert not path.exists()

    async def fails(session: ChromiumSession) -> None:
        raise ValueError("no form")

    with pytest.raises(InfrastructureError, match=r"the login of ann\.json failed"):
        await Logins().open(session, Login(path, Shows(server.url("/account"), "Hello"), fails))
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be stored"):
        await Logins().open(session, login_of(server, tmp_path / "file" / "ann.json"))
    await session.close()


async def test_a_site_that_is_down_says_nothing_about_a_login(pool: BrowserPool, tmp_path: Path) -> None:
    (tmp_path / "ann.json").write_text('{"cookies": [], "origins": []}')
    logins, session = Logins(), await pool.session()

    async def log_in(session: ChromiumSession) -> None:
        raise AssertionError("nobody signs in to a site that is down")

    # Error pages hold the address.
    check = Shows("http://site.localhost:1/account", "site.localhost")
    with pytest.raises(InfrastructureError, match=r"site\.localhost:1/account could not be loaded"):
        await logins.open(session, Login(tmp_path / "ann.json", check, log_in))
    await session.close()
    assert logins.renewed == 0
