"""WebArena trajectories: the `render_<task>.html` files of its runner, and trace files with one JSON object a step.

A render file repeats, for each step, address, page as text, and what the model said (`raw_parsed_prediction`) with the
action that was understood (`parsed_action`). Trace files (VisualAgentBench, WebRL) hold `html`, `response` and, in some
releases, `target` and `index`; their pages are simplified HTML whose elements carry `id`, and have no address.
"""

from __future__ import annotations

import html
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from dynaweb.config.files import MALFORMED
from dynaweb.data.importers.episodes import NO_NUMBER, NO_START, ForeignEpisode
from dynaweb.data.importers.pages import ForeignPage, from_html, from_webarena_text
from dynaweb.data.importers.report import ImportReport, files_of
from dynaweb.data.importers.rows import LARGEST, TOO_LARGE, Row, finite, rows_of
from dynaweb.data.importers.steps import (
    INEXACT,
    NO_ACTION,
    NO_PAGE,
    ForeignStep,
    do_action,
    thought_before_fence,
    thought_in_comments,
    webarena_action,
)
from dynaweb.types import Action

SOURCE = "webarena"
_NEW = "<h2>New Page</h2>"
_END = "</pre>"
_AFTER_PAGE = re.compile(r"</pre>\s*+</?div")
_ACTIONS = ("parsed_action", "raw_parsed_prediction")


def episodes(source: str, report: ImportReport) -> Iterator[ForeignEpisode]:
    """The episodes of render and trace files; see `dynaweb.data.importers`."""
    for file in files_of(source, "render_*.html", "*.jsonl"):
        yield from _traces(file, report) if file.suffix == ".jsonl" else _render(file, report)


def _render(file: Path, report: ImportReport) -> Iterator[ForeignEpisode]:
    if file.stat().st_size > LARGEST:
        report.read += 1
        report.drop(TOO_LARGE)
        return
    head, *parts = file.read_text(encoding="utf-8", errors="replace").split(_NEW)
    config = _config(head)
    report.read += len(parts)
    steps = [_rendered(part, order) for order, part in enumerate(parts)]
    name = config.get("task_id", file.stem.removeprefix("render_"))
    start, site = config.get("start_url", ""), "+".join(re.findall(r"'([\w-]+)'", config.get("sites", "")))
    yield ForeignEpisode(name, SOURCE, steps, goal=config.get("intent", ""), start_url=start, site=site)


def _config(head: str) -> dict[str, str]:
    lines = (_between(head, "<pre>", _END) or "").split("\n")
    return {key.strip(): html.unescape(value.strip()) for key, _, value in (line.partition(":") for line in lines)}


def _rendered(part: str, order: int) -> ForeignStep:
    url = _between(part, "<h3 class='url'><a href=", "</a></h3>", skip=">URL: ")
    _, start, text = part.partition("<div class='state_obv'><pre>")
    end = _AFTER_PAGE.search(text)
    if url is None or not start or end is None:
        return ForeignStep(None, NO_PAGE, order)
    try:
        seen = from_webarena_text(html.unescape(text[: end.start()]), html.unescape(url))
    except MALFORMED:
        return ForeignStep(None, NO_PAGE, order)
    action, reply = _rendered_action(part, seen)
    return ForeignStep(seen, action, order, thought_before_fence(reply), reply)


def _rendered_action(part: str, page: ForeignPage) -> tuple[Action | str, str]:
    """What was done, and all that the model said.

    `parsed_action` is what was understood; it does not say whether Enter was pressed after a text, which only the
    model's own words tell.
    """
    texts = [_between(part, f"<div class='{name}'", _END, skip="><pre>") for name in _ACTIONS]
    done, reply = (html.unescape(text) if text is not None else "" for text in texts)
    understood, spoken = (webarena_action(text, page) if text else NO_ACTION for text in (done, reply))
    if isinstance(understood, str):
        return spoken if isinstance(spoken, Action) else understood if done.strip() else spoken, reply
    if understood.kind != "type":
        return understood, reply
    same = isinstance(spoken, Action) and _typed(spoken) == _typed(understood)
    return spoken if same else INEXACT, reply


def _typed(action: Action) -> tuple[str, int | None, str]:
    """A text as `parsed_action` writes it, in which a line break is a space."""
    return action.kind, action.target, " ".join(action.text.split())


def _between(text: str, start: str, end: str, *, skip: str = "") -> str | None:
    """What stands between the first `start`, after it the first `skip`, and the next `end`; None where one is missing.

    The searches go forward only, so that a text of any size and content takes a time that is linear in it.
    """
    _, first, rest = text.partition(start)
    _, second, rest = rest.partition(skip) if skip else ("", start, rest)
    inner, last, _ = rest.partition(end)
    return inner if first and second and last else None


def _traces(file: Path, report: ImportReport) -> Iterator[ForeignEpisode]:
    traces: dict[str, list[Row]] = defaultdict(list)
    for row in rows_of(str(file), report):
        report.read += 1
        traces[str(row.get("trace_id", file.stem))].append(row)
    for name, rows in traces.items():
        if all(isinstance(row.get("index"), int) for row in rows):
            rows.sort(key=lambda row: int(row["index"]))
        first = rows[0].get("index")
        start = first if isinstance(first, int) else 0
        steps = [_traced(row, name, at, start) for at, row in enumerate(rows)]
        goal = str(next((row[key] for row in rows for key in ("target", "task") if row.get(key)), ""))
        scores = [finite(row["score"]) for row in rows if row.get("score") is not None]
        score = scores[-1] if scores else None
        # They count from 0 or from 1.
        lacks = NO_START if start > 1 else NO_NUMBER if None in scores else ""
        yield ForeignEpisode(name, SOURCE, steps, goal=goal, lacks=lacks, score=score, why="the score of its trace")


def _traced(row: Row, name: str, at: int, start: int) -> ForeignStep:
    index, document, reply = row.get("index"), row.get("html"), row.get("response")
    order = index - start if isinstance(index, int) else at
    reply = reply if isinstance(reply, str) else ""
    if not isinstance(document, str):
        return ForeignStep(None, NO_PAGE, order)
    try:
        page = from_html(document, str(row.get("url") or f"{SOURCE}:{name}"))
    except MALFORMED:
        return ForeignStep(None, NO_PAGE, order)
    return ForeignStep(page, do_action(reply, page), order, thought_in_comments(reply), reply)
