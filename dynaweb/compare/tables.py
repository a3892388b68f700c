r"""Tables of results, and the formats that papers and programs want: text, Markdown, LaTeX (booktabs), CSV, HTML.

    columns = (Column("opt"), Column("Success %", "estimate", 100, ".1f"), Column("n", "count"))
    table = Table("Optimizers", columns, rows)
    print(table.to("latex"))

Every format has the same numbers with their n and their 95 % interval, and the same notes. Text that others wrote
(labels, paths) is escaped in each: it ends no cell, opens no tag and calls no macro.
"""

from __future__ import annotations

import csv
import io
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal

from dynaweb.errors import ConfigError, hint
from dynaweb.stats import NO_INTERVAL, Estimate, difference_text, p_text, text_table

Kind = Literal["label", "estimate", "count", "difference", "p"]
FORMATS = ("text", "markdown", "latex", "csv", "html", "json")
"""What `--to` knows; the first is for terminals, the last the plain data of the result."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A paired difference in a table: `is_marked` where it may be called one. None: nothing is paired."""

    estimate: Estimate | None
    is_marked: bool = False

    @property
    def text(self) -> str:
        """As in `+9.3 [+3.1, +15.2] *`."""
        if self.estimate is None:
            return "-"
        return f"{difference_text(self.estimate)}{' *' if self.is_marked else ''}"


Cell = str | int | float | Estimate | Difference | None
"""What stands in a cell: a label (in any column), a count, a p-value, an estimate, a difference, or nothing."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column; an estimate is shown times `scale`, in the format `digits`."""

    head: str
    kind: Kind = "label"
    scale: float = 1.0
    digits: str = ".3f"

    def value(self, estimate: Estimate) -> str:
        """An estimate without its interval."""
        return "-" if estimate.value is None else f"{estimate.value * self.scale:{self.digits}}"

    def interval(self, estimate: Estimate) -> str:
        """As in `[64.6, 70.2]`; `[-]` where none can be given, '' without a value."""
        if estimate.value is None:
            return ""
        if estimate.low is None or estimate.high is None:
            return NO_INTERVAL
        return f"[{estimate.low * self.scale:{self.digits}}, {estimate.high * self.scale:{self.digits}}]"

    def text(self, cell: Cell) -> str:
        """A cell as plain text."""
        if cell is None:
            return ""
        if isinstance(cell, Estimate):
            return f"{self.value(cell)} {self.interval(cell)}".strip()
        if isinstance(cell, Difference):
            return cell.text
        return p_text(cell) if isinstance(cell, float) else str(cell)


@dataclass(frozen=True, slots=True)
class Table:
    """A table with what is said about it; `name` is what LaTeX refers to it by."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()
    name: str = "results"

    def to(self, format: str) -> str:
        """The table in a format of `FORMATS` but `json`. Raises `ConfigError` for another one."""
        if format not in WRITERS:
            raise ConfigError(f"--to {format}: no table is written so; {hint(format, FORMATS)}")
        return WRITERS[format](self)


def _heads(table: Table) -> list[str]:
    return [f"{one.head}  [95 %]" if one.kind == "estimate" else one.head for one in table.columns]


def _texts(table: Table) -> list[list[str]]:
    return [[column.text(cell) for column, cell in zip(table.columns, row, strict=True)] for row in table.rows]


def _plain(table: Table) -> str:
    heads, rows = aligned(table)
    return "\n".join([text_table(heads, rows, width=400), "", *table.notes])


def aligned(table: Table) -> tuple[list[str], list[list[str]]]:
    """Head and rows for monospaced text: the labels at the left are one column, marks stand below each other."""
    count, texts = max(1, _labels(table)), _texts(table)
    widths = [
        max(map(len, column)) for column in zip(_heads(table)[:count], *(row[:count] for row in texts), strict=True)
    ]
    for at, column in enumerate(table.columns):
        if column.kind == "difference" and any(row[at].endswith(" *") for row in texts):
            texts = [[*row[:at], _unmarked(row[at]), *row[at + 1 :]] for row in texts]
    heads = _heads(table)
    rows = [[_joined(row[:count], widths), *row[count:]] for row in texts]
    return [_joined(heads[:count], widths), *heads[count:]], rows


def _unmarked(text: str) -> str:
    return text if text.endswith(("*", "reference", "-", "common")) else f"{text}  "


def _joined(words: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(word.ljust(width) for word, width in zip(words, widths, strict=True))


def _markdown(table: Table) -> str:
    count = _labels(table)
    marks = ["---" if at < count else "---:" for at in range(len(table.columns))]
    rows = [
        # A p-value such as `< 0.001` opens no tag.
        [text if isinstance(cell, float) else escape(text, quote=False) for cell, text in zip(row, texts, strict=True)]
        for row, texts in zip(table.rows, _texts(table), strict=True)
    ]
    lines = [_pipes([escape(head, quote=False) for head in _heads(table)]), _pipes(marks), *map(_pipes, rows)]
    return "\n".join([*lines, "", *table.notes])


def _pipes(cells: Sequence[str]) -> str:
    return f"| {' | '.join(' '.join(cell.replace('|', '/').splitlines()).strip() for cell in cells)} |"


def _labels(table: Table) -> int:
    """How many columns at the left are labels."""
    kinds = [column.kind == "label" for column in table.columns]
    return kinds.index(False) if False in kinds else len(kinds)


def _csv(table: Table) -> str:
    """One column for each number; estimates in the units of their head."""
    heads: list[str] = []
    for column in table.columns:
        heads.append(column.head)
        if column.kind in ("estimate", "difference"):
            heads += [f"{column.head} low", f"{column.head} high"]
        if column.kind == "difference":
            heads += [f"{column.head} n", f"{column.head} marked"]
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(map(_no_formula, heads))
    for row in table.rows:
        cells = zip(table.columns, row, strict=True)
        writer.writerow([value for column, cell in cells for value in _csv_cells(column, cell)])
    return file.getvalue().rstrip("\n")


def _csv_cells(column: Column, cell: Cell) -> list[str]:
    if column.kind == "estimate":
        return _csv_numbers(cell if isinstance(cell, Estimate) else None, column.scale)
    if column.kind == "difference":
        known = cell.estimate if isinstance(cell, Difference) else None
        numbers = _csv_numbers(known, 100)
        marked = "" if known is None or not isinstance(cell, Difference) else str(cell.is_marked).lower()
        return [*numbers, str(known.n) if known is not None else "", marked]
    return ["" if cell is None else f"{cell:.6g}" if isinstance(cell, float) else _no_formula(str(cell))]


def _no_formula(text: str) -> str:
    """Text that a spreadsheet does not calculate: `'` goes before what begins like a formula and is no number."""
    is_formula = len(text) > 1 and text.startswith(("=", "+", "-", "@", "\t", "\r"))
    return f"'{text}" if is_formula and not re.fullmatch(r"[+-][0-9.]+(e[+-]?[0-9]+)?", text) else text


def _csv_numbers(estimate: Estimate | None, scale: float) -> list[str]:
    numbers = (None, None, None) if estimate is None else (estimate.value, estimate.low, estimate.high)
    return ["" if number is None else f"{round(number * scale, 6):g}" for number in numbers]


def _html(table: Table) -> str:
    heads = "".join(f'<th scope="col">{escape(head)}</th>' for head in _heads(table))
    body = "\n".join(
        "<tr>" + "".join(_html_cell(column, text) for column, text in zip(table.columns, row, strict=True)) + "</tr>"
        for row in _texts(table)
    )
    notes = "".join(f"\n<p>{escape(note)}</p>" for note in table.notes)
    caption = f"<caption>{escape(table.title)}</caption>"
    return f"<table>\n{caption}\n<thead><tr>{heads}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>{notes}"


def _html_cell(column: Column, text: str) -> str:
    style = "" if column.kind == "label" else ' style="text-align: right"'
    return f"<td{style}>{escape(text)}</td>"


def _latex(table: Table) -> str:
    r"""A `table` for the packages `booktabs` and, with other letters than Latin ones, XeLaTeX or LuaLaTeX."""
    layout = "".join("l" if column.kind == "label" else "r" for column in table.columns)
    heads = [_latex_head(column) for column in table.columns]
    rows = [[_latex_cell(column, cell) for column, cell in zip(table.columns, row, strict=True)] for row in table.rows]
    below = [r"\par\smallskip", r"\begin{minipage}{\linewidth}\footnotesize", *map(latex_text, table.notes)]
    below = [*below, r"\end{minipage}"] if table.notes else []
    lines = [
        r"% Needs \usepackage{booktabs}.",
        r"\begin{table}[t]",
        r"\centering",
        rf"\caption{{{latex_text(table.title)}}}",
        rf"\label{{tab:{re.sub('[^A-Za-z0-9-]+', '-', table.name)}}}",
        r"\smallskip",
        r"\small",
        rf"\begin{{tabular}}{{@{{}}{layout}@{{}}}}",
        r"\toprule",
        " & ".join(heads) + r" \\",
        r"\midrule",
        *(" & ".join(row) + r" \\" for row in rows),
        r"\bottomrule",
        r"\end{tabular}",
        *below,
        r"\end{table}",
    ]
    return "\n".join(lines)


INTERVAL_SIZE = r"\scriptsize"


def _latex_head(column: Column) -> str:
    head = latex_text(column.head)
    return rf"{head} {{{INTERVAL_SIZE} [95\,\%]}}" if column.kind in ("estimate", "difference") else head


def _latex_cell(column: Column, cell: Cell) -> str:
    if isinstance(cell, Estimate):
        interval = column.interval(cell)
        return f"{_signed(column.value(cell))}" + (f" {{{INTERVAL_SIZE} {_signed(interval)}}}" if interval else "")
    if isinstance(cell, Difference):
        if cell.estimate is None or cell.estimate.value is None:
            return "--"
        value, _, interval = difference_text(cell.estimate).partition(" ")
        mark = "$^{*}$" if cell.is_marked else r"\phantom{$^{*}$}"
        return f"{_signed(value)} {{{INTERVAL_SIZE} {_signed(interval)}}}{mark}"
    if isinstance(cell, float):
        return p_text(cell).replace("< ", "$<$")
    return latex_text(column.text(cell))


def _signed(numbers: str) -> str:
    """Numbers with a real minus: in text mode `-` is a hyphen."""
    return re.sub(r"-(?=[0-9])", "$-$", numbers).replace("+", "$+$").replace(NO_INTERVAL, "[--]")


_ESCAPES = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"{\char34}",
    "`": r"\textasciigrave{}",
    "–": "--",
    "—": "---",
    # After the end of a row or a rule it would begin an option.
    "[": "{[}",
    "−": "$-$",
    "×": r"$\times$",
    "±": r"$\pm$",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    "→": r"$\rightarrow$",
    **{char: f"\\{char}" for char in "&%$#_{}"},
}


def latex_text(text: str) -> str:
    """Plain text as LaTeX shows it: no macro, no group and no comment of it is left; control characters go."""
    clean = (char for char in " ".join(text.split()) if unicodedata.category(char)[0] != "C")
    escaped = "".join(_ESCAPES.get(char, char) for char in clean)
    # A star after the end of a row belongs to that command.
    escaped = f"{{*}}{escaped[1:]}" if escaped.startswith("*") else escaped
    # In T1 these pairs would be one sign; an empty group keeps them apart. `--` of a command stays two hyphens.
    return re.sub(r"-(?=-)", "-{}", escaped) if "--" in text else escaped


WRITERS: Mapping[str, Callable[[Table], str]] = {
    "text": _plain,
    "markdown": _markdown,
    "latex": _latex,
    "csv": _csv,
    "html": _html,
}


MCNEMAR = "McNemar p"


def level_words(comparisons: int) -> str:
    """What a mark means, and which correction for how many comparisons it has."""
    if comparisons <= 1:
        return "; * interval without 0"
    return f"; * interval without 0 at the level corrected for {comparisons} comparisons (Bonferroni)"


def p_words(full: bool) -> str:
    """What McNemar's p is, where it is shown."""
    words = f"; {MCNEMAR}: exact test over the episodes of all seeds pooled, which may disagree with the interval"
    return words if full else ""


def find_row(text: str, rows: Sequence[Mapping[str, str]], option: str = "--against") -> int:
    """The number of the row that a text such as `wm=delta, dream.horizon=4` means, among rows by name and value.

    A part without `=` is a value alone. Raises `ConfigError` unless exactly one row has all parts.
    """
    parts = [part.strip() for part in text.split(",") if part.strip()]
    fits = [at for at, row in enumerate(rows) if parts and all(_has(row, part) for part in parts)]
    # A row that is called just so is meant, also where others have the same words among more.
    exact = [at for at, row in enumerate(rows) if text.strip() == ", ".join(f"{name}={row[name]}" for name in row)]
    if len(fits) == 1 or len(exact) == 1:
        return (exact or fits)[0]
    names = [", ".join(f"{name}={value}" for name, value in row.items()) for row in rows]
    what = "fits several rows" if fits else "is no row"
    chosen = [names[at] for at in fits] or names
    listed = "\n".join(f"  {name}" for name in chosen)
    raise ConfigError(f"{option} {text!r} {what} of the table; give settings that only one row has. Rows:\n{listed}")


def _has(row: Mapping[str, str], part: str) -> bool:
    name, equals, value = part.partition("=")
    if equals and name.strip() in row:
        return row[name.strip()] == value.strip()
    return part in row.values()
