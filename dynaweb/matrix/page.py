"""The HTML report of a matrix: its table, a plot for each axis of numbers, its cells with links to their reports."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dynaweb.compare.records import COSTS
from dynaweb.matrix.folder import CellStatus, MatrixFolder
from dynaweb.matrix.grammar import RECIPE
from dynaweb.matrix.made import INTERVALS, episodes_words, footer, made
from dynaweb.matrix.results import MatrixResults, TableRow
from dynaweb.matrix.table import NOTE, is_share, measure_label, value_text
from dynaweb.report.blocks import section
from dynaweb.report.headline import duration
from dynaweb.report.html import own_page
from dynaweb.report.markup import Html, el, join, with_minus
from dynaweb.report.sections import STATUS, live_buttons
from dynaweb.report.series import Series
from dynaweb.report.svg import Interval, interval_bar, line_chart


def write_page(found: MatrixResults, folder: MatrixFolder) -> Path:
    """Write `report.html` into the folder of a matrix and return its path."""
    from dynaweb.runs import write_text

    write_text(folder.report, matrix_page(found, folder.path))
    return folder.report


def matrix_page(found: MatrixResults, base: Path, *, stamp: str = "") -> str:
    """The page as HTML source that needs nothing else; links lead to the cells' folders under `base`.

    With `stamp` it is one that `dynaweb view` serves, as in `dynaweb.report.html.render`.
    """
    matrix = found.plan.matrix
    chips = [el("span", f"{count} {state}", class_=f"chip {STATUS.get(state, '')}") for state, count in _counts(found)]
    seeds = f"{len(matrix.seeds)} seed{'s' if len(matrix.seeds) > 1 else ''}"
    base_chip = None if RECIPE in found.plan.axes else el("span", f"base {Path(matrix.base).stem}", class_="chip")
    shown = [*chips, base_chip, el("span", seeds, class_="chip")]
    theme, news = live_buttons()
    header = el(
        "header",
        el("h1", f"Matrix {matrix.name}"),
        el("p", matrix.description, class_="muted") if matrix.description else None,
        theme,
        el("div", *shown, class_="chips"),
        news if stamp else None,
    )
    measures = [_measure(found, name) for name in found.measures]
    main = el("main", *measures, _plots(found), made(found), _cells(found, base))
    return own_page(f"Matrix {matrix.name}", join(header, main, footer(found)), stamp=stamp, interactive=True)


def _counts(found: MatrixResults) -> list[tuple[str, int]]:
    return list(found.counts().items())


def _measure(found: MatrixResults, name: str) -> Html:
    axes = [el("th", axis, scope="col") for axis in found.plan.axes or ("combination",)]
    scale = _scale(found, name)
    with_difference = name == found.measures[0]
    heads = [*axes, el("th", measure_label(name), class_="n"), el("th", _unit(name, scale)), el("th", "n", class_="n")]
    if with_difference:
        heads += [el("th", "Against the first", class_="n"), el("th", "p", class_="n")]
    rows = [_row(row, name, scale, with_difference) for row in found.rows]
    table = el("table", el("thead", el("tr", *heads)), el("tbody", *rows), class_="stack")
    title = "Result" if with_difference else _title(name)
    note = el("p", INTERVALS, class_="note") if with_difference else None
    return section(title, _lead(found, name), el("div", table, class_="card scroll"), note)


def _title(name: str) -> str:
    label = measure_label(name).removesuffix(" %")
    return label[:1].upper() + label[1:]


def _lead(found: MatrixResults, name: str) -> str:
    """What the numbers of a section are."""
    from dynaweb.loop.measures import MEANINGS

    if name == found.measures[0]:
        words = NOTE[0].upper() + NOTE[1:] + "; bold where the interval leaves out 0 at the corrected level."
        return f"{words} {episodes_words(found)}".strip()
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
    bar = None
    if estimate is not None and None not in (estimate.value, estimate.low, estimate.high):
        assert estimate.value is not None and estimate.low is not None and estimate.high is not None
        bar = interval_bar(Interval(estimate.value, estimate.low, estimate.high), *scale)
    seeds = el("small", f"{row.done} of {len(row.cells)} seeds") if len(row.cells) > 1 or not row.done else None
    n = str(estimate.n) if estimate is not None else "0"
    cells = [
        el("td", el("b", value_text(name, estimate)), class_="n", data_label=measure_label(name)),
        el("td", bar, data_label=_unit(name, scale)) if bar is not None else el("td"),
        el("td", el("span", n, seeds), class_="n", data_label="n"),
    ]
    return el("tr", *values, *cells, *(_against(row) if with_difference else ()))


def _against(row: TableRow) -> list[Html]:
    if row.is_reference:
        return [el("td", el("span", "reference", class_="muted"), class_="n", data_label="Against the first"), el("td")]
    if row.against is None:
        return [el("td"), el("td")]
    text = with_minus(row.against.text.removesuffix("*").strip())
    shown = el("b", text) if row.against.shown else text
    return [
        el("td", el("span", shown), class_="n", data_label="Against the first"),
        el("td", el("span", row.against.p), class_="n", data_label="p"),
    ]


def _unit(name: str, scale: tuple[float, float]) -> str:
    low, high = scale
    if is_share(name):
        return f"{100 * low:.0f} to {100 * high:.0f} %"
    return f"{low:,.0f} to {high:,.0f}" if name in COSTS else f"{low:.2g} to {high:.2g}"


def _scale(found: MatrixResults, name: str) -> tuple[float, float]:
    known = [one for row in found.rows if (one := row.estimates[name]) is not None]
    lows = [one.low for one in known if one.low is not None]
    highs = [one.high for one in known if one.high is not None]
    if is_share(name):
        return max(0.0, min(lows, default=0.0) - 0.05), 1.0
    return min(lows, default=0.0), max(highs, default=1.0)


def _plots(found: MatrixResults) -> Html | None:
    charts = [
        _plot(found, name, axis) for name in found.measures for axis in found.plan.axes if _is_number(found, axis)
    ]
    drawn = [chart for chart in charts if chart is not None]
    if not drawn:
        return None
    lead = (
        "Means by value of an axis; one line for each combination of the others, with its 95 % interval as thin lines."
    )
    return el("section", el("h2", "By value"), el("p", lead, class_="lead"), el("div", *drawn, class_="charts"))


def _is_number(found: MatrixResults, axis: str) -> bool:
    values = {dict(row.labels)[axis] for row in found.rows}
    return len(values) > 2 and all(_number(value) is not None for value in values)


def _number(value: str) -> float | None:
    try:
        return float(value)
    except ValueError:
        return None


def _plot(found: MatrixResults, name: str, axis: str) -> Html | None:
    lines: dict[str, list[tuple[float, TableRow]]] = {}
    for row in found.rows:
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
    found = [(x, estimate) for x, row in points if (estimate := row.estimates[name]) is not None]
    bars = tuple((x, one.low, one.high) for x, one in found if one.low is not None and one.high is not None)
    return Series(label, [(x, one.value) for x, one in found], bars)


def _cells(found: MatrixResults, base: Path) -> Html:
    heads = [el("th", head) for head in ("Cell", "Settings", "Seed", "State", "Time")]
    rows = [_cell(status, base) for status in found.statuses]
    table = el("table", el("thead", el("tr", *heads)), el("tbody", *rows), class_="stack")
    return el("section", el("h2", "Cells"), el("div", table, class_="card scroll"))


def _cell(status: CellStatus, base: Path) -> Html:
    folder = Path(status.folder)
    link = el("code", status.id)
    if (folder / "report.html").exists():
        link = el("a", link, href=f"{folder.relative_to(base).as_posix()}/report.html")
    settings = ", ".join(f"{axis}={value}" for axis, value in status.labels)
    detail = el("small", status.detail) if status.detail else None
    return el(
        "tr",
        el("td", link),
        el("td", el("span", settings, detail), data_label="Settings"),
        el("td", el("span", str(status.seed)), data_label="Seed"),
        el("td", el("span", status.state, class_=f"chip {STATUS.get(status.state, '')}"), data_label="State"),
        el("td", el("span", duration(status.seconds) if status.seconds else ""), data_label="Time"),
    )
