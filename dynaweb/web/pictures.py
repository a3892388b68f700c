"""Pictures of pages: how they are taken and kept, and set-of-marks (arXiv 2310.11441), drawn on the picture alone.

A session takes the PNG when its page has settled and was read, so that both say the same, and `Pictures.keep` stores
it. Marks are frames with the numbers that the text has, around the elements that can be acted on. They are drawn here
with Pillow: a page that is marked by script could be told from one that is not, and would keep the marks.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple

from dynaweb.errors import ConfigError, ImageError, MissingError
from dynaweb.types import Node, Screenshot
from dynaweb.web.page.view import CLICKABLE, INTERACTIVE
from dynaweb.web.session import WINDOW

if TYPE_CHECKING:
    from dynaweb.protocols import EnvironmentContext, Images
    from dynaweb.web.boxes import Box

COLORS = ("#b3001b", "#00529b", "#006b3c", "#6a1b9a", "#8a4b00", "#00646b", "#a3006b", "#3d4a00")
"""Colours of marks, in turn: white text on each of them has a contrast of 5 or more."""


@dataclass(frozen=True, slots=True)
class Pictures:
    """How pictures of pages are taken, and where they are kept.

    `viewport` is the size of the window in CSS pixels, `scale` the pixels of a picture for each of these.
    """

    images: Images
    viewport: tuple[int, int] = WINDOW
    scale: float = 1.0
    marks: bool = False

    @property
    def redrawn(self) -> bool:
        """Whether pictures are changed before they are kept."""
        return self.marks or self.scale < 1

    def keep(self, png: bytes, boxes: Mapping[int, Box]) -> Screenshot:
        """Store a picture, with a mark for each box. Raises `ImageError`, `OSError` where it cannot be written.

        One that is taken at the scale of the window is made smaller where `scale` is less than 1.
        """
        if self.redrawn:
            png = drawn(png, boxes if self.marks else {}, self.scale)
        return Screenshot(self.images.put(png), self.viewport, self.scale, self.marks)


def pictures_wanted(context: EnvironmentContext) -> Pictures | None:
    """What an environment needs to take pictures; None where the settings ask for none.

    Raises `ConfigError` where they are to be kept nowhere, `MissingError` where marks cannot be drawn.
    """
    wanted = context.observation
    if wanted is None or not wanted.pictures:
        return None
    if context.images is None:
        raise ConfigError(
            f"observation.modality = {wanted.modality} needs a store for pictures; give EnvironmentContext(images=...) "
            "one, such as dynaweb.data.images.ImageStore(folder)"
        )
    if (wanted.marks or wanted.picture_scale < 1) and find_spec("PIL") is None:
        raise MissingError(
            "marks in pictures, and pictures of a scale below 1, are drawn with the package pillow, which is not "
            "installed: pip install 'dynaweb[vision]'"
        )
    return Pictures(context.images, (wanted.width, wanted.height), wanted.picture_scale, wanted.marks)


def marked(nodes: Sequence[Node], boxes: Mapping[int, Box], window: tuple[int, int]) -> dict[int, Box]:
    """The boxes of the elements that get a mark: those that can be acted on and show in the window."""
    able = (node.id for node in nodes if node.role in INTERACTIVE or CLICKABLE in node.props)
    return {number: box for number in able if (box := boxes.get(number)) is not None and box.meets(*window)}


class _Area(NamedTuple):
    """A rectangle in pixels of the picture; right and bottom are outside of it."""

    left: float
    top: float
    right: float
    bottom: float

    def common(self, other: _Area) -> float:
        """Pixels that both cover."""
        width = min(self.right, other.right) - max(self.left, other.left)
        height = min(self.bottom, other.bottom) - max(self.top, other.top)
        return max(0.0, width) * max(0.0, height)


def drawn(png: bytes, boxes: Mapping[int, Box], scale: float = 1.0) -> bytes:
    """A picture with a numbered frame around each box, which is in CSS pixels. Raises `ImageError` for no picture.

    `scale` are pixels of the picture for one of these; of one below 1 the picture itself is made, out of one at 1.
    Frames have a white edge and labels are white on dark, so that both can be read on any page. A label stands at a
    corner of its frame, where it covers no other label if there is such a place.
    """
    from PIL import Image, ImageDraw, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(png), formats=("PNG",)) as opened:
            picture = opened.convert("RGB")
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise ImageError(f"nothing can be drawn on a damaged picture ({error}); take it again") from None
    if scale < 1:
        smaller = [max(1, round(side * scale)) for side in picture.size]
        picture = picture.resize((smaller[0], smaller[1]), Image.Resampling.LANCZOS)
    whole = _Area(0, 0, *picture.size)
    # Around the elements, so that their text stays free.
    width = max(1, round(2 * scale))
    frames = {number: _in_pixels(box, scale, width + 1, whole) for number, box in boxes.items()}
    draw = ImageDraw.Draw(picture)
    for number, (left, top, right, bottom) in frames.items():
        draw.rectangle((left, top, right - 1, bottom - 1), outline="white", width=1)
        draw.rectangle((left + 1, top + 1, right - 2, bottom - 2), outline=_color(number), width=width)
    # 12 CSS pixels, but never so small that digits cannot be told apart.
    font = _font(max(10.0, 12 * scale))
    placed = _Placed(whole, frames.values())
    for number, frame in frames.items():
        left, top, right, bottom = font.getbbox(str(number))
        label = placed.put(frame, right - left + 6, bottom - top + 6)
        edge = (label.left, label.top, label.right - 1, label.bottom - 1)
        draw.rectangle(edge, fill=_color(number), outline="white")
        draw.text((label.left + 3 - left, label.top + 3 - top), str(number), fill="white", font=font)
    out = io.BytesIO()
    # Half the time of the usual level, for files that are a fifth larger.
    picture.save(out, "PNG", compress_level=3)
    return out.getvalue()


@cache
def _font(size: float) -> Any:
    from PIL import ImageFont

    return ImageFont.load_default(size=size)


def _color(number: int) -> str:
    return COLORS[number % len(COLORS)]


def _in_pixels(box: Box, scale: float, around: int, whole: _Area) -> _Area:
    """A box with so many pixels around it, as far as it is in the picture."""
    left = max(0, min(round(box.x * scale) - around, whole.right - 1))
    top = max(0, min(round(box.y * scale) - around, whole.bottom - 1))
    right = min(max(round((box.x + box.width) * scale) + around, left + 3), whole.right)
    bottom = min(max(round((box.y + box.height) * scale) + around, top + 3), whole.bottom)
    return _Area(min(left, right - 3), min(top, bottom - 3), right, bottom)


class _Placed:
    """Frames, and labels that have their place, found again by the cells of a grid that they touch."""

    CELL = 64

    def __init__(self, whole: _Area, frames: Iterable[_Area]) -> None:
        self._whole = whole
        self._labels: dict[tuple[int, int], set[_Area]] = {}
        self._frames: dict[tuple[int, int], set[_Area]] = {}
        for frame in frames:
            self._add(frame, self._frames)

    def put(self, frame: _Area, width: float, height: float) -> _Area:
        """Where the label of a frame goes: where it covers no other label if that can be, and least of elements."""
        label = min(self._corners(frame, width, height), key=self._covered)
        self._add(label, self._labels)
        return label

    def _covered(self, label: _Area) -> tuple[float, float]:
        def covered(table: Mapping[tuple[int, int], set[_Area]]) -> float:
            near = {other for cell in self._cells(label) for other in table.get(cell, ())}
            return sum(label.common(other) for other in near)

        return covered(self._labels), covered(self._frames)

    def _corners(self, frame: _Area, width: float, height: float) -> Iterator[_Area]:
        """Places in the picture: above, below and beside the frame, then in its corners."""
        left, top, right, bottom = frame
        whole = self._whole
        ends = (left, right - width)
        outside = (
            *((x, y) for y in (top - height, bottom) for x in ends),
            *((x, y) for y in (top, bottom - height) for x in (left - width, right)),
        )
        for x, y in outside:
            if x >= 0 and y >= 0 and x + width <= whole.right and y + height <= whole.bottom:
                yield _Area(x, y, x + width, y + height)
        for x, y in ((x, y) for y in (top, bottom - height) for x in ends):
            x, y = max(0.0, min(x, whole.right - width)), max(0.0, min(y, whole.bottom - height))
            yield _Area(x, y, x + width, y + height)

    def _add(self, area: _Area, table: dict[tuple[int, int], set[_Area]]) -> None:
        for cell in self._cells(area):
            table.setdefault(cell, set()).add(area)

    def _cells(self, area: _Area) -> Iterator[tuple[int, int]]:
        for column in range(int(area.left // self.CELL), int(area.right // self.CELL) + 1):
            for row in range(int(area.top // self.CELL), int(area.bottom // self.CELL) + 1):
                yield column, row
