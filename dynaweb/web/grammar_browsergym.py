"""The grammar `browsergym`: BrowserGym's Python calls (arXiv 2412.05467). See `dynaweb.web.actions`.

`fill` replaces the text of a field; typing with Enter is a `fill` line and a `press` line on the same element.
`report_infeasible` is a stop with the answer `N/A`. Calls that have no counterpart are refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dynaweb.types import Action, ActionKind, Observation
from dynaweb.web.action_rules import Refused, element, misspelt, resolve, tab_index
from dynaweb.web.calls import Call, Literal, as_text, find_calls, single
from dynaweb.web.quoting import quote

INFEASIBLE = "N/A"
"""The answer that says that a task cannot be done."""
SCROLL_PIXELS = 500
"""What a printed `scroll` says; only the sign of the number means something."""

_Bound = Mapping[str, Literal]
_SIGNATURES: dict[str, tuple[str, ...]] = {
    "click": ("bid", "button", "modifiers"),
    "hover": ("bid",),
    "fill": ("bid", "value", "enable_autocomplete_menu"),
    "clear": ("bid",),
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
    "noop": ("wait_ms",),
    "send_msg_to_user": ("text",),
    "report_infeasible": ("reason",),
}
_ELSEWHERE = (
    "dblclick", "focus", "drag_and_drop", "upload_file", "keyboard_type", "keyboard_down", "keyboard_up",
    "keyboard_insert_text", "mouse_move", "mouse_down", "mouse_up", "mouse_click", "mouse_dblclick",
    "mouse_drag_and_drop", "mouse_upload_file",
)  # fmt: skip


def parse(reply: str, observation: Observation) -> Action:
    """The action of the last call in a reply. Raises `Refused`."""
    found = [call for call, _ in find_calls(reply, (*_SIGNATURES, *_ELSEWHERE))]
    if not found:
        said = reply.strip().rpartition("\n")[2].strip()
        raise Refused(misspelt(said, tuple(_SIGNATURES)) if said else _advice("the reply is empty"))
    last, before = found[-1], found[-2] if len(found) > 1 else None
    if isinstance(last, str):
        raise Refused(_advice(last))
    try:
        return resolve(_action(last, before if isinstance(before, Call) else None), observation)
    except ValueError as error:
        raise Refused(_advice(f"{last.name}: {error}")) from None


def print_action(action: Action, with_id: bool) -> str:
    """The action as `parse` reads it; without `with_id` the target's role and name stand for its number."""
    target = str(action.target) if with_id else f"{action.target_role} {quote(action.target_name)}"
    bid, text = single(target), single(action.text)
    forms: dict[ActionKind, Callable[[], str]] = {
        "click": lambda: f"click({bid})",
        "hover": lambda: f"hover({bid})",
        "type": lambda: f"fill({bid}, {text})" + (f"\npress({bid}, 'Enter')" if action.enter else ""),
        "select": lambda: f"select_option({bid}, {text})",
        "press": lambda: f"keyboard_press({text})" if action.target is None else f"press({bid}, {text})",
        "scroll": lambda: f"scroll(0, {-SCROLL_PIXELS if action.text == 'up' else SCROLL_PIXELS})",
        "goto": lambda: f"goto({text})",
        "close_tab": lambda: "tab_close()",
        "tab_focus": lambda: f"tab_focus({action.index})",
        "wait": lambda: "noop()",
        "stop": lambda: f"send_msg_to_user({text})",
    }
    return forms.get(action.kind, lambda: f"{action.kind}()")()


def _action(call: Call, before: Call | None) -> Action:
    if call.name in _ELSEWHERE:
        raise ValueError("this call has no counterpart here")
    bound = call.bind(_SIGNATURES[call.name])
    action = _MAKERS[call.name](bound)
    if call.name == "press" and action.text == "Enter" and before is not None and before.name == "fill":
        typed = _action(before, None)
        if typed.target == action.target:
            return Action("type", typed.target, typed.text, enter=True)
    return action


def _bid(bound: _Bound) -> int:
    if "bid" not in bound:
        raise ValueError("the bid is missing")
    return element(as_text(bound["bid"]))


def _said(bound: _Bound, key: str) -> str:
    if key not in bound:
        raise ValueError(f"the {key} is missing")
    return as_text(bound[key])


def _click(bound: _Bound) -> Action:
    if bound.get("button", "left") != "left" or bound.get("modifiers") not in (None, []):
        raise ValueError("only the left button without modifiers is there")
    return Action("click", _bid(bound))


def _select(bound: _Bound) -> Action:
    options = bound.get("options")
    if isinstance(options, list):
        if len(options) != 1:
            raise ValueError(f"one option at a time, not {len(options)}")
        options = options[0]
    return Action("select", _bid(bound), _said({"options": options}, "options"))


def _scroll(bound: _Bound) -> Action:
    deltas = [bound.get("delta_x"), bound.get("delta_y")]
    x, y = (value if isinstance(value, float) else 0.0 for value in deltas)
    if not y:
        raise ValueError("only up and down: scroll(0, 500) or scroll(0, -500)" if x else "the distance is missing")
    return Action("scroll", text="down" if y > 0 else "up")


_MAKERS: dict[str, Callable[[_Bound], Action]] = {
    "click": _click,
    "hover": lambda bound: Action("hover", _bid(bound)),
    "fill": lambda bound: Action("type", _bid(bound), _said(bound, "value")),
    "clear": lambda bound: Action("type", _bid(bound)),
    "select_option": _select,
    "press": lambda bound: Action("press", _bid(bound), _said(bound, "key_comb")),
    "keyboard_press": lambda bound: Action("press", text=_said(bound, "key")),
    "scroll": _scroll,
    "goto": lambda bound: Action("goto", text=_said(bound, "url")),
    "go_back": lambda _: Action("go_back"),
    "go_forward": lambda _: Action("go_forward"),
    "new_tab": lambda _: Action("new_tab"),
    "tab_close": lambda _: Action("close_tab"),
    "tab_focus": lambda bound: Action("tab_focus", index=tab_index(_said(bound, "index"))),
    "noop": lambda _: Action("wait"),
    "send_msg_to_user": lambda bound: Action("stop", text=_said(bound, "text")),
    "report_infeasible": lambda _: Action("stop", text=INFEASIBLE),
}


def _advice(why: str) -> str:
    return f"{why}; write for example click('12'), fill('12', 'text') or send_msg_to_user('answer')"
