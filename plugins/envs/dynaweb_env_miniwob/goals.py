"""The goal of a task and a seed is written by the page itself, so it has to be read out of a browser, once.

Goals are needed when tasks are drawn, where no browser is running and an event loop may be: they are read in a thread
with a browser of its own, many seeds on one page, and kept in a cache file beside the stage cache.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dynaweb import events
from dynaweb.config.files import read_json
from dynaweb.config.keys import digest
from dynaweb.errors import CheckpointError, ConfigError, InfrastructureError
from dynaweb.plugin.registry import notify
from dynaweb.protocols import BrowserSettings
from dynaweb.runs.atomic import write_text
from dynaweb.runs.cache import default_root
from dynaweb.web.chromium.pool import pool_of
from dynaweb.web.environment import run_apart
from dynaweb_env_miniwob.pages import Pages, PageServer, patience
from dynaweb_env_miniwob.scripts import GOALS

if TYPE_CHECKING:
    from dynaweb.web.session import Session

Wanted = tuple[str, int]
"""A task's name and a seed."""


class Goals:
    """Goals by task and seed: from memory, from the cache file, or from the pages."""

    def __init__(self, pages: Pages, web: BrowserSettings, *, cache: Path | None = None) -> None:
        self._pages, self._web = pages, web
        self._file = (cache or default_root()) / "miniwob" / f"goals-{digest(pages.edition)}.json"
        self._known: dict[str, dict[str, str]] | None = None

    def read(self, wanted: Iterable[Wanted]) -> dict[Wanted, str]:
        """The goal of each task and seed. Raises `MissingError` without a browser, `InfrastructureError`."""
        wanted = list(dict.fromkeys(wanted))
        known = self._load()
        lacking: dict[str, list[int]] = {}
        for name, seed in wanted:
            if str(seed) not in known.get(name, {}):
                lacking.setdefault(name, []).append(seed)
        if lacking:
            try:
                run_apart(_read(self._pages, self._web, lacking, known))
            finally:
                # Also after a failure: the next attempt has that much less to read.
                self._save(known)
        return {(name, seed): known[name][str(seed)] for name, seed in wanted}

    def _load(self) -> dict[str, dict[str, str]]:
        if self._known is None:
            self._known = {}
            # A cache that cannot be read is made again.
            with suppress(CheckpointError):
                self._known = read_json(self._file, dict)
        return self._known

    def _save(self, known: Mapping[str, Mapping[str, str]]) -> None:
        with suppress(OSError):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            write_text(self._file, json.dumps(known, ensure_ascii=False))


async def _read(
    pages: Pages, web: BrowserSettings, wanted: Mapping[str, list[int]], known: dict[str, dict[str, str]]
) -> None:
    """Add the goals of every task and seed to `known`, page by page."""
    server = PageServer(pages.folder)
    try:
        async with pool_of(web, urls=server.urls, timeout=patience(web)) as pool:
            session = await pool.session()
            await session.reset()
            for done, (name, seeds) in enumerate(wanted.items(), start=1):
                known.setdefault(name, {}).update(await _goals(session, pages, name, seeds))
                notify(events.Progress("goals of miniwob", done, len(wanted), "pages"))
            await session.close()
    finally:
        server.stop()


async def _goals(session: Session, pages: Pages, name: str, seeds: list[int]) -> dict[str, str]:
    """The goals of one page by seed. Raises `InfrastructureError` when it does not tell them."""
    await session.goto(pages.url(name))
    try:
        goals: dict[str, Any] = await session.evaluate("last", GOALS % {"seeds": json.dumps(seeds)})
    except ConfigError as error:
        raise InfrastructureError(f"the page of {name!r} in {pages.folder} did not start: {error}") from None
    if any(str(seed) not in goals for seed in seeds):
        raise InfrastructureError(f"the page of {name!r} in {pages.folder} tells no goal")
    return {seed: str(goal) for seed, goal in goals.items()}
