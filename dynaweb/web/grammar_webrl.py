"""The grammar `webrl`: the calls of WebRL (arXiv 2411.02337) on numbered elements. See `dynaweb.web.actions`.

Beyond WebRL's own list: `Press` with any key, `Goto`, `New Tab` and `Close Tab`. The last call of the reply counts;
lines before it, such as `# Element: ...` and `# Note: ...`, are reasoning. `Search` is `Type` and the Enter key.
"""

from __future__ import annotations

from dynaweb.types import Action, ActionKind, Observation
from dynaweb.web.action_rules import AIMED, Refused, element, misspelt, resolve, tab_index
from dynaweb.web.calls import Call, as_text, double, find_calls
from dynaweb.web.quoting import quote

_FUNCTIONS = ("do", "exit", "go_backward", "go_forward")
_DO: dict[str, ActionKind] = {
    "Click": "click",
    "Hover": "hover",
    "Type": "type",
    "Search": "type",
    "Select Dropdown Option": "select",
    "Press": "press",
    "Press Enter": "press",
    "Scroll Down": "scroll",
    "Scroll Up": "scroll",
    "Goto": "goto",
    "Switch Tab": "tab_focus",
    "New Tab": "new_tab",
    "Close Tab": "close_tab",
    "Wait": "wait",
}
_BY_LOWER = {name.lower(): name for name in _DO}
_WITH_TEXT = frozenset({"type", "select", "goto"})
_ON_ELEMENT = frozenset({"click", "hover", "type", "select"})


def parse(reply: str, observation: Observation) -> Action:
    """The action of the last call in a reply. Raises `Refused`."""
    found = [call for call, _ in find_calls(reply, _FUNCTIONS)]
    if not found:
        said = reply.strip().rpartition("\n")[2].strip()
        raise Refused(misspelt(said, _FUNCTIONS) if said else _advice("the reply is empty"))
    if isinstance(found[-1], str):
        raise Refused(_advice(found[-1]))
    try:
        action = _action(found[-1])
    except ValueError as error:
        raise Refused(_advice(f"{found[-1].name}: {error}")) from None
    return resolve(action, observation)


def print_action(action: Action, with_id: bool) -> str:
    """The action as `parse` reads it; without `with_id` the target's role and name stand for its number."""
    plain = {"go_back": "go_backward()", "go_forward": "go_forward()"}
    if action.kind in plain:
        return plain[action.kind]
    if action.kind == "stop":
        return f"exit(message={double(action.text)})"
    name = _name(action)
    argument = str(action.index) if action.kind == "tab_focus" else action.text
    has_text = action.kind in _WITH_TEXT or name in ("Press", "Switch Tab")
    parts = [f'action="{name}"', *([f"argument={double(argument)}"] if has_text else [])]
    if action.target is not None:
        target = str(action.target) if with_id else f"{action.target_role} {quote(action.target_name)}"
        parts.append(f"element={double(target)}")
    return f"do({', '.join(parts)})"


def _name(action: Action) -> str:
    if action.kind == "type":
        return "Search" if action.enter else "Type"
    if action.kind == "scroll":
        return "Scroll Up" if action.text == "up" else "Scroll Down"
    if action.kind == "press":
        return "Press Enter" if action.text == "Enter" else "Press"
    return next(name for name, kind in _DO.items() if kind == action.kind)


def _action(call: Call) -> Action:
    if call.name == "exit":
        message = call.bind(("message",)).get("message")
        return Action("stop", text="" if message is None else as_text(message))
    if call.name != "do":
        call.bind(())
        return Action("go_back" if call.name == "go_backward" else "go_forward")
    bound = call.bind(("action", "argument", "element"))
    said = as_text(bound.get("action", ""))
    name = _BY_LOWER.get(said.lower())
    if name is None:
        raise ValueError(f"there is no action {quote(said[:40])}; actions are {', '.join(_DO)}")
    argument, target = bound.get("argument"), bound.get("element")
    number = None if target is None else element(as_text(target))
    return _do(name, _DO[name], None if argument is None else as_text(argument), number)


def _do(name: str, kind: ActionKind, argument: str | None, number: int | None) -> Action:
    if kind in _ON_ELEMENT and number is None:
        raise ValueError(f"{name} needs an element")
    if argument is None and (kind in _WITH_TEXT or name in ("Press", "Switch Tab")):
        raise ValueError(f"{name} needs an argument")
    text = {"Scroll Up": "up", "Scroll Down": "down", "Press Enter": "Enter"}.get(name, argument or "")
    if kind == "tab_focus":
        return Action(kind, index=tab_index(text))
    keeps = kind in _ON_ELEMENT or kind in AIMED
    has_text = kind in _WITH_TEXT or kind in AIMED
    return Action(kind, number if keeps else None, text if has_text else "", enter=name == "Search")


def _advice(why: str) -> str:
    return f'{why}; write for example do(action="Click", element="7") or exit(message="answer")'
