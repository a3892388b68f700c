"""Which world a request belongs to: worlds by token, one per running episode."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from itertools import count

from dynaweb.types import Split
from dynaweb_env_sites.base import Site, World
from dynaweb_env_sites.content import Locale

HEADER = "X-Dynaweb-World"
DEFAULT_TOKEN = "0"
"""The world of requests without the header: a person who looks around."""


class WorldStore:
    """Worlds by token; every method may be called from any thread.

    Generated content is cached by the sites themselves per (seed, split, locale), so a new world costs milliseconds.
    """

    def __init__(self, sites: Mapping[str, Site]) -> None:
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
            held = self._worlds.get(token)
            if held is None and token == DEFAULT_TOKEN:
                held = self._worlds[token] = self.world(10_000, "train")
            return held

    def drop(self, token: str) -> None:
        """Forget a world; an unknown token is fine."""
        with self._lock:
            self._worlds.pop(token, None)
