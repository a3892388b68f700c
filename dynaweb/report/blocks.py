"""What sections of a report are made of: headings, tables, folds, and names in words."""

from __future__ import annotations

from collections.abc import Sequence

from dynaweb.report.markup import Child, Html, el, join


def section(title: str, lead: str, *children: Child) -> Html:
    """A section with its heading; an empty `lead` is left out."""
    return el("section", el("h2", title), el("p", lead, class_="lead") if lead else None, *children)


def table(head: Sequence[tuple[str, str]], rows: Sequence[Html], *, stack: bool = True) -> Html:
    """A table; `stack` turns rows into cards in a narrow window (cells then show their `data-label`)."""
    cells = [el("th", label, class_=kind or None, scope="col") for label, kind in head]
    return el("table", el("thead", el("tr", *cells)), el("tbody", join(*rows)), class_="stack" if stack else None)


def fold(summary: str, head: Sequence[tuple[str, str]], rows: Sequence[Html]) -> Html:
    """A table that opens at a click."""
    shown = el("div", el("div", table(head, rows, stack=False), class_="scroll"), class_="card")
    return el("details", el("summary", summary), shown)


def code_row(*cells: str) -> Html:
    """A row of names as a program writes them."""
    return el("tr", *[el("td", el("code", cell)) for cell in cells])


NAMES = {
    "sft": "SFT",
    "rl": "RL",
    "bc": "BC",
    "kl": "KL",
    "lr": "Learning rate",
    "wm": "World model",
    "demos": "Demonstrations",
    "explore": "Exploration",
    "eval": "Evaluation",
}
"""Words of stage and metric names that people write otherwise."""


def words(name: str) -> str:
    """A metric's or stage's name for people."""
    parts = [NAMES.get(part, part) for part in name.replace("_", " ").replace("-", " ").replace("/", " / ").split()]
    bare = " ".join(parts)
    return bare[:1].upper() + bare[1:]


def count(n: int, what: str) -> str:
    """`1 curve`, `2 curves`, `2 successes`."""
    many = "es" if what.endswith("s") else "s"
    return f"{n} {what}{'' if n == 1 else many}"
