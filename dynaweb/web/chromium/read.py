"""Reading what a tab shows: the accessibility trees of all its frames, merged, and the layout when it is wanted."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dynaweb.types import Node
from dynaweb.web.boxes import Box
from dynaweb.web.chromium.clickable import Clickable, complete, read_clickable
from dynaweb.web.chromium.devtools import TabError
from dynaweb.web.chromium.layout import (
    CLIPPING,
    STYLES,
    Layout,
    near_nodes,
    read_layout,
    read_shown,
    visible_nodes,
    without,
)
from dynaweb.web.chromium.tab import MAX_FRAMES, Tab
from dynaweb.web.page.tree import TEXT, iframes, read_page, read_tree

MANY_NODES = 600
"""Nodes of a document above which a viewport is read without the rest of the page; the two ways cost the same there."""

LONG_PAGE = 3000
"""Elements of a page above which only what is near the window is read, unless the budget of the view is larger."""
MUCH_TEXT = 500_000
"""Characters of a page above which the same holds; Chromium needs about 2.5 seconds to write down a million."""
_LONG = 4
"""The same, for each node of the view's budget."""
_READ = 2
"""Nodes of a long document that are read for each node of the budget; each takes Chromium a millisecond or more."""
_SMALL = 100
"""Nodes of a part of a page that is read by one command."""
_LINE = 50
"""Characters of a text that are written down as one more node."""

Payload = Sequence[Mapping[str, Any]]


@dataclass(slots=True)
class Reading:
    """A page as it was read: `nodes` is its raw tree with all frames, `layout` is None when it was not asked for."""

    url: str
    title: str
    nodes: tuple[Node, ...]
    layout: Layout | None = None
    left_out: tuple[int, int] = (0, 0)
    """Elements above and below the window that were not read."""


def is_long(tab: Tab, max_nodes: int) -> bool:
    """Whether of a page only what is near the window is to be read."""
    return tab.elements > max(LONG_PAGE, _LONG * max_nodes) or tab.characters > MUCH_TEXT


async def read_tab(tab: Tab, *, layout: bool = False, verbose: bool = False, near: int = 0) -> Reading:
    """Read a tab. Raises `TabError` when its document is replaced meanwhile, and `BrowserError`.

    `layout` also asks for boxes; of a large page, only what leads to the viewport is read then. A page with scripts has
    its layout read in any case, because only that tells which elements listen to clicks.
    `verbose` keeps the properties that benchmarks print (see `dynaweb.web.page.tree`).
    With `near`, no more is read than what fills a view of so many nodes around the window.
    """
    if near:
        return await _read_near(tab, max(LONG_PAGE, _READ * near), verbose)
    if not layout and not tab.live:
        answer = await tab.send("Accessibility.getFullAXTree")
        return await _merged(tab, answer["nodes"], Clickable(), verbose)
    if layout and 2 * tab.elements > MANY_NODES:
        # Elements have texts, so that is about the number of nodes; of a smaller page both are asked for at once.
        snapshot = await _snapshot(tab)
        read = read_layout(snapshot, tab.window)
        if len(snapshot["documents"][0]["nodes"]["nodeName"]) > MANY_NODES:
            unseen = read.boxes.keys() - visible_nodes(snapshot, read)
            payload = await _payload_of(tab, unseen)
        else:
            payload = (await tab.send("Accessibility.getFullAXTree"))["nodes"]
    else:
        answer, snapshot = await asyncio.gather(tab.send("Accessibility.getFullAXTree"), _snapshot(tab))
        payload, read = answer["nodes"], read_layout(snapshot, tab.window)
    page = await _merged(tab, payload, read_clickable(snapshot, read), verbose)
    page.layout = read
    return page


async def read_boxes(tab: Tab) -> Layout:
    """Where everything is, for a page that was read without."""
    return read_layout(await _snapshot(tab), tab.window)


async def read_marked(tab: Tab) -> tuple[Layout, dict[int, Box]]:
    """The same, and what shows of everything."""
    styles = [*STYLES, *CLIPPING]
    snapshot: Mapping[str, Any] = await tab.send("DOMSnapshot.captureSnapshot", computedStyles=styles)
    layout = read_layout(snapshot, tab.window)
    return layout, read_shown(snapshot, layout)


async def _read_near(tab: Tab, count: int, verbose: bool) -> Reading:
    """A long page: the `count` nodes of its document that are nearest to the window."""
    snapshot = await _snapshot(tab)
    layout = read_layout(snapshot, tab.window)
    near = near_nodes(snapshot, layout, count)
    nodes = snapshot["documents"][0]["nodes"]
    far = {
        backend: box.offset(*tab.window) < 0
        for backend, kind in zip(nodes["backendNodeId"], nodes["nodeType"], strict=True)
        if kind == 1 and backend not in near and (box := layout.boxes.get(backend))
    }
    unread = set(nodes["backendNodeId"]) & layout.boxes.keys() - near
    payload = await _payload_of(tab, unread, _sizes(snapshot))
    page = await _merged(tab, payload, read_clickable(snapshot, layout), verbose)
    above = sum(far.values())
    return Reading(page.url, page.title, tuple(without(page.nodes, unread)), layout, (above, len(far) - above))


def _sizes(snapshot: Mapping[str, Any]) -> dict[int, int]:
    """By backend id how much Chromium would write down of a node of the main document with all below it."""
    nodes, strings = snapshot["documents"][0]["nodes"], snapshot["strings"]
    values = nodes["nodeValue"]
    sizes = [1 + (len(strings[value]) // _LINE if value >= 0 else 0) for value in values]
    parents = nodes["parentIndex"]
    for at in range(len(parents) - 1, 0, -1):
        if parents[at] >= 0:
            sizes[parents[at]] += sizes[at]
    return dict(zip(nodes["backendNodeId"], sizes, strict=True))


async def _snapshot(tab: Tab) -> Mapping[str, Any]:
    answer: Mapping[str, Any] = await tab.send("DOMSnapshot.captureSnapshot", computedStyles=list(STYLES))
    return answer


async def _merged(tab: Tab, payload: Payload, clickable: Clickable, verbose: bool) -> Reading:
    inner = await _Frames(tab, verbose, clickable.elements).below(payload)
    page = read_page(payload, inner=inner, verbose=verbose, clickable=clickable.elements)
    return Reading(page.url, page.title, complete(page.nodes, clickable))


async def _payload_of(
    tab: Tab, unseen: Collection[int], sizes: Mapping[int, int] | None = None
) -> list[Mapping[str, Any]]:
    """The main frame's tree, level by level, without what lies below `unseen` nodes.

    Chromium needs most of its time to write nodes down: on a page of thousands of which a screenful shows, this takes
    half the time of the whole tree. Parts that are small, by `sizes`, are read whole.
    """

    async def below(node: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        backend = node.get("backendDOMNodeId")
        if sizes is not None and 2 < sizes.get(backend or 0, 0) <= _SMALL:
            answer = await tab.send_apart("Accessibility.queryAXTree", backendNodeId=backend)
        else:
            answer = await tab.send_apart("Accessibility.getChildAXNodes", id=node["nodeId"])
        nodes: Sequence[Mapping[str, Any]] = answer["nodes"]
        return nodes

    await tab.send_apart("Accessibility.enable")
    try:
        root = (await tab.send_apart("Accessibility.getRootAXNode"))["node"]
        by_id: dict[str, Mapping[str, Any]] = {root["nodeId"]: root}
        level = [root]
        while level:
            wanted = [node for node in level if _leads_on(node, unseen, by_id)]
            answers = await asyncio.gather(*map(below, wanted))
            level = [node for answer in answers for node in answer if node["nodeId"] not in by_id]
            by_id.update((node["nodeId"], node) for node in level)
    finally:
        await tab.send_apart("Accessibility.disable")
    return list(by_id.values())


def _leads_on(node: Mapping[str, Any], unseen: Collection[int], by_id: Mapping[str, Any]) -> bool:
    """Whether children of the node are to be read: it has some that are not known, and something in it may show."""
    if node.get("role", {}).get("value") == TEXT or all(child in by_id for child in node.get("childIds", ())):
        return False
    return node.get("backendDOMNodeId") not in unseen


class _Frames:
    """Reads the frames below a frame, side by side, at most `MAX_FRAMES` in all."""

    def __init__(self, tab: Tab, verbose: bool, clickable: Collection[int]) -> None:
        self._tab = tab
        self._verbose = verbose
        self._clickable = clickable
        self._left = MAX_FRAMES

    async def below(self, payload: Payload) -> dict[int, list[Node]]:
        """Raw trees by the backend node id of the frame element that shows them."""
        owners = iframes(payload)[: self._left]
        self._left -= len(owners)
        if not owners:
            return {}
        trees = await asyncio.gather(*(self._tree(owner) for owner in owners))
        return dict(zip(owners, trees, strict=True))

    async def _tree(self, owner: int) -> list[Node]:
        try:
            described = await self._tab.send("DOM.describeNode", backendNodeId=owner)
            frame = described["node"].get("frameId", "")
            answer = await self._tab.send("Accessibility.getFullAXTree", frameId=frame)
        except TabError:
            # The frame went away, or its document is being replaced.
            return []
        inner = await self.below(answer["nodes"])
        return read_tree(answer["nodes"], frame=frame, inner=inner, verbose=self._verbose, clickable=self._clickable)
