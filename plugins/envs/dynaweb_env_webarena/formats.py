"""What WebArena's agents (arXiv 2307.13854) are shown and what they write: the format `webarena`.

**Dialect**: `[id] role 'name' prop: value`, tab-indented, below a line of tabs; no address. Strings are Python
literals, so a name with a quote is in double quotes, and no page text can begin a line. Booleans are written as the
benchmark's own code prints the DevTools protocol: `True` and `False`, but `true` for the properties with three states
(`checked`, `pressed`). Texts that look like one of them are quoted.

**Grammar** (the action stands in the last block of three backticks, or on the last line):

    click [12]   hover [3]   type [2] [text] [1]   select [4] [option]   press [Enter]   scroll [down]   goto [url]
    go_back  go_forward  new_tab  close_tab  wait  tab_focus [1]  stop [answer]

Beyond the benchmark: `select [12] [option]`, `press [12] [Enter]` and `scroll [12] [down]` for one element, `wait`.

**View**: what `libwebarena` 0.0.5 prints, but for what `dynaweb.web.page.view` lists and these differences, all of them
meant and checked by tests that run that package on the same pages:

1. The trees of frames are shown, and `value: ...` of lists and sliders; `libwebarena` does neither.
2. `libwebarena` takes a text of digits for shown when the number of a line before holds it; this does not.
3. Chromium's `image` counts as the `img` that it was called before.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from dynaweb.types import TARGETED, Action, ActionKind, Node, Observation, Tab
from dynaweb.web.actions.compact import kind_of
from dynaweb.web.actions.rules import AIMED, BARE, Refused, direction, finish, resolve, tab_index
from dynaweb.web.observation_formats import Dialect, Grammar
from dynaweb.web.page.text import CAPITAL, TRISTATE, closing_lines, parse_nodes
from dynaweb.web.page.tree import TEXT
from dynaweb.web.page.view import MAX_NODES, Viewed, filtered_view
from dynaweb.web.quoting import literal, quote

_BOOLEAN = {"True": "true", "False": "false"}
_PLAIN_WORD = re.compile(r"[^\s'=\"]+")
_NODE = re.compile(r"(\t*)\[(\d+)\] ([A-Za-z][\w-]*) ")
_PROP = re.compile(r" ([A-Za-z_][\w-]*): (?:([^\s'\"]+)|(?=['\"]))")
_TAB = re.compile(r"Tab (\d+)( \(current\))?: ")
_FORMS: dict[ActionKind, str] = {
    "click": "click [12]",
    "hover": "hover [12]",
    "type": "type [12] [text] [1] (0 = without Enter)",
    "select": "select [12] [option]",
    "press": "press [Enter]",
    "scroll": "scroll [down] or scroll [up]",
    "goto": "goto [url]",
    "tab_focus": "tab_focus [1]",
    "stop": "stop [answer]",
}
_FENCE = re.compile(r"```(?:[a-z]+\n)?(.*?)```", re.DOTALL)
_BRACKETED = re.compile(r"\s*\[(.*)\]", re.DOTALL)
_TARGETED_ARGUMENT = re.compile(r"\s*\[([0-9]{1,9})\](?:\s*\[(.*)\])?", re.DOTALL)
_ENTER_FLAG = re.compile(r"\]\s*\[(?:press_enter_after=)?([01])\Z")
_EMPTY = frozenset(
    ("generic", "img", "image", "list", "strong", "paragraph", "banner", "navigation", "Section", "LabelText", "Legend")
)
"""Roles that are dropped when they have neither a name nor a property (`image` is what `img` is called now)."""
_BEFORE = 3
"""How many lines back a text is looked for that was shown already."""


def page_lines(observation: Observation) -> Iterator[str]:
    """`Tab 0 (current): ...`, an empty line, then `[id] role 'name' prop: value`, tab-indented."""
    tabs = observation.tabs or (Tab(observation.title, observation.url, current=True),)
    yield " | ".join(
        f"Tab {index}{' (current)' if tab.current else ''}: {_one_line(tab.title)}" for index, tab in enumerate(tabs)
    )
    yield ""
    yield from map(_node, observation.nodes)
    yield from closing_lines(observation)


def parse_page(text: str, url: str = "") -> Observation:
    """Read the dialect back; addresses are not part of it. Raises `ValueError` naming the line."""
    head, _, body = text.partition("\n\n")
    tabs = _parse_tabs(head)
    nodes, truncated, notice = parse_nodes(body, lambda line, _: _parse_node(line))
    title = next((tab.title for tab in tabs if tab.current), "")
    return Observation(url, nodes, title, tabs if len(tabs) > 1 else (), notice, truncated)


def _node(node: Node) -> str:
    props = () if node.value is None else (f" value: {node.value!r}",)
    tail = "".join((*props, *(f" {key}: {_prop(key, text)}" for key, text in node.props)))
    return "\t" * node.depth + f"[{node.id}] {node.role} {node.name!r}{tail}"


def _prop(key: str, text: str) -> str:
    if text in CAPITAL:
        return text if key in TRISTATE else CAPITAL[text]
    return text if _PLAIN_WORD.fullmatch(text) and text not in _BOOLEAN else repr(text)


def _one_line(text: str) -> str:
    return " ".join(text.replace("|", "/").split())


def _parse_tabs(head: str) -> tuple[Tab, ...]:
    tabs: list[Tab] = []
    for part in head.split(" | "):
        match = _TAB.match(part)
        if match is None:
            raise ValueError(f"expected `Tab 0 (current): title` as the first line, got {part[:80]!r}")
        tabs.append(Tab(part[match.end() :], "", current=match[2] is not None))
    return tuple(tabs)


def _parse_node(line: str) -> Node:
    head = _NODE.match(line)
    if head is None:
        raise ValueError(f"expected `[id] role 'name'`, got {line[:80]!r}")
    name, end = literal(line, head.end())
    value: str | None = None
    props: list[tuple[str, str]] = []
    while end < len(line):
        match = _PROP.match(line, end)
        if match is None:
            raise ValueError(f"expected ` prop: value` at {line[end : end + 20]!r}")
        text, end = (match[2], match.end()) if match[2] is not None else literal(line, match.end())
        if match[1] == "value":
            value = text
        else:
            props.append((match[1], _BOOLEAN.get(text, text) if match[2] is not None else text))
    return Node(int(head[2]), head[3], name, value, tuple(props), depth=len(head[1]))


def parse_action(reply: str, observation: Observation) -> Action:
    """The whole reply if it is one action, else its last block of backticks, else its last line. Raises `Refused`."""
    whole = reply.strip()
    last = whole.rpartition("\n")[2].strip()
    fenced = [block.strip() for block in _FENCE.findall(reply)[-1:]]
    refusals: list[Refused] = []
    for candidate in dict.fromkeys([whole, *fenced, last]):
        try:
            return _parse_line(candidate, observation)
        except Refused as error:
            refusals.append(error)
    raise refusals[min(1, len(refusals) - 1)]


def print_action(action: Action, with_id: bool) -> str:
    """The action as `parse_action` reads it; its target by role and name when `with_id` is false."""
    kind = action.kind
    if kind in BARE:
        return kind
    if action.target is None and kind not in TARGETED:
        return f"{kind} [{action.index if kind == 'tab_focus' else action.text}]"
    target = str(action.target) if with_id else f"{action.target_role} {quote(action.target_name)}"
    tails: dict[ActionKind, Callable[[], str]] = {
        "click": str,
        "hover": str,
        "type": lambda: f" [{action.text}] [{int(action.enter)}]",
    }
    return f"{kind} [{target}]{tails.get(kind, lambda: f' [{action.text}]')()}"


def _parse_line(line: str, observation: Observation) -> Action:
    if not line:
        raise Refused("the reply is empty; it must hold an action such as click [12]")
    kind = kind_of(line)
    try:
        action = _arguments(kind, line[len(kind) :])
    except ValueError as error:
        raise Refused(f"{kind}: {error}; write {_FORMS.get(kind, kind)}") from None
    return resolve(action, observation)


def _arguments(kind: ActionKind, rest: str) -> Action:
    if kind in BARE or (kind == "stop" and not rest):
        return finish(Action(kind), rest)
    if kind in TARGETED or (kind in AIMED and (aimed := _TARGETED_ARGUMENT.fullmatch(rest)) and aimed[2] is not None):
        return _on_target(kind, rest)
    match = _BRACKETED.fullmatch(rest)
    if match is None:
        raise ValueError("its argument stands in [ ]")
    if kind == "scroll":
        return Action(kind, text=_direction(match[1]))
    if kind == "tab_focus":
        return Action(kind, index=tab_index(match[1].strip()))
    return Action(kind, text=match[1])


def _on_target(kind: ActionKind, rest: str) -> Action:
    match = _TARGETED_ARGUMENT.fullmatch(rest)
    if match is None:
        raise ValueError("the element number stands in [ ]")
    target, text = int(match[1]), match[2]
    takes_text = kind not in ("click", "hover")
    if takes_text != (text is not None):
        raise ValueError("the text stands in a second [ ]" if takes_text else "one element number is all it takes")
    if kind == "scroll":
        return Action(kind, target, _direction(text))
    if kind != "type":
        return Action(kind, target, text or "")
    flag = _ENTER_FLAG.search(text)
    return Action(kind, target, text[: flag.start()] if flag else text, enter=flag is None or flag[1] == "1")


def _direction(text: str) -> str:
    return direction(text.strip().removeprefix("direction=").strip())


def webarena_view(raw: Sequence[Node], *, max_nodes: int = MAX_NODES) -> Viewed:
    """What WebArena shows: structure without a name goes, and so does text that the last three lines hold."""
    viewed = filtered_view(raw, _Unrepeated(), max_nodes=max_nodes)
    return Viewed(tuple(map(_without_value, viewed.nodes)), viewed.truncated)


@dataclass(slots=True)
class _Unrepeated:
    """Which nodes stay; remembers the lines that were kept last."""

    lines: list[str] = field(default_factory=list)

    def __call__(self, node: Node, parent_name: str) -> bool:
        text = repr(node.name)
        if node.role == TEXT:
            if not node.name or any(text[1:-1] in line for line in self.lines[-_BEFORE:]):
                return False
        elif not node.name and (node.role == "listitem" or (not node.props and node.role in _EMPTY)):
            return False
        props = " ".join(f"{key}: {value.capitalize()}" for key, value in node.props)
        self.lines.append(f"{node.role} {text} {props}")
        del self.lines[:-_BEFORE]
        return True


def _without_value(node: Node) -> Node:
    """The content of a field stands below it as text."""
    return node if node.value is None or node.role in ("combobox", "slider") else replace(node, value=None)


class Webarena:
    """The format `webarena`."""

    dialect = Dialect(page_lines, parse_page)
    grammar = Grammar(parse_action, print_action)
    view = staticmethod(webarena_view)
