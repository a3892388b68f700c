"""The report's section on audits: the judge's reward beside real success over the updates, and every alarm in words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from dynaweb.report.blocks import count
from dynaweb.report.data import Curve, ReportData
from dynaweb.report.markup import Html, el, with_minus
from dynaweb.report.series import Series
from dynaweb.report.svg import line_chart

STAGE = "audit"
"""What audits are called among the updates of a run (`dynaweb.loop.auditing.STAGE`)."""
SHOWN = {
    "judge_reward": "reward by the judge",
    "real_success": "success on real pages",
    "judge_false_positive": "real failures that the judge accepts",
}
LEAD = (
    "Every few updates, rollouts of the last update were repeated on real pages, where the environment's own check "
    "knows the outcome. Reward that rises while success falls means that the policy learns to please its judge or its "
    "world model. Where the judge accepts most real failures, its reward says little."
)


def alarms_in(rows: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """The alarms among the rows of a metrics file, each once, in order."""
    found = (str(row["error"]) for row in rows if row.get("event") == "error" and _is_audit(row))
    return tuple(dict.fromkeys(found))


def _is_audit(row: Mapping[str, Any]) -> bool:
    return str(row.get("where", "")).startswith(f"{STAGE} ")


def audited(data: ReportData) -> Html | None:
    """The section; None for a run without audits."""
    curves = {curve.metric: curve for curve in data.curves if curve.stage == STAGE}
    if not curves and not data.alarms:
        return None
    lines = [Series(label, curves[name].points) for name, label in SHOWN.items() if name in curves]
    counts = curves.get("graded")
    note = f"Repeated and graded at each audit: {_numbers(counts)}." if counts is not None else ""
    words = el("ul", *[el("li", with_minus(why)) for why in data.alarms], class_="plain") if data.alarms else None
    status = el("span", count(len(data.alarms), "alarm"), class_="chip bad")
    quiet = el("span", "no alarm", class_="chip good")
    return el(
        "section",
        el("h2", "Reward against reality"),
        el("p", LEAD, class_="lead"),
        el("p", status if data.alarms else quiet),
        words,
        el("div", line_chart("Judge and environment", lines, rate=True), class_="charts") if lines else None,
        el("p", note, class_="note") if note else None,
    )


def _numbers(curve: Curve) -> str:
    values = [int(value) for _, value in curve.points if value is not None]
    low, high = min(values, default=0), max(values, default=0)
    return count(low, "rollout") if low == high else f"{low} to {high} rollouts"
