"""Stored logins: each episode starts from one in a fresh context; one that does not hold any more is renewed once.

login = Login(Path("ann.json"), check="shop.localhost/account", marker="Sign out", log_in=play_the_login_form)
await Logins().open(session, login)
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dynaweb.errors import BrowserError, ConfigError

if TYPE_CHECKING:
    from dynaweb.web.chromium_session import ChromiumSession


@dataclass(frozen=True, slots=True)
class Login:
    """A login that is kept in a file.

    `check` is an address whose page holds the text `marker` only for someone who is signed in. `log_in` plays the
    login in a session that was just reset; it may raise anything.
    """

    path: Path
    check: str
    marker: str
    log_in: Callable[[ChromiumSession], Awaitable[None]]


class Logins:
    """Opens sessions that are signed in; sessions that find the same login gone wait for one new login."""

    def __init__(self) -> None:
        self.renewed = 0
        """How often a login was made anew."""
        self._locks: dict[Path, asyncio.Lock] = {}
        self._versions: dict[Path, int] = {}

    async def open(self, session: ChromiumSession, login: Login, *, headers: Mapping[str, str] | None = None) -> None:
        """Reset the session and sign it in; it shows the page `login.check`.

        Raises `ConfigError` when a new login does not show the marker or cannot be saved, and `BrowserError`.
        """
        version = self._versions.get(login.path, 0)
        if await self._holds(session, login, headers):
            return
        lock = self._locks.setdefault(login.path, asyncio.Lock())
        async with lock:
            # Another session may have signed in while this one waited.
            if self._versions.get(login.path, 0) == version:
                await self._renew(session, login, headers)
                self._versions[login.path] = version + 1
                return
        if not await self._holds(session, login, headers):
            raise ConfigError(_failed(login))

    async def _holds(self, session: ChromiumSession, login: Login, headers: Mapping[str, str] | None) -> bool:
        if not login.path.exists():
            return False
        try:
            await session.reset(headers=headers, storage_state=login.path)
        except ConfigError:
            # The file is broken: a new login replaces it.
            return False
        return await _shows(session, login)

    async def _renew(self, session: ChromiumSession, login: Login, headers: Mapping[str, str] | None) -> None:
        self.renewed += 1
        await session.reset(headers=headers)
        try:
            await login.log_in(session)
        except BrowserError:
            raise
        except Exception as error:
            raise ConfigError(f"the login of {login.path.name} failed ({error}); try it by hand") from error
        if not await _shows(session, login):
            raise ConfigError(_failed(login))
        await session.save_login(login.path)


async def _shows(session: ChromiumSession, login: Login) -> bool:
    await session.goto(login.check)
    return login.marker in await session.html("last")


def _failed(login: Login) -> str:
    return (
        f"the login of {login.path.name} does not hold: {login.check} does not show {login.marker!r} after signing in; "
        "check the user name, the password and the address"
    )
