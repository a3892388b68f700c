"""Mind2Web (Deng et al., arXiv 2306.06070): human demonstrations as cleaned HTML and one operation a step.

The data has no addresses, so the address of a page is `mind2web:<website>`: opaque, and the same on all pages of a
site. The target is the first positive candidate that the page shows; steps without one are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dynaweb.config.files import MALFORMED
from dynaweb.data.importers import ImportReport
from dynaweb.data.importers.pages import ForeignPage, from_html, numbers
from dynaweb.data.importers.rows import Row, rows_of
from dynaweb.data.importers.steps import NO_ACTION, NO_PAGE, ForeignStep, on_page, transitions
from dynaweb.types import Action, Transition

SOURCE = "mind2web"


def read(source: str, report: ImportReport) -> Iterator[Transition]:
    """The transitions of Mind2Web's tasks; see `dynaweb.data.importers.read_foreign`."""
    for row in rows_of(source, report):
        actions = row.get("actions")
        if not isinstance(actions, list):
            report.read += 1
            report.drop("its task has no list of actions")
            continue
        report.read += len(actions)
        site = str(row.get("website", "unknown"))
        steps = [_step(action, site, order) for order, action in enumerate(actions)]
        name, goal = str(row.get("annotation_id", "")), str(row.get("confirmed_task", ""))
        yield from transitions(steps, report, task=f"{SOURCE}/{name}", source=SOURCE, goal=goal, site=site)


def _step(action: Any, site: str, order: int) -> ForeignStep:
    try:
        page = from_html(str(action["cleaned_html"]), f"{SOURCE}:{site}")
    except MALFORMED:
        return ForeignStep(None, NO_PAGE, order)
    try:
        return ForeignStep(page, _action(action, page), order)
    except MALFORMED:
        return ForeignStep(page, NO_ACTION, order)


def _action(action: Row, page: ForeignPage) -> Action | str:
    operation = action.get("operation") or {}
    wanted = [str(candidate.get("backend_node_id", "")) for candidate in action.get("pos_candidates") or ()]
    if not wanted:
        return "it has no positive candidate"
    target, text = numbers(page.ids, wanted), str(operation.get("value", ""))
    chosen = {
        "CLICK": Action("click", target),
        "HOVER": Action("hover", target),
        "TYPE": Action("type", target, text),
        "SELECT": Action("select", target, text),
        "ENTER": Action("press", text="Enter"),
    }.get(str(operation.get("op", "")))
    return on_page(chosen, page) if chosen is not None else NO_ACTION
