"""Copies of the sites: every environment plays on one of its own, which is reset before an episode.

A copy is one address of each site, those at the same place of the lists in `env.urls`. Tasks, observations and stored
trajectories hold the first copy's addresses, whichever copy was played on: what is learned does not depend on it.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import re
import shlex
import signal
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError
from urllib.parse import quote, urlsplit

from dynaweb.errors import ConfigError, InfrastructureError, output_end
from dynaweb.runs.lock import locked
from dynaweb.web.session import UrlMap

if TYPE_CHECKING:
    from dynaweb_env_webarena import WebarenaConfig

log = logging.getLogger("dynaweb")

POLL_SECONDS = 0.5
_OTHER = ".other-copy.invalid"
"""Ends the host name under which an address of another copy is shown: no page of an episode may have it."""


@dataclass(slots=True)
class Copy:
    """One copy of the sites. `number` counts from 1, `urls` has its address of each site; `addresses` maps them to the
    first copy's for a session.
    """

    number: int
    urls: Mapping[str, str]
    addresses: UrlMap = field(default_factory=UrlMap)
    unclean: set[str] = field(default_factory=set)
    """Sites that may not be as they were published."""

    @property
    def auth(self) -> Path:
        """Where its stored logins are, below `env.auth`: a login holds on the copy that it was made on."""
        return Path(f"copy-{self.number}") if self.number > 1 else Path()

    @property
    def _origins(self) -> dict[str, str]:
        """Its own to the first copy's; no others, because texts that an episode has written hold the first copy's."""
        return {own: first for own, first in self.addresses.origins.items() if not first.endswith(_OTHER)}

    def real(self, text: str) -> str:
        """A script or an answer with this copy's addresses in the place of the first one's."""
        return str(_swapped(text, {first: own for own, first in self._origins.items()}))

    def canonical(self, value: Any) -> Any:
        """What a page gave, with the first copy's addresses in all its texts."""
        return _swapped(value, self._origins)


def address_sets(urls: Mapping[str, str | Sequence[str]]) -> list[dict[str, str]]:
    """The addresses of each copy by site, out of `env.urls`; one where no site has a list.

    A site with one address has the same in all copies. Raises `ConfigError` for lists of different lengths, an address
    that is there twice, and copies whose path differs.
    """
    lists = {site: [*map(_as_browsers, value)] for site, value in urls.items() if not isinstance(value, str)}
    if not lists:
        return [{site: value for site, value in urls.items() if isinstance(value, str)}]
    counts = {site: len(value) for site, value in lists.items()}
    if len(set(counts.values())) > 1 or 0 in counts.values():
        words = ", ".join(f"{site} has {count}" for site, count in counts.items())
        raise ConfigError(
            f"the lists of env.urls name the copies of the sites and must be of one length ({words}); a site that all "
            "copies share, because nothing can be changed on it, has one address instead of a list"
        )
    origins: dict[str, str] = {}
    for site, addresses in lists.items():
        for address in addresses:
            if (other := origins.setdefault(_origin(address), site)) != site or addresses.count(address) > 1:
                raise ConfigError(f"env.urls has {address} for {other} and {site}; each copy has an address of its own")
            if urlsplit(address).path != urlsplit(addresses[0]).path:
                raise ConfigError(f"env.urls.{site}: {address} has another path than {addresses[0]}")
    count = next(iter(counts.values()))
    return [
        {site: value if isinstance(value, str) else lists[site][at] for site, value in urls.items()}
        for at in range(count)
    ]


class Copies:
    """The copies of a run. Each is used by one environment at a time, also where several processes name them."""

    def __init__(self, config: WebarenaConfig, sets: Sequence[Mapping[str, str]], at_once: int | None) -> None:
        """`at_once`: episodes that the run has open at once. Raises `ConfigError` where that is more than copies."""
        self.several = any(not isinstance(value, str) for value in config.urls.values())
        """Whether environments have copies of their own; else all share the one."""
        self._sites = {site for site, value in config.urls.items() if not isinstance(value, str)}
        self._reset, self._timeout = config.reset_copy, config.reset_timeout
        if self._reset and not self.several:
            raise ConfigError(
                "env.reset_copy resets a copy before each episode, but env.urls has no list of copies; write the "
                'addresses of a site as a list such as ["http://my-host:7770"]'
            )
        try:
            self._command = [] if self._by_http else shlex.split(self._reset)
        except ValueError as error:
            raise ConfigError(f"env.reset_copy = {self._reset!r} is no command ({error}); check its quotes") from None
        if self._reset and not self._by_http and not self._command:
            raise ConfigError("env.reset_copy is blank; write a command or an address, or leave it out")
        if self.several and at_once is not None and at_once > len(sets):
            raise ConfigError(
                f"web.contexts = {at_once} episodes would be open at once, and env.urls names {len(sets)} "
                f"{'copies' if len(sets) > 1 else 'copy'} of the sites; set web.contexts to {len(sets)} (`--workers` "
                "of `dynaweb eval`), or name more copies"
            )
        self.every = [
            Copy(at + 1, urls, _addresses(sets, at, self._sites), set(self._sites)) for at, urls in enumerate(sets)
        ]
        self._taken: dict[int, ExitStack] = {}

    @property
    def _by_http(self) -> bool:
        return self._reset.startswith(("http://", "https://"))

    @property
    def shared(self) -> Copy:
        """The first copy, which is the only one where there are no lists."""
        return self.every[0]

    async def take(self, among: Sequence[Copy] | None = None) -> Copy:
        """A copy that nobody uses, of all or of some; waits for one.

        Raises `InfrastructureError` after `env.reset_timeout` seconds.
        """
        began, has_waited = time.monotonic(), False
        while time.monotonic() - began < self._timeout:
            for copy in self.every if among is None else among:
                if copy.number not in self._taken and self._lock(copy):
                    return copy
            if not has_waited:
                log.info("all %d copies of the sites are in use; waiting for one", len(self.every))
                has_waited = True
            await asyncio.sleep(POLL_SECONDS)
        raise InfrastructureError(
            f"all {len(self.every)} copies of the sites were in use for {self._timeout:g} s; close environments, or "
            "name more copies in env.urls"
        )

    def give_back(self, copy: Copy) -> None:
        """Whoever has it is done; twice is allowed."""
        if (lock := self._taken.pop(copy.number, None)) is not None:
            lock.close()

    @asynccontextmanager
    async def resetting_all(self) -> AsyncIterator[None]:
        """Within the block all sites are reset, and nobody plays on a copy.

        Raises `InfrastructureError` when others use one for more than `env.reset_timeout` seconds.
        """
        with ExitStack() as stack:
            # One by one in their order: whoever else does the same waits for the first without holding another.
            for copy in self.every if self.several else ():
                stack.callback(self.give_back, await self.take([copy]))
                self._changed(copy, self._sites)
            yield
            for copy in self.every:
                self._were_reset(copy)

    async def prepare(self, copy: Copy, sites: Iterable[str]) -> None:
        """Reset what earlier episodes may have changed on a copy, for an episode on `sites`.

        Raises `InfrastructureError` when that fails; the next episode then tries again.
        """
        if self._reset and copy.unclean:
            began, names = time.monotonic(), sorted(copy.unclean)
            # One that fails may leave anything.
            self._changed(copy, names)
            await self._do_reset(copy, ",".join(names))
            log.info("%s of copy %d reset in %.1f s", ", ".join(names), copy.number, time.monotonic() - began)
            self._were_reset(copy)
        self._changed(copy, self._sites.intersection(sites))

    def look_at(self, copy: Copy, url: str) -> None:
        """Note which site an episode has come to. Raises `InfrastructureError` for a page of another copy."""
        host = urlsplit(url).hostname or ""
        if host.endswith(_OTHER):
            site, number = host.removesuffix(_OTHER).rsplit("-", 1)
            raise InfrastructureError(
                f"copy {copy.number} led to copy {number} of {site}, so that episodes would share its state; the base "
                "address that this copy was set up with is wrong (docs/containers.md)"
            )
        origin = _origin(url)
        self._changed(copy, [site for site in self._sites if _origin(self.shared.urls[site]) == origin])

    def _lock(self, copy: Copy) -> bool:
        # Each site by itself: a run with fewer sites has other copies, of the same addresses. All runs lock in one
        # order, so that of two that want the same sites one gets them.
        files = {site: self._file(copy, site, ".lock") for site in self._sites}
        with ExitStack() as stack:
            for path in sorted(files.values()):
                if not stack.enter_context(locked(path, what=f"copy {copy.number}", wait=False)):
                    return False
            # Others may have played on it since, also those of this process, which has several `Copies` where `env` and
            # `eval.env` differ.
            copy.unclean.update(site for site in files if not self._file(copy, site, ".published").exists())
            self._taken[copy.number] = stack.pop_all()
        return True

    def _changed(self, copy: Copy, sites: Iterable[str]) -> None:
        """Note, for all runs, that sites may no longer be as they were published."""
        for site in sites:
            copy.unclean.add(site)
            self._file(copy, site, ".published").unlink(missing_ok=True)

    def _were_reset(self, copy: Copy) -> None:
        for site in copy.unclean:
            self._file(copy, site, ".published").touch()
        copy.unclean.clear()

    def _file(self, copy: Copy, site: str, suffix: str) -> Path:
        """What runs on this machine know of a site of a copy: `.lock`, and `.published` while nobody has changed it."""
        name = hashlib.sha256(_origin(copy.urls[site]).encode()).hexdigest()[:16]
        return Path(tempfile.gettempdir()) / f"dynaweb-copies-{os.getuid()}" / f"{name}{suffix}"

    async def _do_reset(self, copy: Copy, sites: str) -> None:
        if self._by_http:
            url = self._reset.replace("{copy}", str(copy.number)).replace("{sites}", quote(sites, safe=","))
            why = await asyncio.to_thread(_failed_request, url, self._timeout)
            if why:
                raise InfrastructureError(f"resetting copy {copy.number} failed: {url}: {why}")
            return
        command = [word.replace("{copy}", str(copy.number)).replace("{sites}", sites) for word in self._command]
        why = await _failed_command(command, self._timeout)
        if why:
            raise InfrastructureError(f"resetting copy {copy.number} failed: `{shlex.join(command)}`: {why}")


def _failed_request(url: str, timeout: float) -> str:
    """Why an address did not answer as it should; '' where it did."""
    try:
        # The operator's own server, whose address no page can change.
        with urllib.request.urlopen(url, timeout=timeout) as answer:
            answer.read()
    except HTTPError as error:
        with error, suppress(OSError, HTTPException):
            return f"{error}: {output_end(error.read(10_000).decode('utf-8', 'replace'))}".removesuffix(": ")
        return str(error)
    except (OSError, HTTPException) as error:
        return str(error) or type(error).__name__
    return ""


async def _failed_command(command: Sequence[str], timeout: float) -> str:
    """Why a command failed; '' where it did not. One that takes too long, or whose episode is cancelled, is ended with
    all that it started: it must not reset sites later, when others play on them.
    """
    # Files instead of pipes: a site that the command has started may keep them open.
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as problems:
        try:
            process = await asyncio.create_subprocess_exec(
                *command, stdin=subprocess.DEVNULL, stdout=out, stderr=problems, start_new_session=True
            )
        except (OSError, ValueError) as error:
            return str(error)
        try:
            code = await asyncio.wait_for(process.wait(), timeout)
        except TimeoutError:
            return f"no end after {timeout:g} s"
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        if not code:
            return ""
        texts = []
        for file in (problems, out):
            file.seek(0)
            texts.append(output_end(file.read().decode("utf-8", "replace")))
        return texts[0] or texts[1] or f"exit code {code}"


def _addresses(sets: Sequence[Mapping[str, str]], at: int, sites: Iterable[str]) -> UrlMap:
    """The map of a copy: its own addresses to the first's, and those of other copies to names that give them away."""
    origins: dict[str, str] = {}
    for site in sites:
        for other, urls in enumerate(sets):
            if other != at:
                origins[_origin(urls[site])] = f"http://{site.replace('_', '-')}-{other + 1}{_OTHER}"
        if at:
            origins[_origin(sets[at][site])] = _origin(sets[0][site])
    return UrlMap(origins)


def _as_browsers(url: str) -> str:
    """An address as browsers write it: the copy that a page is of is told by its address."""
    parts = urlsplit(url)
    default = {"http": ":80", "https": ":443"}.get(parts.scheme, "")
    return parts._replace(netloc=parts.netloc.lower().removesuffix(default)).geturl()


def _swapped(value: Any, origins: Mapping[str, str]) -> Any:
    if isinstance(value, str) and origins:
        # `http://host:77` is no part of `http://host:7770` or of `http://host:77.org`; a full stop may end it.
        pattern = rf"({'|'.join(map(re.escape, origins))})(?![\w-]|[.:@]\w)"
        return re.sub(pattern, lambda match: origins[match[0]], value)
    if isinstance(value, Mapping):
        return {key: _swapped(inner, origins) for key, inner in value.items()}
    return [_swapped(inner, origins) for inner in value] if isinstance(value, list) else value


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"
