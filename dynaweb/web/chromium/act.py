"""Acting on an element of a page by its backend node, with a hit test and a reason for every refusal."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from dynaweb.errors import BrowserError
from dynaweb.types import Action, Node
from dynaweb.web.chromium import scripts
from dynaweb.web.chromium.devtools import TabError, as_error
from dynaweb.web.chromium.layout import backend_of, frame_of
from dynaweb.web.chromium.tab import Tab
from dynaweb.web.quoting import quote

_WHY = {
    "stale": "is not on the page any more; look at the page again",
    "disabled": "is disabled",
    "invisible": "is not visible, so it cannot be reached",
    "moving": "does not stop moving",
    "readonly": "is read-only",
    "no-text": "takes no text",
    "file": "takes a file, and there is none to choose here",
    "not-select": "is not a native select; click it, then click the option",
}


async def perform(tab: Tab, action: Action, node: Node) -> str:
    """Click, type, select or hover on an element and wait for the page to settle: '' or why it was refused.

    `press` gives the element the focus first, `scroll` scrolls inside it.
    """
    target = f"{node.role} {quote(node.name)}"
    backend, frame = backend_of(node.ref), frame_of(node.ref)
    if backend is None:
        return f"{target} is not an element of the page, so it cannot be acted on"
    if frame:
        try:
            await tab.send("DOM.getFrameOwner", frameId=frame)
            await tab.send("DOM.scrollIntoViewIfNeeded", backendNodeId=backend)
        except TabError:
            return f"{target} {_WHY['stale']}"
    return await _ACTS[action.kind](tab, _Target(backend, frame, target), action)


async def press(tab: Tab, keys: str) -> str:
    """Press a key or a combination such as `Control+a`: '' or why not."""
    try:
        await asyncio.wait_for(tab.page.keyboard.press(keys), tab.patience)
    except TimeoutError:
        # A script that does not end is stopped here; before that no key could be let go.
        await tab.settle()
        await _release(tab, keys)
        return f"press {quote(keys)}: the page did not take it within {tab.patience:g} s"
    except Exception as error:
        failure = as_error(error, "press a key")
        if isinstance(failure, BrowserError):
            raise failure from None
        await _release(tab, keys)
        return f"press {quote(keys)}: {str(error).splitlines()[0]}; write a key such as 'Enter', 'Tab' or 'Control+a'"
    await tab.settle(likely=keys.rpartition("+")[2] in ("Enter", "Space", " "))
    return ""


async def _release(tab: Tab, keys: str) -> None:
    """Let go of the keys of a combination: Playwright leaves the first ones down when the last cannot be pressed."""
    for key in keys.split("+"):
        with suppress(Exception):
            await asyncio.wait_for(tab.page.keyboard.up(key), tab.patience)


@dataclass(frozen=True, slots=True)
class _Target:
    """An element to act on: its backend node, its frame ('' for the main one), and what it is called."""

    backend: int
    frame: str
    name: str


async def _call(tab: Tab, target: _Target, function: str, *arguments: str | bool) -> Any:
    script = scripts.muted(function) if target.frame in tab.mute else function
    return await tab.call(target.backend, script, *arguments)


async def _click(tab: Tab, target: _Target, _: Action) -> str:
    answer = await _call(tab, target, scripts.CLICK, bool(target.frame))
    if answer is None:
        # A script left the page while the element was being looked at.
        await tab.settle()
        return ""
    if "why" in answer:
        return _refusal(target, answer)
    if "done" not in answer:
        answer = await _through_frames(tab, target, answer)
        if "why" in answer:
            return _refusal(target, answer)
        await click_at(tab, answer["x"], answer["y"])
    await tab.settle(likely=bool(answer["likely"]), check="live" in answer)
    return ""


async def _hover(tab: Tab, target: _Target, _: Action) -> str:
    answer = await _call(tab, target, scripts.POINT)
    if "why" not in answer:
        answer = await _through_frames(tab, target, answer)
    if "why" in answer:
        return _refusal(target, answer)
    await tab.mouse("mouseMoved", answer["x"], answer["y"])
    await tab.settle()
    return ""


async def _through_frames(tab: Tab, target: _Target, answer: Mapping[str, Any]) -> Mapping[str, Any]:
    """The point in the main viewport, if the frame of the target is what shows there."""
    if not target.frame:
        return answer
    left, top = await frame_offset(tab, target.frame)
    x, y = answer["x"] + left, answer["y"] + top
    try:
        seen = await hit(tab, x, y)
    except TabError:
        return {"why": "invisible"}
    if seen.get("frameId") != target.frame:
        return {"why": "covered", **await tab.call(seen["backendNodeId"], scripts.DESCRIBE)}
    return {**answer, "x": x, "y": y}


async def _press(tab: Tab, target: _Target, action: Action) -> str:
    answer = await _call(tab, target, scripts.FOCUS)
    return _refusal(target, answer) if "why" in answer else await press(tab, action.text)


async def _scroll(tab: Tab, target: _Target, action: Action) -> str:
    answer = await _call(tab, target, scripts.SCROLL_IN, "1" if action.text == "down" else "-1")
    if "why" in answer:
        return _refusal(target, answer)
    await tab.settle(check=bool(answer["live"]))
    return ""


async def _select(tab: Tab, target: _Target, action: Action) -> str:
    answer = await _call(tab, target, scripts.SELECT, action.text)
    if "why" in answer:
        return _refusal(target, answer, action.text)
    await tab.settle(check=bool(answer["live"]))
    return ""


async def _type(tab: Tab, target: _Target, action: Action) -> str:
    answer = await _call(tab, target, scripts.TYPE, action.text)
    if "why" in answer:
        return _refusal(target, answer)
    if "rich" in answer:
        await insert(tab, action.text)
        answer = {**answer, **await _call(tab, target, scripts.RICH_VALUE)}
        if "why" in answer:
            return _refusal(target, answer)
    if action.enter:
        await press_enter(tab)
    await tab.settle(likely=action.enter, check=bool(answer["live"]))
    if _squeeze(answer["value"]) != _squeeze(action.text):
        return f"{target.name} did not take {quote(action.text)} as it is; it holds {quote(str(answer['value'])[:120])}"
    return ""


_ACTS: dict[str, Callable[[Tab, _Target, Action], Awaitable[str]]] = {
    "click": _click,
    "hover": _hover,
    "type": _type,
    "select": _select,
    "press": _press,
    "scroll": _scroll,
}


def _refusal(target: _Target, answer: Mapping[str, Any], label: str = "") -> str:
    why = answer["why"]
    if why == "covered":
        return f"{target.name} is covered by {answer['by']}"
    if why == "no-option":
        return f"{target.name} has no option {quote(label)}; it has {' '.join(map(quote, answer['options'][:30]))}"
    return f"{target.name} {_WHY[why]}"


def _squeeze(text: str) -> str:
    return " ".join(text.split())


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


async def frame_offset(tab: Tab, frame: str) -> tuple[float, float]:
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
    answer: Mapping[str, Any] = await tab.send("DOM.getNodeForLocation", x=left, y=top)
    return answer
