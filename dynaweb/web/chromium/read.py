"""Reading what a tab shows: the accessibility trees of all its frames, merged, and the layout when it is wanted."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dynaweb.types import Node
from dynaweb.web.chromium.clickable import Clickable, complete, read_clickable
from dynaweb.web.chromium.devtools import TabError
from dynaweb.web.chromium.layout import STYLES, Layout, read_layout, visible_nodes
from dynaweb.web.chromium.tab import MAX_FRAMES, Tab
from dynaweb.web.page.tree import TEXT, iframes, read_page, read_tree

MANY_NODES = 600
"""Nodes of a document above which a viewport is read without the rest of the page; the two ways cost the same there."""

Payload = Sequence[Mapping[str, Any]]


@dataclass(slots=True)
class Reading:
    """A page as it was read: `nodes` is its raw tree with all frames, `layout` is None when it was not asked for."""

    url: str
    title: str
    nodes: tuple[Node, ...]
    layout: Layout | None = None


async def read_tab(tab: Tab, *, layout: bool = False, verbose: bool = False) -> Reading:
    """Read a tab. Raises `TabError` when its document is replaced meanwhile, and `BrowserError`.

    `layout` also asks for boxes; of a large page, only what leads to the viewport is read then. A page with scripts has
    its layout read in any case, because only that tells which elements listen to clicks.
    `verbose` keeps the properties that benchmarks print (see `dynaweb.web.page.tree`).
    """
    if not layout and not tab.live:
        answer = await tab.send("Accessibility.getFullAXTree")
        return await _merged(tab, answer["nodes"], Clickable(), verbose)
    if layout and 2 * tab.elements > MANY_NODES:
        # Elements have texts, so that is about the number of nodes; of a smaller page both are asked for at once.
        snapshot = await _snapshot(tab)
        read = read_layout(snapshot)
        if len(snapshot["documents"][0]["nodes"]["nodeName"]) > MANY_NODES:
            payload = await _payload_of(tab, read.boxes.keys() - visible_nodes(snapshot, read))
        else:
            payload = (await tab.send("Accessibility.getFullAXTree"))["nodes"]
    else:
        answer, snapshot = await asyncio.gather(tab.send("Accessibility.getFullAXTree"), _snapshot(tab))
        payload, read = answer["nodes"], read_layout(snapshot)
    page = await _merged(tab, payload, read_clickable(snapshot, read), verbose)
    page.layout = read
    return page


async def _snapshot(tab: Tab) -> Mapping[str, Any]:
    answer: Mapping[str, Any] = await tab.send("DOMSnapshot.captureSnapshot", computedStyles=list(STYLES))
    return answer


async def _merged(tab: Tab, payload: Payload, clickable: Clickable, verbose: bool) -> Reading:
    inner = await _Frames(tab, verbose, clickable.elements).below(payload)
    page = read_page(payload, inner=inner, verbose=verbose, clickable=clickable.elements)
    return Reading(page.url, page.title, complete(page.nodes, clickable))


async def _payload_of(tab: Tab, unseen: Collection[int]) -> list[Mapping[str, Any]]:
    """The main frame's tree, level by level, without what lies below `unseen` nodes.

    Chromium needs most of its time to write nodes down: on a page of thousands of which a screenful shows, this takes
    half the time of the whole tree.
    """
    await tab.send_apart("Accessibility.enable")
    try:
        root = (await tab.send_apart("Accessibility.getRootAXNode"))["node"]
        by_id: dict[str, Mapping[str, Any]] = {root["nodeId"]: root}
        level = [root]
        while level:
            wanted = [node for node in level if _leads_on(node, unseen, by_id)]
            answers = await asyncio.gather(
                *(tab.send_apart("Accessibility.getChildAXNodes", id=node["nodeId"]) for node in wanted)
            )
            level = [node for answer in answers for node in answer["nodes"] if node["nodeId"] not in by_id]
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
