"""What BrowserGym's agents (arXiv 2412.05467) are shown and what they write: the format `browsergym`.

**Dialect**: `[bid] role 'name' value='..', focused, prop='..'`, tab-indented; no address. Strings are Python literals;
booleans are `True` and `False`, but `true` for the properties with three states (`checked`, `pressed`).

**Grammar** (the last call counts):

    click('7')   fill('7', 'text')   select_option('7', 'option')   scroll(0, 500)   send_msg_to_user('answer')

`fill` replaces the text of a field; typing with Enter is a `fill` line and a `press` line on the same element.
`report_infeasible` is a stop with the answer `N/A`. Calls that have no counterpart are refused by name; `scroll` has no
element.

**View**: what `browsergym-core` 0.14.3 prints, but for what `dynaweb.web.page.view` lists and one difference, which is
meant and checked by tests that run that package on the same pages: BrowserGym numbers elements by attributes that it
writes on all of them, and with attributes Chromium shows elements that it leaves out otherwise (`rowgroup`, the text of
a `<b>` apart). We never touch the page.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from dynaweb.types import Action, ActionKind, Node, Observation
from dynaweb.web.actions.calls import Call, Literal, as_text, last_calls, single
from dynaweb.web.actions.rules import Refused, element, resolve, tab_index
from dynaweb.web.observation_formats import Dialect, Grammar
from dynaweb.web.page.text import CAPITAL, TRISTATE, closing_lines, parse_nodes
from dynaweb.web.page.tree import TEXT
from dynaweb.web.page.view import MAX_NODES, Viewed, filtered_view
from dynaweb.web.quoting import literal, quote

FLAGS = frozenset({"atomic", "clickable", "focused", "required"})
"""Properties that are written as one word when they are true."""
_BOOLEAN = {"True": "true", "False": "false"}
_NODE = re.compile(r"(\t*)(?:\[(\d+)\] )?([A-Za-z][\w-]*)(?: (?=['\"]))?")
_PROP = re.compile(r", ([A-Za-z_][\w-]*)(?:=(?:(True|False)|(?=['\"])))?")
INFEASIBLE = "N/A"
"""The answer that says that a task cannot be done."""
SCROLL_PIXELS = 500
"""What a printed `scroll` says; only the sign of the number means something."""

_EXAMPLE = "click('12'), fill('12', 'text') or send_msg_to_user('answer')"
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


def page_lines(observation: Observation) -> Iterator[str]:
    """`[bid] role 'name' value='..', focused, prop='..'`, tab-indented; text without a number."""
    yield from map(_node, observation.nodes)
    yield from closing_lines(observation)


def parse_page(text: str, url: str = "") -> Observation:
    """Read the dialect back; address, title and tabs are not part of it. Raises `ValueError` naming the line.

    Text has no number in this dialect: it gets its position, which is its number on every page that is numbered 1..N.
    """
    nodes, truncated, notice = parse_nodes(text, _parse_node)
    return Observation(url, nodes, notice=notice, truncated=truncated)


def _node(node: Node) -> str:
    number = "" if node.role == "StaticText" else f"[{node.id}] "
    name = "" if node.role == "generic" and not node.name else f" {node.name!r}"
    value = "" if node.value is None else f" value={node.value!r}"
    props = "".join(f", {_prop(key, text)}" for key, text in node.props)
    return "\t" * node.depth + f"{number}{node.role}{name}{value}{props}"


def _prop(key: str, text: str) -> str:
    if key in FLAGS and text == "true":
        return key
    return f"{key}={CAPITAL[text] if text in CAPITAL and key not in TRISTATE else repr(text)}"


def _parse_node(line: str, number: int) -> Node:
    head = _NODE.match(line)
    if head is None:
        raise ValueError(f"expected `[bid] role 'name'`, got {line[:80]!r}")
    end = head.end()
    name, end = literal(line, end) if line[end - 1 : end] == " " else ("", end)
    value: str | None = None
    if line.startswith(" value=", end):
        value, end = literal(line, end + 7)
    props: list[tuple[str, str]] = []
    while end < len(line):
        match = _PROP.match(line, end)
        if match is None:
            raise ValueError(f"expected `, prop` or `, prop='value'` at {line[end : end + 20]!r}")
        text, end = _prop_text(line, match)
        props.append((match[1], text))
    return Node(int(head[2]) if head[2] else number, head[3], name, value, tuple(props), depth=len(head[1]))


def _prop_text(line: str, match: re.Match[str]) -> tuple[str, int]:
    if match[2] is not None:
        return _BOOLEAN[match[2]], match.end()
    return literal(line, match.end()) if match[0].endswith("=") else ("true", match.end())


def parse_action(reply: str, observation: Observation) -> Action:
    """The action of the last call in a reply. Raises `Refused`."""
    last, before = last_calls(reply, (*_SIGNATURES, *_ELSEWHERE), tuple(_SIGNATURES), _EXAMPLE)
    try:
        return resolve(_action(last, before), observation)
    except ValueError as error:
        raise Refused(f"{last.name}: {error}; write for example {_EXAMPLE}") from None


def print_action(action: Action, with_id: bool) -> str:
    """The action as `parse_action` reads it; without `with_id` the target's role and name stand for its number."""
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


def _argument(bound: _Bound, key: str) -> str:
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
    return Action("select", _bid(bound), _argument({"options": options}, "options"))


def _scroll(bound: _Bound) -> Action:
    deltas = [bound.get("delta_x"), bound.get("delta_y")]
    x, y = (value if isinstance(value, float) else 0.0 for value in deltas)
    if not y:
        raise ValueError("only up and down: scroll(0, 500) or scroll(0, -500)" if x else "the distance is missing")
    return Action("scroll", text="down" if y > 0 else "up")


_MAKERS: dict[str, Callable[[_Bound], Action]] = {
    "click": _click,
    "hover": lambda bound: Action("hover", _bid(bound)),
    "fill": lambda bound: Action("type", _bid(bound), _argument(bound, "value")),
    "clear": lambda bound: Action("type", _bid(bound)),
    "select_option": _select,
    "press": lambda bound: Action("press", _bid(bound), _argument(bound, "key_comb")),
    "keyboard_press": lambda bound: Action("press", text=_argument(bound, "key")),
    "scroll": _scroll,
    "goto": lambda bound: Action("goto", text=_argument(bound, "url")),
    "go_back": lambda _: Action("go_back"),
    "go_forward": lambda _: Action("go_forward"),
    "new_tab": lambda _: Action("new_tab"),
    "tab_close": lambda _: Action("close_tab"),
    "tab_focus": lambda bound: Action("tab_focus", index=tab_index(_argument(bound, "index"))),
    "noop": lambda _: Action("wait"),
    "send_msg_to_user": lambda bound: Action("stop", text=_argument(bound, "text")),
    "report_infeasible": lambda _: Action("stop", text=INFEASIBLE),
}


def browsergym_view(raw: Sequence[Node], *, max_nodes: int = MAX_NODES) -> Viewed:
    """What BrowserGym shows: `generic` without properties goes, and so does text that its parent's name holds."""
    viewed = filtered_view(raw, _stays, max_nodes=max_nodes)
    return Viewed(tuple(map(_without_flags, viewed.nodes)), viewed.truncated)


def _stays(node: Node, parent_name: str) -> bool:
    if node.role == TEXT:
        return node.name not in parent_name
    return node.role != "generic" or any(not _is_plain(prop) for prop in node.props)


def _without_flags(node: Node) -> Node:
    """Flags that are not set are left out."""
    props = tuple(prop for prop in node.props if not _is_plain(prop))
    return node if props == node.props else replace(node, props=props)


def _is_plain(prop: tuple[str, str]) -> bool:
    """A flag that is not set: BrowserGym does not print it."""
    return prop[0] in ("required", "focused", "atomic") and prop[1] == "false"


class Browsergym:
    """The format `browsergym`."""

    dialect = Dialect(page_lines, parse_page)
    grammar = Grammar(parse_action, print_action)
    view = staticmethod(browsergym_view)
