"""The drift plot: how true the pages of a dream are, step by step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dynaweb.report.markup import Html
from dynaweb.report.series import Series
from dynaweb.report.stats import Estimate
from dynaweb.report.svg import line_chart

SHOWN = {
    "element_f1": "elements right",
    "role_f1": "elements right by kind",
    "page_kind": "kind of page right",
    "alive": "dream still follows",
}
"""Measures of the plot, in words."""
DODGE = 0.06
"""Steps that lines are moved apart, so that no interval hides another."""


def drift_chart(steps: Sequence[Mapping[str, Estimate]]) -> Html:
    """Measures by step of the dream with their 95 % intervals; the title says how many episodes there are of each."""
    places = [DODGE * (at - (len(SHOWN) - 1) / 2) for at in range(len(SHOWN))]
    series = [_series(name, label, steps, place) for (name, label), place in zip(SHOWN.items(), places, strict=True)]
    counts = [max((found.n for found in step.values()), default=0) for step in steps]
    title = f"Open loop, by step of the dream (n = {', '.join(map(str, counts))})"
    return line_chart(title, series, x_label="step", rate=True)


def _series(name: str, label: str, steps: Sequence[Mapping[str, Estimate]], place: float) -> Series:
    known = [(at + place, step[name]) for at, step in enumerate(steps, 1) if name in step]
    bars = [(at, one.low, one.high) for at, one in known if one.low is not None and one.high is not None]
    return Series(label, [(at, one.value) for at, one in known], bars)
