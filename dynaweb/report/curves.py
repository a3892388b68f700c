"""The section of learning curves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from dynaweb.report.alarms import STAGE
from dynaweb.report.blocks import count, fold, section, words
from dynaweb.report.data import Curve, ReportData
from dynaweb.report.markup import Html, el
from dynaweb.report.plot import COLOURS, short
from dynaweb.report.series import Series, palette
from dynaweb.report.svg import line_chart

RATES = ("reward", "success", "share", "rate", "fraction", "accuracy", "false", "exact", "f1", "valid")
"""Metrics with one of these words in their name are drawn on a scale from 0 to 1."""
FIRST_METRICS = ("reward", "success", "loss", "entropy")
"""Metrics with one of these words are shown at once, one of each word first; the others under a fold."""
ROW = 3
"""Charts beside each other in a wide window."""
LEAST = 3
"""Values that a line under the fold has at least."""


def curves(data: ReportData) -> Html | None:
    """Small charts, one a metric; several stages with one metric share a chart. What makes no curve is a table."""
    metrics: dict[str, list[Curve]] = {}
    for curve in data.curves:
        if curve.stage != STAGE and curve.values:
            metrics.setdefault(curve.metric, []).append(curve)
    if not metrics:
        return None
    first = _first([name for name, found in metrics.items() if any(len(curve.values) > 1 for curve in found)])
    changing = {name for name, found in metrics.items() if any(_changes(curve) for curve in found)}
    more = sorted(changing.difference(first))
    still = [curve for name in sorted(metrics.keys() - changing - set(first)) for curve in metrics[name]]
    colours = palette([[_name(curve) for curve in found] for found in metrics.values()], len(COLOURS), _most_seen(data))
    lead = "Faint lines are single updates, strong lines the mean of five."
    return section(
        "Learning curves",
        lead if first else "",
        _charts(metrics, first, colours) if first else None,
        el("details", el("summary", count(len(more), "more curve")), _charts(metrics, more, colours)) if more else None,
        _still(still) if still else None,
    )


def _name(curve: Curve) -> str:
    """What a line is called in every chart."""
    return curve.label or words(curve.stage)


def _most_seen(data: ReportData) -> list[str]:
    """Who gets a colour first: the arm that the run is about, then the other arms."""
    return [arm.label for arm in sorted(data.arms, key=lambda arm: arm.role != "main")]


def _changes(curve: Curve) -> bool:
    return len(curve.values) >= LEAST and len(set(curve.values)) > 1


def _still(found: Sequence[Curve]) -> Html:
    """Metrics of which a chart would be a dot, two dots or a flat line."""
    rows = [
        el(
            "tr",
            el("td", words(curve.metric)),
            el("td", _name(curve)),
            *[el("td", shown, class_="n") for shown in (short(curve.values[0]), short(curve.values[-1]))],
            el("td", str(len(curve.values)), class_="n"),
        )
        for curve in found
    ]
    head = [("Metric", ""), ("Stage", ""), ("First", "n"), ("Last", "n"), ("Updates", "n")]
    return fold(f"{count(len(rows), 'value')} without a curve", head, rows)


def _first(names: Sequence[str]) -> list[str]:
    """The charts to show at once, in whole rows."""
    found = {word: [name for name in names if word in name] for word in FIRST_METRICS}
    best = [word if word in like else like[0] for word, like in found.items() if like]
    known = list(dict.fromkeys([*best, *(name for like in found.values() for name in like)])) or list(names)
    return known if len(known) < ROW else known[: min(2 * ROW, len(known) // ROW * ROW)]


def _charts(metrics: Mapping[str, Sequence[Curve]], names: Iterable[str], colours: Mapping[str, int]) -> Html:
    return el("div", *[_chart(name, metrics[name], colours) for name in names], class_="charts")


def _chart(name: str, lines: Sequence[Curve], colours: Mapping[str, int]) -> Html:
    series = [Series(_name(curve), curve.points, colour=colours[_name(curve)]) for curve in lines]
    only = f" ({_name(lines[0])})" if len(lines) == 1 else ""
    return line_chart(f"{words(name)}{only}", series, rate=any(word in name for word in RATES))
