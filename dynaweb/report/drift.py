"""The drift plot: how true the pages of a dream are, step by step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dynaweb.report.markup import Html
from dynaweb.report.stats import Estimate
from dynaweb.report.svg import Series, line_chart

SHOWN = {
    "element_f1": "elements right",
    "role_f1": "elements right by kind",
    "page_kind": "kind of page right",
    "alive": "dream still follows",
}
"""Measures of the plot, in words."""


def drift_chart(steps: Sequence[Mapping[str, Estimate]]) -> Html:
    """Measures by step of the dream with their 95 % intervals; the title says how many episodes there are of each."""
    series = [_series(name, label, steps) for name, label in SHOWN.items()]
    counts = [max((found.n for found in step.values()), default=0) for step in steps]
    title = f"Open loop, by step of the dream (n = {', '.join(map(str, counts))})"
    return line_chart(title, series, x_label="step", rate=True)


def _series(name: str, label: str, steps: Sequence[Mapping[str, Estimate]]) -> Series:
    known = [(at, step[name]) for at, step in enumerate(steps, 1) if name in step]
    bars = [(at, one.low, one.high) for at, one in known if one.low is not None and one.high is not None]
    return Series(label, [(at, one.value) for at, one in known], bars)
