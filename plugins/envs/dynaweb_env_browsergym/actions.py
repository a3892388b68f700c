"""Our actions in BrowserGym's words, which are calls of functions with its own ids of elements."""

from __future__ import annotations

from dynaweb.types import TARGETED, Action

SCROLL = 500
"""Pixels of one scroll."""
WAIT = 1000
"""Milliseconds of one wait."""
_BARE = {"go_back": "go_back()", "go_forward": "go_forward()", "new_tab": "new_tab()", "close_tab": "tab_close()"}


def call_of(action: Action, bid: str, *, focused: str = "") -> str:
    """The calls of an action on the element `bid`; '' for one that has nothing to act on."""
    if action.kind in TARGETED:
        return _on(action, bid) if bid else ""
    if action.kind in _BARE:
        return _BARE[action.kind]
    if action.kind == "press":
        return f"press({focused!r}, {action.text!r})" if focused else ""
    others = {
        "scroll": f"scroll(0, {SCROLL if action.text == 'down' else -SCROLL})",
        "goto": f"goto({action.text!r})",
        "tab_focus": f"tab_focus({action.index or 0})",
        "wait": f"noop({WAIT})",
        "stop": f"send_msg_to_user({action.text!r})",
    }
    return others[action.kind]


def _on(action: Action, bid: str) -> str:
    if action.kind == "type":
        enter = f"\npress({bid!r}, 'Enter')" if action.enter else ""
        return f"fill({bid!r}, {action.text!r}){enter}"
    if action.kind == "select":
        return f"select_option({bid!r}, {action.text!r})"
    return f"{action.kind}({bid!r})"
