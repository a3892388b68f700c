"""Pictures of pages in the report and the viewer: from a disk, served, and as a static site."""

from __future__ import annotations

import io
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image as Pillow
from playwright.sync_api import Page, sync_playwright
from report_fakes import episode, served

from dynaweb.data.images import ImageStore
from dynaweb.data.store import TrajectoryStore
from dynaweb.report import build_report
from dynaweb.serve.export import export
from dynaweb.types import Image, Screenshot
from dynaweb.web.chromium.install import find


def png(shade: int) -> bytes:
    out = io.BytesIO()
    Pillow.new("RGB", (64, 48), (shade, 20, 60)).save(out, "PNG")
    return out.getvalue()


@pytest.fixture
def run(tmp_path: Path) -> tuple[Path, list[Image]]:
    """A run with one episode: the first page has a picture, the second one that is missing, the others none."""
    folder = tmp_path / "run"
    store = ImageStore(folder / "images")
    shots = [store.put(png(shade)) for shade in (10, 200)]
    store.path(shots[1]).unlink()
    one = episode(0, "success")
    first, second, *rest = one.steps

    def seen(step: Any, shot: Image) -> Any:
        picture = Screenshot(shot, (1280, 720), 0.05, marks=True)
        return replace(step, observation=replace(step.observation, screenshot=picture))

    one = replace(one, task=replace(one.task, images=(store.put(png(90)),)))
    one = replace(one, steps=(seen(first, shots[0]), seen(second, shots[1]), *rest))
    TrajectoryStore(folder / "trajectories" / "eval-sft.jsonl.gz").append([one])
    for name, data in (("recipe", {"settings": {"run": {"seed": 0}}, "origins": {}}), ("status", {"status": "done"})):
        (folder / f"{name}.json").write_text(json.dumps(data), encoding="utf-8")
    build_report(folder)
    return folder, shots


@pytest.fixture(scope="module")
def browser_page() -> Iterator[Page]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(find().path))
        yield browser.new_page(viewport={"width": 1300, "height": 900})
        browser.close()


def check(page: Page, address: str, shots: list[Image]) -> None:
    """The picture is seen, small, with a link to itself; the missing one is said."""
    page.goto(address)
    goal = page.locator(".goal .picture img")
    goal.first.evaluate("one => one.decode()")
    assert goal.count() == 1 and "it belongs to the goal" in str(goal.first.get_attribute("alt"))
    image = page.locator(".page .picture img").first
    image.scroll_into_view_if_needed()
    image.evaluate("one => one.decode()")
    assert image.evaluate("one => one.naturalWidth") == 64
    assert "window 1280 x 720, scale 0.05, with marks" in str(image.get_attribute("alt"))
    page.locator(".missing").wait_for()
    assert page.locator(".missing").inner_text() == f"The picture {address_of(shots[1])} is missing or damaged."
    assert str(page.locator(".page a.picture").first.get_attribute("href")).endswith(address_of(shots[0]))


def address_of(shot: Image) -> str:
    return f"images/{shot.sha256[:2]}/{shot.sha256}.png"


def test_the_report_and_both_viewers_show_pictures(
    run: tuple[Path, list[Image]], tmp_path: Path, browser_page: Page
) -> None:
    folder, shots = run
    check(browser_page, f"file://{folder}/report.html#trajectory-0-1", shots)
    with served(folder.parent) as address:
        check(browser_page, f"{address}/run/report.html#trajectory-0-1", shots)
    lines: list[str] = []
    export(folder.parent, tmp_path / "site", progress=lines.append)
    assert f"run/{address_of(shots[1])} is missing or damaged: its place on the pages says so" in lines
    assert (tmp_path / "site" / "run" / address_of(shots[0])).read_bytes() == png(10)
    check(browser_page, f"file://{tmp_path}/site/run/report.html#trajectory-0-1", shots)
    # Written again without the picture, the site loses it.
    ImageStore(folder / "images").path(shots[0]).unlink()
    export(folder.parent, tmp_path / "site")
    assert not (tmp_path / "site" / "run" / address_of(shots[0])).exists()


@pytest.mark.parametrize("name", ["webdata", "data"])
def test_a_store_of_any_name_has_its_pictures(
    run: tuple[Path, list[Image]], name: str, tmp_path: Path, browser_page: Page
) -> None:
    """Its blocks lie below `data/` of the run, and the pictures beside that."""
    folder, shots = run
    store = folder / "trajectories" / "eval-sft.jsonl.gz"
    store.rename(store.with_name(f"{name}.jsonl.gz"))
    build_report(folder)
    for root, at in ((folder.parent, "run/"), (folder, "")):
        site = tmp_path / f"site of {root.name}"
        export(root, site)
        assert (site / at / address_of(shots[0])).read_bytes() == png(10)
        check(browser_page, f"file://{site}/{at}report.html#trajectory-0-1", shots)


def test_only_pictures_of_runs_are_served_and_only_as_they_were_written(run: tuple[Path, list[Image]]) -> None:
    folder, shots = run
    (folder / "images" / "secret.txt").write_text("s")
    with served(folder) as address:

        def status(path: str) -> int:
            try:
                with urllib.request.urlopen(f"{address}/{path}") as reply:
                    assert reply.headers["Content-Type"] == "image/png"
                    return int(reply.status)
            except urllib.error.HTTPError as error:
                return error.code

        good = address_of(shots[0])
        assert status(good) == 200
        for path in (address_of(shots[1]), "images/secret.txt", f"images/../{good}x", good.replace(".png", ".PNG")):
            assert status(path) == 404
        assert status(f"images/zz/{good.rpartition('/')[2]}") == 404
        (folder / good).write_bytes(png(11))
        assert status(good) == 404


def test_a_report_without_pictures_may_load_none(tmp_path: Path, run: tuple[Path, list[Image]]) -> None:
    folder, _ = run
    assert "img-src" in (folder / "report.html").read_text(encoding="utf-8")
    TrajectoryStore.write(folder / "trajectories" / "eval-sft.jsonl.gz", [episode(0, "success")])
    build_report(folder)
    assert "img-src" not in (folder / "report.html").read_text(encoding="utf-8")
