"""Charts as SVG: line charts with interval bars, and the bars of a forest plot; colours come from the style sheet.

A chart is drawn from plain values with presentation attributes alone, since the page allows no inline style, and in
variables of the style sheet (`--c0` to `--c5`, `--muted`, `--line`), so that one picture does for light and dark. It
writes nothing but numbers: titles, legends and the name of the axis are HTML, in which any text is safe.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dynaweb.report.markup import Html, el, embed, with_minus
from dynaweb.stats import Estimate

COLOURS = 6
"""Colours of the palette."""
WIDTH, HEIGHT = 320, 178
"""Of a chart, in CSS pixels at its natural size."""
FONT = 12
"""Size of its numbers, in the same pixels."""
DIGIT = 0.64 * FONT
"""Width of a digit in the widest of the usual fonts."""
DOTS = 12
"""Lines with at most so many points show them."""
MAX_POINTS = 300
SMOOTH = 5
"""Updates in the running mean that is drawn over a noisy line, two before and two after."""
FAINT = 0.35
"""Opacity of intervals, and of the points of a noisy line."""

Points = Sequence[tuple[float, float | None]]


@dataclass(frozen=True, slots=True)
class Series:
    """A line: its name in the legend, its points, with None for gaps, and intervals (x, low, high) as thin lines.

    A `guide` is there to compare with: it is drawn in grey, without points. `colour` is the number of a colour of the
    palette; None means that of the line's number in its chart.
    """

    label: str
    points: Points
    bars: Sequence[tuple[float, float, float]] = ()
    guide: bool = False
    colour: int | None = None

    @property
    def known(self) -> list[tuple[float, float]]:
        """The points that have a value."""
        return [(x, y) for x, y in self.points if y is not None]

    @property
    def alone(self) -> list[tuple[float, float]]:
        """The points between gaps, which no line reaches."""
        values = [None, *(y for _, y in self.points), None]
        return [
            (x, y) for at, (x, y) in enumerate(self.points) if y is not None and values[at] is values[at + 2] is None
        ]

    def colour_in(self, at: int) -> str:
        """Its colour as line `at` of a chart: `c0` to `c5`, or `muted`."""
        return "muted" if self.guide else f"c{(at if self.colour is None else self.colour) % COLOURS}"

    def thin(self) -> Series:
        """At most `MAX_POINTS` points: means of equal stretches, so that a long run does not make a large file."""
        width = max(1, math.ceil(len(self.points) / MAX_POINTS))
        points = tuple(_mean(self.points[at : at + width]) for at in range(0, len(self.points), width))
        return replace(self, points=points)

    def smooth(self) -> Points:
        """Mean of the known values around each point."""
        half = SMOOTH // 2
        around = (self.points[max(0, at - half) : at + half + 1] for at in range(len(self.points)))
        return [
            (x, None if y is None else _mean(points)[1]) for (x, y), points in zip(self.points, around, strict=True)
        ]


def _mean(points: Points) -> tuple[float, float | None]:
    known = [y for _, y in points if y is not None]
    return points[len(points) // 2][0], sum(known) / len(known) if known else None


def palette(charts: Sequence[Sequence[str]], first: Sequence[str] = (), *, size: int = COLOURS) -> dict[str, int]:
    """A colour of `size` for each name in charts, the same in all; those of `first` come first.

    Names of one chart differ while it has no more than `size`; a colour is used again only when all are.
    """
    colours: dict[str, int] = {}
    names = dict.fromkeys(name for chart in charts for name in chart)
    for name in [*(name for name in dict.fromkeys(first) if name in names), *names]:
        if name not in colours:
            same = [colours[other] for chart in charts if name in chart for other in set(chart) if other in colours]
            used = list(colours.values())
            colours[name] = min(range(size), key=lambda at: (at in same, used.count(at), at))
    return colours


def line_chart(
    title: str, series: Sequence[Series], *, x_label: str = "update", rate: bool = False, whole: bool = True
) -> Html:
    """A figure, with a legend when there are several series; a `rate` is drawn on the whole scale from 0 to 1.

    `whole` says that the x are whole numbers, such as updates. Raises `ValueError` for values that are not finite.
    """
    drawn = [item.thin() for item in series]
    values = [value for item in drawn for row in (*item.known, *item.bars) for value in row]
    if not all(map(math.isfinite, values)):
        raise ValueError(f"chart {title!r}: its values hold NaN or Inf")
    frame = _Frame.of(drawn, rate, whole)
    plot = el(
        "svg",
        *_plot(drawn, frame),
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        role="img",
        aria_label=f"{title}: {_summary(drawn)}",
        class_="plot",
        font_size=FONT,
        fill="none",
        stroke_linejoin="round",
        stroke_linecap="round",
    )
    keys = [
        el("span", el("i", class_=f"swatch {'guide' if item.guide else item.colour_in(at)}"), item.label)
        for at, item in enumerate(series)
    ]
    legend = el("div", *keys, class_="legend") if len(series) > 1 else None
    body = el("div", el("div", plot, el("div", x_label, class_="axis")), legend, class_="plotted")
    numbers = embed(_values(drawn, frame, x_label, whole), class_="points")
    return el("figure", el("figcaption", title), body, numbers, class_="chart")


def _values(series: Sequence[Series], frame: _Frame, x_label: str, whole: bool) -> dict[str, Any]:
    """What the page's script needs to answer to the pointer: the values, and where they stand."""
    lines = [
        {
            "label": item.label,
            "colour": item.colour_in(at),
            "points": [_rounded(point) for point in item.known],
            **({"bars": [_rounded(bar) for bar in item.bars]} if item.bars else {}),
        }
        for at, item in enumerate(series)
    ]
    return {"label": x_label, "whole": whole, "x": frame.x, "y": frame.y, "series": lines}


def _rounded(values: Sequence[float]) -> list[float]:
    return [float(f"{value:.6g}") for value in values]


def _summary(series: Sequence[Series]) -> str:
    """The chart in words, for those who cannot see it."""
    parts = [
        f"{item.label} from {short(known[0][1])} to {short(known[-1][1])} over {len(known)} points"
        for item in series
        if (known := item.known)
    ]
    return "; ".join(parts) or "no data"


@dataclass(frozen=True, slots=True)
class _Frame:
    """The scales of a plot: lowest and highest value, and where these stand in pixels; the numbers at the axes."""

    x: tuple[float, float, float, float]
    y: tuple[float, float, float, float]
    x_ticks: Sequence[float]
    y_ticks: Sequence[float]
    y_labels: Sequence[str]
    power: int

    @classmethod
    def of(cls, series: Sequence[Series], rate: bool, whole: bool) -> _Frame:
        xs = [x for item in series for x, _ in item.points] or [0.0]
        ys = [y for item in series for _, y in item.known] + [
            y for item in series for bar in item.bars for y in bar[1:]
        ]
        (x_low, x_high), (y_low, y_high) = _around(xs, 0.02, 1.0 if whole else 1e-6), _range(ys, rate)
        x_ticks, _ = ticks(x_low, x_high, 6, (1, 2, 5, 10), least=1 if whole else 2, whole=whole)
        y_ticks, step = ticks(y_low, y_high, 4, (1, 2, 2.5, 5, 10), least=3)
        labels, power = _labels(y_ticks, step)
        left, right = max(map(len, labels)) * DIGIT + 8, WIDTH - 1.5 * DIGIT
        top, bottom = FONT + 10 if power else FONT / 2 + 2, HEIGHT - FONT - 13
        return cls((x_low, x_high, left, right), (y_low, y_high, bottom, top), x_ticks, y_ticks, labels, power)


def _plot(series: Sequence[Series], frame: _Frame) -> Iterator[Html]:
    """Grid, numbers and lines, from the back to the front."""
    (x_low, x_high, left, right), (y_low, y_high, bottom, top) = frame.x, frame.y

    def at_x(x: float) -> float:
        return round(left + (x - x_low) / (x_high - x_low) * (right - left), 2)

    def at_y(y: float) -> float:
        return round(bottom - (y - y_low) / (y_high - y_low) * (bottom - top), 2)

    def path(points: Points) -> str:
        """The lines through known points, one for each stretch between gaps."""
        words, command = [], "M"
        for x, y in points:
            if y is not None:
                words.append(f"{command} {at_x(x):g} {at_y(y):g}")
            command = "M" if y is None else "L"
        return " ".join(words)

    def number(words: str, x: float, y: float, anchor: str) -> Html:
        return el("text", with_minus(words), x=round(x, 2), y=round(y, 2), text_anchor=anchor, fill="var(--muted)")

    for y, words in zip(frame.y_ticks, frame.y_labels, strict=True):
        yield el("path", d=f"M {left:g} {at_y(y):g} L {right:g} {at_y(y):g}", stroke="var(--line)")
        yield number(words, left - 5, at_y(y) + 0.35 * FONT, "end")
    yield el("path", d=f"M {left:g} {bottom:g} L {right:g} {bottom:g}", stroke="var(--strong-line)")
    for x in frame.x_ticks:
        yield number(short(x), at_x(x), bottom + 8 + 0.8 * FONT, "middle")
    if frame.power:
        yield number(f"1e{frame.power}", left, FONT, "start")
    for at, item in sorted(enumerate(series), key=lambda one: not one[1].guide):
        parts = _line(item, f"var(--{item.colour_in(at)})", path, lambda x, y: (at_x(x), at_y(y)))
        yield el("g", *parts, data_line=at)


def _line(
    item: Series, colour: str, path: Callable[[Points], str], at: Callable[[float, float], tuple[float, float]]
) -> Iterator[Html]:
    """A series: its intervals, its line, and its points where there are few."""
    if item.guide:
        yield el("path", d=path(item.points), stroke=colour, stroke_width=1.2, stroke_dasharray="4 3")
        return
    for x, low, high in item.bars:
        yield el("path", d=path([(x, low), (x, high)]), stroke=colour, stroke_width=1.8, stroke_opacity=FAINT)
    # A running mean of a long line says more than its points.
    is_noisy = len(item.known) >= 4 * SMOOTH
    if is_noisy:
        yield el("path", d=path(item.points), stroke=colour, stroke_width=1, stroke_opacity=FAINT)
    yield el("path", d=path(item.smooth() if is_noisy else item.points), stroke=colour, stroke_width=1.8)
    few = len(item.known) <= DOTS
    for x, y in item.known if few else item.alone:
        cx, cy = at(x, y)
        yield el("circle", cx=cx, cy=cy, r=3 if few else 2, fill=colour)


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


def ticks(
    low: float, high: float, most: int, steps: Sequence[float], *, least: int, whole: bool = False
) -> tuple[list[float], float]:
    """Round numbers from `low` to `high` and their distance: one of `steps` times a power of ten.

    There are about `most` intervals between them, in any case `least` numbers, and whole numbers only if asked.
    """
    raw = (high - low) / most
    power = math.floor(math.log10(raw))
    if whole:
        power = max(power, 0)
    sizes = sorted({step * 10.0 ** (power + shift) for shift in (-1, 0, 1) for step in steps})
    if whole:
        sizes = [size for size in sizes if size >= 1 and size.is_integer()]
    fitting = next((at for at, size in enumerate(sizes) if size >= raw * (1 - 1e-9)), len(sizes) - 1)
    for size in reversed(sizes[: fitting + 1]):
        first, last = math.ceil(low / size - 1e-9), math.floor(high / size + 1e-9)
        if last - first + 1 >= least:
            break
    return [at * size for at in range(first, last + 1)], size


def _labels(values: Sequence[float], step: float) -> tuple[list[str], int]:
    """Numbers at an axis with as many decimals as their distance asks for, and the power of ten taken out of them."""
    power = math.floor(math.log10(max(map(abs, values), default=0.0) or 1.0))
    power = 0 if -4 <= power < 5 else power
    step /= 10.0**power
    digits = next((n for n in range(12) if abs(round(step, n) - step) < 1e-6 * step), 12)
    return [f"{value / 10.0**power:.{digits}f}" for value in values], power


def short(value: float) -> str:
    """A number in few characters, with a minus sign: 0.25, 1200, 1.5e−4."""
    if value and (abs(value) >= 100_000 or abs(value) < 0.001):
        mantissa, _, exponent = f"{value:.2e}".partition("e")
        return with_minus(f"{float(mantissa):g}e{int(exponent)}")
    return with_minus(f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}")


def interval_bar(estimate: Estimate | None, scale: tuple[float, float], *, main: bool = False) -> Html | None:
    """One row of a forest plot on a scale from low to high: the interval as a bar, the value as a dot.

    `main` gets the accent colour. None where there is no interval.
    """
    if estimate is None or estimate.value is None or estimate.low is None or estimate.high is None:
        return None
    (low, high), width, middle = scale, 160, 9

    def at(value: float) -> float:
        return round(6 + (min(max(value, low), high) - low) * (width - 12) / ((high - low) or 1.0), 1)

    return el(
        "svg",
        el("line", x1=6, x2=width - 6, y1=middle, y2=middle, class_="scale"),
        el("line", x1=at(estimate.low), x2=at(estimate.high), y1=middle, y2=middle, class_="bar"),
        el("circle", cx=at(estimate.value), cy=middle, r=4, class_="dot"),
        viewBox=f"0 0 {width} {2 * middle}",
        class_="interval main" if main else "interval",
        aria_hidden="true",
    )
