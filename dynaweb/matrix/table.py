"""The table of a matrix as text and as Markdown: every number with its n and its 95 % interval."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from dynaweb.compare.records import COSTS, MAIN, measure_key
from dynaweb.matrix.folder import CellStatus
from dynaweb.matrix.plan import labels_text
from dynaweb.matrix.results import MatrixResults, TableRow
from dynaweb.report.data import measure_words
from dynaweb.report.gather import arm_label
from dynaweb.stats import NO_INTERVAL, WIDTH, Estimate, duration, text_table

NOTE = (
    "success in percent with its 95 % interval and n episodes (measures of the world model: means and n questions; "
    "costs: means and n runs); differences in points on the same episodes"
)


def matrix_text(results: MatrixResults, *, width: int = WIDTH) -> str:
    """The table for a terminal. The note below it has lines of at most `width` characters (40 at least)."""
    head, rows = _cells(results)
    note = [
        textwrap.fill(line, max(width, 40), break_on_hyphens=False, break_long_words=False)
        for line in _note(results).splitlines()
    ]
    lines = [text_table(head, rows, width=400), "", *note]
    lines += [f"{id}: {problem}" for id, problem in results.problems.items()]
    lines += [f"failed {status.id} ({labels_text(status.labels)}): {status.detail}" for status in _failed(results)]
    return "\n".join(lines)


def matrix_markdown(results: MatrixResults) -> str:
    """The table in Markdown."""
    head, rows = _cells(results)
    axes = results.plan.axes or ("combination",)
    marks = [*["---" for _ in axes], *["---:" for _ in head[1:]]]
    of_rows = [[value for _, value in row.labels] or ["all"] for row in results.rows]
    lines = [_row([*axes, *head[1:]]), _row(marks)]
    lines += [_row([*values, *row[1:]]) for values, row in zip(of_rows, rows, strict=True)]
    lines += ["", _note(results)]
    return "\n".join(lines)


STATUS_HEAD = ("cell", "state", "time", "seed", "settings", "error")


def status_rows(statuses: Sequence[CellStatus]) -> list[tuple[str, ...]]:
    """One row a cell, under `STATUS_HEAD`."""
    return [
        (
            one.id,
            one.state,
            duration(one.seconds) if one.seconds else "-",
            str(one.seed),
            labels_text(one.labels),
            one.detail,
        )
        for one in statuses
    ]


def measure_label(name: str) -> str:
    """How a measure is called in the head of a table."""
    if name == MAIN:
        return "Success %"
    if name in COSTS:
        return {"seconds": "Time, s"}.get(name, measure_words(name))
    return f"{arm_label(name)}, success %" if is_share(name) else measure_words(name)


def value_text(name: str, estimate: Estimate | None) -> str:
    """A value with its interval: an arm's success in percent, another measure as it is; `-` without one."""
    if estimate is None or estimate.value is None:
        return "-"
    scale, digits = (100, ".1f") if is_share(name) else (1, ",.0f" if name in COSTS else ".3f")
    value = f"{estimate.value * scale:{digits}}"
    if estimate.low is None or estimate.high is None:
        return f"{value} {NO_INTERVAL}"
    return f"{value} [{estimate.low * scale:{digits}}, {estimate.high * scale:{digits}}]"


def is_share(name: str) -> bool:
    """Whether a measure is the success of an arm, neither one of the world model nor a cost."""
    from dynaweb.worldmodels.fidelity import MEANINGS

    return name not in COSTS and measure_key(name) not in map(measure_key, MEANINGS)


def _cells(results: MatrixResults) -> tuple[list[str], list[list[str]]]:
    widths = [
        max(len(axis), *(len(dict(row.labels)[axis]) for row in results.rows)) if results.rows else len(axis)
        for axis in results.plan.axes
    ]
    head = [_padded(results.plan.axes, widths) or "combination", "seeds"]
    for name in results.measures:
        head += [f"{measure_label(name)}  [95 %]", "n"]
    return [*head, "against first", "p"], [_cells_of(row, results.measures, widths) for row in results.rows]


def _cells_of(row: TableRow, measures: Sequence[str], widths: Sequence[int]) -> list[str]:
    cells = [_padded([value for _, value in row.labels], widths) or "all", f"{row.done}/{len(row.cells)}"]
    for name in measures:
        estimate = row.estimates[name]
        cells += [value_text(name, estimate), str(estimate.n) if estimate is not None else "-"]
    if row.is_reference:
        return [*cells, "reference", ""]
    return [*cells, *((row.against.text, row.against.p) if row.against is not None else ("-", ""))]


def _padded(words: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(word.ljust(width) for word, width in zip(words, widths, strict=True))


def _note(results: MatrixResults) -> str:
    count = len(results.rows) - 1
    level = (
        f"; * interval without 0 at the level corrected for {count} comparisons"
        if count > 1
        else "; * interval without 0"
    )
    states = ", ".join(f"{number} {state}" for state, number in results.counts().items())
    return f"{NOTE}{level}; p: exact McNemar\ncells: {states}"


def _failed(results: MatrixResults) -> list[CellStatus]:
    return [status for status in results.statuses if status.state == "failed"]


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '/').strip() for cell in cells)} |"
