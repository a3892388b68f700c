"""What plans are made of: a page that finds elements by role and name, and the words of a goal.

A plan is a generator: it is given the first page, yields an action, and gets the page that follows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator

from dynaweb.types import Action, Node, Observation

Plan = Generator[Action, "Page", None]
Planner = Callable[[str, "Page"], Plan]

_QUOTED = re.compile(r'"([^"]*)"')
_ORDINAL = re.compile(r"(?<!\d)(\d+)(?:st|nd|rd|th)")
SUBMIT = "Submit"


class PlanError(Exception):
    """A plan does not fit its page; the message says what was looked for."""


class Page:
    """An observation that a plan can ask and point into."""

    def __init__(self, observation: Observation) -> None:
        self.nodes = observation.nodes

    def all(self, role: str) -> list[Node]:
        """Every element of a role, in page order."""
        return [node for node in self.nodes if node.role == role]

    def has(self, role: str, name: str) -> bool:
        """Whether an element is there."""
        return any(node.role == role and node.name == name for node in self.nodes)

    def get(self, role: str, name: str | None = None, *, nth: int = 0, after: Node | None = None) -> Node:
        """The nth element (from 0) of a role and, if given, a name, after another one. Raises `PlanError`."""
        matches = [
            node
            for node in self.nodes
            if node.role == role and name in (None, node.name) and (after is None or node.id > after.id)
        ]
        if nth >= len(matches):
            raise PlanError(f"there is no {role} {name!r} (number {nth + 1}) among {[n.name for n in self.all(role)]}")
        return matches[nth]

    def click(self, role: str, name: str | None = None, *, nth: int = 0, after: Node | None = None) -> Action:
        """Click on such an element."""
        return on("click", self.get(role, name, nth=nth, after=after))

    def fill(self, text: str, *, nth: int = 0, name: str | None = None, enter: bool = False) -> Action:
        """Type into the nth textbox."""
        return on("type", self.get("textbox", name, nth=nth), text, enter=enter)

    def submit(self, name: str = SUBMIT) -> Action:
        """Click on the button that ends the task."""
        return self.click("button", name)


def on(kind: str, node: Node, text: str = "", *, enter: bool = False) -> Action:
    """An action on an element."""
    return Action(kind, node.id, text, enter, target_role=node.role, target_name=node.name)  # type: ignore[arg-type]


def quoted(goal: str, nth: int = 0) -> str:
    """The nth text in double quotes of a goal."""
    matches = _QUOTED.findall(goal)
    if nth >= len(matches):
        raise PlanError(f"the goal {goal!r} quotes only {len(matches)} texts")
    return str(matches[nth])


def ordinal(goal: str, nth: int = 0) -> int:
    """The nth `3rd`-like number of a goal, from 0."""
    matches = _ORDINAL.findall(goal)
    if nth >= len(matches):
        raise PlanError(f"the goal {goal!r} names no place such as 3rd")
    return int(matches[nth]) - 1


def match(pattern: str, goal: str) -> tuple[str, ...]:
    """The groups of a pattern that the goal must match."""
    matches = re.search(pattern, goal)
    if matches is None:
        raise PlanError(f"the goal {goal!r} does not read as {pattern}")
    return tuple(group or "" for group in matches.groups())
