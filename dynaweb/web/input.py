"""Real input events, and what shows at a point of the window."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from dynaweb.web.tab import Tab


async def click_at(tab: Tab, x: float, y: float) -> None:
    """A real click: the three events go out at once and are handled in order."""
    await asyncio.gather(*(tab.mouse(kind, x, y) for kind in ("mouseMoved", "mousePressed", "mouseReleased")))


async def insert(tab: Tab, text: str) -> None:
    """Real input of a text in place of what is selected; the empty text deletes it."""
    if text:
        await tab.send("Input.insertText", text=text)
    else:
        await _key(tab, "Delete", 46)


async def press_enter(tab: Tab) -> None:
    """The Enter key as a real key press."""
    await _key(tab, "Enter", 13, text="\r")


async def _key(tab: Tab, name: str, code: int, **down: str) -> None:
    key = {"key": name, "code": name, "windowsVirtualKeyCode": code}
    await asyncio.gather(
        tab.send("Input.dispatchKeyEvent", type="keyDown", **down, **key),
        tab.send("Input.dispatchKeyEvent", type="keyUp", **key),
    )


async def place_of(tab: Tab, frame: str) -> tuple[float, float]:
    """Where the content of a frame begins in the main viewport. Raises `TabError` when it is not shown."""
    owner = await tab.send("DOM.getFrameOwner", frameId=frame)
    model = await tab.send("DOM.getBoxModel", backendNodeId=owner["backendNodeId"])
    x, y, *_ = model["model"]["content"]
    return x, y


async def hit(tab: Tab, x: float, y: float) -> Mapping[str, Any]:
    """What shows at a point of the viewport, over all frames: `backendNodeId`, `frameId`. Raises `TabError`."""
    metrics = await tab.send("Page.getLayoutMetrics")
    seen = metrics["cssLayoutViewport"]
    # The command counts from the top of the document.
    left, top = round(x + seen["pageX"]), round(y + seen["pageY"])
    found: Mapping[str, Any] = await tab.send("DOM.getNodeForLocation", x=left, y=top)
    return found
