"""Reading what a tab shows: the accessibility trees of all its frames, merged, and the layout when it is wanted."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dynaweb.types import Node
from dynaweb.web.layout import Layout, read_layout
from dynaweb.web.tab import Tab, TabError
from dynaweb.web.tree import iframes, read_page, read_tree

MAX_FRAMES = 60
"""Frames of one page whose trees are read; further ones stay empty."""

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

    A page with scripts has its layout read in any case, because only that tells which elements listen to clicks.
    `verbose` keeps the properties that benchmarks print (see `dynaweb.web.tree`).
    """
    snapshot: Mapping[str, Any] | None = None
    if layout or tab.live:
        answer, snapshot = await asyncio.gather(
            tab.send("Accessibility.getFullAXTree"), tab.send("DOMSnapshot.captureSnapshot", computedStyles=[])
        )
    else:
        answer = await tab.send("Accessibility.getFullAXTree")
    read = None if snapshot is None else read_layout(snapshot)
    clickable = frozenset(read.clickable if read else ())
    inner = await _Frames(tab, verbose, clickable).below(answer["nodes"])
    page = read_page(answer["nodes"], inner=inner, verbose=verbose, clickable=clickable)
    return Reading(page.url, page.title, page.nodes, read)


class _Frames:
    """Reads the frames below a frame, side by side, at most `MAX_FRAMES` in all."""

    def __init__(self, tab: Tab, verbose: bool, clickable: frozenset[int]) -> None:
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
