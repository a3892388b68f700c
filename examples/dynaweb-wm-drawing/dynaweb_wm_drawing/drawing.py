"""A page as a picture, drawn from its accessibility tree alone: no style sheet, no image, no layout of the site.

Elements stand in the order of the tree, as a browser without style sheets would set them: what opens a block (a
heading, a field with its label) begins a line, links, buttons and texts follow each other and wrap at the right edge.
What does not fit into the window is not drawn, as in a picture of a real page that was not scrolled.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from dynaweb.types import Node, Observation
from dynaweb.web.boxes import Box
from dynaweb.web.pictures import drawn, marked

MARGIN, GAP, LINE, TEXT, HEADING = 8, 10, 24, 15, 22
"""Pixels: around the page, between elements of a line, from a line to the next, and sizes of letters."""
FIELDS = frozenset({"textbox", "searchbox", "spinbutton", "combobox", "listbox", "slider"})
CHECKS = frozenset({"checkbox", "radio", "switch"})
BLOCKS = frozenset({"heading", "dialog", "alert", "status", "table", "row", "separator"})
FONTS = ("DejaVuSans.ttf", "NotoSans-Regular.ttf", "LiberationSans-Regular.ttf", "Arial.ttf")
"""Looked for among the fonts of the machine, in this order: two machines with other fonts draw other pictures."""
FIELD_WIDTH, CHECK_WIDTH = 160, 18


@dataclass(frozen=True, slots=True)
class Placed:
    """An element where it is drawn: `box` around what can be clicked, `text` at `at`; all in CSS pixels."""

    node: Node
    box: Box
    text: str
    at: tuple[float, float]


def layout(page: Observation, width: int) -> Iterator[Placed]:
    """Where the elements of a page stand in a window of that width, from top to bottom."""
    x, y = float(MARGIN), float(MARGIN)
    for node in page.nodes:
        text = _text(node)
        field, check = node.role in FIELDS, node.role in CHECKS
        if not text and not field and not check:
            continue
        height = HEADING + 14 if node.role == "heading" else LINE
        label = min(_length(node.role, text), width - 2 * MARGIN)
        extra = FIELD_WIDTH if field else CHECK_WIDTH if check else 16 if node.role == "button" else 0
        total = label + extra + (6 if field and label else 0)
        if x > MARGIN and (node.role in BLOCKS or x + total > width - MARGIN):
            x, y = float(MARGIN), y + LINE
        if field:
            start = x + label + (6 if label else 0)
            yield Placed(node, Box(start, y + 1, FIELD_WIDTH, LINE - 3), text, (x, y + 3))
        elif check:
            yield Placed(node, Box(x, y + 4, 13, 13), text, (x + CHECK_WIDTH, y + 3))
        elif node.role == "button":
            yield Placed(node, Box(x, y, total, LINE - 2), text, (x + 8, y + 3))
        else:
            yield Placed(node, Box(x, y + 2, label, height - 5), text, (x, y + 3))
        x += total + GAP
        if node.role in BLOCKS:
            x, y = float(MARGIN), y + height


def draw_page(page: Observation, window: tuple[int, int], *, scale: float = 1.0, marks: bool = False) -> bytes:
    """A page as PNG in a window of CSS pixels; `scale` pixels for each of these, `marks` as in pictures of browsers."""
    from PIL import Image, ImageDraw

    # Enlarged letters are drawn large; a smaller picture is one that was made smaller, as a browser's is.
    big = max(1.0, scale)
    picture = Image.new("RGB", (round(window[0] * big), round(window[1] * big)), "white")
    draw = ImageDraw.Draw(picture)
    boxes: dict[int, Box] = {}
    for placed in layout(page, window[0]):
        if placed.box.y >= window[1]:
            break
        boxes[placed.node.id] = placed.box
        _draw(draw, placed, big)
    out = io.BytesIO()
    picture.save(out, "PNG")
    if not marks and scale >= 1:
        return out.getvalue()
    return drawn(out.getvalue(), marked(page.nodes, boxes, window) if marks else {}, scale)


def _draw(draw: Any, placed: Placed, scale: float) -> None:
    node, box = placed.node, placed.box
    edges = [box.x * scale, box.y * scale, (box.x + box.width) * scale, (box.y + box.height) * scale]
    color = "#8a8a8a" if ("disabled", "true") in node.props else "#0000ee" if node.role == "link" else "black"
    font = _font(_size(node.role) * scale)
    if node.role == "button":
        draw.rectangle(edges, fill="#efefef", outline="#767676")
    if node.role in FIELDS:
        draw.rectangle(edges, fill="white", outline="#767676")
        inside = _font(TEXT * scale)
        room = int(box.width * scale / max(1.0, inside.getlength("x")))
        draw.text((edges[0] + 4 * scale, edges[1] + 2 * scale), (node.value or "")[:room], fill="black", font=inside)
    if node.role in CHECKS:
        shape = draw.ellipse if node.role == "radio" else draw.rectangle
        shape(edges, fill="#0075ff" if ("checked", "true") in node.props else "white", outline="#767676")
    where = (placed.at[0] * scale, placed.at[1] * scale)
    draw.text(where, placed.text, fill=color, font=font)
    if node.role == "link":
        draw.line((edges[0], edges[3], edges[2], edges[3]), fill=color)


def _text(node: Node) -> str:
    """What is written of an element: its name, on one line."""
    return " ".join(node.name.split())


def _size(role: str) -> int:
    return HEADING if role == "heading" else TEXT


def _length(role: str, text: str) -> float:
    return float(_font(_size(role)).getlength(text))


@cache
def _font(size: float) -> Any:
    """A font with many alphabets where this machine has one, else Pillow's own, which has English letters alone."""
    from PIL import ImageFont

    for name in FONTS:
        try:
            return ImageFont.truetype(name, size)
        except OSError:
            continue
    return ImageFont.load_default(size=size)


@cache
def drawable(letter: str) -> bool:
    """Whether the font has a letter; else a box is drawn for it."""
    font = _font(TEXT)
    return not letter.strip() or bytes(font.getmask(letter)) != bytes(font.getmask("\U0010ffff"))
