"""What pages offer for download during a run is kept in the run's folder, in every environment with a browser."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from web_pages import PageServer, acted, serving

from dynaweb.config import resolve
from dynaweb.config.sections import Web
from dynaweb.pipeline.context import RunContext
from dynaweb.plugin.registry import current
from dynaweb.protocols import EnvironmentContext
from dynaweb.runs.cache import StageCache
from dynaweb.web.chromium import downloads
from dynaweb.web.chromium.downloads import LEAST, Budget, safe_name, store
from dynaweb.web.chromium.pool import BrowserPool, pool_of


@pytest.mark.asyncio
async def test_a_file_that_a_page_offers_is_kept_below_the_folder(tmp_path: Path) -> None:
    with serving() as server:
        server.pages["/"] = "<a href=/download>List</a>"
        async with pool_of(Web(action_timeout=2.0), tmp_path) as pool:
            session = await pool.session()
            await session.reset()
            await session.goto(server.url())
            reason, page = await acted(session, await session.observe(), "click 'List' []")
    content = (tmp_path / "downloads" / "bücher.csv").read_bytes()
    assert content.endswith(b"data")
    assert (reason, page.notice) == ("", f"a file was downloaded: bücher.csv ({len(content)} bytes)")


@pytest.mark.asyncio
async def test_downloads_are_kept_up_to_a_size(tmp_path: Path) -> None:
    with serving() as server:
        await _downloaded(server, tmp_path)


async def _downloaded(server: PageServer, tmp_path: Path) -> None:
    server.pages["/"] = "<a href=/download>named</a><a href='/file?1000'>small</a><a href='/file?3000000'>large</a>"
    async with BrowserPool(downloads=tmp_path / "kept", max_download=1_000_000) as pool:
        session = await pool.session()
        await session.reset()
        await session.goto(server.url())
        page = await session.observe()
        for name, notice in (
            ("named", "a file was downloaded: bücher.csv"),
            ("small", "a file was downloaded: _data.bin (1000 bytes)"),
            # The same words, whatever earlier episodes left in the folder.
            ("small", "a file was downloaded: _data.bin (1000 bytes)"),
            ("large", "a download was refused: _data.bin is larger than 1000000 bytes"),
        ):
            reason, page = await acted(session, page, f"click '{name}' []")
            assert (reason, page.url) == ("", server.url("/"))
            assert page.notice.startswith(notice)
        sizes = {path.name: path.stat().st_size for path in (tmp_path / "kept").iterdir()}
        assert {name for name, size in sizes.items() if size == 1000} == {"_data.bin", "_data (2).bin"}
        assert set(sizes) == {"_data.bin", "_data (2).bin", "bücher.csv"}


@pytest.mark.asyncio
async def test_a_pool_keeps_no_more_than_its_budget_and_the_agent_sees_no_difference(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with serving() as server:
        server.pages["/"] = "<a href='/file?1000'>file</a>"
        async with BrowserPool(downloads=tmp_path, download_budget=LEAST) as pool:
            notices = set()
            for _ in range(3):
                session = await pool.session()
                await session.reset()
                await session.goto(server.url())
                notices.add((await acted(session, await session.observe(), "click 'file' []"))[1].notice)
                await session.close()
    assert notices == {"a file was downloaded: _data.bin (1000 bytes)"}
    assert [path.name for path in tmp_path.iterdir()] == ["_data.bin"]
    assert caplog.text.count("the budget for downloads is used up") == 1


@pytest.mark.parametrize(
    ("name", "safe"),
    [
        ("../.x.csv", "_.x.csv"),
        ("語" * 100 + ".csv", "語" * 33 + ".csv"),
        ("語" * 100, "語" * 40),
        ("a" * 200 + ".csv", "a" * 100 + ".csv"),
        ("...", "download"),
    ],
)
def test_names_are_made_safe_and_short_in_bytes(name: str, safe: str) -> None:
    assert safe_name(name) == safe


@pytest.mark.asyncio
async def test_files_are_kept_where_there_are_no_links_in_a_thread_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = []

    def refuses(part: Path, target: Path) -> None:
        threads.append(threading.current_thread())
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(downloads.os, "link", refuses)
    (tmp_path / "guid").write_bytes(b"data")
    for _ in range(2):
        await store(tmp_path / "guid", tmp_path / "kept", "a.csv", 4, Budget(2 * LEAST))
    assert {path.name: path.read_bytes() for path in (tmp_path / "kept").iterdir()} == {
        "a.csv": b"data",
        "a (2).csv": b"data",
    }
    assert threading.main_thread() not in threads


@pytest.mark.asyncio
async def test_a_file_that_cannot_be_kept_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "guid").write_bytes(b"data")
    budget = Budget(LEAST)
    with pytest.raises(OSError, match="too long"):
        await store(tmp_path / "guid", tmp_path / "kept", "語" * 100, 4, budget)
    assert not list((tmp_path / "kept").iterdir()) and budget.left == LEAST


def test_options_of_an_environment_come_before_the_recipes() -> None:
    pool = pool_of(Web(workers=3, action_timeout=1.5), timeout=9.0, view="full")
    assert (pool._workers, pool.timeout, pool.view, pool.downloads) == (3, 9.0, "full", None)


@pytest.mark.parametrize(
    ("name", "settings"),
    [("sites", {}), ("miniwob", {}), ("webarena", {"urls": {"reddit": "http://forum.localhost"}}), ("webvoyager", {})],
)
def test_every_environment_passes_its_folder_on(name: str, settings: dict[str, Any], tmp_path: Path) -> None:
    if name == "miniwob":
        (tmp_path / "miniwob").mkdir()
        (tmp_path / "miniwob" / "click.html").write_text("")
        settings = {"path": str(tmp_path)}
    plugins = current()
    config = plugins.find("env", name).spec.config(**settings)
    source: Any = plugins.create("env", name, config, EnvironmentContext(folder=tmp_path))
    pool = source.browser() if name == "webarena" else source._browser()
    assert pool.downloads == tmp_path / "downloads"
    asyncio.run(source.close())


def test_a_run_hands_its_folder_to_its_environments(tmp_path: Path) -> None:
    recipe = resolve(env="sites")
    run: Any = SimpleNamespace(path=tmp_path)
    assert RunContext(recipe, current(), StageCache(tmp_path), run).envs.context("eval").folder == tmp_path
