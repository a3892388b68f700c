"""Steps of other projects: a page, and what was done there in the project's own grammar, as an action of ours.

What our actions cannot say exactly (a right click, two options of a list, several calls at once) is no action: it is
dropped and counted with the reason, and never becomes something near to it. How far a page was scrolled and how long
an agent waited are no part of our actions.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from dynaweb.config.files import MALFORMED
from dynaweb.data.importers.pages import ForeignPage
from dynaweb.types import TARGETED, Action, ActionKind
from dynaweb.web.actions.grammar import parse_action, resolve

_FENCE = re.compile(r"```(.*?)```", re.DOTALL)
_TARGET = re.compile(r"\A\s*(click|hover|type|select)\s*\[(\w+)\]", re.IGNORECASE)
_WHERE = re.compile(r"(?<!\s)\s++where \[\w+\] is .*\Z", re.DOTALL)
_DO = re.compile(r"""\b(\w++)=(?:("(?:[^"\\]|\\.)*+"|'(?:[^'\\]|\\.)*+')|(["']))""")

_CALL = re.compile(r"[ \t]*(?:do|exit|go_backward|go_forward)[ \t]*\(")
_ANNOUNCED = re.compile(r"(?<![ \t])[ \t]*+In summary,? the next action I will perform is:?[ \t]*\Z", re.IGNORECASE)

LONGEST = 100_000
"""Letters of an action: it may write a text, and Python's parser takes memory for each."""
LAST, NO_PAGE = "the last step has no page after it", "its page cannot be read"
NO_ACTION, REFUSED = "its action cannot be read", "its action does not fit its page (no such element, or wrong kind)"
NO_GIVEN_ACTION, SEVERAL = "it has no action", "it holds several actions"
INEXACT = "its action has no exact counterpart, such as a right click, two options or keys for an element out of focus"
STOP, GAP = "it is the closing stop", "the step after it is missing"


@dataclass(frozen=True, slots=True)
class ForeignStep:
    """One step: its page (None = unreadable), its action (a text says why there is none, or no page), and its place."""

    page: ForeignPage | None
    action: Action | str
    order: int
    reasoning: str = ""
    """What the agent thought before it acted."""
    reply: str = ""
    """All that it answered."""


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
    """The call in WebRL's grammar: `do(action="Click", element="7")`, `exit(message="")`, `go_backward()`.

    Comments stand on lines of their own.
    """
    calls = [line.strip() for line in text.split("\n") if _CALL.match(line)]
    if len(calls) > 1:
        return SEVERAL
    name, _, rest = calls[0].partition("(") if calls else ("", "", "")
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


def thought_before_fence(text: str) -> str:
    """What stands before the action in a reply of WebArena's and NNetNav's form, without the words that announce it."""
    fences = list(_FENCE.finditer(text))
    return _ANNOUNCED.sub("", text[: fences[-1].start()]).strip() if fences else ""


def thought_in_comments(text: str) -> str:
    """The lines of comment of a reply in WebRL's form."""
    lines = (line.strip() for line in text.split("\n"))
    return "\n".join(line.lstrip("# ") for line in lines if line.startswith("#"))


# --- BrowserGym's high-level action set: calls of Python functions, of which each says one thing.

_SIGNATURES: dict[str, tuple[str, ...]] = {
    "noop": ("wait_ms",),
    "click": ("bid", "button", "modifiers"),
    "check": ("bid",),
    "uncheck": ("bid",),
    "hover": ("bid",),
    "fill": ("bid", "value", "enable_autocomplete_menu"),
    "select_option": ("bid", "options"),
    "press": ("bid", "key_comb"),
    "keyboard_press": ("key",),
    "scroll": ("delta_x", "delta_y"),
    "goto": ("url",),
    "go_back": (),
    "go_forward": (),
    "new_tab": (),
    "tab_close": (),
    "tab_focus": ("index",),
    "send_msg_to_user": ("text",),
    "report_infeasible": ("reason",),
}
"""Functions that may have a counterpart, with their parameters."""
_UNSAID = frozenset(
    {
        *("dblclick", "focus", "clear", "drag_and_drop", "upload_file", "mouse_upload_file", "keyboard_type"),
        *("keyboard_insert_text", "keyboard_down", "keyboard_up", "mouse_move", "mouse_click", "mouse_dblclick"),
        *("mouse_down", "mouse_up", "mouse_drag_and_drop", "scroll_at", "scroll_to_element"),
    }
)
"""Functions that have none."""
_SILENT = frozenset({"think"})
"""Calls that agents write and that do nothing."""


def gym_action(text: str, page: ForeignPage) -> Action | str:
    """The one call in BrowserGym's high-level action set, such as `fill('12', 'tea')`; why there is none, else."""
    if len(text) > LONGEST:
        return NO_ACTION
    try:
        body = ast.parse(text.strip()).body
        calls = [call for call in map(_call, body) if call.func.id not in _SILENT]  # type: ignore[attr-defined]
        if len(calls) != 1:
            return SEVERAL if calls else NO_ACTION
        return _called(calls[0], page)
    except (*MALFORMED, SyntaxError, MemoryError):
        # Agents also call with what is no number, or too little.
        return NO_ACTION


def _call(statement: ast.stmt) -> ast.Call:
    if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Call):
        raise TypeError("a statement is no call")
    if not isinstance(statement.value.func, ast.Name):
        raise TypeError("what is called is no plain name")
    return statement.value


def _called(call: ast.Call, page: ForeignPage) -> Action | str:
    """Raises what `MALFORMED` lists for calls that the function does not take."""
    assert isinstance(call.func, ast.Name)
    name = call.func.id
    if name in _UNSAID:
        return INEXACT
    names = _SIGNATURES[name]
    values = dict(zip(names, map(ast.literal_eval, call.args), strict=False))
    values |= {str(one.arg): ast.literal_eval(one.value) for one in call.keywords}
    if not values.keys() <= set(names) or len(values) != len(call.args) + len(call.keywords):
        return NO_ACTION
    if "bid" in names:
        return _on_element(name, values, page)
    if name == "scroll":
        across, down = float(values["delta_x"]), float(values["delta_y"])
        return INEXACT if across or not down else Action("scroll", text="down" if down > 0 else "up")
    if name == "tab_focus":
        return Action("tab_focus", index=int(values["index"]))
    if name == "report_infeasible":
        return Action("stop", text="N/A")
    if name in _ONE_TEXT:
        text = values[names[0]]
        return Action(_ONE_TEXT[name], text=text) if isinstance(text, str) else NO_ACTION
    return _PLAIN[name]


_ONE_TEXT: dict[str, ActionKind] = {"goto": "goto", "keyboard_press": "press", "send_msg_to_user": "stop"}
_PLAIN = {
    "go_back": Action("go_back"),
    "go_forward": Action("go_forward"),
    "new_tab": Action("new_tab"),
    "tab_close": Action("close_tab"),
    "noop": Action("wait"),
}


def _on_element(name: str, values: dict[str, Any], page: ForeignPage) -> Action | str:
    number = page.ids.get(str(values["bid"]))
    node = page.page.node(number) if number is not None else None
    if node is None:
        return REFUSED
    props = dict(node.props)
    if name == "press":
        keys = values["key_comb"]
        if not isinstance(keys, str):
            return NO_ACTION
        # Our keys go to the element in focus.
        return Action("press", text=keys) if "focused" in props else INEXACT
    if name == "fill":
        value = values["value"]
        return on_page(Action("type", number, value), page) if isinstance(value, str) else NO_ACTION
    if name == "select_option":
        options = values["options"]
        chosen = options if isinstance(options, list) else [options]
        if len(chosen) != 1:
            return INEXACT
        return on_page(Action("select", number, chosen[0]), page) if isinstance(chosen[0], str) else NO_ACTION
    if name == "click" and (values.get("button", "left") != "left" or values.get("modifiers")):
        return INEXACT
    if name in ("check", "uncheck") and ("checked" in props) == (name == "check"):
        return INEXACT  # it changes nothing, and a click would
    return on_page(Action("hover" if name == "hover" else "click", number), page)
