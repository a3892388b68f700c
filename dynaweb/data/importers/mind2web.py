"""Mind2Web (Deng et al., arXiv 2306.06070): human demonstrations as cleaned HTML and one operation a step.

A row is a task with its `actions`, or, in Multimodal-Mind2Web, one action, next to the others of its task; there, and
in some copies, parts are JSON inside of text. The data has no addresses, so the address of a page is
`mind2web:<website>`: opaque, and the same on all pages of a site. The target is the first positive candidate that the
page shows; steps without one are left out. What annotators did is `original_op`; `op` calls some of it a click.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import groupby
from typing import Any

from dynaweb.config.files import MALFORMED
from dynaweb.data.importers.episodes import NO_END, ForeignEpisode
from dynaweb.data.importers.pages import ForeignPage, from_html, numbers
from dynaweb.data.importers.report import ImportReport
from dynaweb.data.importers.rows import Row, rows_of
from dynaweb.data.importers.steps import INEXACT, NO_ACTION, NO_PAGE, ForeignStep, on_page
from dynaweb.types import Action

SOURCE = "mind2web"
_INDEX = "target_action_index"


def episodes(source: str, report: ImportReport) -> Iterator[ForeignEpisode]:
    """The episodes of Mind2Web's tasks; see `dynaweb.data.importers`."""
    for (by_action, name), rows in groupby(rows_of(source, report), key=_task_of):
        if by_action and name:
            yield _of_actions(list(rows), report)
            continue
        for row in rows:
            actions = None if by_action else _list(row.get("actions"))
            if actions is not None:
                yield _episode(row, actions, range(len(actions)), report)
            else:
                report.read += 1
                report.drop("its task has no name" if by_action else "its task has no list of actions")


def _task_of(row: Row) -> tuple[bool, str]:
    return "action_uid" in row, str(row.get("annotation_id", ""))


def _of_actions(rows: list[Row], report: ImportReport) -> ForeignEpisode:
    """The rows of one task, one an action."""
    orders = [_number(row.get(_INDEX), at) for at, row in enumerate(rows)]
    ordered = sorted(zip(orders, range(len(rows)), strict=True))
    return _episode(rows[0], [rows[at] for _, at in ordered], [order for order, _ in ordered], report)


def _episode(row: Row, actions: list[Any], orders: list[int] | range, report: ImportReport) -> ForeignEpisode:
    report.read += len(actions)
    site = str(row.get("website", "unknown"))
    steps = [_step(action, site, order) for order, action in zip(orders, actions, strict=True)]
    name, goal = str(row.get("annotation_id", "")), str(row.get("confirmed_task", ""))
    lacks = NO_END if len(_list(row.get("action_reprs")) or ()) > len(steps) else ""
    return ForeignEpisode(name, SOURCE, steps, goal=goal, site=site, lacks=lacks, info={"site": site})


def _step(action: Any, site: str, order: int) -> ForeignStep:
    try:
        action = _read(action)
        document = action["cleaned_html"]
        if not isinstance(document, str):
            return ForeignStep(None, NO_PAGE, order)
        page = from_html(document, f"{SOURCE}:{site}")
    except MALFORMED:
        return ForeignStep(None, NO_PAGE, order)
    try:
        return ForeignStep(page, _action(action, page), order)
    except MALFORMED:
        return ForeignStep(page, NO_ACTION, order)


def _action(action: Row, page: ForeignPage) -> Action | str:
    """Raises what `MALFORMED` lists."""
    operation = _read(action.get("operation")) or {}
    candidates = [_read(candidate) for candidate in _read(action.get("pos_candidates")) or ()]
    wanted = [str(candidate.get("backend_node_id", "")) for candidate in candidates]
    if not wanted:
        return "it has no positive candidate"
    target, text = numbers(page.ids, wanted), str(operation.get("value", ""))
    name = str(operation.get("original_op") or operation.get("op", ""))
    if name == "ENTER":  # on an element, whether or not it is in focus
        return INEXACT
    chosen = {
        "CLICK": Action("click", target),
        "HOVER": Action("hover", target),
        "TYPE": Action("type", target, text),
        "SELECT": Action("select", target, text),
    }.get(name)
    return on_page(chosen, page) if chosen is not None else NO_ACTION


def _read(value: Any) -> Any:
    """A part of a row; some are JSON inside of text. Raises `ValueError` for text that is none."""
    return json.loads(value) if isinstance(value, str) else value


def _list(value: Any) -> list[Any] | None:
    try:
        value = _read(value)
    except MALFORMED:
        return None
    return value if isinstance(value, list) else None


def _number(value: Any, otherwise: int) -> int:
    text = str(value)
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else otherwise
