"""What the report of a matrix says of how its numbers were made: base, settings, episodes, intervals, versions."""

from __future__ import annotations

from collections.abc import Iterator

from dynaweb.matrix.grammar import RECIPE, by_path, value_label
from dynaweb.matrix.results import MatrixResults
from dynaweb.report.blocks import code_row, count, fold, section, table
from dynaweb.report.markup import Html, el

INTERVALS = (
    "Intervals: for success the wider of Wilson's over episodes and Student's over seeds; for differences a bootstrap "
    "over seeds and episodes. p is McNemar's exact test over the episodes of all seeds pooled, so p and the interval "
    "can disagree: bold follows the interval."
)


def episodes_words(found: MatrixResults) -> str:
    """A sentence on what the episodes of the done cells are; empty where none is done."""
    if not found.episodes_are:
        return ""
    if len(found.episodes_are) == 1:
        return f"Episodes: {found.episodes_are[0]}."
    return f"Episodes differ between the cells: {'; '.join(found.episodes_are)}."


def made(found: MatrixResults) -> Html:
    """The section with the base, and with the settings that are no axis."""
    matrix = found.plan.matrix
    settings = by_path(matrix.set)
    start = "of its row" if RECIPE in found.plan.axes else matrix.base
    below = " and by those below" if settings else ""
    seeds = ", ".join(map(str, matrix.seeds))
    lead = f"Base of every cell: the recipe {start}, changed by the settings of its row{below}. Seeds: {seeds}."
    head = [("Setting of every cell", ""), ("Value", "")]
    rows = [code_row(path, value_label(value)) for path, value in settings.items()]
    shown = el("div", table(head, rows, stack=False), class_="card scroll") if rows else None
    return section("Made with", lead, shown, _conditions(found))


def _conditions(found: MatrixResults) -> Html | None:
    """The settings of the cells that fit a condition, folded: side by side recipes have many."""
    rows = [code_row(*row) for row in _conditional(found)]
    head = [("Setting", ""), ("Value", ""), ("In cells with", "")]
    return fold(f"{count(len(rows), 'setting')} of some cells", head, rows) if rows else None


def _conditional(found: MatrixResults) -> Iterator[tuple[str, str, str]]:
    for when in found.plan.matrix.when:
        where = ", ".join(f"{axis}={value_label(value)}" for axis, value in when.condition.items())
        for path, value in by_path(when.set).items():
            yield path, value_label(value), where


def footer(found: MatrixResults) -> Html:
    """Who made it, and with what the cells were run where that was another version."""
    from dynaweb import __version__

    others = "" if set(found.versions) <= {__version__} else f" Cells were run with {', '.join(found.versions)}."
    return el("footer", f"Made by dynaweb {__version__}.{others}")
