"""The page of `dynaweb wm eval`: drift and reliability curves, and every measure with its interval and n."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from dynaweb.report.blocks import section
from dynaweb.report.data import Measure
from dynaweb.report.drift import drift_chart
from dynaweb.report.gather import measure_words
from dynaweb.report.html import own_page
from dynaweb.report.markup import Html, el, join
from dynaweb.report.sections import measure_table
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
    groups = [(f"One step: {group}", found) for group, found in one_step.items()]
    groups += [(f"Open loop: step {at}", found) for at, found in enumerate(steps, 1)]
    main = el(
        "main",
        section("Open loop and confidence", "", el("div", *curves, class_="charts")) if curves else None,
        *[section(title, "", _table(found, meanings)) for title, found in groups],
    )
    return own_page(f"World model {name}", join(el("header", el("h1", f"World model {name}")), main))


def reliability_chart(calibration: Calibration) -> Html:
    """How often pages of a confidence were sound, beside the line of perfect reliability."""
    found = [(one.expected, one.sound) for one in calibration.reliability]
    perfect = Series("perfect", [(0.0, 0.0), (1.0, 1.0)], guide=True)
    title = f"Reliability of confidence (Brier score {calibration.brier:.3f}, n = {calibration.n})"
    return line_chart(title, [Series("measured", found), perfect], x_label="confidence", rate=True, whole=False)


def _table(found: Measures, meanings: Mapping[str, str]) -> Html:
    return measure_table([Measure(measure_words(name), one, meanings.get(name, "")) for name, one in found.items()])
