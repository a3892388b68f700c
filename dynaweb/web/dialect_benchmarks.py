"""The dialects `webarena` and `browsergym`: the texts that agents of those benchmarks read, and how to read them back.

Strings are Python literals, so a name with a quote is in double quotes, and no page text can begin a line. Booleans
are written as the benchmarks' own code prints the DevTools protocol: `True` and `False`, but `true` for the properties
with three states (`checked`, `pressed`). Texts that look like one of them are quoted.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from dynaweb.types import Node, Observation, Tab

TRUNCATED = "..."
"""The line that marks an observation cut by a budget."""
TRISTATE = frozenset({"checked", "pressed"})
"""Properties that the protocol gives as words, not as booleans."""
FLAGS = frozenset({"atomic", "clickable", "focused", "required"})
"""Properties that `browsergym` writes as one word when they are true."""

_CAPITAL = {"true": "True", "false": "False"}
_BOOLEAN = {"True": "true", "False": "false"}
_WORD = re.compile(r"[^\s'=\"]+")
_WEBARENA = re.compile(r"(\t*)\[(\d+)\] ([A-Za-z][\w-]*) ")
_BROWSERGYM = re.compile(r"(\t*)(?:\[(\d+)\] )?([A-Za-z][\w-]*)(?: (?=['\"]))?")
_LITERAL = re.compile(r"'(?:[^'\\\n]|\\.)*'|\"(?:[^\"\\\n]|\\.)*\"")
_WEBARENA_PROP = re.compile(r" ([A-Za-z_][\w-]*): (?:([^\s'\"]+)|(?=['\"]))")
_BROWSERGYM_PROP = re.compile(r", ([A-Za-z_][\w-]*)(?:=(?:(True|False)|(?=['\"])))?")
_TAB = re.compile(r"Tab (\d+)( \(current\))?: ")


def webarena_lines(observation: Observation) -> Iterator[str]:
    """`Tab 0 (current): ...`, an empty line, then `[id] role 'name' prop: value`, tab-indented."""
    tabs = observation.tabs or (Tab(observation.title, observation.url, current=True),)
    yield " | ".join(
        f"Tab {index}{' (current)' if tab.current else ''}: {_one_line(tab.title)}" for index, tab in enumerate(tabs)
    )
    yield ""
    yield from map(_webarena_node, observation.nodes)
    yield from _foot(observation)


def browsergym_lines(observation: Observation) -> Iterator[str]:
    """`[bid] role 'name' value='..', focused, prop='..'`, tab-indented; text without a number."""
    yield from map(_browsergym_node, observation.nodes)
    yield from _foot(observation)


def parse_webarena(text: str, url: str = "") -> Observation:
    """Read `webarena` text back; addresses are not part of it. Raises `ValueError` naming the line."""
    head, _, body = text.partition("\n\n")
    tabs = _parse_tabs(head)
    nodes: list[Node] = []
    truncated, notice = False, ""
    for line in body.split("\n") if body else []:
        if line == TRUNCATED:
            truncated = True
        elif line.startswith("notice: "):
            notice = literal(line, 8)[0]
        else:
            nodes.append(_parse_webarena_node(line))
    title = next((tab.title for tab in tabs if tab.current), "")
    shown = tabs if len(tabs) > 1 else ()
    return Observation(url, tuple(nodes), title, shown, notice, truncated)


def parse_browsergym(text: str, url: str = "") -> Observation:
    """Read `browsergym` text back; address, title and tabs are not part of it. Raises `ValueError` naming the line.

    Text has no number in this dialect: it gets its place, which is its number on every page that is numbered 1..N.
    """
    nodes: list[Node] = []
    truncated, notice = False, ""
    for line in text.split("\n") if text else []:
        if line == TRUNCATED:
            truncated = True
        elif line.startswith("notice: "):
            notice = literal(line, 8)[0]
        else:
            nodes.append(_parse_browsergym_node(line, len(nodes) + 1))
    return Observation(url, tuple(nodes), notice=notice, truncated=truncated)


def literal(line: str, position: int) -> tuple[str, int]:
    """The Python string that begins there, and the position after it. Raises `ValueError`."""
    match = _LITERAL.match(line, position)
    if match is None:
        raise ValueError(f"expected a Python string at {line[position : position + 20]!r}")
    try:
        return str(ast.literal_eval(match[0])), match.end()
    except (SyntaxError, ValueError):
        raise ValueError(f"not a Python string: {match[0][:40]!r}") from None


def _foot(observation: Observation) -> Iterator[str]:
    if observation.truncated:
        yield TRUNCATED
    if observation.notice:
        yield f"notice: {observation.notice!r}"


def _webarena_node(node: Node) -> str:
    props = () if node.value is None else (f" value: {node.value!r}",)
    tail = "".join((*props, *(f" {key}: {_webarena_prop(key, text)}" for key, text in node.props)))
    return "\t" * node.depth + f"[{node.id}] {node.role} {node.name!r}{tail}"


def _webarena_prop(key: str, text: str) -> str:
    if text in _CAPITAL:
        return text if key in TRISTATE else _CAPITAL[text]
    return text if _WORD.fullmatch(text) and text not in _BOOLEAN else repr(text)


def _browsergym_node(node: Node) -> str:
    number = "" if node.role == "StaticText" else f"[{node.id}] "
    name = "" if node.role == "generic" and not node.name else f" {node.name!r}"
    value = "" if node.value is None else f" value={node.value!r}"
    props = "".join(f", {_browsergym_prop(key, text)}" for key, text in node.props)
    return "\t" * node.depth + f"{number}{node.role}{name}{value}{props}"


def _browsergym_prop(key: str, text: str) -> str:
    if key in FLAGS and text == "true":
        return key
    return f"{key}={_CAPITAL[text] if text in _CAPITAL and key not in TRISTATE else repr(text)}"


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


def _parse_webarena_node(line: str) -> Node:
    head = _WEBARENA.match(line)
    if head is None:
        raise ValueError(f"expected `[id] role 'name'`, got {line[:80]!r}")
    name, end = literal(line, head.end())
    value: str | None = None
    props: list[tuple[str, str]] = []
    while end < len(line):
        match = _WEBARENA_PROP.match(line, end)
        if match is None:
            raise ValueError(f"expected ` prop: value` at {line[end : end + 20]!r}")
        text, end = (match[2], match.end()) if match[2] is not None else literal(line, match.end())
        if match[1] == "value":
            value = text
        else:
            props.append((match[1], _BOOLEAN.get(text, text) if match[2] is not None else text))
    return Node(int(head[2]), head[3], name, value, tuple(props), depth=len(head[1]))


def _parse_browsergym_node(line: str, place: int) -> Node:
    head = _BROWSERGYM.match(line)
    if head is None:
        raise ValueError(f"expected `[bid] role 'name'`, got {line[:80]!r}")
    end = head.end()
    name, end = literal(line, end) if line[end - 1 : end] == " " else ("", end)
    value: str | None = None
    if line.startswith(" value=", end):
        value, end = literal(line, end + 7)
    props: list[tuple[str, str]] = []
    while end < len(line):
        match = _BROWSERGYM_PROP.match(line, end)
        if match is None:
            raise ValueError(f"expected `, prop` or `, prop='value'` at {line[end : end + 20]!r}")
        text, end = _browsergym_text(line, match)
        props.append((match[1], text))
    return Node(int(head[2]) if head[2] else place, head[3], name, value, tuple(props), depth=len(head[1]))


def _browsergym_text(line: str, match: re.Match[str]) -> tuple[str, int]:
    if match[2] is not None:
        return _BOOLEAN[match[2]], match.end()
    return literal(line, match.end()) if match[0].endswith("=") else ("true", match.end())
