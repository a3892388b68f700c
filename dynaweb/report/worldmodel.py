"""The page of `dynaweb wm eval`: drift and reliability curves, and every measure with its interval and n."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from dynaweb.report.drift import drift_chart
from dynaweb.report.html import own_page
from dynaweb.report.markup import Html, el
from dynaweb.report.series import Series
from dynaweb.report.stats import Estimate
from dynaweb.report.svg import line_chart

if TYPE_CHECKING:
    from dynaweb.worldmodels.confidence import Calibration

Measures = Mapping[str, Estimate]


def world_model_page(
    name: str,
    one_step: Mapping[str, Measures],
    steps: Sequence[Measures],
    calibration: Calibration | None,
    meanings: Mapping[str, str],
) -> str:
    """The page as HTML source that needs nothing else."""
    curves = [drift_chart(steps)] if steps else []
    if calibration is not None:
        curves.append(reliability_chart(calibration))
    parts = [
        el("h1", f"World model {name}"),
        el("section", el("h2", "Open loop and confidence"), el("div", *curves, class_="card charts")),
        *(_table(f"One step: {group}", found, meanings) for group, found in one_step.items()),
        *(_table(f"Open loop: step {at}", found, meanings) for at, found in enumerate(steps, 1)),
    ]
    return own_page(f"World model {name}", el("main", *parts))


def reliability_chart(calibration: Calibration) -> Html:
    """How often pages of a confidence were sound, beside the line of perfect reliability."""
    found = [(one.expected, one.sound) for one in calibration.reliability]
    perfect = Series("perfect", [(0.0, 0.0), (1.0, 1.0)])
    title = f"Reliability of confidence (Brier score {calibration.brier:.3f}, n={calibration.n})"
    return line_chart(title, [Series("measured", found), perfect], x_label="confidence", rate=True, whole=False)


def _table(title: str, found: Measures, meanings: Mapping[str, str]) -> Html:
    head = el("tr", *[el("th", word) for word in ("measure", "value [95 % interval]", "meaning")])
    rows = [
        el("tr", el("td", name), el("td", str(value)), el("td", meanings.get(name, "")))
        for name, value in found.items()
    ]
    return el("section", el("h2", title), el("div", el("table", el("thead", head), el("tbody", *rows)), class_="card"))
