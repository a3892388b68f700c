"""The table of a matrix, for a terminal and for papers: every number with its n and its 95 % interval."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import replace

from dynaweb.compare.comparing import difference_cells
from dynaweb.compare.records import COSTS, MAIN, measure_key
from dynaweb.compare.tables import MCNEMAR, Cell, Column, Table, level_words, p_words
from dynaweb.config.labels import labels_text
from dynaweb.matrix.folder import CellStatus
from dynaweb.matrix.results import MatrixResults, TableRow
from dynaweb.report.data import measure_words
from dynaweb.report.gather import arm_label
from dynaweb.stats import WIDTH, Estimate, duration

NOTE = (
    "success in percent with its 95 % interval and n episodes (measures of the world model: means and n questions; "
    "costs: means and n runs); differences in points on the same episodes"
)


def matrix_text(results: MatrixResults, *, width: int = WIDTH, full: bool = False, pairwise: bool = False) -> str:
    """The table for a terminal. The note below it has lines of at most `width` characters (40 at least).

    With `full` McNemar's p stands beside each difference; with `pairwise` every two combinations are compared.
    """
    lines = [replace(matrix_table(results, full=full, differences=not pairwise), notes=()).to("text")]
    if pairwise:
        pairs = pairs_table(results, full=full)
        lines += [replace(pairs, notes=()).to("text"), *(_filled(line, width) for line in pairs.notes), ""]
    lines += [_filled(line, width) for line in notes(results, full=full, differences=not pairwise)[:1]]
    lines.append(_states(results))
    lines += [f"{id}: {problem}" for id, problem in results.problems.items()]
    lines += [f"failed {status.id} ({labels_text(status.labels)}): {status.detail}" for status in _failed(results)]
    return "\n".join(lines)


def _filled(line: str, width: int) -> str:
    return textwrap.fill(line, max(width, 40), break_on_hyphens=False, break_long_words=False)


def matrix_table(results: MatrixResults, *, full: bool = False, differences: bool = True) -> Table:
    """The table for papers and programs: a column for each axis, the measures with n, the difference to the reference.

    With `full` McNemar's p stands beside each difference.
    """
    axes = results.plan.axes or ("combination",)
    columns = [*(Column(axis) for axis in axes), Column("seeds", "count")]
    for name in results.measures:
        scale, digits = _format(name)
        columns += [Column(measure_label(name), "estimate", scale, digits), Column("n", "count")]
    if differences:
        columns += [Column(f"against {results.compared}", "difference"), *([Column(MCNEMAR, "p")] if full else [])]
    rows = []
    for row in results.rows:
        cells: list[Cell] = [*([value for _, value in row.labels] or ["all"]), _seeds(row)]
        for name in results.measures:
            estimate = row.estimates[name]
            cells += [estimate if estimate is not None else "-", estimate.n if estimate is not None else "-"]
        rows.append((*cells, *(difference_cells(row.is_reference, row.against, full) if differences else ())))
    matrix = results.plan.matrix
    title = matrix.description or f"Matrix {matrix.name}"
    below = tuple(notes(results, full=full, differences=differences))
    return Table(title, tuple(columns), tuple(rows), below, matrix.name)


def _seeds(row: TableRow) -> str:
    return str(row.done) if row.done == len(row.cells) else f"{row.done}/{len(row.cells)}"


def pairs_table(results: MatrixResults, *, full: bool = False) -> Table:
    """Every two combinations: the second minus the first, at the level that is corrected for all of them."""
    pairs = results.pairs()
    label = measure_label(results.measures[0]).removesuffix(" %")
    columns = [Column("first"), Column("second"), Column("second minus first", "difference"), Column("n", "count")]
    rows = []
    for pair in pairs:
        paired = pair.versus.paired
        cells = difference_cells(False, pair.versus, full)
        n = paired.difference.n if paired is not None else 0
        rows.append((pair.first.label, pair.second.label, cells[0], n, *cells[1:]))
    note = f"{label}: differences in points on the same episodes{level_words(len(pairs))}{p_words(full)}."
    title = f"{results.plan.matrix.description or results.plan.matrix.name}: every two rows"
    p = [Column(MCNEMAR, "p")] if full else []
    return Table(title, (*columns, *p), tuple(rows), (note,), f"{results.plan.matrix.name}-pairs")


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
    scale, digits = _format(name)
    return "-" if estimate is None else Column("", "estimate", scale, digits).text(estimate)


def _format(name: str) -> tuple[float, str]:
    """The scale of a measure and how its numbers are written."""
    return (100, ".1f") if is_share(name) else (1, ",.0f" if name in COSTS else ".3f")


def is_share(name: str) -> bool:
    """Whether a measure is the success of an arm, neither one of the world model nor a cost."""
    from dynaweb.worldmodels.fidelity import MEANINGS

    return name not in COSTS and measure_key(name) not in map(measure_key, MEANINGS)


def notes(results: MatrixResults, *, full: bool = False, differences: bool = True) -> list[str]:
    """What stands below the table: what the numbers are, the level, and which cells are not done."""
    meanings = [
        ("success in percent with its 95 % interval and n episodes", is_share),
        ("costs: means with their 95 % interval and n runs", lambda name: name in COSTS),
        (
            "measures of the world model: means with their 95 % interval and n questions",
            lambda name: not is_share(name) and name not in COSTS,
        ),
    ]
    words = [text for text, fits in meanings if any(fits(name) for name in results.measures)]
    if differences:
        words.append(f"differences in points on the same episodes{level_words(len(results.rows) - 1)}{p_words(full)}")
    text = "; ".join(words)
    return [f"{text[:1].upper()}{text[1:]}.", *([_states(results)] if set(results.counts()) != {"done"} else [])]


def _states(results: MatrixResults) -> str:
    return f"cells: {', '.join(f'{number} {state}' for state, number in results.counts().items())}"


def _failed(results: MatrixResults) -> list[CellStatus]:
    return [status for status in results.statuses if status.state == "failed"]
