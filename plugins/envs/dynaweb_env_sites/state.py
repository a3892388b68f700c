"""The state of a site in one episode: what every site has, and what those with accounts have."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any

from dynaweb.types import Split
from dynaweb_env_sites.content import Locale, Words


@dataclass
class SiteState(ABC):
    """Mutable state of one site in one episode; sub-classes add fields and keep generated content in frozen values."""

    seed: int
    split: Split
    locale: Locale
    notice: str = field(default="", kw_only=True)

    @abstractmethod
    def snapshot(self) -> dict[str, Any]:
        """The state as plain data for the server-state check."""

    def take_notice(self) -> str:
        """The pending message for the user, once."""
        notice, self.notice = self.notice, ""
        return notice

    def new_words(self, rng: random.Random) -> Words:
        """Words of the split and locale for what a task writes: titles, texts, names."""
        return Words(rng.getrandbits(48), self.split, self.locale, "task")


@dataclass(frozen=True, slots=True)
class Contact:
    """What every account's settings begin with."""

    name: str
    email: str


@dataclass
class AccountState(SiteState):
    """A site with a settings page."""

    settings: Contact
