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

from dynaweb.data.importers import ImportReport, files_of
from dynaweb.data.importers.pages import ForeignPage, from_html, from_webarena_text
from dynaweb.data.importers.rows import Row, rows_of
from dynaweb.data.importers.steps import NO_ACTION, NO_PAGE, ForeignStep, do_action, transitions, webarena_action
from dynaweb.types import Action, Transition

SOURCE = "webarena"
_NEW = "<h2>New Page</h2>"
_CONFIG = re.compile(r"<pre>(.*?)</pre>", re.DOTALL)
_URL = re.compile(r"<h3 class='url'><a href=.*?>URL: (.*?)</a></h3>", re.DOTALL)
_PAGE = re.compile(r"<div class='state_obv'><pre>(.*?)</pre>\s*</?div", re.DOTALL)
_ACTIONS = tuple(
    re.compile(rf"<div class='{name}'[^>]*><pre>(.*?)</pre>", re.DOTALL)
    for name in ("parsed_action", "raw_parsed_prediction")
)


def read(source: str, report: ImportReport) -> Iterator[Transition]:
    """The transitions of render and trace files; see `dynaweb.data.importers.read_foreign`."""
    for file in files_of(source, "render_*.html", "*.jsonl"):
        yield from _traces(file, report) if file.suffix == ".jsonl" else _render(file, report)


def _render(file: Path, report: ImportReport) -> Iterator[Transition]:
    head, *parts = file.read_text(encoding="utf-8", errors="replace").split(_NEW)
    config = _config(head)
    report.read += len(parts)
    steps = [_rendered(part, order) for order, part in enumerate(parts)]
    task = f"{SOURCE}/{config.get('task_id', file.stem.removeprefix('render_'))}"
    yield from transitions(steps, report, task=task, source=SOURCE, goal=config.get("intent", ""))


def _config(head: str) -> dict[str, str]:
    match = _CONFIG.search(head)
    lines = match[1].split("\n") if match is not None else []
    return {key.strip(): html.unescape(value.strip()) for key, _, value in (line.partition(":") for line in lines)}


def _rendered(part: str, order: int) -> ForeignStep:
    url, page = _URL.search(part), _PAGE.search(part)
    if url is None or page is None:
        return ForeignStep(None, NO_PAGE, order)
    try:
        seen = from_webarena_text(html.unescape(page[1]), html.unescape(url[1]))
    except ValueError:
        return ForeignStep(None, NO_PAGE, order)
    return ForeignStep(seen, _rendered_action(part, seen), order)


def _rendered_action(part: str, page: ForeignPage) -> Action | str:
    """What was understood; where that cannot be read, what the model said."""
    answer: Action | str = NO_ACTION
    for pattern in _ACTIONS:
        match = pattern.search(part)
        if match is not None and isinstance(answer, str):
            answer = webarena_action(html.unescape(match[1]), page)
    return answer


def _traces(file: Path, report: ImportReport) -> Iterator[Transition]:
    episodes: dict[str, list[Row]] = defaultdict(list)
    for row in rows_of(str(file), report):
        report.read += 1
        episodes[str(row.get("trace_id", file.stem))].append(row)
    for name, rows in episodes.items():
        if all(isinstance(row.get("index"), int) for row in rows):
            rows.sort(key=lambda row: int(row["index"]))
        first = rows[0].get("index")
        start = first if isinstance(first, int) else 0
        steps = [_traced(row, name, at, start) for at, row in enumerate(rows)]
        goal = str(next((row[key] for row in rows for key in ("target", "task") if row.get(key)), ""))
        yield from transitions(steps, report, task=f"{SOURCE}/{name}", source=SOURCE, goal=goal)


def _traced(row: Row, name: str, at: int, start: int) -> ForeignStep:
    index = row.get("index")
    order = index - start if isinstance(index, int) else at
    try:
        page = from_html(str(row["html"]), str(row.get("url") or f"{SOURCE}:{name}"))
    except (KeyError, ValueError):
        return ForeignStep(None, NO_PAGE, order)
    return ForeignStep(page, do_action(str(row.get("response", "")), page), order)
