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
