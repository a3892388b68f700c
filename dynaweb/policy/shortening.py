"""Prompts that are too long: which lines of a page are left out where a model has room for some of them only.

What was acted on stays longest, then what can be acted on and what says that something happened, then other text. Of
earlier actions the last ones stay; earlier pages go first, the oldest before all. Example: of a page of 900 texts and
20 buttons, a prompt for 3,000 tokens has all buttons, and texts from the top of the page as far as they fit.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from dynaweb.types import Action, Observation

CUT = "[page cut]"
"""The line that stands where most was left out."""
RECENT = 5
"""So many last actions are worth more than the text of a page."""
CONTROLS = frozenset(
    [
        "link",
        "button",
        "textbox",
        "searchbox",
        "combobox",
        "listbox",
        "option",
        "checkbox",
        "radio",
        "switch",
        "slider",
        "spinbutton",
        "tab",
        "menuitem",
        "menuitemcheckbox",
        "menuitemradio",
        "treeitem",
        "gridcell",
    ]
)
SIGNS = frozenset(("heading", "status", "alert", "dialog", "alertdialog"))
"""Roles of what says where one is, and that something happened."""

_NUMBER = re.compile(r"\t*\[(\d+)\] ")
_ACTION = re.compile(r"\d+: ")
_PAGE = re.compile(r"PAGE \d+: ")


def shortened(
    parts: tuple[str, str, str],
    page: Observation,
    action: Action | None,
    room: int,
    cost: Callable[[str], int],
    *,
    ends: bool = False,
    earlier: str = "",
) -> str:
    """A user's text in at most `room` tokens.

    `parts`: the text before the page, which ends with a line, the page, and the text behind it. `cost` gives the tokens
    of a text, `action` what is done on the page; with `ends` a page is kept from both of its ends, else from its
    beginning; `earlier` is the part of the text around the page that shows earlier ones. A line around the page that
    alone is too long is cut in its middle.
    """
    before, shown, after = parts
    lines = [*before.split("\n")[:-1], *(shown + after).split("\n")]
    first = before.count("\n")
    inside = range(first, first + shown.count("\n") + 1)
    past = _lines_of(earlier, before, after, inside.stop - 1)
    ranks = [
        _rank_past(lines, i, past) if i in past else _rank(lines, i, inside, page, action, ends=ends)
        for i in range(len(lines))
    ]
    spare = room - cost(CUT) - 2
    there: set[int] = set()
    for i in sorted(range(len(lines)), key=ranks.__getitem__):
        price = cost(lines[i]) + 1
        if price > spare and ranks[i][0] == 0:
            lines[i] = _middle_out(lines[i], max(0, spare // 2), cost)
            price = cost(lines[i]) + 1
        if price <= spare or ranks[i][0] == 0:
            there.add(i)
            spare -= price
    return "\n".join(_marked(lines, there))


def _lines_of(text: str, before: str, after: str, last: int) -> range:
    """The lines of a text that stands before a page, or after it, whose last line is `last`."""
    inside = before if text in before else after
    if not text or text not in inside:
        return range(0)
    start = inside[: inside.index(text)].count("\n") + (0 if text in before else last)
    return range(start, start + text.count("\n") + 1)


def _rank_past(lines: Sequence[str], i: int, past: range) -> tuple[int, ...]:
    """The same for a line of an earlier page: pages that are not so old first."""
    return 5, sum(bool(_PAGE.match(lines[k])) for k in range(i + 1, past.stop)), i


def _rank(
    lines: Sequence[str], i: int, inside: range, page: Observation, action: Action | None, *, ends: bool
) -> tuple[int, ...]:
    """How soon a line is kept: the class first, then its position in it."""
    line = lines[i]
    if i not in inside:
        if not _ACTION.match(line):
            return 0, i
        around = range(i + 1, inside.start if i < inside.start else len(lines))
        later = sum(bool(_ACTION.match(lines[k])) for k in around)
        return (1, later) if later < RECENT else (4, later)
    position = min(i - inside.start, inside.stop - 1 - i) if ends else i
    number = _NUMBER.match(line)
    node = page.node(int(number[1])) if number else None
    if node is None:
        return 1, position
    if action is not None and (
        node.id == action.target or (node.role, node.name) == (action.target_role, action.target_name)
    ):
        return 1, position
    tells = node.role in CONTROLS or node.role in SIGNS or node.value is not None
    return (2 if tells else 3), position


def _middle_out(line: str, room: int, cost: Callable[[str], int]) -> str:
    """The beginning and the end of a line, as much as has room."""
    length = len(line)
    while length > 1 and cost(line) > room:
        length = length * 3 // 4
        line = f"{line[: length // 2]} ... {line[len(line) - length // 2 :]}"
    return line


def _marked(lines: Sequence[str], there: set[int]) -> list[str]:
    """The lines that stay, with a mark where most of the others stood."""
    runs: list[tuple[int, int]] = []
    start = None
    for i in range(len(lines) + 1):
        if i < len(lines) and i not in there:
            start = i if start is None else start
        elif start is not None:
            runs.append((i - start, start))
            start = None
    mark = max(runs, default=(0, -1))[1]
    return [CUT if i == mark else line for i, line in enumerate(lines) if i in there or i == mark]
