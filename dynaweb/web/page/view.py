"""Views of a raw accessibility tree: what an observation shows of a page.

The raw tree (see `dynaweb.web.page.tree`) is a list of `Node`s in page order with `depth`, with Chromium's role names.
Views number what they keep 1..N. Both views are pure functions, so a tree built from HTML without a browser gives the
same.

Rules of the **compact** view (flat, what small models read):

1. Kept elements: link, button, textbox (searchbox, spinbutton, textarea and pickers become `textbox`), combobox
   (native select), checkbox, radio, heading, status, alert, dialog, the further roles of `INTERACTIVE`, and `text`.
   An element without such a role that takes the focus or listens to clicks is kept when it holds no other control
   (and, if it only listens, no more text than a name has room for). Everything else (landmarks, lists, tables,
   generics, images, list markers) is dropped and its children are kept.
2. Text: consecutive `StaticText` pieces of one block with no kept element between them are one node `text`, pieces
   joined with single spaces. The block of a piece is its nearest ancestor that is not inline: `INLINE` roles are
   looked through, and so are generics within a paragraph. Plain `<span>`, `<b>`, `<small>` are not in the raw tree at
   all.
3. Text within an element of rule 1 other than `dialog`, and within a label (`LabelText`) that names a control, is not
   repeated; neither are headings within a link or button. Elements within them are kept.
4. A heading that contains an interactive element gives that element only. A status or alert is named by the text in
   it and dropped when there is none. Interactive elements with an empty name are kept.
5. `value`: the content of a textbox (None when empty); the current option's label of a combobox; those of a native
   list that shows several, joined with `|`. Props are true ones
   only: checked, disabled, expanded, pressed, required, selected; `options` of a native select, labels joined with
   `|`, and before it `total`, how many there are, where only a few are told (`shorten_lists`).
6. Names, texts and options have their white space collapsed and are cut to `NAME_LIMIT` characters.

The **full** view keeps the tree: nameless structure without properties is dropped (children move up), text that the
name of its parent already says is dropped, and native selects carry their options as a property.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

from dynaweb.types import Node
from dynaweb.web.actions.rules import TEXTBOXES
from dynaweb.web.page.options import option_labels
from dynaweb.web.page.text import format_node
from dynaweb.web.page.tree import TEXT, subtree_ends


def _roles(words: str) -> frozenset[str]:
    return frozenset(words.split())


NAME_LIMIT = 120
VALUE_LIMIT = 1000
MAX_NODES = 1500
MAX_OPTIONS = 10

INTERACTIVE = _roles(
    """link button textbox searchbox spinbutton combobox listbox checkbox radio switch slider tab option treeitem
    menuitem menuitemcheckbox menuitemradio DisclosureTriangle"""
)
"""Roles that can be acted on."""
INLINE = _roles("strong emphasis time code mark Abbr superscript subscript insertion deletion Ruby LineBreak")
"""Roles that belong to the text around them."""

TOTAL = "total"
"""The property that says how many options a native select has, where only a few of them are told."""
CLICKABLE = ("clickable", "true")
"""The property of an element that listens to clicks (see `dynaweb.web.chromium.layout`)."""

_LIVE = frozenset({"status", "alert"})
_DIALOGS = frozenset({"dialog", "alertdialog"})
_SPOKEN = _LIVE | _DIALOGS | {"heading", TEXT, "LabelText", "RootWebArea", "Iframe"}
"""Roles that a click listener does not turn into controls."""
_RENAMED = {
    **{"searchbox": "textbox", "spinbutton": "textbox", "DisclosureTriangle": "button", "alertdialog": "dialog"},
    "none": "generic",
}
_COMPACT_PROPS = frozenset({"checked", "disabled", "expanded", "pressed", "required", "selected"})
_STRUCTURE = _roles(
    """generic none paragraph list listitem strong emphasis image banner navigation main complementary contentinfo
    section Section region group article form LabelText Legend caption rowgroup row table LayoutTable LayoutTableRow
    LayoutTableCell DescriptionList DescriptionListDetail DescriptionListTerm term definition figure Figcaption
    blockquote time code mark Abbr superscript subscript insertion deletion search sectionheader sectionfooter"""
)
_NEVER = frozenset({"none", "LineBreak", "MenuListPopup"})


@dataclass(frozen=True, slots=True)
class Viewed:
    """The nodes of a view, and whether a budget cut it."""

    nodes: tuple[Node, ...]
    truncated: bool = False


def clip(text: str, limit: int = NAME_LIMIT) -> str:
    """White space collapsed, cut to `limit` characters."""
    return " ".join(text.split())[:limit].rstrip()


def join_options(labels: Iterable[str]) -> str:
    """Option labels as one property text."""
    return "|".join(clip(label).replace("|", "/") for label in labels)


def cut(viewed: Viewed, max_chars: int) -> Viewed:
    """The view within a budget of characters, counted as `compact` lines with their line ends; 0 = no budget."""
    left = max_chars
    for index, node in enumerate(viewed.nodes if max_chars else ()):
        left -= len(format_node(node)) + 1
        if left < 0:
            return Viewed(viewed.nodes[:index], truncated=True)
    return viewed


def shorten_lists(raw: Sequence[Node], limit: int, opened: Collection[str | None] = ()) -> Sequence[Node]:
    """A raw tree in which a native select with more than `limit` options has the first of them and the chosen ones.

    Its property `total` says how many there are. Lists whose `ref` is in `opened` stay whole; 0 is no limit. Options
    that stay are named by their labels, which tell them from all others (see `dynaweb.web.page.options`).
    """
    if not limit or sum(node.role == "option" for node in raw) <= limit:
        return raw
    ends = subtree_ends(raw)
    nodes = list(raw)
    dropped: set[int] = set()
    inside = 0
    for index, node in enumerate(raw):
        if index < inside or node.role not in ("combobox", "listbox") or node.ref in opened:
            continue
        if not _options(raw, index, ends[index]):
            continue
        inside = ends[index]  # no list is in a list
        at = [below for below in range(index + 1, ends[index]) if raw[below].role == "option"]
        if len(at) <= limit:
            continue
        labels = [label for label, _ in _labels(raw, index, ends[index])]
        nodes[index] = replace(node, props=(*node.props, (TOTAL, str(len(at)))))
        for number, (option, label) in enumerate(zip(at, labels, strict=True)):
            nodes[option] = replace(raw[option], name=label)
            if number >= limit and ("selected", "true") not in raw[option].props:
                dropped.update(range(option, ends[option]))
        for group in (below for below in range(index + 1, ends[index]) if raw[below].role == "group"):
            if all(below in dropped for below in range(group + 1, ends[group])):
                dropped.add(group)
    return [node for index, node in enumerate(nodes) if index not in dropped]


def left_out(above: int, below: int) -> str:
    """What the notice of a page says that is cut by a budget; counts are of elements."""
    where = [f"{count} {side}" for count, side in ((above, "above"), (below, "below")) if count]
    return f"the page is long: what is near the window is shown, not the elements {' and '.join(where)}; scroll to them"


def nearest(viewed: Viewed, offsets: Sequence[float], *, max_nodes: int, max_chars: int = 0) -> tuple[Viewed, int, int]:
    """The nodes of a whole view that are nearest to the window, and how many are left out above and below.

    `offsets` has the distance of each node to the window, negative above it. At most `max_nodes` nodes stay, and as
    many as `max_chars` have room for (see `cut`), each with those that it stands in. They are numbered anew.
    """
    nodes = viewed.nodes
    parents: list[int] = []
    above: list[int] = []
    for index, node in enumerate(nodes):
        while above and nodes[above[-1]].depth >= node.depth:
            above.pop()
        parents.append(above[-1] if above else -1)
        above.append(index)
    chosen: set[int] = set()
    left = max_chars
    for start in sorted(range(len(nodes)), key=lambda index: (abs(offsets[index]), index)):
        chain = []
        at = start
        while at >= 0 and at not in chosen:
            chain.append(at)
            at = parents[at]
        left -= sum(len(format_node(nodes[index])) + 1 for index in chain) if max_chars else 0
        if len(chosen) + len(chain) > max_nodes or left < 0:
            break
        chosen.update(chain)
    dropped = [offsets[index] < 0 for index in range(len(nodes)) if index not in chosen]
    near = tuple(replace(nodes[index], id=number) for number, index in enumerate(sorted(chosen), start=1))
    return Viewed(near, bool(dropped) or viewed.truncated), sum(dropped), len(dropped) - sum(dropped)


def compact_view(raw: Sequence[Node], *, max_nodes: int = MAX_NODES) -> Viewed:
    """The compact view of a raw tree; the module's docstring has its rules."""
    builder = _Compact(raw, subtree_ends(raw))
    for index in range(len(raw)):
        if len(builder.nodes) > max_nodes:
            break
        builder.take(index)
    builder.flush()
    return Viewed(tuple(builder.nodes[:max_nodes]), len(builder.nodes) > max_nodes)


def full_view(raw: Sequence[Node], *, max_nodes: int = MAX_NODES) -> Viewed:
    """The full view of a raw tree: filtered, with depth."""
    ends = subtree_ends(raw)
    nodes: list[Node] = []
    above: list[tuple[int, str]] = []
    skip = 0
    for index, node in enumerate(raw):
        while above and index >= above[-1][0]:
            above.pop()
        if index < skip or not _in_full(node, above[-1][1] if above else ""):
            continue
        if len(nodes) == max_nodes:
            return Viewed(tuple(nodes), truncated=True)
        options = _options(raw, index, ends[index])
        if options or node.role in TEXTBOXES:
            skip = ends[index]
        if options:
            node = _with_chosen(raw, index, ends[index])
        nodes.append(_full_node(node, len(nodes) + 1, len(above), options))
        above.append((ends[index], nodes[-1].name))
    return Viewed(tuple(nodes))


Keep = Callable[[Node, str], bool]
"""Whether a filtered view keeps a node, by the node and the name of the one around it."""


def filtered_view(raw: Sequence[Node], keep: Keep, *, max_nodes: int = MAX_NODES) -> Viewed:
    """The nodes of a raw tree that `keep` wants, in page order, with the depth that is left: views of benchmarks.

    What these do otherwise than the benchmarks' own packages, on purpose: numbers run from 1 in page order; there is no
    `InlineTextBox`, `ListMarker`, `LineBreak` and no text of pseudo-elements, which are layout; properties are those of
    an allow-list (`tree.VERBOSE`), and a node that has no name and none of these is dropped as if it had none at all;
    date, time and colour fields and rich editors are `textbox`, so that one can type into them; elements with a click
    listener and no role are kept (`clickable`); numbers and texts of several words are quoted, white space is
    collapsed, names are cut to `NAME_LIMIT` characters, texts to `VALUE_LIMIT`.
    """
    ends = subtree_ends(raw)
    nodes: list[Node] = []
    above: list[tuple[int, str, bool]] = []
    for index, node in enumerate(raw):
        while above and index >= above[-1][0]:
            above.pop()
        parent_name = above[-1][1] if above else ""
        clipped = _clipped(node)
        stays = clipped is not None and keep(clipped, parent_name)
        if stays and clipped is not None:
            if len(nodes) == max_nodes:
                return Viewed(tuple(nodes), truncated=True)
            depth = sum(level[2] for level in above)
            nodes.append(replace(clipped, id=len(nodes) + 1, depth=depth, ref=node.ref))
        above.append((ends[index], clipped.name if clipped is not None else "", stays))
    return Viewed(tuple(nodes))


def _clipped(node: Node) -> Node | None:
    """The node with its texts cut; None for roles that are never shown."""
    role = "generic" if node.role == "none" and ("clickable", "true") in node.props else node.role
    if role in ("none", "LineBreak"):
        return None
    name = clip(node.name, VALUE_LIMIT if role == TEXT else NAME_LIMIT)
    value = None if node.value is None else clip(node.value, VALUE_LIMIT)
    return Node(0, role, name, value, node.props, address=node.address)


VIEWS: dict[str, Callable[..., Viewed]] = {"compact": compact_view, "full": full_view}
"""The views of the core; others are parts of formats (`dynaweb.web.observation_formats`)."""


@dataclass(slots=True)
class _Compact:
    """Builds a compact view: `take` the raw nodes in order, then `flush`."""

    raw: Sequence[Node]
    ends: Sequence[int]
    nodes: list[Node] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)
    piece_block: int = -1
    piece_ref: str | None = None
    blocks: list[tuple[int, bool]] = field(default_factory=list)
    """Open blocks: (index, lies in a paragraph)."""
    names: _Names | None = None
    """Names of all controls."""
    muted: int = 0
    """Text before this index is the name of something already."""
    skipped: int = 0
    """Everything before this index belongs to something already."""

    def take(self, index: int) -> None:
        """Take one raw node."""
        while self.blocks and index >= self.ends[self.blocks[-1][0]]:
            self.blocks.pop()
        if index < self.skipped:
            return
        role = self.raw[index].role
        if role == TEXT:
            self._text(index)
        elif role in INTERACTIVE or self._clickable(index):
            self._interactive(index)
        elif role == "heading":
            self._heading(index)
        elif role in _LIVE:
            self._live(index)
        else:
            self._structure(index)

    def flush(self) -> None:
        """End the text that is being collected."""
        if self.pieces:
            name = clip(" ".join(self.pieces))
            self.pieces.clear()
            self.nodes.append(Node(len(self.nodes) + 1, "text", name, ref=self.piece_ref))

    def _text(self, index: int) -> None:
        piece = " ".join(self.raw[index].name.split())
        if index < self.muted or not piece:
            return
        block = self.blocks[-1][0] if self.blocks else -1
        if block != self.piece_block:
            self.flush()
        if not self.pieces:
            self.piece_block, self.piece_ref = block, self.raw[index].ref
        self.pieces.append(piece)

    def _interactive(self, index: int) -> None:
        node, end = self.raw[index], self.ends[index]
        if node.role == "option" and not _has_text(self.raw, index, end):
            return
        options = _options(self.raw, index, end)
        self.muted = max(self.muted, end)
        if node.role in TEXTBOXES or options:
            self.skipped = end
        name = node.name if node.name or node.role in INTERACTIVE else _text_of(self.raw, index, end)
        self._emit(_with_chosen(self.raw, index, end) if options else node, name, options)

    def _heading(self, index: int) -> None:
        end = self.ends[index]
        if index >= self.muted and not any(node.role in INTERACTIVE for node in self.raw[index + 1 : end]):
            self._emit(self.raw[index], self.raw[index].name)
        self.muted = max(self.muted, end)

    def _live(self, index: int) -> None:
        name = _text_of(self.raw, index, self.ends[index])
        if name and index >= self.muted:
            self._emit(self.raw[index], name)
        self.muted = max(self.muted, self.ends[index])

    def _structure(self, index: int) -> None:
        node = self.raw[index]
        if node.role in _DIALOGS:
            self._emit(node, node.name)
        elif node.role == "LabelText" and self._names_a_control(index):
            self.muted = max(self.muted, self.ends[index])
        in_paragraph = bool(self.blocks) and self.blocks[-1][1]
        if node.role not in INLINE and not (in_paragraph and node.role == "generic"):
            self.blocks.append((index, in_paragraph or node.role == "paragraph"))

    def _names_a_control(self, index: int) -> bool:
        """Whether a label's text is said by some control; a label that belongs to none is all a reader has."""
        pieces = [_letters(node.name) for node in self.raw[index + 1 : self.ends[index]] if node.role == TEXT]
        if self.names is None:
            self.names = _Names([_letters(node.name) for node in self.raw if node.role in INTERACTIVE and node.name])
        return self.names.say(pieces)

    def _clickable(self, index: int) -> bool:
        """An element without a role of its own that can be acted on and is small enough to be one control."""
        node, end = self.raw[index], self.ends[index]
        focusable = node.role == "generic" and ("focusable", "true") in node.props
        listens = CLICKABLE in node.props and node.role not in _SPOKEN
        if not focusable and not listens:
            return False
        below = self.raw[index + 1 : end]
        if any(other.role in INTERACTIVE or CLICKABLE in other.props for other in below):
            return False
        return focusable or sum(len(other.name) for other in below if other.role == TEXT) <= NAME_LIMIT

    def _emit(self, node: Node, name: str, options: str = "") -> None:
        self.flush()
        props = tuple(prop for prop in node.props if prop[0] in _COMPACT_PROPS and prop[1] != "false")
        props += tuple(prop for prop in node.props if prop[0] == TOTAL)
        if options:
            props += (("options", options),)
        role = _RENAMED.get(node.role, node.role)
        value = _value(node, bool(options))
        self.nodes.append(Node(len(self.nodes) + 1, role, clip(name), value, props, 0, node.ref, node.address))


class _Names:
    """Texts without white space, in one of which others are looked for.

    Whoever asks for thousands of texts in thousands of names gets no more than `budget` letters compared: after that,
    only whole names are found.
    """

    def __init__(self, names: Iterable[str], budget: int = 100_000_000) -> None:
        self._whole = set(names)
        self._joined = "".join(f"{name}\n" for name in self._whole)
        self._budget = budget

    def say(self, pieces: Collection[str]) -> bool:
        """Whether one of the names holds all the pieces."""
        if not pieces or not self._whole or (len(pieces) == 1 and self._whole.issuperset(pieces)):
            return bool(self._whole)
        longest, names = max(pieces, key=len), self._joined
        done = 0
        while self._budget > 0 and (at := names.find(longest, done)) >= 0:
            start, end = max(done, names.rfind("\n", done, at) + 1), names.find("\n", at)
            name = names[start:end]
            if all(piece in name for piece in pieces):
                return True
            self._budget -= end - done + len(pieces) * len(name)
            done = end + 1
        self._budget -= len(names) - done
        return False


def _value(node: Node, native_select: bool) -> str | None:
    if node.role in TEXTBOXES or (node.role == "combobox" and not native_select):
        return node.value[:VALUE_LIMIT] if node.value else None
    if node.role == "combobox":
        return join_options([node.value]) if node.value else None
    return node.value if node.role == "slider" or native_select else None


def _options(raw: Sequence[Node], index: int, end: int) -> str:
    """Labels of a native select: its options carry no text of their own. Others have options as elements."""
    if raw[index].role not in ("combobox", "listbox"):
        return ""
    native = raw[index].role == "combobox" and any(node.role == "MenuListPopup" for node in raw[index + 1 : end])
    if not native and (raw[index].role == "combobox" or _has_text(raw, index, end)):
        return ""
    return "|".join(label for label, _ in _labels(raw, index, end))


def _labels(raw: Sequence[Node], index: int, end: int) -> list[tuple[str, Node]]:
    """The options of a native select by their labels."""
    options: list[Node] = []
    groups: list[str] = []
    group, depth = "", 0
    for node in raw[index + 1 : end]:
        if node.depth <= depth:
            group = ""
        if node.role == "group":
            group, depth = node.name, node.depth
        elif node.role == "option":
            options.append(node)
            groups.append(group)
    labels = option_labels(zip(groups, (node.name for node in options), strict=True), NAME_LIMIT)
    return list(zip(labels, options, strict=True))


def _with_chosen(raw: Sequence[Node], index: int, end: int) -> Node:
    """A native select with the labels of the chosen options as its value."""
    chosen = [label for label, node in _labels(raw, index, end) if ("selected", "true") in node.props]
    if raw[index].role == "combobox" and not chosen:
        return raw[index]
    return replace(raw[index], value="|".join(chosen) or None)


def _has_text(raw: Sequence[Node], index: int, end: int) -> bool:
    return any(node.role == TEXT for node in raw[index + 1 : end])


def _letters(text: str) -> str:
    """Without white space: a name runs inline pieces together where the text of the tree keeps them apart."""
    return "".join(text.split())


def _text_of(raw: Sequence[Node], index: int, end: int) -> str:
    return clip(" ".join(node.name.strip() for node in raw[index + 1 : end] if node.role == TEXT))


def _in_full(node: Node, parent_name: str) -> bool:
    if node.role in _NEVER:
        return CLICKABLE in node.props
    if node.role == TEXT:
        text = clip(node.name, VALUE_LIMIT)
        return bool(text) and text not in parent_name
    return node.role not in _STRUCTURE or bool(node.name.strip() or node.value or node.props)


def _full_node(node: Node, number: int, depth: int, options: str) -> Node:
    props = node.props + ((("options", options),) if options else ())
    limit = VALUE_LIMIT if node.role == TEXT else NAME_LIMIT
    value = _value(node, bool(options)) if node.role == "combobox" else node.value and node.value[:VALUE_LIMIT]
    role = "generic" if node.role == "none" else node.role
    return Node(number, role, clip(node.name, limit), value, props, depth, node.ref, node.address)
