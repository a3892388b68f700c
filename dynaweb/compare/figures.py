"""Figures for papers, drawn with matplotlib (the extra `plots`): PDF, SVG and PNG of one width and one font.

    style = Style(width="85mm", font="serif:8")
    with drawing(style):
        figure = rows_figure(style, rows, "Success, %")
        save(figure, Path("figures/main"), ("pdf", "png"))

Colours are those of Okabe and Ito (2008), which colour-blind readers tell apart; markers and lines differ too. PDF
files embed their fonts as TrueType (Type 42), SVG files draw letters as shapes, so both look everywhere as they do
here. The same results give the same files. Every point has its 95 % interval, and every figure says its n.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dynaweb.compare.tables import Difference
from dynaweb.errors import ConfigError, MissingError, hint
from dynaweb.stats import Estimate

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#7F7F7F")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<")
LINES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (1, 1)), (0, (3, 1, 1, 1)), (0, (7, 2)))
FORMATS = ("pdf", "svg", "png")
GREY, PALE = "#595959", "#D9D9D9"
MM = 25.4
NARROWEST, WIDEST = 40 / MM, 400 / MM
"""Inches between which a width must lie."""


@dataclass(frozen=True, slots=True)
class Style:
    """`width` as in `85mm` or `3.3in`; `font` as in `serif`, `Times New Roman` or `sans:9`, with its size in points."""

    width: str = "140mm"
    font: str = "sans:8"

    @property
    def inches(self) -> float:
        """The width in inches. Raises `ConfigError` for what is none."""
        match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(mm|cm|in)\s*", self.width)
        if match is None:
            raise ConfigError(f"--width {self.width}: write a number with its unit, such as 85mm, 8.5cm or 3.35in")
        inches = float(match[1]) / {"mm": MM, "cm": MM / 10, "in": 1.0}[match[2]]
        if not NARROWEST <= inches <= WIDEST:
            raise ConfigError(f"--width {self.width}: a figure is between 40mm and 400mm wide")
        return inches

    @property
    def family(self) -> str:
        """The name of the font."""
        return self.font.partition(":")[0].strip()

    @property
    def points(self) -> float:
        """The size of the font. Raises `ConfigError` for what is none."""
        text = self.font.partition(":")[2].strip() or "8"
        if not re.fullmatch(r"[0-9]+(\.[0-9]+)?", text) or not 4 <= float(text) <= 24:
            raise ConfigError(f"--font {self.font}: write NAME or NAME:SIZE with 4 to 24 points, such as serif:9")
        return float(text)


@dataclass(frozen=True, slots=True)
class Series:
    """A line of a figure: estimates by x, in the order of x. A curve has no markers: it has a point an update."""

    label: str
    points: tuple[tuple[float, Estimate], ...]
    is_curve: bool = False


@dataclass(frozen=True, slots=True)
class CostSeries:
    """Points of cost and value that are joined by a line; each may have a word beside it."""

    label: str
    points: tuple[tuple[str, Estimate, Estimate], ...]


@dataclass(frozen=True, slots=True)
class FigureRow:
    """A row of a figure: what it is called, its value, and its difference to the reference (None: it is that)."""

    label: str
    value: Estimate
    difference: Difference | None = None


def check(style: Style, formats: Sequence[str]) -> None:
    """Raise `MissingError` without matplotlib, and `ConfigError` for a width, font or format that is none."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise MissingError("figures need matplotlib; install it with: pip install 'dynaweb[plots]'") from None
    for format in formats:
        if format not in FORMATS:
            raise ConfigError(f"--to {format}: no figure is written so; {hint(format, FORMATS)}")
    _ = style.inches, style.points
    _family(style.family)


def _family(name: str) -> list[str]:
    """The fonts for a name, the first one that is installed. Raises `ConfigError` for one that is not."""
    from matplotlib import font_manager

    general = {
        "sans": ["Helvetica", "Arial", "Liberation Sans", "DejaVu Sans"],
        "serif": ["Times New Roman", "Times", "Liberation Serif", "STIXGeneral", "DejaVu Serif"],
        "mono": ["DejaVu Sans Mono"],
    }
    names = {font.name for font in font_manager.fontManager.ttflist}
    if name in general:
        return [font for font in general[name] if font in names]
    if name not in names:
        raise ConfigError(f"--font {name}: no font of that name is installed; {hint(name, [*general, *sorted(names)])}")
    return [name, "DejaVu Sans"]


@contextmanager
def drawing(style: Style) -> Iterator[None]:
    """matplotlib with the style, and without a window; what it was is restored."""
    check(style, ())
    import matplotlib

    size = style.points
    settings: Any = {
        "font.family": _family(style.family),
        "font.size": size,
        "axes.titlesize": size,
        "axes.labelsize": size,
        "xtick.labelsize": size * 0.92,
        "ytick.labelsize": size * 0.92,
        "legend.fontsize": size * 0.92,
        "legend.frameon": False,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.linewidth": 0.6,
        "axes.axisbelow": True,
        "grid.color": PALE,
        "grid.linewidth": 0.5,
        "xtick.major.width": 0.6,
        "ytick.major.width": 0.6,
        "xtick.major.size": 2.5,
        "ytick.major.size": 2.5,
        "lines.linewidth": 1.2,
        "lines.markersize": 4,
        "pdf.fonttype": 42,
        "ps.fonttype": 42,
        "svg.fonttype": "path",
        "svg.hashsalt": "dynaweb",
        "mathtext.fontset": "stix" if style.family == "serif" else "dejavusans",
        "figure.dpi": 300,
        "axes.unicode_minus": True,
        # Labels are others' words: two dollar signs in one begin no formula.
        "text.parse_math": False,
    }
    with matplotlib.rc_context(settings):
        yield


def save(figure: Figure, stem: Path, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Write a figure in each format, whole or not at all; returns the files."""
    from dynaweb.runs.atomic import write_with

    paths = [stem.with_name(f"{stem.name}.{format}") for format in formats]
    for path, format in zip(paths, formats, strict=True):
        # The time of day has no place in a result.
        metadata = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}.get(format, {})

        def write(temporary: Path, format: str = format, metadata: dict[str, None] = metadata) -> None:
            figure.savefig(temporary, format=format, metadata=metadata, dpi=300)

        write_with(path, write)
    return paths


def _new(style: Style, height: float, *, columns: int = 1, **options: Any) -> tuple[Figure, list[Axes]]:
    """A figure of the style's width without a window of its own."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(style.inches, height), layout="constrained")
    engine: Any = figure.get_layout_engine()
    engine.set(w_pad=0.06, h_pad=0.05, wspace=0.05)
    axes = figure.subplots(1, columns, squeeze=False, **options)[0]
    return figure, list(axes)


def n_words(estimates: Sequence[Estimate], what: str = "episodes") -> str:
    """As in `n = 1,080 episodes`, or `n = 720 to 1,080 episodes`."""
    counts = sorted({one.n for one in estimates if one.value is not None})
    if not counts:
        return "n = 0"
    span = f"{counts[0]:,}" if len(counts) == 1 else f"{counts[0]:,} to {counts[-1]:,}"
    return f"n = {span} {what}"


def _bars(axes: Axes, at: float, estimate: Estimate, *, scale: float, flat: bool, **look: Any) -> None:
    """A point with its interval, along x where it lies `flat`."""
    if estimate.value is None:
        return
    value = estimate.value * scale
    low = estimate.low if estimate.low is not None else estimate.value
    high = estimate.high if estimate.high is not None else estimate.value
    errors = [[max(0.0, value - low * scale)], [max(0.0, high * scale - value)]]
    place = {"x": [value], "y": [at], "xerr": errors} if flat else {"x": [at], "y": [value], "yerr": errors}
    axes.errorbar(**place, capsize=0, elinewidth=1.1, **look)  # type: ignore[arg-type]


def rows_figure(style: Style, rows: Sequence[FigureRow], value: str, *, scale: float = 100.0) -> Figure:
    """The main table as a figure: values with intervals at the left, differences to the reference at the right."""
    has_differences = any(row.difference is not None for row in rows)
    columns = 2 if has_differences else 1
    # Labels take at most two fifths of the width, in as many lines as that needs.
    labels = [_wrapped(style, row.label, 0.4 * style.inches) for row in rows]
    lines = max((label.count("\n") for label in labels), default=0)
    height = (len(rows) * (1 + 0.6 * lines) + 2.9) * style.points * 2.0 / 72
    figure, axes = _new(style, height, columns=columns, sharey=True, width_ratios=[1.15, 1][:columns])
    left = axes[0]
    for at, row in enumerate(rows):
        is_reference = has_differences and row.difference is None
        look = {"color": GREY if is_reference else COLOURS[0], "fmt": "D" if is_reference else "o"}
        _bars(left, at, row.value, scale=scale, flat=True, **look)
    left.set_yticks(range(len(rows)), labels)
    left.set_ylim(len(rows) - 0.4, -0.6)
    room = 0.6 * style.inches / columns
    left.set_xlabel(f"{_wrapped(style, value, room)}\n{_wrapped(style, n_words([row.value for row in rows]), room)}")
    if has_differences:
        right = axes[1]
        right.axvline(0, color=GREY, linewidth=0.8)
        for at, row in enumerate(rows):
            if row.difference is None:
                place: dict[str, Any] = {"va": "center", "ha": "center", "color": GREY, "fontsize": style.points * 0.92}
                right.text(0, at, "reference", **place, bbox={"facecolor": "white", "edgecolor": "none", "pad": 1})
            if row.difference is None or row.difference.estimate is None:
                continue
            marked = row.difference.is_marked
            look = {"color": COLOURS[0], "fmt": "o", "markerfacecolor": COLOURS[0] if marked else "white"}
            _bars(right, at, row.difference.estimate, scale=100, flat=True, **look)
        words = _wrapped(style, "● interval without 0, corrected", room)
        right.set_xlabel(f"Difference, points\n{words}")
        right.tick_params(left=False)
        right.spines["left"].set_visible(False)
    for one in axes:
        one.grid(axis="x")
        one.tick_params(axis="y", length=0)
        one.margins(x=0.06)
    return figure


def _wrapped(style: Style, text: str, inches: float) -> str:
    """Text in lines that are about so wide."""
    letters = max(8, int(inches * 72 / (style.points * 0.5)))
    return textwrap.fill(text, letters, break_long_words=False, break_on_hyphens=False)


def factors_figure(style: Style, factors: Sequence[tuple[str, Sequence[tuple[str, Estimate]]]], value: str) -> Figure:
    """Success by level of each factor, a block of rows each."""
    count = sum(len(levels) for _, levels in factors) + len(factors)
    figure, (axes,) = _new(style, (count + 2.6) * style.points * 1.75 / 72)
    at, places, names = 0.0, list[float](), list[str]()
    for number, (factor, levels) in enumerate(factors):
        places.append(at)
        names.append(factor)
        for level, estimate in levels:
            at += 1
            look = {"color": COLOURS[number % len(COLOURS)], "fmt": MARKERS[number % len(MARKERS)]}
            _bars(axes, at, estimate, scale=100, flat=True, **look)
            places.append(at)
            names.append(level)
        at += 1.25
    axes.set_yticks(places, names)
    for label in axes.get_yticklabels():
        label.set_fontweight("bold" if label.get_text() in {factor for factor, _ in factors} else "normal")
    axes.set_ylim(at - 0.6, -0.7)
    axes.grid(axis="x")
    axes.tick_params(axis="y", length=0)
    estimates = [estimate for _, levels in factors for _, estimate in levels]
    axes.set_xlabel(f"{value}, over all levels of the other factors\n{n_words(estimates)} a level")
    axes.margins(x=0.06)
    return figure


@dataclass(frozen=True, slots=True)
class Panel:
    """A set of lines over one x. `ticks` names the places of levels that are no numbers; `note` stands below it."""

    x: str
    series: tuple[Series, ...]
    ticks: tuple[str, ...] = ()
    note: str = ""
    legend: str = ""
    """What the lines are of, as the title of the legend."""
    baseline: tuple[str, Estimate] | None = None
    """A value to compare with, drawn over all x."""


def lines_figure(
    style: Style, panels: Sequence[Panel], value: str, *, scale: float = 100.0, what: str = "episodes"
) -> Figure:
    """Lines with their intervals: as bands over numbers, as bars over levels."""
    columns = len(panels)
    width = style.inches / columns
    figure, axes = _new(style, max(1.9, min(2.6, width * 0.62)) + 0.35, columns=columns, sharey=True)
    rows = 0
    for panel, one in zip(panels, axes, strict=True):
        _lines(one, panel, scale)
        one.grid(axis="y")
        one.set_xlabel(f"{panel.x}\n{panel.note}" if panel.note else panel.x)
        if len(panel.series) > 1 or panel.baseline is not None:
            rows = max(rows, _legend(style, one, width, panel.legend))
    _make_room(style, figure, rows)
    estimates = [estimate for panel in panels for series in panel.series for _, estimate in series.points]
    axes[0].set_ylabel(f"{value}\n{n_words(estimates, what)} a point")
    return figure


def _legend(style: Style, axes: Axes, width: float, title: str = "") -> int:
    """The legend above the axes, where it hides nothing, in as many columns as have room; returns its rows."""
    handles, labels = axes.get_legend_handles_labels()
    letters = max(map(len, labels), default=0) + 6
    fitting = int(max(1.0, (width - 0.6) * 72 / (letters * style.points * 0.52)))
    rows = math.ceil(len(labels) / fitting)
    axes.legend(
        handles,
        labels,
        title=title or None,
        loc="lower left",
        bbox_to_anchor=(0, 1.0),
        ncols=math.ceil(len(labels) / max(1, rows)),
        alignment="left",
        handlelength=2.2,
        columnspacing=1.2,
        borderaxespad=0.2,
    )
    return rows


def _make_room(style: Style, figure: Figure, rows: int) -> None:
    """Make a figure higher by the second and every further row of its legend."""
    figure.set_figheight(figure.get_figheight() + max(0, rows - 1) * style.points * 1.5 / 72)


def _lines(axes: Axes, panel: Panel, scale: float) -> None:
    count = len(panel.series)
    for number, series in enumerate(panel.series):
        colour, known = COLOURS[number % len(COLOURS)], [(x, one) for x, one in series.points if one.value is not None]
        # Bars of several lines at the same levels stand beside each other.
        shift = (number - (count - 1) / 2) * 0.08 if panel.ticks else 0.0
        xs = [x + shift for x, _ in known]
        ys = [(one.value or 0.0) * scale for _, one in known]
        line: dict[str, Any] = {"color": colour, "linestyle": LINES[number % len(LINES)], "label": series.label}
        marker: dict[str, Any] = {} if series.is_curve else {"marker": MARKERS[number % len(MARKERS)]}
        if panel.ticks:
            for (_, one), x in zip(known, xs, strict=True):
                _bars(axes, x, one, scale=scale, flat=False, color=colour, fmt="none")
        else:
            lows = [(one.low if one.low is not None else one.value or 0.0) * scale for _, one in known]
            highs = [(one.high if one.high is not None else one.value or 0.0) * scale for _, one in known]
            axes.fill_between(xs, lows, highs, color=colour, alpha=0.16 if count < 4 else 0.09, linewidth=0)
        axes.plot(xs, ys, **line, **marker)
    if panel.baseline is not None:
        label, one = panel.baseline
        axes.axhline((one.value or 0.0) * scale, color=GREY, linestyle=":", linewidth=1.0, label=label)
    if panel.ticks:
        axes.set_xticks(range(len(panel.ticks)), panel.ticks)
        axes.set_xlim(-0.4, len(panel.ticks) - 0.6)
    else:
        xs = sorted({x for series in panel.series for x, _ in series.points})
        if 1 < len(xs) <= 10 and not any(series.is_curve for series in panel.series):
            axes.set_xticks(xs, [f"{x:g}" for x in xs])
        else:
            from matplotlib.ticker import MaxNLocator

            whole = all(float(x).is_integer() for x in xs)
            axes.xaxis.set_major_locator(MaxNLocator(6, integer=whole))
            axes.xaxis.set_major_formatter(_thousands)


def cost_figure(
    style: Style,
    series: Sequence[CostSeries],
    cost: str,
    value: str,
    legend: str = "",
    *,
    scale: float = 100.0,
    what: str = "episodes",
) -> Figure:
    """A value against a cost, each point with the intervals of both."""
    figure, (axes,) = _new(style, max(2.3, min(3.0, style.inches * 0.55)) + 0.2)
    costs = [x.value for one in series for _, x, _ in one.points if x.value is not None]
    is_wide = bool(costs) and min(costs) > 0 and max(costs) / min(costs) > 8
    if is_wide:
        axes.set_xscale("log")
    for number, one in enumerate(series):
        colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
        for word, x, y in one.points:
            at, height = x.value or 0.0, scale * (y.value or 0.0)
            _bars(axes, at, y, scale=scale, flat=False, color=colour, fmt=marker)
            if x.low is not None and x.high is not None:
                axes.plot([max(x.low, at / 100), x.high], [height, height], color=colour, linewidth=1.1)
            if word:
                beside: dict[str, Any] = {"textcoords": "offset points", "xytext": (3, 3)}
                axes.annotate(word, (at, height), **beside, color=colour, fontsize=style.points * 0.85)
        xs, ys = [x.value or 0.0 for _, x, _ in one.points], [scale * (y.value or 0.0) for _, _, y in one.points]
        line: dict[str, Any] = {"linestyle": LINES[number % len(LINES)] if len(xs) > 1 else "none", "linewidth": 0.8}
        axes.plot(xs, ys, color=colour, marker=marker, label=one.label, **line)
    points = [point for one in series for point in one.points]
    axes.set_xlabel(f"{cost} ({n_words([x for _, x, _ in points], 'runs')} a point)")
    axes.set_ylabel(f"{value}\n{n_words([y for _, _, y in points], what)} a point")
    _cost_ticks(axes, is_wide)
    axes.grid()
    if len(series) > 1:
        _make_room(style, figure, _legend(style, axes, style.inches, legend))
    return figure


def _cost_ticks(axes: Axes, is_wide: bool) -> None:
    from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)) if is_wide else MaxNLocator(5))
    axes.xaxis.set_major_formatter(_thousands)
    if is_wide:
        axes.xaxis.set_minor_formatter(NullFormatter())


def _thousands(number: float, _: float) -> str:
    return f"{number:,.0f}" if math.isfinite(number) else ""
