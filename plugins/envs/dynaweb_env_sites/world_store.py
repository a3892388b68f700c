"""Worlds: the state of all sites in one episode, and which of them a request belongs to (by token)."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from itertools import count
from typing import Any

from dynaweb.types import Split
from dynaweb_env_sites.base import Site
from dynaweb_env_sites.content import Locale, locale_of
from dynaweb_env_sites.state import SiteState

HEADER = "X-Dynaweb-World"
DEFAULT_TOKEN = "0"
"""The world of requests without the header: a person who looks around."""


class World:
    """All sites of one episode: one state each, and the lock that its requests take."""

    def __init__(self, sites: Mapping[str, Site[Any]], seed: int, split: Split, locale: Locale | None = None) -> None:
        self.seed = seed
        self.split = split
        self.locale = locale or locale_of(seed)
        self.lock = threading.RLock()
        self._states: dict[str, SiteState] = {
            name: site.build(seed, split, self.locale) for name, site in sites.items()
        }

    def state(self, site: str) -> SiteState:
        """The state of a site by name."""
        return self._states[site]

    def snapshot(self, site: str) -> dict[str, Any]:
        """A site's state as plain data, consistent with respect to running requests."""
        with self.lock:
            return self._states[site].snapshot()


class WorldStore:
    """Worlds by token; every method may be called from any thread.

    Generated content is cached by the sites themselves per (seed, split, locale), so a new world costs milliseconds.
    """

    def __init__(self, sites: Mapping[str, Site[Any]]) -> None:
        self.sites = dict(sites)
        self._worlds: dict[str, World] = {}
        self._lock = threading.Lock()
        self._numbers = count(1)

    def world(self, seed: int, split: Split, locale: Locale | None = None) -> World:
        """A fresh world that is not in the store yet; the locale follows from the seed unless given."""
        return World(self.sites, seed, split, locale)

    def new_token(self) -> str:
        """A token that no other episode of this process uses."""
        return str(next(self._numbers))

    def put(self, token: str, world: World) -> None:
        """Make this the world of the token. This is the reset of an episode."""
        with self._lock:
            self._worlds[token] = world

    def get(self, token: str) -> World | None:
        """The world of a token. The default token always has one (site seed 10000 of the train split)."""
        with self._lock:
            world = self._worlds.get(token)
            if world is None and token == DEFAULT_TOKEN:
                world = self._worlds[token] = self.world(10_000, "train")
            return world

    def drop(self, token: str) -> None:
        """Forget a world; an unknown token is fine."""
        with self._lock:
            self._worlds.pop(token, None)
