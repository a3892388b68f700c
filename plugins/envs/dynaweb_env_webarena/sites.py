"""Where the sites are, how to log in to them, and how to reset them."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import time
import urllib.request
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from dynaweb.errors import ConfigError, InfrastructureError
from dynaweb.masking import masked
from dynaweb.web.chromium.logins import Login as StoredLogin
from dynaweb.web.chromium.logins import opened
from dynaweb_env_webarena.files import texts

if TYPE_CHECKING:
    from dynaweb.web.chromium.session import ChromiumSession
    from dynaweb_env_webarena import WebarenaConfig
    from dynaweb_env_webarena.files import Raw

log = logging.getLogger("dynaweb")

NAMES = ("shopping", "shopping_admin", "reddit", "gitlab", "map", "wikipedia", "homepage", "classifieds")
SHOPS = ("shopping", "shopping_admin")
READY = "ready for duty"
"""What the status page of a reset server says when it is done."""
FAILED = "failed"
"""How that of `containers/webarena/sites.py` begins when it has given up."""
POLL_SECONDS = 2.0
TELL_SECONDS = 15.0
"""Seconds between two lines of progress."""
_NO_SITES = {"ssh_host"}
"""Marks in answers that webarena-verified fills in itself."""
_STATE = re.compile(r"([\w.]+)_state\.json")
_PLACEHOLDER = re.compile(r"__([A-Z][A-Z0-9_]*?)__")


@dataclass(frozen=True, slots=True)
class Account:
    """Who logs in to a site, and how; `page` and `check` are explained at `dynaweb_env_webarena.Login`."""

    username: str
    password: str = field(repr=False)
    page: str = "/login"
    check: str = "/"


# The accounts that WebArena's images come with; they are printed in its repository.
ACCOUNTS: Mapping[str, Account] = {
    "shopping": Account("emma.lopez@gmail.com", "Password.123", "/customer/account/login/", "/wishlist/"),
    "shopping_admin": Account("admin", "admin1234", "", "/dashboard"),
    "reddit": Account("MarvelsGrantMan136", "test1234", check="/user/MarvelsGrantMan136/account"),
    "gitlab": Account("byteblaze", "hello1234", "/users/sign_in", "/-/profile"),
    # VisualWebArena's.
    "classifieds": Account(
        "blake.sullivan@gmail.com",
        "Password.123",
        "/index.php?page=login",
        "/index.php?page=user&action=items",
    ),
}


def addresses(config: WebarenaConfig) -> dict[str, str | tuple[str, ...]]:
    """Address by site, or those of its copies: from the settings, else from the variables `SHOPPING`, `WA_SHOPPING` or
    `VWA_SHOPPING` and their like.

    Raises `ConfigError` for what is no address.
    """
    known = {name: (f"env.urls.{name}", url) for name, url in config.urls.items() if url}
    for name in NAMES:
        variable = next((key for key in variables_of(name) if os.environ.get(key)), "")
        if name not in config.urls and variable:
            known[name] = (f"the variable {variable}", os.environ[variable])
    return {
        name: _checked(url, origin) if isinstance(url, str) else tuple(_checked(one, origin) for one in url)
        for name, (origin, url) in known.items()
    }


def variables_of(site: str) -> tuple[str, ...]:
    """The variables that may hold the address of a site, the first that is set counts."""
    return tuple(f"{start}{site.upper()}" for start in ("", "WA_", "VWA_"))


def _checked(url: str, origin: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"{origin} = {url!r} is no address of a site; write one such as http://my-host:9999")
    if parts.username is not None:
        # Pages, tasks and what is learned from them hold addresses.
        raise ConfigError(
            f"{origin} = {masked(url)!r} holds a user or a password; leave them out, and put them into the header "
            "Authorization of env.headers, as `Basic $NAME` with an environment variable"
        )
    return url.rstrip("/")


def placeholders(value: Any) -> set[str]:
    """The sites that a task's addresses name, such as `shopping` for `__SHOPPING__`."""
    return {match.lower() for text in texts(value) for match in _PLACEHOLDER.findall(text)} - _NO_SITES


def filled(value: Any, urls: Mapping[str, str]) -> Any:
    """A copy with every `__SITE__` replaced by the site's address; unknown ones stay."""
    if isinstance(value, str):
        return _PLACEHOLDER.sub(lambda match: urls.get(match[1].lower(), match[0]), value)
    if isinstance(value, Mapping):
        return {key: filled(inner, urls) for key, inner in value.items()}
    return [filled(inner, urls) for inner in value] if isinstance(value, list | tuple) else value


def hosts(urls: Iterable[str]) -> tuple[str, ...]:
    """The host names of addresses."""
    return tuple(dict.fromkeys(host for url in urls if (host := urlsplit(url).hostname)))


def accounts(config: WebarenaConfig) -> dict[str, Account]:
    """The account for each site: the configured ones beside the benchmark's own.

    Raises `ConfigError` for a password that is not in the environment.
    """
    own = {}
    for site, login in config.logins.items():
        password = os.environ.get(login.password_variable)
        if not password:
            raise ConfigError(
                f"env.logins.{site} reads the password from the variable {login.password_variable!r}, which is not "
                "set; set it before the run"
            )
        own[site] = Account(login.username, password, login.page, login.check)
    return {**ACCOUNTS, **own}


def own_state(raw: Raw, folders: Iterable[Path]) -> Path | None:
    """The stored login that a task brings, whether or not it is there; None for those that are made here.

    WebArena's own files name what its scripts make, such as `./.auth/gitlab.reddit_state.json`.
    """
    named = raw.get("storage_state")
    if not named:
        return None
    standard = _STATE.fullmatch(Path(named).name)
    if standard and set(standard[1].split(".")) <= set(raw["sites"]):
        return None
    paths = [folder / str(named) for folder in folders]
    return next((path for path in paths if path.exists()), paths[0])


def together(logins: Mapping[str, Account], urls: Mapping[str, str]) -> dict[str, Account]:
    """Those of the logins, by site, that one browsing context can hold.

    Forum and shops both keep their session in the cookie `PHPSESSID`, and cookies know hosts, not ports: on one host
    name each login ends the other. WebArena makes no login for such a pair and plays its tasks with the forum's alone.
    """
    forum = urlsplit(urls["reddit"]).hostname if "reddit" in logins else None
    lost = {site for site in SHOPS if forum is not None and urlsplit(urls.get(site, "")).hostname == forum}
    return {site: login for site, login in logins.items() if site not in lost}


@dataclass(frozen=True, slots=True)
class LoggedIn:
    """Whether a session is logged in to sites: each one's page of `check` shows itself instead of leading elsewhere."""

    logins: Mapping[str, Account]
    """By address of the site."""

    async def __call__(self, session: ChromiumSession) -> bool:
        """Look at all of them. Raises `InfrastructureError` for a site that does not answer."""
        return all([await _stays(session, base + login.check) for base, login in self.logins.items()])

    def __str__(self) -> str:
        return " and ".join(f"{base}{login.check} shows itself" for base, login in self.logins.items())


async def _stays(session: ChromiumSession, url: str) -> bool:
    await opened(session, url)
    return (await session.observe()).url.split("?")[0].rstrip("/") == url.rstrip("/")


def stored_login(path: Path, logins: Mapping[str, Account]) -> StoredLogin:
    """The login to sites (by address) that a file keeps."""

    async def sign_in(session: ChromiumSession) -> None:
        for base, login in logins.items():
            await log_in(session, base, login)

    check = LoggedIn(logins)
    who = " and ".join(f"{base} as {login.username}" for base, login in logins.items())
    return StoredLogin(path, check, sign_in, f"logging in to {who} failed: it is not so that {check}; check env.logins")


async def log_in(session: ChromiumSession, base: str, login: Account) -> None:
    """Fill in the login form and send it. Raises `InfrastructureError` when there is none.

    Whether it logged in is for `LoggedIn` to say, once all sites have had their turn.
    """
    await opened(session, base + login.page)
    sent = await session.evaluate("last", _FORM % (_quoted(login.username), _quoted(login.password)))
    if not sent:
        raise InfrastructureError(
            f"logging in to {base} as {login.username} failed (there is no password field on {base}{login.page}); "
            "check env.logins"
        )
    for _ in range(20):
        await asyncio.sleep(0.1)
        if await session.evaluate("last", "!document.querySelector('input[type=password]')"):
            break


async def full_reset(base: str, timeout: float, *, poll: float = POLL_SECONDS) -> float:
    """Ask the reset server to reset all sites and wait until it is ready; seconds that it took.

    Raises `InfrastructureError` when it does not become ready in time.
    """
    started = time.monotonic()
    # Some servers answer when they are done.
    await asyncio.to_thread(_get, f"{base.rstrip('/')}/reset", timeout)
    status, logged = "", 0.0
    while (spent := time.monotonic() - started) < timeout:
        status = await asyncio.to_thread(_get, f"{base.rstrip('/')}/status")
        if READY in status.lower():
            log.info("the sites were reset in %.0f s", spent)
            return spent
        if status.startswith(FAILED):
            raise InfrastructureError(f"{base} did not reset the sites: {status.strip()[:300]}")
        if spent >= logged:
            log.warning("resetting the sites: %.0f s, of at most %.0f s: %s", spent, timeout, status.strip()[:80])
            logged = spent + TELL_SECONDS
        await asyncio.sleep(poll)
    raise InfrastructureError(
        f"{base} did not become ready within {timeout:g} s; its status was {status.strip()[:120]!r}"
    )


def _get(url: str, timeout: float = 60.0) -> str:
    try:
        # The reset server is the operator's own, so no address that a page gives ever gets here.
        with urllib.request.urlopen(url, timeout=timeout) as answer:
            return str(answer.read(10_000).decode("utf-8", "replace"))
    except (OSError, HTTPException) as error:
        raise InfrastructureError(f"the reset server does not answer {url}: {error}") from None


_FORM = """
(() => {
  const secret = document.querySelector('input[type=password]');
  if (!secret) return false;
  const form = secret.form || document;
  const user = [...form.querySelectorAll('input')].find(one => ['text', 'email', ''].includes(one.type) && !one.hidden);
  if (!user) return false;
  for (const [field, text] of [[user, %s], [secret, %s]]) {
    field.focus();
    field.select();
    document.execCommand('insertText', false, text);
  }
  const button = form.querySelector('[type=submit], button:not([type])');
  setTimeout(() => button ? button.click() : secret.form.requestSubmit(), 0);
  return true;
})()
"""


def _quoted(text: str) -> str:
    return json.dumps(text)
