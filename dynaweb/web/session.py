"""What acts on pages (`Session`), and the mapping between real and canonical addresses (`UrlMap`)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from dynaweb.types import Action, Observation

Region = Literal["page", "viewport"]
"""What of a page is shown: all of it, or what the window shows without scrolling."""
QUIET_WINDOW = 0.08
"""Seconds without a change after which a page with scripts counts as settled."""
SETTLE_SECONDS = 2.0
"""Seconds after which a page that keeps changing, or still waits for something, is read as it is."""
WINDOW = (1280, 720)
"""Width and height of the window in CSS pixels, where no others are asked for."""

_SCHEME = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*:(?!\d)")


@runtime_checkable
class Session(Protocol):
    """One browsing context: what an episode is played in. All addresses are canonical (see `UrlMap`)."""

    async def reset(self, *, headers: Mapping[str, str] | None = None, storage_state: Path | None = None) -> None:
        """Start clean: no cookies, no storage, one empty tab, no history.

        `headers` go with every request; `storage_state` is a login saved by Playwright. Raises `BrowserError` when the
        browser cannot be started and `ConfigError` for a stored login that cannot be read.
        """
        ...

    async def goto(self, url: str) -> None:
        """Open an address in the current tab. A page that cannot be loaded is an error page with a notice."""
        ...

    async def observe(self) -> Observation:
        """The current page in the session's view; the last notice is included once. Raises `BrowserError`."""
        ...

    async def act(self, action: Action) -> str:
        """Do an action of the last observation: '' or the reason why it was refused or failed.

        Raises `BrowserError` when the browser itself is gone; never for what the action says.
        """
        ...

    async def html(self, url: str) -> str:
        """The HTML of an address, loaded in a second page of the same context; `last` is the current page."""
        ...

    async def evaluate(self, url: str, script: str) -> Any:
        """The value of a JavaScript expression on that page (`last` is the current page)."""
        ...

    async def close(self) -> None:
        """Free everything; calling it twice is allowed."""
        ...


class UrlMap:
    """Maps real origins (with the port of this run) to canonical ones (the same in every run), and back.

    `UrlMap({"http://shop.localhost:8123": "http://shop.localhost"})`. Addresses of other origins are left alone.
    """

    def __init__(self, origins: Mapping[str, str] | None = None) -> None:
        self._canonical = {real.rstrip("/"): name.rstrip("/") for real, name in (origins or {}).items()}
        self._real = {name: real for real, name in self._canonical.items()}

    @property
    def origins(self) -> Mapping[str, str]:
        """Real origin -> canonical origin."""
        return dict(self._canonical)

    def canonical(self, url: str) -> str:
        """The address as observations, tasks and evaluations write it."""
        return _swap_origin(url, self._canonical)

    def real(self, url: str) -> str:
        """The address as the browser needs it; `shop.localhost/x` is read as `http://shop.localhost/x`."""
        return _swap_origin(with_scheme(url), self._real)


def with_scheme(url: str) -> str:
    """Put `http://` before an address that names no scheme."""
    url = url.strip()
    return url if _SCHEME.match(url) else f"http://{url}"


def is_address(url: str) -> bool:
    """Whether the address can be taken apart; `http://[` cannot."""
    try:
        urlsplit(url)
    except ValueError:
        return False
    return True


def _swap_origin(url: str, table: Mapping[str, str]) -> str:
    scheme, separator, rest = url.partition("://")
    if not separator:
        return url
    end = next((i for i, char in enumerate(rest) if char in "/?#"), len(rest))
    origin = f"{scheme}://{rest[:end]}"
    return table.get(origin, origin) + rest[end:]
