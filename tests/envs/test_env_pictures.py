"""Every environment with a browser gives pictures of its pages when the settings ask for them."""

from __future__ import annotations

import io
import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from PIL import Image as Pillow

from dynaweb.config.sections import ObservationSettings
from dynaweb.data.images import ImageStore
from dynaweb.protocols import EnvironmentContext
from dynaweb.runs import sidecar
from dynaweb.types import Action, Observation
from dynaweb_env_browsergym import BrowsergymConfig
from dynaweb_env_browsergym.env import BrowsergymSource
from dynaweb_env_miniwob import MiniwobConfig
from dynaweb_env_miniwob.env import MiniwobSource
from dynaweb_env_sites import SitesConfig
from dynaweb_env_sites.env import SitesSource
from dynaweb_env_sites.server import SitesServer, create_app
from dynaweb_env_sites.tasks import sites as embedded
from dynaweb_env_sites.world_store import WorldStore
from dynaweb_env_webarena import WebarenaConfig
from dynaweb_env_webarena.env import WebarenaSource
from dynaweb_env_webvoyager import WebvoyagerConfig
from dynaweb_env_webvoyager.env import WebvoyagerSource

# Before any test points the cache elsewhere.
BROWSERGYM = sidecar._python(sidecar.root() / "browsergym")
SEEING = ObservationSettings(modality="both", marks=True, width=900, height=700)


@pytest.fixture
def store(tmp_path: Path) -> ImageStore:
    return ImageStore(tmp_path / "images")


async def first_pages(source: Any, store: ImageStore, task: Any) -> tuple[Any, list[Observation]]:
    """The environment, the first page, and the one after a scroll, each with its picture checked."""
    environment = source.environment()
    page = await environment.reset(task, 0)
    pages = [page, (await environment.step(Action("scroll", text="down"))).observation]
    for one in pages:
        shot = one.screenshot
        assert shot is not None, one.notice
        assert shot.marks and Pillow.open(io.BytesIO(store.get(shot.image))).size == (
            shot.image.width,
            shot.image.height,
        )
    return environment, pages


def context(store: ImageStore) -> EnvironmentContext:
    return EnvironmentContext(observation=SEEING, images=store)


async def test_sites(store: ImageStore) -> None:
    source = SitesSource(SitesConfig(), context(store))
    _, pages = await first_pages(source, store, source.tasks("test", count=1, seed=0)[0])
    assert all(page.screenshot is not None and page.screenshot.viewport == (900, 700) for page in pages)
    await source.close()


@pytest.mark.skipif(find_spec("miniwob") is None, reason="needs the pages of the package miniwob")
async def test_miniwob(store: ImageStore) -> None:
    source = MiniwobSource(MiniwobConfig(templates=("click-test-2",)), context(store))
    _, pages = await first_pages(source, store, source.tasks("test", count=1, seed=0)[0])
    assert all(page.screenshot is not None and page.screenshot.viewport == (900, 700) for page in pages)
    await source.close()


async def test_webarena_and_webvoyager_with_its_own_folder(store: ImageStore, tmp_path: Path) -> None:
    with SitesServer(create_app(WorldStore(embedded()))) as server:
        address = f"http://shop.localhost:{server.port}/"
        task: dict[str, Any] = {"task_id": 1, "sites": ["shop"], "intent": "Look", "start_url": address}
        evaluation = {"eval_types": ["string_match"], "reference_answers": {"exact_match": "42"}}
        (tmp_path / "tasks.json").write_text(json.dumps([{**task, "eval": evaluation}]), encoding="utf-8")
        config = WebarenaConfig(path=str(tmp_path / "tasks.json"), urls={"shop": address}, view="compact")
        arena = WebarenaSource(config, context(store))
        await first_pages(arena, store, arena.catalogue("test")[0])
        await arena.close()
        line = {"web_name": "Shop", "id": "Shop--0", "ques": "What is it?", "web": address}
        (tmp_path / "WebVoyager_data.jsonl").write_text(json.dumps(line), encoding="utf-8")
        folder = tmp_path / "readable"
        options = WebvoyagerConfig(path=str(tmp_path), hosts=("*.localhost", "127.0.0.1"), screenshots=str(folder))
        voyager = WebvoyagerSource(options, context(store))
        environment, pages = await first_pages(voyager, store, voyager.catalogue("test")[0])
        # The picture of a page is taken once; its copy has a readable name.
        copies = [Path(path).read_bytes() for path in environment.pictures]
        assert copies == [store.get(page.screenshot.image) for page in pages if page.screenshot]
        await voyager.close()


@pytest.mark.skipif(not BROWSERGYM.exists(), reason="needs: dynaweb env install browsergym")
async def test_browsergym(store: ImageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    config = BrowsergymConfig(id="browsergym/miniwob.click-test-2", python=str(BROWSERGYM))
    source = BrowsergymSource(config, context(store))
    environment, pages = await first_pages(source, store, source.tasks("test", count=1, seed=0)[0])
    assert pages[0].screenshot is not None and pages[0].screenshot.scale == 1.0
    # The buttons are framed: without marks the picture is another one.
    reply = dict(environment._reply)
    plain = await environment._read({**reply, "boxes": {}})
    assert plain.screenshot is not None and plain.screenshot.image != pages[1].screenshot.image
    # A picture that did not come is a notice.
    for broken in ({"no_picture": "KeyError: 'screenshot'"}, {"picture": "aGVsbG8="}, {"picture": 7}):
        page = await environment._read({**{k: v for k, v in reply.items() if k != "picture"}, **broken})
        assert page.screenshot is None and page.notice.startswith("there is no picture of this page: ")
        assert page.nodes == pages[1].nodes
    await environment.close()
