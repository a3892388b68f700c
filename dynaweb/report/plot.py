"""The picture of a chart, drawn by matplotlib and made fit for a page whose policy allows no inline style.

matplotlib draws in placeholder colours. Its styles become attributes and its placeholders variables of the style sheet,
so that one picture does for light and dark. It writes nothing but numbers: titles, legends and the name of the axis are
HTML (`dynaweb.report.svg`), in which any text is safe and any script has its letters.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from threading import Lock
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from dynaweb.optional import library
from dynaweb.report.markup import Html, el, join, with_minus
from dynaweb.report.series import Points, Series

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH, HEIGHT = 320, 178
"""Of a picture, in CSS pixels at its natural size."""
FONT = 12
"""Size of its numbers, in the same pixels."""
DIGIT = 0.64 * FONT
"""Width of a digit in the widest of the usual fonts."""
DOTS = 12
"""Lines with at most so many points show them."""

COLOURS = tuple(f"#01010{at}" for at in range(6))
TEXT, GRID, AXIS = "#010106", "#010107", "#010108"
VARIABLES = {
    **{colour: f"var(--c{at})" for at, colour in enumerate(COLOURS)},
    TEXT: "var(--muted)",
    GRID: "var(--line)",
    AXIS: "var(--strong-line)",
}
"""Placeholders and the variables of the style sheet that they stand for."""
STYLE = {
    "axes.axisbelow": True,
    "axes.edgecolor": AXIS,
    "axes.formatter.limits": (-4, 5),
    "axes.formatter.useoffset": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.linewidth": 1,
    "axes.spines.left": False,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.size": FONT,
    "grid.color": GRID,
    "grid.linewidth": 1,
    "lines.linewidth": 1.8,
    "lines.markersize": 5,
    "lines.solid_capstyle": "round",
    "svg.fonttype": "none",
    "xtick.color": TEXT,
    "xtick.major.size": 0,
    "xtick.major.pad": 8,
    "ytick.color": TEXT,
    "ytick.major.size": 0,
    "ytick.major.pad": 5,
}
"""Settings of matplotlib. It counts in points of 1/72 inch; here a point is a pixel."""
FAINT = 0.35
LEFT_OUT = ("metadata", "style", "clipPath", "clip-path", "transform")
"""Elements and attributes of no use: only halves of dots reach over the edge, and text is turned by 0 degrees."""
_DRAWING = Lock()
"""Settings of matplotlib hold for the whole process."""


def needed() -> Any:
    """matplotlib. Raises `MissingError` where it is not installed."""
    return library("matplotlib", "train", what="a report with charts")


# `dynaweb view` draws a page anew whenever a run has gone on; most of its lines are as they were.
@lru_cache(maxsize=256)
def picture(words: str, series: tuple[Series, ...], *, rate: bool, whole: bool) -> Html:
    """An `svg` element that `words` describe: the series in the colours `--c0` to `--c5`, their own or in their order.

    Their points are tuples. A `rate` is drawn on the whole scale from 0 to 1; `whole` x are whole numbers. Equal
    arguments give equal source. Raises `MissingError` without matplotlib.
    """
    matplotlib = needed()
    # What users set for their own plots changes nothing. Names of shapes are hashes of the salt: two pictures of a page
    # must not share any.
    defaults = {name: value for name, value in matplotlib.rcParamsDefault.items() if name != "backend"}
    with _DRAWING, matplotlib.rc_context({**defaults, **STYLE, "svg.hashsalt": ascii(words)}):
        written = _draw(series, rate, whole)
    root = ElementTree.fromstring(written)
    return el(
        "svg",
        *_children(root),
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        role="img",
        aria_label=words,
        class_="plot",
        font_size=FONT,
        stroke_linejoin="round",
    )


def short(value: float) -> str:
    """A number in few characters, with a minus sign as matplotlib's: 0.25, 1200, 1.5e−4."""
    if value and (abs(value) >= 100_000 or abs(value) < 0.001):
        mantissa, _, exponent = f"{value:.2e}".partition("e")
        return with_minus(f"{float(mantissa):g}e{int(exponent)}")
    return with_minus(f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}")


def _draw(series: Sequence[Series], rate: bool, whole: bool) -> str:
    """A whole SVG file."""
    figure, axes = _sheet()
    written = io.StringIO()
    try:
        for at, item in enumerate(series):
            _line(axes, item, COLOURS[item.place(at) % len(COLOURS)])
        _scale(axes, series, rate, whole)
        _place(figure, axes)
        figure.savefig(written, format="svg", metadata={"Date": None, "Creator": None})
    finally:
        for drawn in [*axes.lines, *axes.collections]:
            drawn.remove()
    return written.getvalue()


# One for all pictures: to make its ticks takes longer than to draw them. Never pyplot, which would keep every figure.
@lru_cache(maxsize=1)
def _sheet() -> tuple[Figure, Axes]:
    """An empty picture."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    figure = Figure(figsize=(WIDTH / 72, HEIGHT / 72))
    axes = figure.add_subplot()
    for patch in (figure.patch, axes.patch):
        patch.set_visible(False)
    axes.spines["bottom"].set_zorder(1)  # behind the lines, which may run along it
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
    axes.yaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 2.5, 5, 10], min_n_ticks=3))
    return figure, axes


def _line(axes: Axes, item: Series, colour: str) -> None:
    if item.guide:
        axes.plot(*_columns(item.points), color=TEXT, linewidth=1.2, dashes=(4, 3), zorder=1)
        return
    if item.bars:
        xs, lows, highs = zip(*item.bars, strict=True)
        axes.vlines(xs, lows, highs, color=colour, alpha=FAINT, linewidth=1.8)
    marker = "o" if len(item.known) <= DOTS else ""
    if item.is_noisy:
        axes.plot(*_columns(item.points), color=colour, alpha=FAINT, linewidth=1)
        axes.plot(*_columns(item.smooth()), color=colour)
    else:
        axes.plot(*_columns(item.points), color=colour, marker=marker)
    if item.alone and not marker:
        axes.plot(*_columns(item.alone), color=colour, linestyle="", marker="o", markersize=3)


def _columns(points: Points) -> tuple[list[float], list[float]]:
    return [x for x, _ in points], [math.nan if y is None else y for _, y in points]


def _scale(axes: Axes, series: Sequence[Series], rate: bool, whole: bool) -> None:
    from matplotlib.ticker import MaxNLocator

    xs = [x for item in series for x, _ in item.points] or [0.0]
    ys = [y for item in series for _, y in item.known] + [y for item in series for bar in item.bars for y in bar[1:]]
    least = 1.0 if whole else 1e-6
    axes.set_xlim(*_around(xs, 0.02, least))
    axes.xaxis.set_major_locator(
        MaxNLocator(nbins=6, steps=[1, 2, 5, 10], integer=whole, min_n_ticks=1 if whole else 2)
    )
    axes.set_ylim(*_range(ys, rate))


def _range(ys: Sequence[float], rate: bool) -> tuple[float, float]:
    """Rates from 0 to 1; other values with some room, from 0 where that is near."""
    if not any(ys) or (rate and all(0 <= y <= 1 for y in ys)):
        return 0.0, 1.0
    low, high = _around(ys, 0.08, 0.1 * max(map(abs, ys)))
    return 0.0 if 0 <= min(ys) <= max(ys) / 4 else low, high


def _around(values: Sequence[float], room: float, least: float) -> tuple[float, float]:
    """The range of values and a share of it as `room` on both sides; `least` where they do not differ."""
    low, high = min(values), max(values)
    spare = room * (high - low) or least
    return low - spare, high + spare


def _place(figure: Figure, axes: Axes) -> None:
    """Room for the numbers. matplotlib's own layout does it too, by drawing everything twice."""
    format_y = axes.yaxis.get_major_formatter()
    labels = format_y.format_ticks(list(axes.get_yticks()))
    left = max(map(len, labels)) * DIGIT + 8
    top = FONT + 10 if format_y.get_offset() else FONT / 2 + 2
    bottom = FONT + 13
    figure.subplots_adjust(left / WIDTH, bottom / HEIGHT, 1 - 1.5 * DIGIT / WIDTH, 1 - top / HEIGHT)


def _children(node: ElementTree.Element) -> Iterator[Html]:
    for child in node:
        tag = _plain(child.tag)
        if tag not in LEFT_OUT:
            yield _element(tag, child)


def _element(tag: str, node: ElementTree.Element) -> Html:
    attributes = dict(_attributes(node))
    inside = join(*_children(node), (node.text or "").strip())
    if tag in ("g", "defs") and not attributes:
        # Groups only have names, which are the same in every picture.
        return el(tag, inside) if tag == "defs" and inside else inside
    return el(tag, inside, **attributes)


def _attributes(node: ElementTree.Element) -> Iterator[tuple[str, str]]:
    """Those of an element of matplotlib, with its style as attributes. The font is that of the page."""
    for key, value in node.items():
        name = _plain(key)
        if name == "style":  # before what is left out: there it means the element
            styles = (part.partition(":") for part in value.split(";") if part.strip())
            yield from ((one.strip(), _value(what)) for one, _, what in styles if not one.strip().startswith("font"))
        elif name not in LEFT_OUT and not (name == "id" and _plain(node.tag) == "g"):
            yield name, _value(value)


def _value(value: str) -> str:
    """Colours as variables, numbers to a hundredth of a pixel."""
    known = VARIABLES.get(value.strip())
    return known or re.sub(r"-?\d+\.\d+", lambda number: f"{round(float(number[0]), 2):g}", " ".join(value.split()))


def _plain(name: str) -> str:
    """A name without its namespace, which HTML does without."""
    return name.rpartition("}")[2]
