"""The figures of a matrix: what is drawn, from its results. `dynaweb.compare.figures` says how.

main            the table: success of every combination, and its difference to the reference
effects         success by level of each factor, over all levels of the others
interactions    success by level of two factors at once
by-AXIS         success over the values of an axis of numbers, a line for each combination of the others
real-steps      success against steps in the real environment; `tokens`: against tokens generated
learning        reward of the rollouts by update; `learning-steps`, `learning-tokens`: by what had been spent till then
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Sized
from pathlib import Path
from typing import TYPE_CHECKING

from dynaweb.compare.figures import (
    FORMATS,
    CostSeries,
    FigureRow,
    Panel,
    Series,
    Style,
    check,
    cost_figure,
    drawing,
    factors_figure,
    lines_figure,
    rows_figure,
    save,
)
from dynaweb.compare.groups import Group
from dynaweb.compare.learning import LEARNING, learning_figure, learning_kinds
from dynaweb.compare.records import COSTS, MAIN
from dynaweb.compare.tables import Difference
from dynaweb.config.labels import labels_text
from dynaweb.errors import ConfigError, hint
from dynaweb.matrix.effects import factors, interactions
from dynaweb.matrix.results import MatrixResults, TableRow
from dynaweb.matrix.table import is_share, measure_label
from dynaweb.report.gather import arm_label
from dynaweb.stats import Estimate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_LINES = 8
"""More lines than this cannot be told apart."""
COST_FIGURES = {
    "real-steps": ("real_steps", "Real steps before the evaluation"),
    "tokens": ("tokens_generated", "Tokens generated"),
}


def kinds(results: MatrixResults, measure: str = "") -> list[str]:
    """The figures that these results can be drawn as, of a measure: by default that of the results."""
    arm = measure or _arm(results)
    varied = factors(results, arm) if is_share(arm) else []
    names = ["main"] if any(_is_known(row.group, arm) for row in _done(results)) else []
    names += ["effects"] if len(varied) > 1 else []
    names += ["interactions"] if len(varied) > 1 and interactions(results, arm) else []
    names += [f"by-{axis}" for axis in results.plan.axes if 0 < len(_lines(results, axis, arm)) <= MOST_LINES]
    runs = [run for row in results.rows for run in row.group.runs]
    known = {name: cost for name, (cost, _) in COST_FIGURES.items() if all(run.cost(cost) is not None for run in runs)}
    if len(results.rows) > 1:
        names += [name for name, cost in known.items() if 0 < len(_cost_series(results, cost, arm)) <= MOST_LINES]
    if len(_done(results)) > MOST_LINES:
        return names
    return [*names, *learning_kinds([row.group for row in _done(results)])]


def write_figures(
    results: MatrixResults,
    folder: Path,
    *,
    names: Sequence[str] = (),
    style: Style | None = None,
    formats: Sequence[str] = FORMATS,
    measure: str = "",
) -> list[Path]:
    """Draw figures, by default all of `kinds`, into a folder as `MATRIX-KIND.FORMAT`; returns the files.

    `measure` is what is drawn, by default the first of the results. Raises `MissingError` without matplotlib, and
    `ConfigError` for a figure that these results do not give, and for a width, font or format that is none.
    """
    style = style or Style()
    check(style, formats)
    if not any(row.group.runs for row in results.rows):
        raise ConfigError(f"matrix {results.plan.matrix.name} has no cell that is done, so there is nothing to draw")
    arm = measure or _arm(results)
    known = kinds(results, arm)
    if not known:
        raise ConfigError(f"no run that is done has the measure {arm!r}, so there is nothing to draw; choose another")
    for name in names:
        axis = name.removeprefix("by-")
        if name.startswith("by-") and axis in results.plan.axes:
            _check_lines(axis, _lines(results, axis, arm))
        if name not in known:
            raise ConfigError(
                f"these results have no figure {name!r} of {arm}; {hint(name, known)}. There are: {', '.join(known)}"
            )
    paths = []
    for name in names or known:
        with drawing(style):
            figure = draw(results, name, style, measure)
            # A dot in a name is taken for its ending by LaTeX.
            paths += save(figure, folder / f"{results.plan.matrix.name}-{name.replace('.', '-')}", formats)
    return paths


def draw(results: MatrixResults, name: str, style: Style, measure: str = "") -> Figure:
    """One figure of `kinds`, to be called within `drawing`."""
    arm = measure or _arm(results)
    if name.startswith("by-"):
        return _by_axis(results, name.removeprefix("by-"), arm, style)
    if name in COST_FIGURES:
        cost, label = COST_FIGURES[name]
        series, legend = _cost_series(results, cost, arm), _cost_legend(results)
        return cost_figure(style, series, label, _words(arm), legend, scale=_scale(arm), what=_what(arm))
    if name in LEARNING:
        groups = [(_label(row), row.group) for row in _done(results)]
        return learning_figure(style, name, groups, ", ".join(results.plan.axes))
    drawn: dict[str, Callable[[], Figure]] = {
        "main": lambda: _main(results, arm, style),
        "effects": lambda: factors_figure(
            style,
            [(one.axis, [(level.value, level.success) for level in one.levels]) for one in factors(results, arm)],
            _words(arm),
        ),
        "interactions": lambda: lines_figure(style, _interaction_panels(results, arm), _words(arm)),
    }
    return drawn[name]()


def _arm(results: MatrixResults) -> str:
    first = results.measures[0]
    return first if is_share(first) else MAIN


def _words(measure: str) -> str:
    """A measure as the label of an axis."""
    if measure == MAIN:
        return "Success, %"
    return f"{arm_label(measure)}, success, %" if is_share(measure) else measure_label(measure)


def _done(results: MatrixResults) -> list[TableRow]:
    return [row for row in results.rows if row.group.runs]


def _label(row: TableRow) -> str:
    """How a row is called: one axis needs no name, which its legend says."""
    return row.labels[0][1] if len(row.labels) == 1 else labels_text(row.labels) or "all runs"


def _value(group: Group, measure: str) -> Estimate | None:
    if measure in COSTS:
        return group.cost(measure)
    return group.success(measure) if is_share(measure) else group.measure(measure)


def _is_known(group: Group, measure: str) -> bool:
    estimate = _value(group, measure)
    return estimate is not None and estimate.value is not None


def _scale(measure: str) -> float:
    return 100.0 if is_share(measure) else 1.0


def _main(results: MatrixResults, measure: str, style: Style) -> Figure:
    rows = []
    compared = measure == results.measures[0] and results.reference is not None
    for row in _done(results):
        estimate = _value(row.group, measure)
        if estimate is None:
            continue
        paired = row.against.paired if row.against is not None else None
        difference = Difference(paired.difference if paired else None, bool(row.against and row.against.is_significant))
        rows.append(FigureRow(_label(row), estimate, None if not compared or row.is_reference else difference))
    return rows_figure(style, rows, _words(measure), scale=_scale(measure))


def _cost_series(results: MatrixResults, cost: str, measure: str) -> list[CostSeries]:
    """A line for each combination of the other axes over an axis of numbers; without one, a point for each row."""
    axis = next((axis for axis in results.plan.axes if _numbers(results, axis)), "")
    points: dict[str, list[tuple[str, Estimate, Estimate]]] = {}
    for row in _done(results):
        x, y = row.group.cost(cost), _value(row.group, measure)
        labels = dict(row.labels)
        word = labels.pop(axis, "")
        name = _label_of(labels) if axis else _label(row)
        if x is not None and y is not None and x.value is not None and y.value is not None:
            points.setdefault(name, []).append((word, x, y))
    return [CostSeries(name, tuple(of_line)) for name, of_line in points.items()]


def _cost_legend(results: MatrixResults) -> str:
    axis = next((axis for axis in results.plan.axes if _numbers(results, axis)), "")
    others = ", ".join(other for other in results.plan.axes if other != axis)
    return f"{others}; beside the points: {axis}" if axis and others else others


def _label_of(labels: dict[str, str]) -> str:
    return next(iter(labels.values())) if len(labels) == 1 else labels_text(tuple(labels.items()))


def _numbers(results: MatrixResults, axis: str) -> dict[str, float]:
    """The values of an axis of numbers, by label; none where they are no numbers, or fewer than three."""
    values = dict.fromkeys(dict(row.labels)[axis] for row in _done(results) if axis in dict(row.labels))
    try:
        numbers = {value: float(value) for value in values}
    except ValueError:
        return {}
    return numbers if len(numbers) > 2 else {}


def _lines(results: MatrixResults, axis: str, measure: str) -> dict[str, list[tuple[float, Estimate]]]:
    """A measure over an axis of numbers, by the combination of the others; none over another axis."""
    numbers = _numbers(results, axis)
    lines: dict[str, list[tuple[float, Estimate]]] = {}
    for row in _done(results) if numbers else ():
        labels = dict(row.labels)
        x, estimate = numbers[labels.pop(axis)], _value(row.group, measure)
        name = _label_of(labels)
        if estimate is not None and estimate.value is not None:
            lines.setdefault(name or _words(measure).removesuffix(", %"), []).append((x, estimate))
    return lines


def _check_lines(axis: str, lines: Sized) -> None:
    if len(lines) > MOST_LINES:
        raise ConfigError(
            f"by-{axis} would have {len(lines)} lines, and {MOST_LINES} can be told apart; draw a matrix with fewer "
            "values of the other axes"
        )


def _by_axis(results: MatrixResults, axis: str, measure: str, style: Style) -> Figure:
    lines = _lines(results, axis, measure)
    _check_lines(axis, lines)
    others = [other for other in results.plan.axes if other != axis]
    series = tuple(Series(name, tuple(sorted(points, key=lambda point: point[0]))) for name, points in lines.items())
    panel = Panel(axis, series, legend=", ".join(others), baseline=_baseline(results) if measure == MAIN else None)
    return lines_figure(style, [panel], _words(measure), scale=_scale(measure), what=_what(measure))


def _what(measure: str) -> str:
    return "runs" if measure in COSTS else "episodes" if is_share(measure) else "questions"


def _baseline(results: MatrixResults) -> tuple[str, Estimate] | None:
    """Where all combinations began: the first SFT, if it is the same one in all."""
    rows = _done(results)
    arms = {(arm.name, arm.label) for row in rows for run in row.group.runs if (arm := run.data.start) is not None}
    outcomes = {(run.seed, *run.played("sft").items()) for row in rows for run in row.group.runs}
    if len(arms) != 1 or len(outcomes) != len({run.seed for row in rows for run in row.group.runs}):
        return None
    ((name, label),) = arms
    whole = max(rows, key=lambda row: len(row.group.runs))
    return (label, whole.group.success(name)) if whole.group.by_seed(name) else None


def _interaction_panels(results: MatrixResults, arm: str) -> list[Panel]:
    panels = []
    for one in interactions(results, arm):
        levels = [list(dict.fromkeys(cell[at] for cell in one.cells)) for at in (0, 1)]
        # The axis with more levels, or with numbers, lies along x.
        flip = len(levels[1]) > len(levels[0])
        across, lines = (levels[1], levels[0]) if flip else (levels[0], levels[1])
        series = tuple(
            Series(line, tuple((at, one.cells[(line, x) if flip else (x, line)]) for at, x in enumerate(across)))
            for line in lines[:MOST_LINES]
        )
        axis, legend = (one.second, one.first) if flip else (one.first, one.second)
        note = ""
        if one.contrast is not None and one.contrast.value is not None and one.contrast.low is not None:
            low, high = 100 * one.contrast.low, 100 * (one.contrast.high or 0.0)
            note = f"difference of differences {100 * one.contrast.value:+.1f} [{low:+.1f}, {high:+.1f}]"
        panels.append(Panel(axis, series, tuple(across), note, legend))
    return panels
