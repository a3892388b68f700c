"""Chromium's accessibility tree, read from the DevTools protocol into flat nodes.

`read_tree` turns the answer of `Accessibility.getFullAXTree` into the *raw tree*: a list of `Node`s in page order
with `depth`, Chromium's role names, and `id` 0. It keeps what views need to tell blocks apart, such as ignored block
elements (role `none`) and `StaticText` pieces, and leaves out what depends on layout (`InlineTextBox`, list markers,
text of pseudo-elements). `dynaweb.web.page.view` makes views of it. Everything is iterative, so depth has no limit.

What is in the tree: text that is off-screen or transparent is; what is `hidden`, `aria-hidden` or `inert` is not.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dynaweb.types import Node

PROPERTIES = ("checked", "disabled", "expanded", "focused", "modal", "pressed", "required", "selected")
"""Properties that are kept, in this order; all others depend on the Chromium version or say nothing to an agent."""
VERBOSE = frozenset(PROPERTIES).union(
    ("atomic", "autocomplete", "hasPopup", "live", "multiselectable", "orientation", "relevant"),
    ("valuemax", "valuemin", "valuetext"),
)
"""Properties that the texts of benchmarks show, false ones too; none that names nodes or addresses, or passes by."""

ADDRESS_LIMIT = 2000
"""Characters of the longest address of a link that is kept."""
TEXT = "StaticText"
_LAYOUT = frozenset({"InlineTextBox", "ListMarker"})
_PICKERS = frozenset({"Date", "DateTime", "InputTime", "ColorWell", "Month", "Week"})


@dataclass(frozen=True, slots=True)
class Page:
    """One frame as read from the browser: its address, its title and its raw tree."""

    url: str
    title: str
    nodes: tuple[Node, ...]


def read_page(
    payload: Sequence[Mapping[str, Any]],
    *,
    frame: str = "",
    inner: Mapping[int, Sequence[Node]] | None = None,
    verbose: bool = False,
    clickable: Collection[int] = (),
) -> Page:
    """Read a whole answer: address and title stand in its root. The arguments are those of `read_tree`."""
    root = payload[0] if payload else {}
    url = next((p["value"].get("value", "") for p in root.get("properties", ()) if p["name"] == "url"), "")
    nodes = read_tree(payload, frame=frame, inner=inner, verbose=verbose, clickable=clickable)
    return Page(str(url), _text(root.get("name")), tuple(nodes))


def read_tree(
    payload: Sequence[Mapping[str, Any]],
    *,
    frame: str = "",
    inner: Mapping[int, Sequence[Node]] | None = None,
    verbose: bool = False,
    clickable: Collection[int] = (),
) -> list[Node]:
    """The raw tree of one frame.

    `payload` is the `nodes` array of the answer. `ref` of a node is `"{frame}:{backend node id}"` (`frame` is empty for
    the main frame), or None when it is not an element of the page. `inner` holds raw trees of child frames by the
    backend node id of their `Iframe` element; they are put below it. `verbose` keeps the properties of `VERBOSE`, as
    the protocol orders them. Elements of `clickable` (backend node ids) get the property `clickable`.
    """
    by_id = {node["nodeId"]: node for node in payload}
    nodes: list[Node] = []
    for item, depth in _walk(payload, by_id):
        node = _read_node(item, depth, frame, verbose)
        if node is None:
            continue
        if clickable and item.get("backendDOMNodeId") in clickable:
            node = replace(node, props=(*node.props, ("clickable", "true")))
        nodes.append(node)
        below = (inner or {}).get(item.get("backendDOMNodeId", -1))
        if below:
            nodes.extend(_deeper(child, depth + 1) for child in below)
    return nodes


def iframes(payload: Sequence[Mapping[str, Any]]) -> list[int]:
    """Backend node ids of the frame elements that the tree shows."""
    return [
        item["backendDOMNodeId"]
        for item in payload
        if item.get("role", {}).get("value") == "Iframe" and "backendDOMNodeId" in item
    ]


def subtree_ends(nodes: Sequence[Node]) -> list[int]:
    """For each node the index after its last descendant."""
    ends = [len(nodes)] * len(nodes)
    open_nodes: list[int] = []
    for index, node in enumerate(nodes):
        while open_nodes and nodes[open_nodes[-1]].depth >= node.depth:
            ends[open_nodes.pop()] = index
        open_nodes.append(index)
    return ends


def _walk(
    payload: Sequence[Mapping[str, Any]], by_id: Mapping[str, Mapping[str, Any]]
) -> Iterator[tuple[Mapping[str, Any], int]]:
    """Page order with depth; each node once, whatever the answer claims about children."""
    stack = [(payload[0]["nodeId"], 0)] if payload else []
    seen: set[str] = set()
    while stack:
        node_id, depth = stack.pop()
        item = by_id.get(node_id)
        if item is None or node_id in seen:
            continue
        seen.add(node_id)
        yield item, depth
        stack.extend((child, depth + 1) for child in reversed(item.get("childIds", ())))


def _read_node(item: Mapping[str, Any], depth: int, frame: str, verbose: bool) -> Node | None:
    backend = item.get("backendDOMNodeId")
    if item.get("ignored"):
        return Node(0, "none", depth=depth, ref=_ref(frame, backend))
    role = _text(item.get("role"))
    if role in _LAYOUT or (role == TEXT and backend is None):
        return None
    own = {entry["name"]: entry["value"].get("value") for entry in item.get("properties", ())}
    name, value = _text(item.get("name")), _text(item.get("value")) or None
    rich_text = role == "generic" and own.get("editable") in ("richtext", "plaintext") and own.get("focusable")
    if rich_text or role in _PICKERS:
        role = "textbox"
    props = _verbose(own) if verbose else _props(role, own)
    address = link_address(_text({"value": own.get("url")})) if role == "link" else ""
    return Node(0, role, name, value, props, depth, _ref(frame, backend), address)


def link_address(url: str) -> str:
    """The address of a link as observations keep it: '' for what is none of a page, or holds a login."""
    scheme, mark, rest = url.partition("://")
    kept = scheme in ("http", "https", "file") and mark and len(url) <= ADDRESS_LIMIT
    return url if kept and "@" not in rest.partition("/")[0] else ""


def _props(role: str, own: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    if not own:
        return ()
    props = [(key, _text({"value": own[key]})) for key in PROPERTIES if own.get(key) not in (None, False, "false")]
    if own.get("expanded") is False and role != "combobox":
        props.append(("expanded", "false"))
    if role == "generic" and own.get("focusable") and not own.get("editable"):
        props.append(("focusable", "true"))
    return tuple(props)


def _verbose(own: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    return tuple((key, _text({"value": value})) for key, value in own.items() if key in VERBOSE and value is not None)


def _text(field: Mapping[str, Any] | None) -> str:
    """The text of a protocol value; numbers without a trailing `.0`, booleans in lower case."""
    value = (field or {}).get("value")
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def _ref(frame: str, backend: int | None) -> str | None:
    return None if backend is None else f"{frame}:{backend}"


def _deeper(node: Node, by: int) -> Node:
    return Node(0, node.role, node.name, node.value, node.props, node.depth + by, node.ref, node.address)
