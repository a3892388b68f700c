"""What of a page a person would click although it is no control: listeners, their items, and what shows a hand.

Two things say so: a click listener, and the cursor `pointer` where it begins. A listener often belongs to the items of
an element rather than to the element: one on a list, a table or a board hears the clicks on all its items, and which
one was meant is what they are about. Its items are clickable then, and it is not. An item may be a piece of a line that
the accessibility tree does not tell from its neighbours, and an icon is often not in that tree at all; `complete` puts
both where they belong.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dynaweb.types import Node
from dynaweb.web.chromium.layout import Layout, backend_of, frame_of
from dynaweb.web.page.tree import TEXT, subtree_ends
from dynaweb.web.page.view import INTERACTIVE

_ROOTS = frozenset({"HTML", "BODY"})
"""So large that a listener on them says nothing."""
_CONTROLS = frozenset({"A", "BUTTON", "INPUT", "SELECT", "TEXTAREA", "OPTION", "LABEL", "SUMMARY"})
"""Tags that are clickable by nature."""
_ITEMS = frozenset({"LI", "TR", "TD", "TH", "DT", "DD"})
_ITEM_ROLES = frozenset({"listitem", "row", "cell", "gridcell", "columnheader", "rowheader"})
_HOLDERS = frozenset({"UL", "OL", "DL", "MENU", "TABLE", "TBODY"})
_HOLDER_ROLES = frozenset({"list", "grid", "table", "rowgroup", "tree", "listbox", "menu"})
_PIECES = frozenset({"SPAN", "I", "EM", "SMALL", "CODE", "TIME", "B", "STRONG", "MARK", "U", "P"})
"""Tags that a text is often cut into for its looks alone."""
_SHAPES = frozenset({"PATH", "G", "CIRCLE", "ELLIPSE", "RECT", "LINE", "POLYGON", "POLYLINE", "USE"})
"""What a drawing consists of."""
_PICTURES = frozenset({"SVG", "IMG", "CANVAS"})
_LEAST = 4.0
"""Pixels each way of the smallest thing that can be hit."""
_MOST = 0.5
"""Share of the window above which something empty is a backdrop."""
_NO_HINT = re.compile(r"(?:fa[srlbd]?|fas|icons?|glyphicon|material-icons.*|bi|mdi|btn|button|svg.*|img|.*\d.*)", re.I)
_PREFIX = re.compile(r"^(?:fa|icon|glyphicon|bi|mdi|ti|ri)-", re.I)


@dataclass(slots=True)
class Icon:
    """Something clickable without text: its backend node id, the elements around it from the nearest on, its name."""

    backend: int
    above: tuple[int, ...]
    role: str
    name: str


@dataclass(slots=True)
class Clickable:
    """Elements by backend node id."""

    elements: set[int] = field(default_factory=set)
    owners: dict[int, int] = field(default_factory=dict)
    """The clickable element of each text that stands in one."""
    icons: list[Icon] = field(default_factory=list)
    """Clickable elements that hold no text, in page order."""
    order: dict[int, int] = field(default_factory=dict)
    """Position in the page of every node of a document that has icons."""


def read_clickable(snapshot: Mapping[str, Any], layout: Layout) -> Clickable:
    """What is clickable in all frames of a snapshot that has the styles of `layout.STYLES`."""
    clickable = Clickable()
    for document in snapshot["documents"]:
        _Document(document, snapshot["strings"], layout).add_to(clickable)
    return clickable


class _Document:
    """A document of a snapshot: nodes by their index in page order, so that what is below a node follows it."""

    def __init__(self, document: Mapping[str, Any], strings: Sequence[str], layout: Layout) -> None:
        nodes, drawn = document["nodes"], document["layout"]
        self._strings, self._boxes, self._window = strings, layout.boxes, layout.window
        self._parents: Sequence[int] = nodes["parentIndex"]
        self._types: Sequence[int] = nodes["nodeType"]
        self._names: Sequence[int] = nodes["nodeName"]
        self._values: Sequence[int] = nodes["nodeValue"]
        self._attributes: Sequence[Sequence[int]] = nodes["attributes"]
        self._backends: Sequence[int] = nodes["backendNodeId"]
        self._listeners = set(nodes.get("isClickable", {}).get("index", ()))
        hand, visible = (strings.index(style) if style in strings else -1 for style in ("pointer", "visible"))
        self._hands: set[int] = set()
        self._hidden: set[int] = set()
        for at, styles in zip(drawn["nodeIndex"], drawn["styles"], strict=True):
            if styles and styles[0] == hand:
                self._hands.add(at)
            if styles and styles[1] != visible:
                self._hidden.add(at)
        self._ends: list[int] = []
        self._children: dict[int, list[int]] = {}

    def add_to(self, clickable: Clickable) -> None:
        """Add what is clickable in this document."""
        chosen = {at for at in self._listeners if self._may_listen(at)}
        chosen.update(at for at in self._hands if self._shows_hand(at))
        if not chosen:
            return
        self._find_ends()
        for at in sorted(self._listeners & chosen):
            chosen.update(self._items(at))
        icons = []
        for at in sorted(chosen):
            texts = [below for below in range(at + 1, self._ends[at]) if self._is_text(below)]
            if not texts and self._is_icon(at, chosen):
                icons.append(self._icon(at))
            elif not texts and at not in self._listeners:
                continue
            clickable.elements.add(self._backends[at])
            clickable.owners.update((self._backends[below], self._backends[at]) for below in texts)
        if icons:
            clickable.icons.extend(icons)
            clickable.order.update((backend, at) for at, backend in enumerate(self._backends))

    # --- what is chosen ---

    def _may_listen(self, at: int) -> bool:
        return self._is_element(at) and self._tag(at) not in _ROOTS | _CONTROLS

    def _shows_hand(self, at: int) -> bool:
        """Whether the cursor changes here, for a reason that is not a control's."""
        if self._parents[at] in self._hands or at in self._hidden or not self._is_element(at):
            return False
        return self._tag(at) not in _ROOTS and not any(self._is_control(above) for above in (at, *self._above(at)))

    def _is_control(self, at: int) -> bool:
        tag = self._tag(at)
        if tag == "A" and at not in self._listeners and not self._attribute(at, "href"):
            return False
        return tag in _CONTROLS or self._attribute(at, "role") in INTERACTIVE

    def _items(self, at: int) -> set[int]:
        """The items that a listener hears; none when it is meant for the element as a whole."""
        holder = self._tag(at) in _HOLDERS or self._attribute(at, "role") in _HOLDER_ROLES
        inside = range(at + 1, self._ends[at])
        if not holder and any(below in self._listeners or self._is_control(below) for below in inside):
            return set()
        items: set[int] = set()
        pending = [(at, False)]
        while pending:
            part, within = pending.pop()
            kids = [kid for kid in self._children.get(part, ()) if self._is_element(kid) and self._has_size(kid)]
            alike = self._alike(kids)
            if len(alike) > 1 and self._are_items(at, part, alike, within):
                items.update(kids)
                within = True
            pending.extend((kid, within) for kid in kids)
        return items

    def _alike(self, kids: Sequence[int]) -> list[int]:
        """The largest group of elements of one tag that share a class, or have none."""
        groups: dict[tuple[str, str], list[int]] = {}
        for kid in kids:
            for word in self._attribute(kid, "class").split() or [""]:
                groups.setdefault((self._tag(kid), word), []).append(kid)
        return max(groups.values(), key=len, default=[])

    def _are_items(self, listener: int, part: int, alike: Sequence[int], within: bool) -> bool:
        """Whether elements that look alike are items, not pieces of one thing."""
        tag = self._tag(alike[0])
        if tag in _ITEMS or self._attribute(alike[0], "role") in _ITEM_ROLES:
            return True
        classed = bool(self._attribute(alike[0], "class"))
        if classed and tag not in _PIECES | _SHAPES:
            return True
        if within or listener in self._hands:
            return False
        # Pieces of a text, parts of a drawing.
        return classed or not (tag in _SHAPES or any(self._is_text(kid) for kid in self._children[part]))

    # --- icons ---

    def _is_icon(self, at: int, chosen: Collection[int]) -> bool:
        box = self._boxes.get(self._backends[at])
        if box is None or at in self._hidden or not self._has_size(at):
            return False
        if any(below in chosen or self._is_control(below) for below in range(at + 1, self._ends[at])):
            return False
        return box.width * box.height <= _MOST * self._window[0] * self._window[1]

    def _icon(self, at: int) -> Icon:
        parts = [at, *range(at + 1, self._ends[at])]
        picture = any(self._tag(part) in _PICTURES for part in parts)
        name = next(filter(None, (self._label(part) for part in parts)), "") or next(
            filter(None, (self._hint(part) for part in parts)), ""
        )
        above = tuple(self._backends[other] for other in self._above(at))
        return Icon(self._backends[at], above, "image" if picture else "generic", name)

    def _label(self, at: int) -> str:
        return next(filter(None, (self._attribute(at, key) for key in ("aria-label", "title", "alt"))), "").strip()

    def _hint(self, at: int) -> str:
        """What the page's own code calls an icon: an id, a CSS class, a file."""
        if self._types[at] != 1:
            return ""
        words = [_PREFIX.sub("", word) for word in self._attribute(at, "class").split()]
        called = " ".join(word for word in words if not _NO_HINT.fullmatch(word))
        source = self._attribute(at, "href") or self._attribute(at, "xlink:href") or self._attribute(at, "src")
        stem = "" if source.startswith("data:") else re.split(r"[/#]", source)[-1].partition(".")[0]
        return self._attribute(at, "id") or called or _PREFIX.sub("", stem)

    # --- the document ---

    def _find_ends(self) -> None:
        """After each node the end of what is below it, and its children."""
        self._ends = list(range(1, len(self._parents) + 1))
        for at in range(len(self._parents) - 1, 0, -1):
            parent = self._parents[at]
            if parent >= 0:
                self._ends[parent] = max(self._ends[parent], self._ends[at])
        for at, parent in enumerate(self._parents):
            self._children.setdefault(parent, []).append(at)

    def _is_element(self, at: int) -> bool:
        """Pseudo-elements are none."""
        return self._types[at] == 1 and not self._tag(at).startswith("::")

    def _above(self, at: int) -> Iterator[int]:
        while (at := self._parents[at]) >= 0:
            yield at

    def _has_size(self, at: int) -> bool:
        box = self._boxes.get(self._backends[at])
        return box is not None and box.width >= _LEAST and box.height >= _LEAST

    def _is_text(self, at: int) -> bool:
        value = self._values[at]
        return self._types[at] == 3 and value >= 0 and bool(self._strings[value].strip())

    def _tag(self, at: int) -> str:
        return self._strings[self._names[at]].upper()

    def _attribute(self, at: int, key: str) -> str:
        pairs = self._attributes[at]
        for index in range(0, len(pairs), 2):
            if self._strings[pairs[index]] == key:
                return self._strings[pairs[index + 1]] if pairs[index + 1] >= 0 else ""
        return ""


def complete(raw: Sequence[Node], clickable: Clickable) -> tuple[Node, ...]:
    """The raw tree of a page with the items and icons that it does not tell: see the module's docstring."""
    if not clickable.owners and not clickable.icons:
        return tuple(raw)
    present = {backend for node in raw if (backend := backend_of(node.ref)) is not None}
    nodes = _with_pieces(raw, clickable, present)
    icons = {icon.backend: icon for icon in clickable.icons}
    nodes = [_named(node, icons) for node in nodes]
    absent = [icon for icon in clickable.icons if icon.backend not in present]
    return tuple(_with_icons(nodes, absent, clickable.order) if absent else nodes)


def _with_pieces(raw: Sequence[Node], clickable: Clickable, present: set[int]) -> list[Node]:
    """Texts of clickable elements that are no nodes of their own become nodes of these."""
    nodes: list[Node] = []
    for node in raw:
        backend = backend_of(node.ref)
        owner = clickable.owners.get(backend) if node.role == TEXT and backend is not None else None
        if owner is None or owner in present or not node.name.strip():
            nodes.append(node)
            continue
        ref = f"{frame_of(node.ref)}:{owner}"
        if nodes and nodes[-1].ref == ref:
            nodes[-1] = replace(nodes[-1], name=f"{nodes[-1].name} {node.name.strip()}")
        else:
            nodes.append(Node(0, "generic", node.name.strip(), None, (("clickable", "true"),), node.depth, ref))
    return nodes


def _named(node: Node, icons: Mapping[int, Icon]) -> Node:
    icon = None if node.name else icons.get(backend_of(node.ref) or 0)
    return node if icon is None or not icon.name else replace(node, name=icon.name)


def _with_icons(nodes: list[Node], icons: Sequence[Icon], order: Mapping[int, int]) -> list[Node]:
    """Put each icon below the nearest element around it, before what follows it in the page."""
    at = {backend: index for index, node in enumerate(nodes) if (backend := backend_of(node.ref)) is not None}
    ends = subtree_ends(nodes)
    inserted: dict[int, list[Node]] = {}
    for icon in icons:
        parent = next((at[backend] for backend in icon.above if backend in at), None)
        if parent is None:
            continue
        position, own = parent + 1, order[icon.backend]
        while position < ends[parent] and order.get(backend_of(nodes[position].ref) or 0, own) < own:
            position += 1
        props = (("clickable", "true"),)
        ref = f"{frame_of(nodes[parent].ref)}:{icon.backend}"
        inserted.setdefault(position, []).append(
            Node(0, icon.role, icon.name, None, props, nodes[parent].depth + 1, ref)
        )
    merged: list[Node] = []
    for index in range(len(nodes) + 1):
        merged.extend(inserted.get(index, ()))
        merged.extend(nodes[index : index + 1])
    return merged
