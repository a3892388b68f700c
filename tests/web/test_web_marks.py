"""Marks in pictures of pages, drawn without a browser: labels that can be read, and what is refused."""

from __future__ import annotations

import io
import itertools
from pathlib import Path
from typing import Any

import pytest
from PIL import Image as Pillow
from PIL import ImageColor

from dynaweb.config.sections import ObservationSettings
from dynaweb.data.images import ImageStore
from dynaweb.errors import ConfigError, ImageError
from dynaweb.protocols import EnvironmentContext
from dynaweb.web import pictures as drawing
from dynaweb.web.boxes import Box
from dynaweb.web.pictures import COLORS, Pictures, drawn, pictures_wanted
from dynaweb_env_sites import SitesConfig
from dynaweb_env_sites.env import SitesSource

WHITE = (255, 255, 255)


def contrast(one: tuple[int, ...], other: tuple[int, ...]) -> float:
    """As WCAG defines it, 1 to 21."""

    def luminance(color: tuple[int, ...]) -> float:
        parts = [value / 255 for value in color[:3]]
        red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_labels_can_be_read() -> None:
    assert all(contrast(ImageColor.getrgb(color), WHITE) > 5 for color in COLORS)


def blank(width: int = 640, height: int = 480, shade: int = 128) -> bytes:
    out = io.BytesIO()
    Pillow.new("RGB", (width, height), (shade, shade, shade)).save(out, "PNG")
    return out.getvalue()


@pytest.mark.parametrize("gap", [40, 24, 0])
def test_labels_do_not_cover_each_other_where_there_is_room(gap: int, monkeypatch: pytest.MonkeyPatch) -> None:
    placed: list[Any] = []
    put = drawing._Placed.put

    def remembered(self: Any, *arguments: Any) -> Any:
        placed.append(put(self, *arguments))
        return placed[-1]

    monkeypatch.setattr(drawing._Placed, "put", remembered)
    cells = itertools.product(range(8), range(8))
    boxes = {i: Box(x * (40 + gap), y * (20 + gap / 2), 40, 14) for i, (x, y) in enumerate(cells, start=1)}
    drawn(blank(), boxes)
    assert len(placed) == 64
    assert all(one.common(other) == 0 for one, other in itertools.combinations(placed, 2))
    assert all(0 <= one.left < one.right <= 640 and 0 <= one.top < one.bottom <= 480 for one in placed)


@pytest.mark.parametrize(
    "box",
    [
        Box(-50, -50, 60, 60),
        Box(630, 470, 500, 500),
        Box(0, 0, 640, 480),
        Box(639, 479, 0.2, 0.2),
        Box(10.4, 5.6, 1, 1),
    ],
)
@pytest.mark.parametrize("scale", [1.0, 0.1])
def test_a_box_at_the_edge_is_marked_within_the_picture(box: tuple[float, ...], scale: float) -> None:
    before = Pillow.open(io.BytesIO(drawn(blank(), {}, scale)))
    after = Pillow.open(io.BytesIO(drawn(blank(), {1234: Box(*box)}, scale)))
    assert after.size == before.size == (640 * scale, 480 * scale) and after.tobytes() != before.tobytes()


@pytest.mark.parametrize("data", [b"", b"hello", blank()[:200], b"\x89PNG\r\n\x1a\n"])
def test_nothing_is_drawn_on_what_is_no_picture(data: bytes) -> None:
    with pytest.raises(ImageError, match="nothing can be drawn on a damaged picture"):
        drawn(data, {1: Box(1, 1, 5, 5)})


def test_pictures_are_refused_where_they_are_kept_nowhere_or_drawn_by_nobody(tmp_path: Path) -> None:
    seeing = ObservationSettings(modality="both", width=1000, height=500, max_pixels=125_000)
    assert pictures_wanted(EnvironmentContext()) is None
    assert pictures_wanted(EnvironmentContext(observation=ObservationSettings(marks=True))) is None
    with pytest.raises(ConfigError, match="needs a store for pictures"):
        pictures_wanted(EnvironmentContext(observation=seeing))
    store = ImageStore(tmp_path)
    context = EnvironmentContext(observation=seeing, images=store)
    assert pictures_wanted(context) == Pictures(store, (1000, 500), 0.5)
    with pytest.raises(ConfigError, match="the driver static draws no pages"):
        SitesSource(SitesConfig(driver="static"), context).environment()
