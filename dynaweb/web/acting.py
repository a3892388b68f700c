"""Acting on an element of a page by its backend node, with a hit test and a reason for every refusal."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from dynaweb.types import Action, Node
from dynaweb.web import scripts
from dynaweb.web.quoting import quote
from dynaweb.web.tab import Tab

_WHY = {
    "stale": "is not on the page any more; look at the page again",
    "disabled": "is disabled",
    "invisible": "is not visible, so it cannot be reached",
    "moving": "does not stop moving",
    "readonly": "is read-only",
    "no-text": "takes no text",
    "not-select": "is not a native select; click it, then click the option",
}


async def perform(tab: Tab, action: Action, node: Node) -> str:
    """Click, type, select or hover on an element and wait for the page to settle: '' or why it was refused."""
    target = f"{node.role} {quote(node.name)}"
    backend = backend_of(node)
    if backend is None:
        return f"{target} is not an element of the page, so it cannot be acted on"
    if action.kind == "click":
        return await _click(tab, backend, target)
    if action.kind == "hover":
        return await _hover(tab, backend, target)
    if action.kind == "select":
        return await _select(tab, backend, target, action.text)
    return await _type(tab, backend, target, action)


def backend_of(node: Node) -> int | None:
    """The backend node id that a node's `ref` carries."""
    _, _, backend = (node.ref or "").rpartition(":")
    return int(backend) if backend.isdigit() else None


async def press(tab: Tab, keys: str) -> str:
    """Press a key or a combination such as `Control+a`: '' or why not."""
    try:
        await asyncio.wait_for(tab.page.keyboard.press(keys), tab.patience)
    except Exception as error:
        return f"press {quote(keys)}: {str(error).splitlines()[0]}; write a key such as 'Enter', 'Tab' or 'Control+a'"
    await tab.settle(likely=keys.rpartition("+")[2] in ("Enter", "Space", " "))
    return ""


async def _click(tab: Tab, backend: int, target: str) -> str:
    found = await tab.call(backend, scripts.CLICK)
    if found is None:
        # A script left the page while the element was being looked at.
        await tab.settle()
        return ""
    if "why" in found:
        return _refusal(target, found)
    if "done" not in found:
        await tab.click_at(found["x"], found["y"])
    await tab.settle(likely=bool(found["likely"]), check="live" in found)
    return ""


async def _hover(tab: Tab, backend: int, target: str) -> str:
    found = await tab.call(backend, scripts.POINT)
    if "why" in found:
        return _refusal(target, found)
    await tab.mouse("mouseMoved", found["x"], found["y"])
    await tab.settle()
    return ""


async def _select(tab: Tab, backend: int, target: str, label: str) -> str:
    found = await tab.call(backend, scripts.SELECT, label)
    if "why" in found:
        return _refusal(target, found, label)
    await tab.settle(check=bool(found["live"]))
    return ""


async def _type(tab: Tab, backend: int, target: str, action: Action) -> str:
    found = await tab.call(backend, scripts.TYPE, action.text)
    if "why" in found:
        return _refusal(target, found)
    if action.enter:
        await press_enter(tab)
    await tab.settle(likely=action.enter, check=bool(found["live"]))
    if _squeeze(found["value"]) != _squeeze(action.text):
        return f"{target} did not take {quote(action.text)} as it is; it holds {quote(str(found['value'])[:120])}"
    return ""


async def press_enter(tab: Tab) -> None:
    """The Enter key as a real key press."""
    key = {"key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13}
    await asyncio.gather(
        tab.send("Input.dispatchKeyEvent", type="keyDown", text="\r", **key),
        tab.send("Input.dispatchKeyEvent", type="keyUp", **key),
    )


def _refusal(target: str, found: Mapping[str, Any], label: str = "") -> str:
    why = found["why"]
    if why == "covered":
        return f"{target} is covered by {found['by']}"
    if why == "no-option":
        return f"{target} has no option {quote(label)}; it has {' '.join(map(quote, found['options'][:30]))}"
    return f"{target} {_WHY[why]}"


def _squeeze(text: str) -> str:
    return " ".join(text.split())
