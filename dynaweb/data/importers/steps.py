"""Steps of a foreign episode become transitions: actions on their pages, each with the page that came next."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from dynaweb.config.files import MALFORMED
from dynaweb.data.importers import ImportReport
from dynaweb.data.importers.pages import ForeignPage
from dynaweb.types import TARGETED, Action, Transition
from dynaweb.web.actions.grammar import parse_action, resolve
from dynaweb.worldmodels.change import DONE, HISTORY

_FENCE = re.compile(r"```(.*?)```", re.DOTALL)
_TARGET = re.compile(r"\A\s*(click|hover|type|select)\s*\[(\w+)\]", re.IGNORECASE)
_WHERE = re.compile(r"(?<!\s)\s++where \[\w+\] is .*\Z", re.DOTALL)
_DO = re.compile(r"""\b(\w++)=(?:("(?:[^"\\]|\\.)*+"|'(?:[^'\\]|\\.)*+')|(["']))""")

LONGEST = 100_000
"""Letters of an action: it may write a text, and Python's parser takes memory for each."""
LAST, NO_PAGE = "the last step has no page after it", "its page cannot be read"
NO_ACTION, REFUSED = "its action cannot be read", "its action does not fit its page (no such element, or wrong kind)"
STOP, GAP = "it is the closing stop", "the step after it is missing"


@dataclass(frozen=True, slots=True)
class ForeignStep:
    """One step: its page (None = unreadable), its action (a text says why there is none, or no page), and its place."""

    page: ForeignPage | None
    action: Action | str
    order: int
    info: dict[str, Any] = field(default_factory=dict)


def transitions(
    steps: Sequence[ForeignStep], report: ImportReport, *, task: str, source: str, done: bool = False, **info: Any
) -> Iterator[Transition]:
    """The transitions of one episode, in order; `done` says that the environment ended it. `report` counts the rest."""
    past: list[Action] = []
    for at, step in enumerate(steps):
        following = steps[at + 1] if at + 1 < len(steps) else None
        reason = _unusable(step, following)
        if reason:
            report.drop(reason)
        else:
            assert step.page is not None and following is not None and following.page is not None
            assert isinstance(step.action, Action)
            if step.page.unread:
                report.note("lines of its page could not be read")
            more = {**info, **step.info, "step": step.order, HISTORY: tuple(past)}
            if done and at == len(steps) - 2:
                more[DONE] = True
            yield Transition(step.page.page, step.action, following.page.page, task, source, more)
        if isinstance(step.action, Action):
            past.append(step.action)


def _unusable(step: ForeignStep, following: ForeignStep | None) -> str:
    if step.page is None:
        return step.action if isinstance(step.action, str) else NO_PAGE
    if isinstance(step.action, str):
        return step.action
    if step.action.kind == "stop":
        return STOP
    if following is None:
        return LAST
    if following.order != step.order + 1:
        return GAP
    return "" if following.page is not None else "the page after it cannot be read"


def webarena_action(text: str, page: ForeignPage) -> Action | str:
    """The action in WebArena's grammar (NNetNav, WebArena): the last fenced block, else the last line."""
    fences = _FENCE.findall(text)
    command = (fences[-1] if fences else text.strip().rpartition("\n")[2]).strip()
    command = _WHERE.sub("", command)
    target = _TARGET.match(command)
    if target is not None:
        number = page.ids.get(target[2])
        if number is None:
            return REFUSED
        command = f"{target[1].lower()} [{number}]{command[target.end() :]}"
    parsed = parse_action(command, page.page, "webarena")
    return parsed if isinstance(parsed, Action) else REFUSED if target is not None else NO_ACTION


def do_action(text: str, page: ForeignPage) -> Action | str:
    """The last call in WebRL's grammar: `do(action="Click", element="7")`, `exit(message="")`, `go_backward()`."""
    call = next((line.strip() for line in reversed(text.strip().split("\n")) if "(" in line), "")
    name, _, rest = call.partition("(")
    try:
        arguments = {key: ast.literal_eval(value) for key, value in _arguments(rest)}
    except (ValueError, SyntaxError):
        return NO_ACTION
    simple = {"go_backward": Action("go_back"), "go_forward": Action("go_forward")}
    if name in simple:
        return simple[name]
    if name == "exit":
        return Action("stop", text=str(arguments.get("message", "")))
    return _done(arguments, page) if name == "do" else NO_ACTION


def _arguments(text: str) -> Iterator[tuple[str, str]]:
    """Names and quoted values of a call, up to a value whose quote is never closed: what follows is inside of it."""
    for match in _DO.finditer(text):
        if match[3]:
            return
        yield match[1], match[2]


def _done(arguments: dict[str, str], page: ForeignPage) -> Action | str:
    kind, text = arguments.get("action", ""), arguments.get("argument", "")
    target = page.ids.get(arguments.get("element", ""))
    chosen = {
        "Click": Action("click", target),
        "Hover": Action("hover", target),
        "Type": Action("type", target, text),
        "Search": Action("type", target, text, enter=True),
        "Select Dropdown Option": Action("select", target, text),
        "Scroll Up": Action("scroll", text="up"),
        "Scroll Down": Action("scroll", text="down"),
        "Press Enter": Action("press", text="Enter"),
        "Wait": Action("wait"),
    }.get(kind)
    return on_page(chosen, page) if chosen is not None else NO_ACTION


def on_page(action: Action, page: ForeignPage) -> Action | str:
    """The action with the role and name of its element, or why it does not fit the page."""
    if action.kind in TARGETED and action.target is None:
        return REFUSED
    parsed = resolve(action, page.page)
    return parsed if isinstance(parsed, Action) else REFUSED


def gym_action(text: str, page: ForeignPage) -> Action | str:
    """The last call in BrowserGym's high-level action set, such as `fill('12', 'tea')`."""
    if len(text) > LONGEST:
        return NO_ACTION
    try:
        body = ast.parse(text.strip()).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return NO_ACTION
    call = body[-1].value if body and isinstance(body[-1], ast.Expr) else None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        return NO_ACTION
    try:
        arguments = [ast.literal_eval(value) for value in call.args]
        arguments += [
            ast.literal_eval(word.value) for word in call.keywords if word.arg in ("value", "options", "text")
        ]
        return _called(call.func.id, arguments, page)
    except (*MALFORMED, SyntaxError, MemoryError):
        # Agents also call with what is no number, or too little.
        return NO_ACTION


_ON_ELEMENT = {
    "click": "click",
    "dblclick": "click",
    "check": "click",
    "uncheck": "click",
    "hover": "hover",
    "fill": "type",
    "select_option": "select",
}
_PLAIN = {
    "go_back": Action("go_back"),
    "go_forward": Action("go_forward"),
    "new_tab": Action("new_tab"),
    "tab_close": Action("close_tab"),
    "noop": Action("wait"),
}


def _called(name: str, arguments: list[Any], page: ForeignPage) -> Action | str:
    if name in _PLAIN:
        return _PLAIN[name]
    first = arguments[0] if arguments else ""
    if name in _ON_ELEMENT:
        second = arguments[1] if len(arguments) > 1 else ""
        text = str(second[0]) if isinstance(second, list) and second else str(second)
        kind: Any = _ON_ELEMENT[name]
        return on_page(Action(kind, page.ids.get(str(first)), text if kind in ("type", "select") else ""), page)
    if name in ("press", "keyboard_press"):
        return Action("press", text=str(arguments[-1])) if arguments else NO_ACTION
    if name == "goto":
        return Action("goto", text=str(first))
    if name == "scroll" and len(arguments) == 2:
        return Action("scroll", text="down" if arguments[1] >= 0 else "up")
    if name == "tab_focus":
        return Action("tab_focus", index=int(first))
    if name in ("send_msg_to_user", "report_infeasible"):
        return Action("stop", text=str(first) if name == "send_msg_to_user" else "N/A")
    return NO_ACTION
