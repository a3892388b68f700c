"""The views `webarena` and `browsergym`: which nodes of a raw tree the agents of those benchmarks are shown.

Their rules, learnt from what `libwebarena` 0.0.5 and `browsergym-core` 0.14.3 print. Meant differences, all of them
checked by tests that run those packages on the same pages:

1. Numbers run from 1 in page order; theirs are Chromium's or BrowserGym's own.
2. BrowserGym numbers elements by attributes that it writes on all of them, and with attributes Chromium shows elements
   that it leaves out otherwise (`rowgroup`, the text of a `<b>` apart). We never touch the page.
3. No `InlineTextBox`, `ListMarker`, `LineBreak` and no text of pseudo-elements: layout, not content.
4. Properties by an allow-list (`tree.VERBOSE`); theirs print whatever the Chromium at hand knows, addresses included.
   A node that has no name and none of these properties is dropped as if it had no property at all.
5. Date, time and colour fields and rich editors are `textbox`, so that one can type into them.
6. `webarena` shows the trees of frames, and `value: ...` of lists and sliders; `libwebarena` does neither.
7. Elements with a click listener and no role are kept (`clickable`); notices and the mark of a cut page are lines.
8. `libwebarena` takes a text of digits for shown when the number of a line before holds it; ours does not.
9. Chromium's `image` counts as the `img` that it was called before.
10. Numbers and texts of several words are quoted; white space is collapsed; names are cut to `NAME_LIMIT` characters,
    texts to `VALUE_LIMIT`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from dynaweb.types import Node
from dynaweb.web.tree import TEXT, subtree_ends
from dynaweb.web.view import MAX_NODES, NAME_LIMIT, VALUE_LIMIT, Viewed, clip

_WEBARENA_EMPTY = frozenset(
    ("generic", "img", "image", "list", "strong", "paragraph", "banner", "navigation", "Section", "LabelText", "Legend")
)
"""Roles that `webarena` drops when they have neither a name nor a property (`image` is what `img` is called now)."""
_NEVER = frozenset({"none", "LineBreak"})
_BEFORE = 3
"""How many lines back `webarena` looks for a text that was shown already."""


def webarena_view(raw: Sequence[Node], *, max_nodes: int = MAX_NODES) -> Viewed:
    """What WebArena shows: structure without a name goes, and so does text that the last three lines hold."""
    viewed = _filtered(raw, max_nodes, _WebArena())
    return Viewed(tuple(map(_without_value, viewed.nodes)), viewed.truncated)


def browsergym_view(raw: Sequence[Node], *, max_nodes: int = MAX_NODES) -> Viewed:
    """What BrowserGym shows: `generic` without properties goes, and so does text that its parent's name holds."""
    viewed = _filtered(raw, max_nodes, _BrowserGym())
    return Viewed(tuple(map(_without_flags, viewed.nodes)), viewed.truncated)


_Keep = Callable[[Node, str], bool]


@dataclass(slots=True)
class _WebArena:
    """Remembers the lines that were kept last."""

    lines: list[str] = field(default_factory=list)

    def __call__(self, node: Node, parent_name: str) -> bool:
        text = repr(node.name)
        if node.role == TEXT:
            if not node.name or any(text[1:-1] in line for line in self.lines[-_BEFORE:]):
                return False
        elif not node.name and (node.role == "listitem" or (not node.props and node.role in _WEBARENA_EMPTY)):
            return False
        props = " ".join(f"{key}: {value.capitalize()}" for key, value in node.props)
        self.lines.append(f"{node.role} {text} {props}")
        del self.lines[:-_BEFORE]
        return True


@dataclass(slots=True)
class _BrowserGym:
    """Has nothing to remember."""

    def __call__(self, node: Node, parent_name: str) -> bool:
        if node.role == TEXT:
            return node.name not in parent_name
        return node.role != "generic" or any(not _is_plain(prop) for prop in node.props)


def _without_flags(node: Node) -> Node:
    """Flags that are not set are left out."""
    props = tuple(prop for prop in node.props if not _is_plain(prop))
    return node if props == node.props else replace(node, props=props)


def _without_value(node: Node) -> Node:
    """The content of a field stands below it as text."""
    return node if node.value is None or node.role in ("combobox", "slider") else replace(node, value=None)


def _is_plain(prop: tuple[str, str]) -> bool:
    """A flag that is not set: BrowserGym does not print it."""
    return prop[0] in ("required", "focused", "atomic") and prop[1] == "false"


def _filtered(raw: Sequence[Node], max_nodes: int, keep: _Keep) -> Viewed:
    ends = subtree_ends(raw)
    kept: list[Node] = []
    above: list[tuple[int, str, bool]] = []
    for index, node in enumerate(raw):
        while above and index >= above[-1][0]:
            above.pop()
        parent_name = above[-1][1] if above else ""
        shown = _shown(node)
        stays = shown is not None and keep(shown, parent_name)
        if stays and shown is not None:
            if len(kept) == max_nodes:
                return Viewed(tuple(kept), truncated=True)
            depth = sum(level[2] for level in above)
            kept.append(Node(len(kept) + 1, shown.role, shown.name, shown.value, shown.props, depth, node.ref))
        above.append((ends[index], shown.name if shown is not None else "", stays))
    return Viewed(tuple(kept))


def _shown(node: Node) -> Node | None:
    """The node with its texts cut; None for roles that are never shown."""
    role = "generic" if node.role == "none" and ("clickable", "true") in node.props else node.role
    if role in _NEVER:
        return None
    name = clip(node.name, VALUE_LIMIT if role == TEXT else NAME_LIMIT)
    value = None if node.value is None else clip(node.value, VALUE_LIMIT)
    return Node(0, role, name, value, node.props)
