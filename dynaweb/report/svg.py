"""Line charts and interval bars as small inline SVG; colours come from the style sheet, so that dark mode works."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dynaweb.report.markup import Html, el, join

WIDTH, HEIGHT = 360, 190
LEFT, RIGHT, TOP, BOTTOM = 44, 10, 10, 26
MAX_POINTS = 300
SMOOTH = 5
"""Updates in the running mean that is drawn over a noisy line, two before and two after."""
DOTS = 12
"""Lines with at most so many points show them."""

Points = Sequence[tuple[float, float | None]]


@dataclass(frozen=True, slots=True)
class Series:
    """A line: its name in the legend, its points, with None for gaps, and intervals (x, low, high) as thin lines."""

    label: str
    points: Points
    bars: Sequence[tuple[float, float, float]] = ()


@dataclass(frozen=True, slots=True)
class Interval:
    """A value with its interval on a common scale; `main` gets the accent colour."""

    value: float
    low: float
    high: float
    main: bool = False


def line_chart(title: str, series: Sequence[Series], *, x_label: str = "update", rate: bool = False) -> Html:
    """A figure, with a legend when there are several series; a `rate` is drawn on the whole scale from 0 to 1.

    Colours are the classes `c0` to `c5` of the style sheet.
    """
    drawn = [Series(item.label, _thin(item.points), item.bars) for item in series]
    frame = _Frame.around(drawn, rate)
    lines = [
        join(*_bars(item.bars, frame, f"c{at % 6}"), *_lines(item.points, frame, f"c{at % 6}"))
        for at, item in enumerate(drawn)
    ]
    picture = el(
        "svg",
        _grid(frame, x_label),
        *lines,
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        role="img",
        aria_label=f"{title}: {_summary(drawn)}",
    )
    legend = None
    if len(series) > 1:
        legend = el("div", *[_key(item.label, at) for at, item in enumerate(series)], class_="legend")
    return el("figure", el("figcaption", title), picture, legend, class_="chart")


def interval_bar(interval: Interval, low: float, high: float, *, zero: float | None = None) -> Html:
    """One row of a forest plot: the interval as a bar, the value as a dot, on a scale from `low` to `high`."""
    width, middle = 160, 9
    scale = (width - 12) / ((high - low) or 1.0)

    def at(value: float) -> float:
        return round(6 + (min(max(value, low), high) - low) * scale, 1)

    kind = "interval main" if interval.main else "interval"
    mark = None
    if zero is not None and low <= zero <= high:
        mark = el("line", x1=at(zero), x2=at(zero), y1=0, y2=2 * middle, class_="zero")
    return el(
        "svg",
        el("line", x1=6, x2=width - 6, y1=middle, y2=middle, class_="scale"),
        mark,
        el("line", x1=at(interval.low), x2=at(interval.high), y1=middle, y2=middle, class_="bar"),
        el("circle", cx=at(interval.value), cy=middle, r=4, class_="dot"),
        viewBox=f"0 0 {width} {2 * middle}",
        class_=kind,
        aria_hidden="true",
    )


def ticks(low: float, high: float, count: int = 4) -> list[float]:
    """Round numbers within [low, high], about `count` of them."""
    if not high > low:
        return [low]
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(n * step, 12) for n in range(first, math.floor(high / step + 1e-9) + 1)]


@dataclass(frozen=True, slots=True)
class _Frame:
    """The plotted range, and how values become places."""

    x_low: float
    x_high: float
    y_low: float
    y_high: float

    @classmethod
    def around(cls, series: Sequence[Series], rate: bool) -> _Frame:
        points = [(x, y) for item in series for x, y in item.points if y is not None]
        points += [(x, edge) for item in series for x, low, high in item.bars for edge in (low, high)]
        xs, ys = [x for x, _ in points] or [0.0], [y for _, y in points] or [0.0]
        low, high = min(ys), max(ys)
        if rate and low >= 0 and high <= 1:
            low, high = 0.0, 1.0
        else:
            pad = (high - low) * 0.08 or abs(high) * 0.1 or 1.0
            low, high = (0.0 if 0 <= low < pad else low - pad), high + pad
        return cls(min(xs), max(xs) if max(xs) > min(xs) else min(xs) + 1, low, high)

    def x(self, value: float) -> float:
        return round(LEFT + (value - self.x_low) / (self.x_high - self.x_low) * (WIDTH - LEFT - RIGHT), 1)

    def y(self, value: float) -> float:
        return round(TOP + (self.y_high - value) / (self.y_high - self.y_low) * (HEIGHT - TOP - BOTTOM), 1)


def _grid(frame: _Frame, x_label: str) -> Html:
    base = HEIGHT - BOTTOM
    parts: list[Html] = []
    for value in ticks(frame.y_low, frame.y_high):
        y = frame.y(value)
        parts.append(el("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y, class_="grid"))
        parts.append(el("text", _short(value), x=LEFT - 6, y=y + 3.5, text_anchor="end"))
    for value in ticks(frame.x_low, frame.x_high, 6):
        parts.append(el("text", _short(value), x=frame.x(value), y=base + 14, text_anchor="middle"))
    parts.append(el("line", x1=LEFT, x2=WIDTH - RIGHT, y1=base, y2=base, class_="axis"))
    parts.append(el("text", x_label, x=WIDTH - RIGHT, y=HEIGHT - 2, text_anchor="end", class_="label"))
    return join(*parts)


def _short(value: float) -> str:
    if value and (abs(value) >= 100_000 or abs(value) < 0.001):
        return f"{value:.0e}".replace("e-0", "e-").replace("e+0", "e")
    return f"{value:.4g}"


def _lines(points: Points, frame: _Frame, colour: str) -> list[Html]:
    known = [(x, y) for x, y in points if y is not None]
    raw = el("path", d=_path(points, frame), class_=f"line {colour}")
    if len(known) <= DOTS:
        return [raw, *[el("circle", cx=frame.x(x), cy=frame.y(y), r=2.5, class_=f"point {colour}") for x, y in known]]
    if len(known) < 4 * SMOOTH:
        return [raw]
    faint = el("path", d=_path(points, frame), class_=f"line faint {colour}")
    return [faint, el("path", d=_path(_smooth(points), frame), class_=f"line {colour}")]


def _bars(bars: Sequence[tuple[float, float, float]], frame: _Frame, colour: str) -> list[Html]:
    return [
        el("line", x1=frame.x(x), x2=frame.x(x), y1=frame.y(low), y2=frame.y(high), class_=f"line faint {colour}")
        for x, low, high in bars
    ]


def _path(points: Points, frame: _Frame) -> str:
    words: list[str] = []
    pen = "M"
    for x, y in points:
        if y is None:
            pen = "M"
        else:
            words.append(f"{pen}{frame.x(x):g} {frame.y(y):g}")
            pen = "L"
    return "".join(words)


def _smooth(points: Points) -> Points:
    """Mean of the known values around each point."""
    half = SMOOTH // 2
    return [
        (x, None if y is None else _stretch(points[max(0, at - half) : at + half + 1])[1])
        for at, (x, y) in enumerate(points)
    ]


def _thin(points: Points) -> Points:
    """Means of equal stretches, so that a long run does not make a large file."""
    width = math.ceil(len(points) / MAX_POINTS)
    if width <= 1:
        return points
    return [_stretch(points[at : at + width]) for at in range(0, len(points), width)]


def _stretch(points: Points) -> tuple[float, float | None]:
    known = [y for _, y in points if y is not None]
    return points[len(points) // 2][0], sum(known) / len(known) if known else None


def _key(label: str, at: int) -> Html:
    return el("span", el("i", class_=f"swatch c{at % 6}"), label)


def _summary(series: Sequence[Series]) -> str:
    """The chart in words, for those who cannot see it."""
    parts = []
    for item in series:
        known = [y for _, y in item.points if y is not None]
        if known:
            parts.append(f"{item.label} from {_short(known[0])} to {_short(known[-1])} over {len(known)} points")
    return "; ".join(parts) or "no data"
