"""The page of `dynaweb wm eval`: drift and reliability curves, and every measure with its interval and n."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from dynaweb.report.charts import Series, line_chart
from dynaweb.report.data import Measure, measure_words
from dynaweb.report.html import own_page
from dynaweb.report.markup import Html, el, join, section
from dynaweb.report.sections import drift_chart, measure_table
from dynaweb.runs import finite, write_json, write_text
from dynaweb.stats import Estimate
from dynaweb.worldmodels.fidelity import MEASURES

if TYPE_CHECKING:
    from dynaweb.stages.world_model_eval import WorldModelScores
    from dynaweb.worldmodels.calibration import Calibration

Measures = Mapping[str, Estimate]
SCORES, SCORES_PAGE = "world-model.json", "world-model.html"


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
    groups = [(f"One step: {group}", measures) for group, measures in one_step.items()]
    groups += [(f"Open loop: step {at}", measures) for at, measures in enumerate(steps, 1)]
    main = el(
        "main",
        section("Open loop and confidence", "", el("div", *curves, class_="charts")) if curves else None,
        *[section(title, "", _table(measures, meanings)) for title, measures in groups],
    )
    return own_page(f"World model {name}", join(el("header", el("h1", f"World model {name}")), main), interactive=False)


def reliability_chart(calibration: Calibration) -> Html:
    """How often pages of a confidence were sound, beside the line of perfect reliability."""
    points = [(one.expected, one.sound) for one in calibration.reliability]
    perfect = Series("perfect", [(0.0, 0.0), (1.0, 1.0)], guide=True)
    title = f"Reliability of confidence (Brier score {calibration.brier:.3f}, n = {calibration.n})"
    return line_chart(title, [Series("measured", points), perfect], x_label="confidence", rate=True, whole=False)


def _table(measures: Measures, meanings: Mapping[str, str]) -> Html:
    return measure_table([Measure(measure_words(name), one, meanings.get(name, "")) for name, one in measures.items()])


def write_scores(scores: WorldModelScores, folder: Path) -> tuple[Path, ...]:
    """Write an evaluation of a world model as JSON and as a page with its plots."""
    plain = {name: value for name, value in asdict(scores).items() if name != "files"}
    write_json(folder / SCORES, finite(plain))
    page = world_model_page(scores.name, scores.one_step, scores.steps, scores.calibration, MEASURES)
    write_text(folder / SCORES_PAGE, page)
    return folder / SCORES, folder / SCORES_PAGE
