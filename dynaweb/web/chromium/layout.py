"""Where the elements of a page are: read from one DOMSnapshot of all frames."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dynaweb.types import Node
from dynaweb.web.boxes import Box
from dynaweb.web.session import WINDOW

STYLES = ("cursor", "visibility")
"""The computed styles that a snapshot has, in this order (for `dynaweb.web.chromium.clickable`)."""

CLIPPING = ("overflow-x", "overflow-y", "position", "display")
"""The computed styles that a snapshot for `read_shown` has, after `STYLES`."""
_EVERYWHERE = Box(-1e9, -1e9, 2e9, 2e9)
_NOWHERE = Box(0.0, 0.0, 0.0, 0.0)


@dataclass(slots=True)
class Layout:
    """Boxes by backend node id, and the size of the window in CSS pixels."""

    boxes: dict[int, Box] = field(default_factory=dict)
    window: tuple[int, int] = WINDOW


def read_layout(snapshot: Mapping[str, Any], window: tuple[int, int] = WINDOW) -> Layout:
    """Read the answer of `DOMSnapshot.captureSnapshot`; boxes in frames are off by the width of the frame's border."""
    layout = Layout(window=window)
    documents = snapshot["documents"]
    pending = [(0, 0.0, 0.0)] if documents else []
    while pending:
        index, left, top = pending.pop()
        document = documents[index]
        shift = (left - document.get("scrollOffsetX", 0.0), top - document.get("scrollOffsetY", 0.0))
        boxes = _boxes(document, *shift)
        backends = document["nodes"]["backendNodeId"]
        layout.boxes.update((backends[at], box) for at, box in boxes.items())
        content = document["nodes"].get("contentDocumentIndex", {"index": (), "value": ()})
        for at, child in zip(content["index"], content["value"], strict=True):
            if at in boxes:
                pending.append((child, boxes[at].x, boxes[at].y))
    return layout


def read_shown(snapshot: Mapping[str, Any], layout: Layout) -> dict[int, Box]:
    """What shows of each box, by backend node id, of a snapshot that has the styles of `CLIPPING` too.

    What stands in a box that scrolls or hides what does not fit (a list, a frame) is cut at its edges; what is cut away
    whole is left out. An element without a size of its own, such as a link around a picture that floats, shows where
    what is below it does. An element that another one covers shows: it may be see-through.
    """
    shown: dict[int, Box] = {}
    pending = [(0, _EVERYWHERE)] if snapshot["documents"] else []
    while pending:
        index, whole = pending.pop()
        document = snapshot["documents"][index]
        own = _Clips(document, snapshot["strings"], layout, whole)
        shown.update(own.shown)
        content = document["nodes"].get("contentDocumentIndex", {"index": (), "value": ()})
        for at, child in zip(content["index"], content["value"], strict=True):
            pending.append((child, own.shown.get(own.backends[at], _NOWHERE)))
    return shown


class _Clips:
    """What shows of the elements of one document, all of which is cut by `whole`.

    `within` are, by node index, what cuts the content of a node and what cuts those of its descendants that have a
    place of their own (`position: absolute`), which is the content of the nearest node with a `position`.
    """

    def __init__(self, document: Mapping[str, Any], strings: Sequence[str], layout: Layout, whole: Box) -> None:
        nodes, drawn = document["nodes"], document["layout"]
        self.backends: Sequence[int] = nodes["backendNodeId"]
        self.shown: dict[int, Box] = {}
        parents, names = nodes["parentIndex"], nodes["nodeName"]
        styles = dict(zip(reversed(drawn["nodeIndex"]), reversed(drawn["styles"]), strict=True))
        within: list[tuple[Box, Box]] = []
        sized: set[int] = set()
        for at, parent in enumerate(parents):
            flow, absolute = within[parent] if parent >= 0 else (whole, whole)
            box = layout.boxes.get(self.backends[at])
            style = [strings[one] for one in styles.get(at, ())[len(STYLES) :]]
            across, down, position, display = style or ("visible", "visible", "static", "inline")  # of a text
            clip = {"absolute": absolute, "fixed": whole}.get(position, flow)
            inside = clip
            if box is not None:
                if box.width > 0 and box.height > 0:
                    sized.add(at)
                    self._show(at, _cut(clip, box, across=True, down=True))
                # Overflow of the page's own elements is that of the window, and lines of text have none.
                if strings[names[at]] not in ("HTML", "BODY") and display not in ("inline", "contents"):
                    inside = _cut(clip, box, across=across != "visible", down=down != "visible")
            within.append((inside, inside if position != "static" else absolute))
        for at in range(len(parents) - 1, 0, -1):
            self._pass_up(at, parents[at], sized)

    def _show(self, at: int, box: Box) -> None:
        if box.width > 0 and box.height > 0:
            self.shown[self.backends[at]] = box

    def _pass_up(self, at: int, parent: int, sized: set[int]) -> None:
        """What has no size of its own is as large as what shows below it."""
        box = self.shown.get(self.backends[at])
        if parent < 0 or parent in sized or box is None:
            return
        known = self.shown.get(self.backends[parent])
        self._show(parent, box if known is None else _around(known, box))


def _around(one: Box, other: Box) -> Box:
    """The smallest box around two."""
    left, top = min(one.x, other.x), min(one.y, other.y)
    right, bottom = max(one.x + one.width, other.x + other.width), max(one.y + one.height, other.y + other.height)
    return Box(left, top, right - left, bottom - top)


def _cut(whole: Box, box: Box, *, across: bool, down: bool) -> Box:
    """The part of `whole` that is in a box, along the axes that are cut."""
    left, top, right, bottom = whole.x, whole.y, whole.x + whole.width, whole.y + whole.height
    if across:
        left, right = max(left, box.x), min(right, box.x + box.width)
    if down:
        top, bottom = max(top, box.y), min(bottom, box.y + box.height)
    return Box(left, top, max(0.0, right - left), max(0.0, bottom - top))


def visible_nodes(snapshot: Mapping[str, Any], layout: Layout) -> set[int]:
    """Backend ids of what shows of the main document in its viewport, and of everything that it stands in."""
    nodes = snapshot["documents"][0]["nodes"]
    backends, parents = nodes["backendNodeId"], nodes["parentIndex"]
    listening: set[int] = set()
    for start, backend in enumerate(backends):
        box = layout.boxes.get(backend)
        if box is None or not box.meets(*layout.window):
            continue
        at = start
        while at >= 0 and backends[at] not in listening:
            listening.add(backends[at])
            at = parents[at]
    return listening


def near_nodes(snapshot: Mapping[str, Any], layout: Layout, count: int) -> set[int]:
    """Backend ids of the `count` nodes of the main document nearest to its window, and of all that they stand in."""
    nodes = snapshot["documents"][0]["nodes"]
    backends, parents = nodes["backendNodeId"], nodes["parentIndex"]
    window = layout.window
    boxed = [
        (abs(box.offset(*window)), at) for at, backend in enumerate(backends) if (box := layout.boxes.get(backend))
    ]
    near: set[int] = set()
    for _, start in heapq.nsmallest(count, boxed):
        at = start
        while at >= 0 and backends[at] not in near:
            near.add(backends[at])
            at = parents[at]
    return near


def offsets(nodes: Sequence[Node], layout: Layout) -> list[float]:
    """`Box.offset` of each node; one without a box is where the one before it is."""
    values: list[float] = []
    for node in nodes:
        box = layout.boxes.get(backend_of(node.ref) or 0)
        values.append(box.offset(*layout.window) if box is not None else values[-1] if values else 0.0)
    return values


def without(raw: Sequence[Node], left_out: Collection[int]) -> list[Node]:
    """The nodes of a raw tree without those of these backend ids and what is below them."""
    nodes: list[Node] = []
    depth = -1
    for node in raw:
        if 0 <= depth < node.depth:
            continue
        depth = node.depth if backend_of(node.ref) in left_out else -1
        if depth < 0:
            nodes.append(node)
    return nodes


def within(raw: Sequence[Node], layout: Layout) -> list[Node]:
    """The nodes of a raw tree that show in the viewport, in order; children of nodes that do not stay if they do.

    A node without a box (an option, `display: contents`) goes with the nearest node above it that has one.
    """
    nodes: list[Node] = []
    above: list[tuple[int, bool]] = []
    for node in raw:
        while above and above[-1][0] >= node.depth:
            above.pop()
        backend = backend_of(node.ref)
        box = None if backend is None else layout.boxes.get(backend)
        shows = (not above or above[-1][1]) if box is None or not above else box.meets(*layout.window)
        above.append((node.depth, shows))
        if shows:
            nodes.append(node)
    return nodes


def backend_of(ref: str | None) -> int | None:
    """The backend node id that a node's `ref` carries."""
    _, _, backend = (ref or "").rpartition(":")
    return int(backend) if backend.isdigit() else None


def frame_of(ref: str | None) -> str:
    """The frame id that a node's `ref` carries; empty for the main frame."""
    return (ref or "").rpartition(":")[0]


def _boxes(document: Mapping[str, Any], left: float, top: float) -> dict[int, Box]:
    """Boxes by node index of the document, moved to the main viewport; the first box of a node counts."""
    boxes: dict[int, Box] = {}
    for at, (x, y, width, height) in zip(document["layout"]["nodeIndex"], document["layout"]["bounds"], strict=True):
        if at not in boxes:
            boxes[at] = Box(x + left, y + top, width, height)
    return boxes
