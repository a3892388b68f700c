"""Pictures of pages and the marks in them, in a real browser: what they show, and that the page learns nothing."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from PIL import Image as Pillow
from PIL import ImageColor
from web_pages import PageServer, serving

from dynaweb.data.images import ImageStore
from dynaweb.errors import BrowserError, ImageError
from dynaweb.types import Action, Observation
from dynaweb.web import pictures as drawing
from dynaweb.web.chromium.devtools import TabError
from dynaweb.web.chromium.pool import BrowserPool
from dynaweb.web.chromium.session import ChromiumSession
from dynaweb.web.chromium.tab import Tab
from dynaweb.web.pictures import COLORS, Pictures

pytestmark = pytest.mark.asyncio(loop_scope="module")

WINDOW = (800, 600)
RED, WHITE, BLACK = (255, 0, 0), (255, 255, 255), (0, 0, 0)
SPY = """<script>window.seen = [];
new MutationObserver(() => seen.push('change')).observe(document, {subtree: true, childList: true, attributes: true});
for (const kind of ['resize', 'blur', 'focus', 'scroll', 'visibilitychange'])
  addEventListener(kind, () => seen.push(kind));
matchMedia('(min-resolution: 1.5dppx)').addEventListener('change', () => seen.push('resolution'));</script>"""
PAGE = f"""<body style="margin:0"><h1 style="margin:0;height:50px">Top</h1>
<a href=/one style="position:absolute;left:100px;top:100px;width:60px;height:20px">One</a>
<div style="background:#000;position:absolute;left:0;top:200px;width:800px;height:100px">
<button style="position:absolute;left:300px;top:40px;width:90px;height:24px">Two</button></div>
<input style="position:absolute;left:100px;top:350px;width:80px" autofocus>
<a href=/deep style="position:absolute;left:100px;top:1500px">Below the window</a>{SPY}"""


@pytest.fixture(scope="module")
def server() -> Iterator[PageServer]:
    with serving() as running:
        running.pages["/"] = PAGE
        yield running


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> ImageStore:
    return ImageStore(tmp_path_factory.mktemp("run") / "images")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool(store: ImageStore) -> AsyncIterator[BrowserPool]:
    async with BrowserPool(pictures=Pictures(store, WINDOW)) as pool:
        yield pool


@pytest_asyncio.fixture(loop_scope="module")
async def session(pool: BrowserPool, server: PageServer) -> AsyncIterator[ChromiumSession]:
    session = await pool.session()
    await session.reset()
    await session.goto(server.url())
    yield session
    await session.close()


def wanted(pool: BrowserPool, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    assert pool.pictures is not None
    monkeypatch.setattr(pool, "pictures", replace(pool.pictures, **changes))


def opened(store: ImageStore, page: Observation) -> Any:
    assert page.screenshot is not None, page.notice
    return Pillow.open(io.BytesIO(store.get(page.screenshot.image))).convert("RGB")


@pytest.mark.parametrize("scale", [1.0, 2.0, 0.5])
async def test_a_page_has_its_picture_and_does_not_learn_of_it(
    session: ChromiumSession, pool: BrowserPool, store: ImageStore, monkeypatch: pytest.MonkeyPatch, scale: float
) -> None:
    wanted(pool, monkeypatch, scale=scale, marks=True)
    page = await session.observe()
    shot = page.screenshot
    assert shot is not None and (shot.viewport, shot.scale, shot.marks) == (WINDOW, scale, True)
    assert (shot.image.width, shot.image.height) == (WINDOW[0] * scale, WINDOW[1] * scale)
    picture = opened(store, page)
    assert picture.size == (shot.image.width, shot.image.height)
    assert (
        picture.getpixel((700 * scale, 250 * scale)) == BLACK and picture.getpixel((700 * scale, 500 * scale)) == WHITE
    )
    facts = "[seen.join(), devicePixelRatio, innerWidth, innerHeight, document.styleSheets.length]"
    assert await session.evaluate("last", facts) == ["", 1, *WINDOW, 0]
    styles = "getComputedStyle(document.querySelector('input')).caretColor"
    assert await session.evaluate("last", styles) != "rgba(0, 0, 0, 0)"


async def test_the_same_page_gives_the_same_picture_though_its_cursor_blinks(session: ChromiumSession) -> None:
    shots = set()
    for _ in range(4):
        page = await session.observe()
        assert page.screenshot is not None
        shots.add(page.screenshot.image)
        await session.act(Action("wait"))
    assert len(shots) == 1


async def test_marks_have_the_numbers_of_the_text_and_stand_where_the_elements_are(
    session: ChromiumSession, pool: BrowserPool, store: ImageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = opened(store, await session.observe())
    wanted(pool, monkeypatch, marks=True)
    page = await session.observe()
    numbers = {node.name: node.id for node in page.nodes}
    boxes = drawing.marked(page.nodes, session.boxes(), WINDOW)
    assert set(boxes) == {numbers["One"], numbers["Two"], numbers[""]}, "the heading and the link below have none"
    picture = opened(store, page)
    for name, (x, y) in {"One": (100, 100), "Two": (300, 240)}.items():
        box = boxes[numbers[name]]
        assert (box.x, box.y) == (x, y)
        color = ImageColor.getrgb(COLORS[numbers[name] % len(COLORS)])
        # Around the element, with an edge that shows on black and on white; inside it nothing has changed.
        assert picture.getpixel((x + 20, y - 2)) == color and picture.getpixel((x + 20, y + box.height)) == color
        assert picture.getpixel((x + 40, y - 3)) == WHITE
        inside = (x, y, int(x + box.width), int(y + box.height))
        assert picture.crop(inside).tobytes() == plain.crop(inside).tobytes()
    assert picture.crop((0, 450, 800, 600)).tobytes() == plain.crop((0, 450, 800, 600)).tobytes()


CUT = {
    "in a list": ("<div style='height:50px;overflow:auto'>{}</div>", "<a href=/a>Cut</a>", (400, 50)),
    "before the start of a list": (
        "<div style='height:50px;overflow:auto'>{}</div><script>document.querySelector('div').scrollTop = 500</script>",
        "<a href=/a style='display:block;height:20px'>Cut</a><p style='height:900px'>",
        None,
    ),
    "of a list that hides": ("<div style='width:60px;overflow:hidden'>{}</div>", "<a href=/a>Cut</a>", (60, 300)),
    "in a list within one": (
        "<div style='height:40px;overflow:auto'><div style='height:300px;overflow:auto'>{}</div></div>",
        "<a href=/a>Cut</a>",
        (400, 40),
    ),
    "along one axis": ("<div style='width:60px;overflow-x:clip'>{}</div>", "<a href=/a>Cut</a>", (60, 300)),
    "that has its place in the list": (
        "<div style='height:50px;overflow:auto;position:relative'>{}</div>",
        "<a href=/a style='position:absolute'>Cut</a>",
        (400, 50),
    ),
    "that has its place in the page": (
        "<div style='height:50px;overflow:auto'>{}</div>",
        "<a href=/a style='position:absolute'>Cut</a>",
        (400, 300),
    ),
    "that has its place in the window": (
        "<div style='height:50px;overflow:auto;position:relative'>{}</div>",
        "<a href=/a style='position:fixed'>Cut</a>",
        (400, 300),
    ),
    "in a frame": (
        "<iframe style='border:0;width:200px;height:50px' srcdoc=\"{}\"></iframe>",
        "<a href=/a>Cut</a>",
        (200, 50),
    ),
    "whose page hides": ("<style>body {{ overflow:hidden; height:50px }}</style>{}", "<a href=/a>Cut</a>", (400, 300)),
    "in lines of text": ("<span style='overflow:hidden'>{}</span>", "<a href=/a>Cut</a>", (400, 300)),
}
"""What an element of 400 x 300 CSS pixels at the start of a page stands in, the element, and how much of it shows."""


@pytest.mark.parametrize("case", CUT)
async def test_marks_are_around_what_shows_of_an_element(
    session: ChromiumSession, pool: BrowserPool, server: PageServer, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    around, element, size = CUT[case]
    large = (
        "<style>body, p {{ margin:0 }} a {{ display:inline-block; width:400px; height:300px; background:red }}</style>"
    )
    server.pages["/cut"] = f"<!doctype html>{large.format()}" + around.format(
        large.format() + element if "srcdoc" in around else element
    )
    drawn: list[Any] = []
    keep = drawing.Pictures.keep
    monkeypatch.setattr(
        drawing.Pictures, "keep", lambda self, png, boxes: (drawn.append(boxes), keep(self, png, boxes))[1]
    )
    wanted(pool, monkeypatch, marks=True)
    await session.goto(server.url("/cut"))
    page = await session.observe()
    (number,) = (node.id for node in page.nodes if node.role == "link")
    sizes = {at: (round(box.width), round(box.height)) for at, box in drawn[-1].items()}
    assert sizes == ({} if size is None else {number: size})


@pytest.mark.parametrize(
    "link",
    [
        "<a href=/a style='position:absolute'><img style='float:left' width=80 height=60 alt=x></a>",
        "<a href=/a style='position:absolute;width:0;height:0'><b style='float:left;width:80px;height:60px'>x</b></a>",
        "<a href=/a style='display:contents'><b style='display:block;width:80px;height:60px'>x</b></a>",
    ],
)
async def test_an_element_without_a_size_is_marked_where_its_content_is(
    session: ChromiumSession,
    pool: BrowserPool,
    store: ImageStore,
    server: PageServer,
    monkeypatch: pytest.MonkeyPatch,
    link: str,
) -> None:
    server.pages["/empty"] = f"<!doctype html><style>body {{ margin:20px }}</style><body>{link}"
    wanted(pool, monkeypatch, marks=True)
    await session.goto(server.url("/empty"))
    page = await session.observe()
    (number,) = (node.id for node in page.nodes if node.role == "link")
    picture, color = opened(store, page), ImageColor.getrgb(COLORS[number % len(COLORS)])
    assert [picture.getpixel(at) for at in ((50, 18), (18, 50), (50, 80), (100, 50))] == [color] * 4


async def test_a_picture_is_taken_when_the_page_has_settled(
    session: ChromiumSession, store: ImageStore, server: PageServer
) -> None:
    late = "document.body.style.background = '#f00'; document.body.append('done')"
    server.pages["/late"] = f"<body><p>soon<script>setTimeout(() => {{ {late} }}, 300)</script>"
    await session.goto(server.url("/late"))
    assert opened(store, await session.observe()).getpixel((600, 400)) == RED


async def test_the_window_has_the_size_that_is_asked_for(session: ChromiumSession, server: PageServer) -> None:
    server.pages["/narrow"] = (
        "<a href=/a style='position:absolute;left:820px'>Beside</a><a href=/b>Here</a><script></script>"
    )
    await session.goto(server.url("/narrow"))
    page = await session.observe()
    assert set(drawing.marked(page.nodes, session.boxes(), WINDOW)) == {n.id for n in page.nodes if n.name == "Here"}


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (
            TabError("the browser drew none within 15 s"),
            "there is no picture of this page: the browser drew none within",
        ),
        (ImageError("a picture is too large"), "there is no picture of this page: a picture is too large"),
        (OSError(28, "No space left on device"), "No space left on device"),
    ],
)
async def test_a_failed_picture_is_a_notice_and_no_lost_episode(
    session: ChromiumSession, monkeypatch: pytest.MonkeyPatch, error: Exception, why: str
) -> None:
    async def fails(self: Tab, options: Any) -> bytes:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(Tab, "_captured", fails)
        page = await session.observe()
        assert page.screenshot is None and why in page.notice and "\n" not in page.notice
        assert any(node.name == "One" for node in page.nodes)
    after = await session.observe()
    assert after.screenshot is not None and not after.notice


async def test_a_picture_that_is_too_large_is_a_notice(
    session: ChromiumSession, pool: BrowserPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted(pool, monkeypatch, images=ImageStore(tmp_path / "images", max_pixels=1000))
    page = await session.observe()
    assert page.screenshot is None
    assert "a picture of 800 x 600 pixels is too large (at most 1,000 pixels)" in page.notice


async def test_a_crashed_page_has_no_picture_and_the_episode_goes_on(
    session: ChromiumSession, server: PageServer
) -> None:
    await session.goto("chrome://crash")  # refused: no web address
    assert (await session.observe()).screenshot is not None
    opened_page = session._open
    assert opened_page is not None
    opened_page.current.crash()
    page = await session.observe()
    assert page.screenshot is None and page.nodes[0].name == "This page crashed"
    with pytest.raises(BrowserError):
        await opened_page.current.picture(scale=2.0)
    await session.goto(server.url())
    assert (await session.observe()).screenshot is not None
