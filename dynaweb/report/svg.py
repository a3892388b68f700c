"""Line charts and interval bars for reports; colours come from the style sheet, so that dark mode works."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dynaweb.report.markup import Html, el
from dynaweb.report.plot import COLOURS, picture, short
from dynaweb.report.series import Series


@dataclass(frozen=True, slots=True)
class Interval:
    """A value with its interval on a common scale; `main` gets the accent colour."""

    value: float
    low: float
    high: float
    main: bool = False


def line_chart(
    title: str, series: Sequence[Series], *, x_label: str = "update", rate: bool = False, whole: bool = True
) -> Html:
    """A figure, with a legend when there are several series; a `rate` is drawn on the whole scale from 0 to 1.

    `whole` says that the x are whole numbers, such as updates. Raises `MissingError` without matplotlib.
    """
    drawn = tuple(item.thin() for item in series)
    plot = picture(f"{title}: {_summary(drawn)}", drawn, rate=rate, whole=whole)
    legend = None
    if len(series) > 1:
        legend = el("div", *[_key(item, at) for at, item in enumerate(series)], class_="legend")
    axis = el("div", x_label, class_="axis")
    return el(
        "figure", el("figcaption", title), el("div", el("div", plot, axis), legend, class_="plotted"), class_="chart"
    )


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


def _key(item: Series, at: int) -> Html:
    colour = "guide" if item.guide else f"c{item.place(at) % len(COLOURS)}"
    return el("span", el("i", class_=f"swatch {colour}"), item.label)


def _summary(series: Sequence[Series]) -> str:
    """The chart in words, for those who cannot see it."""
    parts = []
    for item in series:
        known = [y for _, y in item.known]
        if known:
            parts.append(f"{item.label} from {short(known[0])} to {short(known[-1])} over {len(known)} points")
    return "; ".join(parts) or "no data"
