"""The world model that draws: dynaweb's conformance suite, what its pictures show, and a dream with pictures."""

from __future__ import annotations

import asyncio
import io
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from dynaweb_wm_drawing import drawing
from dynaweb_wm_drawing.drawing import draw_page, layout
from PIL import Image as Pillow

from dynaweb.config import resolve
from dynaweb.config.agreement import check_pictures
from dynaweb.config.sections import ObservationSettings
from dynaweb.data.images import ImageStore
from dynaweb.plugin.registry import Plugins
from dynaweb.protocols import DreamContext
from dynaweb.testing import WorldModelSuite
from dynaweb.testing.stand_ins import HOME, OPEN, PRODUCT
from dynaweb.types import Action, Node, Observation, Task
from dynaweb_env_dream import DreamConfig
from dynaweb_env_dream.dream import DreamSource
from dynaweb_wm_delta.model import DeltaWorldModel

SEEING = ObservationSettings(modality="both", width=640, height=400, marks=True)


class TestConformance(WorldModelSuite):
    name = "drawing"


def opened(png: bytes) -> Any:
    return Pillow.open(io.BytesIO(png)).convert("RGB")


def many(count: int) -> Observation:
    return Observation("http://a/", tuple(Node(n, "link", f"Link number {n}") for n in range(1, count + 1)))


def test_elements_stand_in_the_order_of_the_tree_and_do_not_cover_each_other() -> None:
    placed = list(layout(many(60), 640))
    assert [one.node.id for one in placed] == list(range(1, 61))
    for first, second in pairwise(placed):
        right = second.box.y == first.box.y and second.box.x >= first.box.x + first.box.width
        below = second.box.y >= first.box.y + first.box.height
        assert right or below
    assert all(one.box.x + one.box.width <= 640 for one in placed)


@pytest.mark.parametrize("scale", [1.0, 2.0, 0.5])
def test_a_picture_has_the_size_of_the_window_and_shows_what_differs(scale: float) -> None:
    first = opened(draw_page(HOME, (640, 400), scale=scale))
    assert first.size == (640 * scale, 400 * scale)
    assert opened(draw_page(HOME, (640, 400), scale=scale)).tobytes() == first.tobytes()
    assert opened(draw_page(PRODUCT, (640, 400), scale=scale)).tobytes() != first.tobytes()
    assert opened(draw_page(HOME, (640, 400), scale=scale, marks=True)).tobytes() != first.tobytes()


@pytest.mark.parametrize(
    "nodes",
    [
        (),
        (Node(1, "text", "x" * 5000),),
        (Node(1, "textbox", "", "v" * 900),),
        (Node(1, "button", "\ud800 \x00 \u0416"),),
    ],
    ids=["nothing", "a long text", "a long value", "odd letters"],
)
def test_any_page_can_be_drawn(nodes: tuple[Node, ...]) -> None:
    assert opened(draw_page(Observation("http://a/", nodes), (640, 400), marks=True)).size == (640, 400)


def test_what_lies_below_the_window_is_not_drawn() -> None:
    assert opened(draw_page(many(400), (640, 400))).tobytes() == opened(draw_page(many(500), (640, 400))).tobytes()


def test_letters_that_a_font_lacks_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    for fonts in (drawing.FONTS, ()):
        drawing._font.cache_clear()
        drawing.drawable.cache_clear()
        monkeypatch.setattr(drawing, "FONTS", fonts)
        assert drawing.drawable("a") and drawing.drawable(" ") and not drawing.drawable("\U0010fffe")
    assert not drawing.drawable("\u0416"), "Pillow's own font has no Cyrillic letters"
    drawing._font.cache_clear()
    drawing.drawable.cache_clear()


@pytest.fixture
def dream(dynaweb_plugins: Plugins, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A dream whose world model predicts `PRODUCT`, and the store of its pictures."""
    from dynaweb.types import Prediction

    async def predicts(self: Any, page: Observation, action: Action, **question: Any) -> Prediction:
        return Prediction(PRODUCT)

    monkeypatch.setattr(DeltaWorldModel, "predict", predicts)
    store = ImageStore(tmp_path / "images")
    context = TestConformance().context(observation=SEEING, images=store)
    model: Any = dynaweb_plugins.create("wm", "drawing", {}, context)
    source = DreamSource(
        DreamConfig(),
        DreamContext(world_model=model, start_page=lambda task: HOME, tasks=None, observation=SEEING),  # type: ignore[arg-type]
    )
    return source.environment(), store


def test_every_page_of_a_dream_has_its_picture(dream: Any) -> None:
    environment, store = dream

    async def played() -> list[Observation]:
        pages = [await environment.reset(Task("t", "go", "http://a/"), 0)]
        field = next(node for node in HOME.nodes if node.role == "textbox")
        typed = Action("type", field.id, "tea", target_role=field.role, target_name=field.name)
        for action in (typed, Action("click", target=999), OPEN, Action("go_back")):
            pages.append((await environment.step(action)).observation)
        return pages

    start, typed, refused, opened_page, back = asyncio.run(played())
    pages = (start, typed, refused, opened_page, back)
    assert all(page.screenshot is not None and page.screenshot.viewport == (640, 400) for page in pages)
    pictures = [opened(store.get(page.screenshot.image)).tobytes() for page in pages if page.screenshot]
    assert pictures[0] != pictures[1], "the typed value is drawn"
    assert pictures[1] == pictures[2] == pictures[4] and pictures[3] != pictures[0]
    assert pictures[3] == opened(draw_page(PRODUCT, (640, 400), marks=True)).tobytes()


def test_a_page_that_cannot_be_drawn_is_a_notice(dream: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    environment, store = dream
    monkeypatch.setattr(store, "max_bytes", 10)
    page = asyncio.run(environment.reset(Task("t", "go", "http://a/"), 0))
    assert page.screenshot is None and "this page is not drawn: a picture of" in page.notice


def test_nothing_is_drawn_where_nobody_asks(dynaweb_plugins: Plugins, tmp_path: Path) -> None:
    for changes in ({}, {"observation": ObservationSettings()}, {"observation": SEEING}):
        model: Any = dynaweb_plugins.create("wm", "drawing", {}, TestConformance().context(**changes))
        assert asyncio.run(model.draw(HOME)) is None


def test_the_recipe_of_the_readme_is_taken(dynaweb_plugins: Plugins, tmp_path: Path) -> None:
    readme = Path(__file__).parents[1] / "README.md"
    (recipe,) = re.findall(r"```toml\n(.*?)```", readme.read_text(encoding="utf-8"), re.DOTALL)
    (path := tmp_path / "seeing.toml").write_text(recipe, encoding="utf-8")
    resolved = resolve(path, plugins=dynaweb_plugins)
    check_pictures(resolved, dynaweb_plugins)
    assert resolved.wm.name == "drawing" and resolved.observation.pictures
