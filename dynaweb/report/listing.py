"""The list of the runs and matrices of a folder: a page that sorts, filters and searches what `ListedRun` tells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from dynaweb.report.html import Linked, own_page
from dynaweb.report.markup import Html, el, embed, join, with_minus
from dynaweb.report.sections import STATUS, live_buttons
from dynaweb.stats import Estimate, PairedDifference, difference_text, duration, interval_text

ListedStatus = Literal["running", "done", "failed", "interrupted", "damaged"]


@dataclass(frozen=True, slots=True)
class ListedRun:
    """A run or a matrix as a row of the list.

    `path` is its folder below that of the list, with `/`. `kind` is `run`, `matrix`, or the command that made a folder,
    such as `eval`. `detail` says what it is doing, or why it ended. `success` is that of the arm that the run is about,
    `gain` its paired difference to the control, the best arm that learned from demonstrations alone. `steps` counts
    those in the real environment before the evaluation, `seconds` the time of all stages. `matrix` is the path of the
    matrix whose cell it is. One that is not `whole` is still being read: its numbers come later.
    """

    path: str
    kind: str
    status: ListedStatus
    detail: str = ""
    recipe: str = ""
    made: str = ""
    seed: int | None = None
    started: str = ""
    success: Estimate | None = None
    arm: str = ""
    gain: PairedDifference | None = None
    control: str = ""
    steps: float | None = None
    seconds: float | None = None
    matrix: str = ""
    whole: bool = True

    @property
    def name(self) -> str:
        """What the folder is called."""
        return self.path.rpartition("/")[2]

    def plain(self) -> dict[str, Any]:
        """The row as data for the page: what is shown as text, what is sorted by as numbers."""
        data: dict[str, Any] = {
            "path": self.path,
            "name": self.name,
            "kind": self.kind,
            "status": self.status,
            "tone": "bad" if self.status == "damaged" else STATUS[self.status],
            "detail": self.detail,
            "recipe": self.recipe,
            "made": self.made,
            "seed": self.seed,
            "started": self.started,
            "matrix": self.matrix,
            "whole": self.whole,
        }
        if self.success is not None and self.success.value is not None:
            text = [f"{100 * self.success.value:.1f} %", interval_text(self.success), self.success.n, self.arm]
            data["success"] = [self.success.value, *text]
        if self.gain is not None and self.gain.difference.value is not None:
            words = with_minus(difference_text(self.gain.difference))
            about = f"n = {self.gain.difference.n}"
            data["gain"] = [self.gain.difference.value, words, about, self.gain.is_significant, self.control]
        if self.steps is not None:
            data["steps"] = [self.steps, f"{self.steps:,.0f}"]
        if self.seconds is not None:
            data["seconds"] = [self.seconds, duration(self.seconds)]
        return data


def listing_page(title: str, runs: Sequence[ListedRun], *, linked: Linked) -> str:
    """The list as HTML source. `title` is the name of the folder.

    A live page asks its server for `runs.json`, which holds the rows anew.
    """
    theme, _ = live_buttons()
    header = el(
        "header",
        el("h1", title),
        el("p", class_="muted", id="summary", role="status"),
        theme,
    )
    body = join(header, el("main", _controls(), _table(), _compare_bar()), embed(rows(runs), id="runs"))
    return own_page(title, body, linked=linked, scripts=("listing.js",), styles=("site.css",))


def rows(runs: Sequence[ListedRun]) -> list[dict[str, Any]]:
    """The rows of the list as plain data."""
    return [run.plain() for run in runs]


def _controls() -> Html:
    search = el(
        "input",
        id="search",
        type="search",
        placeholder="Search names, recipes, plugins, errors",
        aria_label="search names, recipes, plugins, errors",
    )
    status = el("select", el("option", "every status", value=""), id="filter-status", aria_label="status")
    recipe = el("select", el("option", "every recipe", value=""), id="filter-recipe", aria_label="recipe")
    cells = el("label", el("input", type="checkbox", id="cells"), " cells of matrices", class_="check")
    # In a narrow window rows are cards without heads to sort by.
    order = el("select", id="order", aria_label="order")
    return el("div", search, status, recipe, order, cells, class_="filters", role="search")


def _table() -> Html:
    empty = el("p", "No run fits these filters.", class_="empty", hidden=True)
    table = el("table", el("thead", el("tr")), el("tbody"), class_="stack runs")
    return el("div", table, empty, class_="card", id="list")


def _compare_bar() -> Html:
    """What stands at the bottom while runs are chosen."""
    return el(
        "div",
        el("span", class_="chosen", role="status"),
        el("button", "Clear", type="button", class_="clear"),
        el("a", "Compare", class_="compare", href="#list"),
        class_="compare-bar",
        hidden=True,
    )
