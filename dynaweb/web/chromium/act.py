"""Acting on an element of a page by its backend node, with a hit test and a reason for every refusal."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import Any

from dynaweb.errors import BrowserError
from dynaweb.types import Action, Node
from dynaweb.web.actions.keys import browser_keys
from dynaweb.web.chromium import scripts
from dynaweb.web.chromium.devtools import TabError, as_error
from dynaweb.web.chromium.layout import backend_of, frame_of
from dynaweb.web.chromium.tab import Tab
from dynaweb.web.chromium.watch import ASK
from dynaweb.web.near_options import no_option
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


_Command = tuple[str, dict[str, Any]]
"""A DevTools command with its parameters."""
_SHIFT = 8
_TYPED = 500
"""Characters of a text that are typed key by key; of a longer one these are its last."""
_KEYS_AT_ONCE = 50


_OTHER_KEYS = """
Semicolon 186 ; :
Equal 187 = +
Comma 188 , <
Minus 189 - _
Period 190 . >
Slash 191 / ?
Backquote 192 ` ~
BracketLeft 219 [ {
Backslash 220 \\ |
BracketRight 221 ] }
Quote 222 ' "
"""


def _us_keyboard() -> dict[str, tuple[str, int, bool]]:
    """Character -> (code of its key, number of the key, whether Shift is held), on a keyboard of the United States."""
    keys = {" ": ("Space", 32, False)}
    for letter in "abcdefghijklmnopqrstuvwxyz":
        for char in (letter, letter.upper()):
            keys[char] = (f"Key{letter.upper()}", ord(letter.upper()), char != letter)
    for digit, char in zip("0123456789", ")!@#$%^&*(", strict=True):
        keys |= {digit: (f"Digit{digit}", ord(digit), False), char: (f"Digit{digit}", ord(digit), True)}
    for row in _OTHER_KEYS.strip().split("\n"):
        code, number, plain, shifted = row.split()
        keys |= {plain: (code, int(number), False), shifted: (code, int(number), True)}
    return keys


_US = _us_keyboard()


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


async def press(tab: Tab, text: str) -> str:
    """Press a key or a combination such as `Control+a`, by its usual names: '' or why not."""
    keys = browser_keys(text)
    if len(keys) == 1 and not keys.isascii():
        await _send_all(tab, _strokes(keys))
        await tab.settle()
        return ""
    try:
        await asyncio.wait_for(tab.page.keyboard.press(keys), tab.patience)
    except TimeoutError:
        # A script that does not end is stopped here; before that no key could be let go.
        await tab.settle()
        await _release(tab, keys)
        return f"press {quote(text)}: the page did not take it within {tab.patience:g} s"
    except Exception as error:
        failure = as_error(error, "press a key")
        if isinstance(failure, BrowserError):
            raise failure from None
        await _release(tab, keys)
        return f"press {quote(text)}: {str(error).splitlines()[0]}; write a key such as 'Enter', 'Tab' or 'Control+a'"
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
    x, y = await point_in_frame(tab, target.frame, answer)
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
    return "" if answer["moved"] or not answer["live"] else f"{target.name} does not scroll further {action.text}"


async def scroll(tab: Tab, direction: str) -> str:
    """Scroll what fills the window: the page, a dialog, a box or a frame; '' or that nothing is left to scroll.

    A page without scripts is not spoken of: how far it scrolls follows from nothing but its layout, which the static
    driver does not know, and both say the same.
    """
    by = 1 if direction == "down" else -1
    if not await tab.evaluate(scripts.SCROLL % {"by": by, "move": 1}) and not await _scroll_frame(tab, by):
        wheel = tab.live and "w" in str(await tab.evaluate(f"{ASK}(0)"))
        if wheel:
            middle = {"x": tab.window[0] / 2, "y": tab.window[1] / 2}
            tab.pointed = True
            await tab.send("Input.dispatchMouseEvent", type="mouseWheel", deltaX=0, deltaY=600 * by, **middle)
        elif tab.live:
            return f"scroll {direction}: nothing on this page scrolls further {direction}"
    await tab.settle()
    return ""


async def _scroll_frame(tab: Tab, by: int) -> bool:
    """Scroll the largest frame that has something left."""
    worlds = await tab.frame_worlds()
    looks = scripts.SCROLL % {"by": by, "move": 0}
    sizes = await asyncio.gather(*(tab.evaluate_in(world, looks) for world in worlds))
    largest = max(zip((size or 0 for size in sizes), worlds, strict=True), default=(0, 0))
    return bool(largest[0]) and bool(await tab.evaluate_in(largest[1], scripts.SCROLL % {"by": by, "move": 1}))


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
    if "value" not in answer:
        if answer["keyed"]:
            await write(tab, action.text, lines=bool(answer["lines"]))
        else:
            await insert(tab, action.text)
        answer = {**answer, **(await _call(tab, target, scripts.HELD_TEXT) or {"why": "stale"})}
        if "why" in answer and not answer["keyed"]:
            return _refusal(target, answer)
    if action.enter:
        await press_enter(tab)
    await tab.settle(likely=action.enter or "why" in answer, check=bool(answer["live"]))
    if "why" in answer:
        # What listens to the keys has replaced the field, or the page.
        return ""
    if not answer.get("focused", True) and answer["value"] and action.text.startswith(str(answer["value"])):
        # The keys went on into the next field, as in those for one digit each.
        return ""
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
    if why == "disabled-option":
        return f"{target.name}: its option {quote(answer['option'])} is disabled"
    if why == "no-option":
        return no_option(target.name, label, answer["options"])
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
        await _send_all(tab, _key("Delete", 46))


async def write(tab: Tab, text: str, *, lines: bool) -> None:
    """Type a text as a person does, key by key, in place of what is selected; the empty text deletes it.

    A line break is typed with Shift, because Enter alone may send what was written so far; in a field of one line
    (not `lines`) it is a space. Of a long text all but the end is pasted.
    """
    if not text:
        await insert(tab, "")
        return
    text = text.replace("\r\n", "\n")
    if not lines:
        text = text.replace("\n", " ")
    if len(text) > _TYPED:
        await insert(tab, text[:-_TYPED])
        text = text[-_TYPED:]
    stops = tab.stops
    # One by one: a listener that does not end is stopped once for each command that waits.
    for command in _strokes(text[0]):
        await _send_all(tab, [command])
    if tab.stops > stops:
        # What listens to the first key did not end; each further one would be stopped too.
        return
    for start in range(1, len(text), _KEYS_AT_ONCE):
        await _send_all(tab, chain.from_iterable(map(_strokes, text[start : start + _KEYS_AT_ONCE])))


def _strokes(char: str) -> list[_Command]:
    """One character as a key press."""
    if char == "\n":
        return _key("Enter", 13, modifiers=_SHIFT, text="\r")
    if char in _US:
        code, number, shifted = _US[char]
        return _key(char, number, code=code, modifiers=_SHIFT if shifted else 0, text=char)
    if char.isprintable():
        return _key(char, 0, code="", text=char)
    return [("Input.insertText", {"text": char})]


async def press_enter(tab: Tab) -> None:
    """The Enter key as a real key press."""
    await _send_all(tab, _key("Enter", 13, text="\r"))


def _key(name: str, number: int, *, code: str | None = None, modifiers: int = 0, text: str = "") -> list[_Command]:
    """A key that goes down and up; with a `text` it writes that."""
    key = {"key": name, "code": name if code is None else code, "windowsVirtualKeyCode": number, "modifiers": modifiers}
    down = {"type": "keyDown", **key, **({"text": text} if text else {})}
    return [("Input.dispatchKeyEvent", down), ("Input.dispatchKeyEvent", {"type": "keyUp", **key})]


async def _send_all(tab: Tab, commands: Iterable[_Command]) -> None:
    """They go out at once and are handled in order."""
    await asyncio.gather(*(tab.send(method, **parameters) for method, parameters in commands))


async def point_in_frame(tab: Tab, frame: str, point: Mapping[str, Any]) -> tuple[float, float]:
    """A point of a frame's window (`x`, `y` of `wide`, `high`) in the main viewport, however the frame is transformed.

    Raises `TabError` when the frame is not shown.
    """
    owner = await tab.send("DOM.getFrameOwner", frameId=frame)
    model = await tab.send("DOM.getBoxModel", backendNodeId=owner["backendNodeId"])
    x0, y0, x1, y1, x2, y2, x3, y3 = model["model"]["content"]
    u, v = point["x"] / point["wide"], point["y"] / point["high"]
    # The projection that takes the corners of a square to those of the quad (Heckbert 1989, section 2.2).
    dx1, dy1, dx2, dy2 = x1 - x2, y1 - y2, x3 - x2, y3 - y2
    sx, sy = x0 - x1 + x2 - x3, y0 - y1 + y2 - y3
    area = dx1 * dy2 - dx2 * dy1
    if not area:
        raise TabError("the frame is seen from its edge")
    g, h = (sx * dy2 - dx2 * sy) / area, (dx1 * sy - sx * dy1) / area
    depth = g * u + h * v + 1
    x = ((x1 - x0 + g * x1) * u + (x3 - x0 + h * x3) * v + x0) / depth
    y = ((y1 - y0 + g * y1) * u + (y3 - y0 + h * y3) * v + y0) / depth
    return x, y


async def hit(tab: Tab, x: float, y: float) -> Mapping[str, Any]:
    """What shows at a point of the viewport, over all frames: `backendNodeId`, `frameId`. Raises `TabError`."""
    metrics = await tab.send("Page.getLayoutMetrics")
    seen = metrics["cssLayoutViewport"]
    # The command counts from the top of the document.
    left, top = round(x + seen["pageX"]), round(y + seen["pageY"])
    answer: Mapping[str, Any] = await tab.send("DOM.getNodeForLocation", x=left, y=top)
    return answer
