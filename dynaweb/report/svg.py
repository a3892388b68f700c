"""Line charts and interval bars as small inline SVG; colours come from the style sheet, so that dark mode works.

Charts are drawn by matplotlib in placeholder colours. What it writes is then made fit for a page whose policy allows no
inline style: styles become attributes, and placeholders become variables of the style sheet.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dynaweb.report.markup import Html, el, text

WIDTH, HEIGHT = 360, 190
"""Of a chart, in CSS pixels at its natural size."""
MAX_POINTS = 300
SMOOTH = 5
"""Updates in the running mean that is drawn over a noisy line, two before and two after."""
DOTS = 12
"""Lines with at most so many points show them."""

COLOURS = ("#010100", "#010101", "#010102", "#010103", "#010104", "#010105")
TEXT, GRID, AXIS = "#010106", "#010107", "#010108"
VARIABLES = {
    **{colour: f"var(--c{at})" for at, colour in enumerate(COLOURS)},
    TEXT: "var(--muted)",
    GRID: "var(--line)",
    AXIS: "var(--strong-line)",
}
STYLE = {
    "svg.fonttype": "none",
    "font.size": 8,
    "axes.edgecolor": AXIS,
    "axes.linewidth": 0.8,
    "axes.spines.left": False,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "axes.labelcolor": TEXT,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "lines.linewidth": 1.4,
    "lines.solid_capstyle": "round",
    "xtick.color": TEXT,
    "ytick.color": TEXT,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
}
"""Settings of matplotlib, in points."""

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
    picture = _picture(drawn, x_label, rate, f"{title}: {_summary(drawn)}")
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


def _picture(series: Sequence[Series], x_label: str, rate: bool, words: str) -> Html:
    import matplotlib
    from matplotlib.figure import Figure

    # Names of parts are hashes of this: two charts of a page must not share any.
    with matplotlib.rc_context({**STYLE, "svg.hashsalt": words}):
        figure = Figure(figsize=(WIDTH / 96, HEIGHT / 96), layout="constrained")
        axes = figure.add_subplot()
        for at, item in enumerate(series):
            _draw(axes, item, COLOURS[at % len(COLOURS)])
        axes.set_xlabel(x_label, loc="right")
        _scale(axes, series, rate)
        written = io.StringIO()
        figure.savefig(written, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return _fit(written.getvalue(), words)


def _draw(axes: Any, item: Series, colour: str) -> None:
    xs, ys = [x for x, _ in item.points], [math.nan if y is None else y for _, y in item.points]
    known = sum(y is not None for _, y in item.points)
    smooth = known >= 4 * SMOOTH
    axes.vlines(
        [x for x, _, _ in item.bars],
        [low for _, low, _ in item.bars],
        [high for _, _, high in item.bars],
        color=colour,
        alpha=0.35,
        linewidth=1,
    )
    axes.plot(
        xs,
        ys,
        color=colour,
        alpha=0.35 if smooth else 1,
        linewidth=0.8 if smooth else None,
        marker="o" if known <= DOTS else None,
        markersize=3.5,
    )
    if smooth:
        axes.plot(xs, [math.nan if y is None else y for _, y in _smooth(item.points)], color=colour)


def _scale(axes: Any, series: Sequence[Series], rate: bool) -> None:
    """Rates from 0 to 1, other values with some room; whole numbers below."""
    from matplotlib.ticker import MaxNLocator

    seen = [y for item in series for _, y in item.points if y is not None]
    seen += [edge for item in series for _, low, high in item.bars for edge in (low, high)]
    axes.margins(x=0.02, y=0.08)
    if rate and seen and 0 <= min(seen) and max(seen) <= 1:
        axes.set_ylim(0, 1)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=4))


def _fit(source: str, words: str) -> Html:
    """A whole SVG file of matplotlib as an element of a page; `words` say what it shows."""
    inner = source[source.index(">", source.index("<svg")) + 1 :]
    inner = re.sub(r"<metadata>.*?</metadata>", "", inner, flags=re.DOTALL)
    # Groups are numbered anew in every file; no reference leads to them.
    inner = re.sub(r'<g id="[^"]*"', "<g", inner)
    inner = re.sub(r' style="([^"]*)"', lambda match: _attributes(match[1]), inner)
    inner = re.sub("|".join(VARIABLES), lambda match: VARIABLES[match[0]], inner)
    size = re.search(r'viewBox="([^"]*)"', source)
    assert size is not None
    opening = f'<svg viewBox="{size[1]}" role="img" aria-label="{text(words)}">'
    return Html(opening + re.sub(r">\s+<", "><", inner).strip())


def _attributes(style: str) -> str:
    """A style as attributes, which a policy without inline styles allows. The font is that of the page."""
    pairs = [part.split(":", 1) for part in style.split(";") if part.strip()]
    kept = [(name.strip(), value.strip()) for name, value in pairs if not name.strip().startswith("font")]
    size = next((found[0] for found in [re.search(r"[\d.]+px", value) for name, value in pairs if "font" in name] if found), "")
    return "".join(f' {name}="{value}"' for name, value in [*kept, *([("font-size", size)] if size else [])])


def _short(value: float) -> str:
    if value and (abs(value) >= 100_000 or abs(value) < 0.001):
        return f"{value:.0e}".replace("e-0", "e-").replace("e+0", "e")
    return f"{value:.4g}"


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
