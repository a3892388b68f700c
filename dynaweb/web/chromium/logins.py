"""Stored logins: each episode starts from one in a fresh context; one that does not hold any more is renewed once.

login = Login(Path("ann.json"), check=Shows("shop.localhost/account", "Sign out"), log_in=play_the_login_form)
await Logins().open(session, login)
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from dynaweb.errors import BrowserError, ConfigError, InfrastructureError

if TYPE_CHECKING:
    from dynaweb.web.chromium.session import ChromiumSession

log = logging.getLogger("dynaweb")


class Check(Protocol):
    """Whether a session is signed in; as text, what that looks like (`/account shows 'Sign out'`)."""

    async def __call__(self, session: ChromiumSession) -> bool:
        """Look, and leave the session on some page. Raises `InfrastructureError` when the site does not answer."""
        ...


@dataclass(frozen=True, slots=True)
class Shows:
    """An address whose page holds a text only for someone who is signed in."""

    address: str
    marker: str

    async def __call__(self, session: ChromiumSession) -> bool:
        """Open the address and look for the text."""
        await opened(session, self.address)
        return self.marker in await session.html("last")

    def __str__(self) -> str:
        return f"{self.address} shows {self.marker!r}"


@dataclass(frozen=True, slots=True)
class Login:
    """A login that is kept in a file.

    `log_in` plays it in a session that was just reset; it may raise anything. `check` is asked after it. `failure` is
    what the error says when it does not hold; empty = words made from `check`.
    """

    path: Path
    check: Check
    log_in: Callable[[ChromiumSession], Awaitable[None]]
    failure: str = ""


class Logins:
    """Opens sessions that are signed in; sessions that find the same login gone wait for one new login."""

    def __init__(self) -> None:
        self.renewed = 0
        """How often a login was made anew."""
        self._locks: dict[Path, asyncio.Lock] = {}
        self._versions: dict[Path, int] = {}

    async def open(self, session: ChromiumSession, login: Login, *, headers: Mapping[str, str] | None = None) -> None:
        """Reset the session and sign it in; it shows what `login.check` left.

        Raises `InfrastructureError` when the browser or the site fails or a new login does not hold, which costs this
        episode and not the run; `ConfigError` when the login cannot be saved.
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
            raise InfrastructureError(_failed(login))

    async def _holds(self, session: ChromiumSession, login: Login, headers: Mapping[str, str] | None) -> bool:
        if not login.path.exists():
            return False
        try:
            await session.reset(headers=headers, storage_state=login.path)
        except ConfigError:
            # The file is broken: a new login replaces it.
            return False
        return await login.check(session)

    async def _renew(self, session: ChromiumSession, login: Login, headers: Mapping[str, str] | None) -> None:
        self.renewed += 1
        if login.path.exists():
            log.warning("the login of %s does not hold any more; signing in anew", login.path.name)
        await session.reset(headers=headers)
        try:
            await login.log_in(session)
        except InfrastructureError:
            raise
        except Exception as error:
            raise InfrastructureError(f"the login of {login.path.name} failed ({error}); try it by hand") from error
        if not await login.check(session):
            raise InfrastructureError(_failed(login))
        await session.save_login(login.path)


async def opened(session: ChromiumSession, url: str) -> None:
    """Open an address. Raises `BrowserError` when it cannot be loaded: an error page says nothing about a login."""
    await session.goto(url)
    if session.failed:
        raise BrowserError(f"{url} could not be loaded")


def _failed(login: Login) -> str:
    return login.failure or (
        f"the login of {login.path.name} does not hold: after signing in it is not so that {login.check}; check the "
        "user name, the password and the address"
    )
