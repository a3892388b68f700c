"""The HTML report of a matrix: its table, a plot for each axis of numbers, its cells with links to their reports."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from dynaweb.compare.records import COSTS
from dynaweb.config.labels import labels_text
from dynaweb.matrix.folder import CellStatus, MatrixFolder
from dynaweb.matrix.plan import RECIPE, by_path, value_label
from dynaweb.matrix.results import MatrixResults, TableRow
from dynaweb.matrix.table import NOTE, is_share, measure_label, value_text
from dynaweb.report.charts import Series, interval_bar, line_chart
from dynaweb.report.html import Linked, own_page, way_back
from dynaweb.report.markup import Html, code_row, el, fold, join, section, table, with_minus
from dynaweb.report.sections import STATUS, live_buttons
from dynaweb.stats import count, duration


def write_page(results: MatrixResults, folder: MatrixFolder) -> Path:
    """Write `report.html` into the folder of a matrix and return its path."""
    from dynaweb.runs import write_text

    write_text(folder.report, matrix_page(results, folder.path))
    return folder.report


def matrix_page(results: MatrixResults, base: Path, *, linked: Linked | None = None) -> str:
    """The page as HTML source that needs nothing else; links lead to the cells' folders under `base`.

    It may be `linked` with others, as in `dynaweb.report.html.render`.
    """
    matrix = results.plan.matrix
    counts = results.counts().items()
    chips = [el("span", f"{count} {state}", class_=f"chip {STATUS.get(state, '')}") for state, count in counts]
    seeds = f"{len(matrix.seeds)} seed{'s' if len(matrix.seeds) > 1 else ''}"
    base_chip = None if RECIPE in results.plan.axes else el("span", f"base {Path(matrix.base).stem}", class_="chip")
    facts = [*chips, base_chip, el("span", seeds, class_="chip")]
    theme, news = live_buttons()
    header = el(
        "header",
        way_back(linked),
        el("h1", f"Matrix {matrix.name}"),
        el("p", matrix.description, class_="muted") if matrix.description else None,
        theme,
        el("div", *facts, class_="chips"),
        el("p", el("a", "Compare its runs", href=linked.compare)) if linked and linked.compare else None,
        news if linked and linked.stamp else None,
    )
    measures = [_measure(results, name) for name in results.measures]
    main = el("main", *measures, _plots(results), _provenance(results), _cells(results, base, linked is not None))
    return own_page(f"Matrix {matrix.name}", join(header, main, _footer(results)), linked=linked)


def _measure(results: MatrixResults, name: str) -> Html:
    axes = [el("th", axis, scope="col") for axis in results.plan.axes or ("combination",)]
    scale = _scale(results, name)
    with_difference = name == results.measures[0]
    heads = [*axes, el("th", measure_label(name), class_="n"), el("th", _unit(name, scale)), el("th", "n", class_="n")]
    if with_difference:
        heads += [el("th", "Against the first", class_="n")]
    rows = [_row(row, name, scale, with_difference) for row in results.rows]
    table = el("table", el("thead", el("tr", *heads)), el("tbody", *rows), class_="stack")
    title = "Result" if with_difference else _title(name)
    note = el("p", INTERVALS, class_="note") if with_difference else None
    return section(title, _lead(results, name), el("div", table, class_="card scroll"), note)


def _title(name: str) -> str:
    label = measure_label(name).removesuffix(" %")
    return label[:1].upper() + label[1:]


def _lead(results: MatrixResults, name: str) -> str:
    """What the numbers of a section are."""
    from dynaweb.worldmodels.fidelity import MEANINGS

    if name == results.measures[0]:
        words = NOTE[0].upper() + NOTE[1:] + "; bold where the interval leaves out 0 at the corrected level."
        return f"{words} {episodes_words(results)}".strip()
    if name in COSTS:
        words = f"{COSTS[name][:1].upper()}{COSTS[name][1:]}. Mean over runs with its 95 % interval; n counts runs."
        return f"{words} A stage that several runs share counts for each of them."
    meaning = MEANINGS.get(name.lower().replace(" ", "_"), "")
    if not meaning:
        return "The same episodes, played by another arm of the same runs."
    return (
        f"{meaning[0].upper()}{meaning[1:]}. Mean with its 95 % interval over the questions of all runs; n counts them."
    )


def _row(row: TableRow, name: str, scale: tuple[float, float], with_difference: bool) -> Html:
    estimate = row.estimates[name]
    values = [el("td", el("span", value), data_label=axis) for axis, value in row.labels] or [el("td", "all")]
    bar = interval_bar(estimate, scale)
    seeds = el("small", f"{row.done} of {len(row.cells)} seeds") if len(row.cells) > 1 or not row.done else None
    n = str(estimate.n) if estimate is not None else "0"
    cells = [
        el("td", el("b", value_text(name, estimate)), class_="n", data_label=measure_label(name)),
        el("td", bar, data_label=_unit(name, scale)) if bar is not None else el("td"),
        el("td", el("span", n, seeds), class_="n", data_label="n"),
    ]
    return el("tr", *values, *cells, _against(row) if with_difference else None)


def _against(row: TableRow) -> Html:
    if row.is_reference:
        return el("td", el("span", "reference", class_="muted"), class_="n", data_label="Against the first")
    if row.against is None:
        return el("td")
    text = with_minus(row.against.text.removesuffix("*").strip())
    cell = el("b", text) if row.against.is_significant else text
    return el("td", el("span", cell), class_="n", data_label="Against the first")


def _unit(name: str, scale: tuple[float, float]) -> str:
    low, high = scale
    if is_share(name):
        return f"{100 * low:.0f} to {100 * high:.0f} %"
    return f"{low:,.0f} to {high:,.0f}" if name in COSTS else f"{low:.2g} to {high:.2g}"


def _scale(results: MatrixResults, name: str) -> tuple[float, float]:
    known = [one for row in results.rows if (one := row.estimates[name]) is not None]
    lows = [one.low for one in known if one.low is not None]
    highs = [one.high for one in known if one.high is not None]
    if is_share(name):
        return max(0.0, min(lows, default=0.0) - 0.05), 1.0
    return min(lows, default=0.0), max(highs, default=1.0)


def _plots(results: MatrixResults) -> Html | None:
    axes = [axis for axis in results.plan.axes if _is_number(results, axis)]
    charts = [_plot(results, name, axis) for name in results.measures for axis in axes]
    drawn = [chart for chart in charts if chart is not None]
    if not drawn:
        return None
    lead = (
        "Means by value of an axis; one line for each combination of the others, with its 95 % interval as thin lines."
    )
    return section("By value", lead, el("div", *drawn, class_="charts"))


def _is_number(results: MatrixResults, axis: str) -> bool:
    values = {dict(row.labels)[axis] for row in results.rows}
    return len(values) > 2 and all(_number(value) is not None for value in values)


def _number(value: str) -> float | None:
    try:
        return float(value)
    except ValueError:
        return None


def _plot(results: MatrixResults, name: str, axis: str) -> Html | None:
    lines: dict[str, list[tuple[float, TableRow]]] = {}
    for row in results.rows:
        labels = dict(row.labels)
        x = _number(labels.pop(axis))
        if x is not None and (estimate := row.estimates[name]) is not None and estimate.value is not None:
            line = ", ".join(f"{other} {value}" for other, value in labels.items()) or measure_label(name)
            lines.setdefault(line, []).append((x, row))
    if not lines:
        return None
    series = [_series(label, sorted(points, key=lambda one: one[0]), name) for label, points in lines.items()]
    whole = all(x.is_integer() for points in lines.values() for x, _ in points)
    return line_chart(f"{_title(name)} by {axis}", series, x_label=axis, rate=is_share(name), whole=whole)


def _series(label: str, points: Sequence[tuple[float, TableRow]], name: str) -> Series:
    known = [(x, estimate) for x, row in points if (estimate := row.estimates[name]) is not None]
    bars = tuple((x, one.low, one.high) for x, one in known if one.low is not None and one.high is not None)
    return Series(label, [(x, one.value) for x, one in known], bars)


def _cells(results: MatrixResults, base: Path, linked: bool) -> Html:
    heads = [el("th", head) for head in ("Cell", "Settings", "Seed", "State", "Time")]
    rows = [_cell(status, base, linked) for status in results.statuses]
    table = el("table", el("thead", el("tr", *heads)), el("tbody", *rows), class_="stack")
    return section("Cells", "", el("div", table, class_="card scroll"))


def _cell(status: CellStatus, base: Path, linked: bool) -> Html:
    folder = Path(status.folder)
    link = el("code", status.id)
    # Beside others a run has a page as soon as it has begun.
    if (folder / ("status.json" if linked else "report.html")).exists():
        link = el("a", link, href=f"{folder.relative_to(base).as_posix()}/report.html")
    detail = el("small", status.detail) if status.detail else None
    return el(
        "tr",
        el("td", link),
        el("td", el("span", labels_text(status.labels), detail), data_label="Settings"),
        el("td", el("span", str(status.seed)), data_label="Seed"),
        el("td", el("span", status.state, class_=f"chip {STATUS.get(status.state, '')}"), data_label="State"),
        el("td", el("span", duration(status.seconds) if status.seconds else ""), data_label="Time"),
    )


INTERVALS = (
    "Intervals: for success the wider of Wilson's over episodes and Student's over seeds; for differences a bootstrap "
    "over seeds and episodes."
)


def episodes_words(results: MatrixResults) -> str:
    """A sentence on what the episodes of the done cells are; empty where none is done."""
    if not results.episodes_are:
        return ""
    if len(results.episodes_are) == 1:
        return f"Episodes: {results.episodes_are[0]}."
    return f"Episodes differ between the cells: {'; '.join(results.episodes_are)}."


def _provenance(results: MatrixResults) -> Html:
    """The section with the base, and with the settings that are no axis."""
    matrix = results.plan.matrix
    settings = by_path(matrix.set)
    start = "of its row" if RECIPE in results.plan.axes else matrix.base
    below = " and by those below" if settings else ""
    seeds = ", ".join(map(str, matrix.seeds))
    lead = f"Base of every cell: the recipe {start}, changed by the settings of its row{below}. Seeds: {seeds}."
    head = [("Setting of every cell", ""), ("Value", "")]
    rows = [code_row(path, value_label(value)) for path, value in settings.items()]
    card = el("div", table(head, rows, stack=False), class_="card scroll") if rows else None
    return section("Made with", lead, card, _conditions(results))


def _conditions(results: MatrixResults) -> Html | None:
    """The settings of the cells that fit a condition, folded: side by side recipes have many."""
    rows = [code_row(*row) for row in _conditional(results)]
    head = [("Setting", ""), ("Value", ""), ("In cells with", "")]
    return fold(f"{count(len(rows), 'setting')} of some cells", head, rows) if rows else None


def _conditional(results: MatrixResults) -> Iterator[tuple[str, str, str]]:
    for when in results.plan.matrix.when:
        where = labels_text((axis, value_label(value)) for axis, value in when.condition.items())
        for path, value in by_path(when.set).items():
            yield path, value_label(value), where


def _footer(results: MatrixResults) -> Html:
    """Who made it, and with what the cells were run where that was another version."""
    from dynaweb import __version__

    others = "" if set(results.versions) <= {__version__} else f" Cells were run with {', '.join(results.versions)}."
    return el("footer", f"Made by dynaweb {__version__}.{others}")
