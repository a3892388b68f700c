"""What a form does without a browser: which controls it sends, to where, and when it refuses.

Follows the HTML standard ("Constructing the entry list", "Implicit submission", "Constraint validation") and the URL
standard's serialisation, so that addresses equal Chromium's letter by letter.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from urllib.parse import quote_plus

from dynaweb.web.actions.rules import TEXTBOXES
from dynaweb.web.static.addresses import resolve_url
from dynaweb.web.static.dom import (
    Element,
    StaticPage,
    input_type,
    is_disabled,
    is_number,
    option_value,
    role_of,
)

FormState = dict[tuple[str, str, str], list[str | None]]
"""What controls held, by (action of their form, name, type), in page order; None for what the page itself says."""

_REPEATED_GROUP = re.compile(r"\)[*+{]")
_REPEATS = re.compile(r"[*+]|\{[0-9]*,")
_BUTTONS = frozenset({"submit", "image"})
_SINGLE_LINE = frozenset(
    {"text", "search", "url", "tel", "email", "password", "number", "date", "time", "month", "week"}
)
"""Input types that submit on Enter and block each other when there is no button."""


@dataclass(frozen=True, slots=True)
class Request:
    """A navigation: `body` is the url-encoded form of a POST, None for a GET."""

    url: str
    body: str | None = None


def encode(entries: Iterable[tuple[str, str]]) -> str:
    """`application/x-www-form-urlencoded`, with the safe characters of the URL standard."""
    return "&".join(f"{_plus(name)}={_plus(value)}" for name, value in entries)


def submit(page: StaticPage, form: Element, button: Element | None) -> Request | None:
    """The navigation that submitting the form starts; None when a control's content is not valid."""
    chosen = button if button is not None else form
    unchecked = form.get("novalidate") is not None or chosen.get("formnovalidate") is not None
    if not unchecked and any(_is_invalid(page, control) for control in owned(page, form)):
        return None
    method = (chosen.get("formmethod") or form.get("method") or "get").lower()
    action = chosen.get("formaction") or form.get("action") or page.url
    target = resolve_url(page.url, action)
    body = encode(_entries(page, form, button))
    if method == "post":
        return Request(target, body)
    address, mark, fragment = target.partition("#")
    return Request(f"{address.partition('?')[0]}?{body}{mark}{fragment}")


def owned(page: StaticPage, form: Element) -> list[Element]:
    """The controls of a form, in page order."""
    return [control for control in page.controls if page.form_of(control) is form]


def is_submit(control: Element) -> bool:
    """Whether clicking the control submits its form."""
    if control.tag == "button":
        return str(control.get("type", "submit")).lower() not in ("button", "reset")
    return input_type(control) in _BUTTONS


def is_reset(control: Element) -> bool:
    """Whether clicking the control resets its form."""
    return control.tag in ("button", "input") and str(control.get("type", "")).lower() == "reset"


def on_enter(page: StaticPage, control: Element) -> Request | None:
    """What Enter in a field does: the form's first submit button is pressed; None when nothing happens."""
    form = page.form_of(control)
    if form is None or input_type(control) not in _SINGLE_LINE | {"checkbox", "radio"}:
        return None
    buttons = [item for item in owned(page, form) if is_submit(item)]
    if buttons:
        return None if is_disabled(buttons[0]) else submit(page, form, buttons[0])
    blocking = [item for item in owned(page, form) if input_type(item) in _SINGLE_LINE]
    return submit(page, form, None) if len(blocking) <= 1 else None


def reset(page: StaticPage, form: Element) -> None:
    """Put every control of the form back to what the HTML says."""
    for control in owned(page, form):
        page.values.pop(control, None)
        page.checks.pop(control, None)
        page.choices.pop(control, None)


def tick(page: StaticPage, control: Element) -> None:
    """Click a checkbox (it turns over) or a radio button (it alone is on in its group)."""
    if input_type(control) == "checkbox":
        page.checks[control] = not page.checked(control)
        return
    page.checks.update(dict.fromkeys(_group(page, control), False))
    page.checks[control] = True


def save_state(page: StaticPage) -> FormState:
    """What a browser remembers of a page's controls when it is left."""
    state: FormState = {}
    for control in page.controls:
        key = _state_key(page, control)
        if key is not None:
            state.setdefault(key, []).append(_state_of(page, control))
    return state


def restore_state(page: StaticPage, state: FormState) -> None:
    """Put back what `save_state` remembered, into the controls that are still there."""
    left = {key: list(texts) for key, texts in state.items()}
    for control in page.controls:
        key = _state_key(page, control)
        text = left[key].pop(0) if key is not None and left.get(key) else None
        if text is None:
            continue
        if control.tag == "select":
            option = next((item for item in control.iter("option") if option_value(item) == text), None)
            if option is not None:
                page.choices[control] = option
        elif input_type(control) in ("checkbox", "radio"):
            page.checks[control] = text == "on"
        else:
            page.values[control] = text


def _state_key(page: StaticPage, control: Element) -> tuple[str, str, str] | None:
    """None for controls that browsers do not remember."""
    form = page.form_of(control)
    action = "" if form is None else form.get("action", "")
    private = "off" in (control.get("autocomplete"), None if form is None else form.get("autocomplete"))
    if private or control.tag == "button" or input_type(control) in ("submit", "reset", "button", "password", "file"):
        return None
    return action, control.get("name", ""), input_type(control) or control.tag


def _state_of(page: StaticPage, control: Element) -> str | None:
    if control.tag == "select":
        option = page.choice(control)
        return None if option is None else option_value(option)
    if input_type(control) in ("checkbox", "radio"):
        return "on" if page.checked(control) else "off"
    return page.values.get(control)


def typed(control: Element, text: str) -> str:
    """What a field holds after the text was typed into it in place of its content."""
    if control.tag == "textarea":
        return text.replace("\r\n", "\n").replace("\r", "\n")
    line = re.sub(r"[\r\n]+", " ", text)
    limit = control.get("maxlength", "")
    if limit.isascii() and limit.isdigit():
        line = line[: int(limit)]
    if input_type(control) == "number":
        line = re.sub(r"[^0-9eE.+-]", "", line)
        return line if is_number(line) else ""
    return line


def _entries(page: StaticPage, form: Element, button: Element | None) -> Iterator[tuple[str, str]]:
    for control in owned(page, form):
        name = control.get("name", "")
        pressed = control is button
        if not name or is_disabled(control) or ((is_submit(control) or is_reset(control)) and not pressed):
            continue
        kind = input_type(control)
        if control.tag == "button":
            if pressed:
                yield name, control.get("value", "")
        elif control.tag == "select":
            option = page.choice(control)
            if option is not None and option.get("disabled") is None:
                yield name, option_value(option)
        elif kind in ("checkbox", "radio"):
            if page.checked(control):
                yield name, control.get("value", "on")
        elif kind not in ("button", "file"):
            yield name, page.value(control).replace("\r\n", "\n").replace("\n", "\r\n")


def _is_invalid(page: StaticPage, control: Element) -> bool:
    """Whether the control keeps its form from being sent: required and empty, a number or pattern out of bounds."""
    if is_disabled(control) or input_type(control) in ("hidden", "submit", "reset", "button"):
        return False
    required = control.get("required") is not None
    if control.tag == "select":
        option = page.choice(control)
        return required and (option is None or option_value(option) == "")
    if input_type(control) == "checkbox":
        return required and not page.checked(control)
    if input_type(control) == "radio":
        return required and not any(page.checked(item) for item in _group(page, control))
    if control.tag == "button" or role_of(control) not in TEXTBOXES:
        return False
    text = page.value(control)
    return required if not text else control.get("readonly") is None and _is_out_of_bounds(control, text)


def _group(page: StaticPage, radio: Element) -> list[Element]:
    """The radio buttons of which one alone can be on."""
    name, form = radio.get("name"), page.form_of(radio)
    others = (item for item in page.controls if input_type(item) == "radio" and page.form_of(item) is form)
    return [item for item in others if item is radio or (name and item.get("name") == name)]


def _is_quick(pattern: str, text: str) -> bool:
    """Whether a page's expression surely takes little time on a text; any other counts as met.

    A page may have one that takes for ever: groups that repeat, or several parts that share a long text.
    """
    return not _REPEATED_GROUP.search(pattern) and len(text) ** len(_REPEATS.findall(pattern)) <= 10**6


def _is_out_of_bounds(control: Element, text: str) -> bool:
    kind = input_type(control)
    if kind == "number":
        return _is_off(float(text), control)
    pattern = control.get("pattern")
    if pattern is not None and control.tag == "input" and _is_quick(pattern, text):
        try:
            return re.fullmatch(pattern, text) is None
        except re.error:
            return False
    return kind == "email" and re.fullmatch(r"[^@\s]+@[^@\s]+", text) is None


def _is_off(value: float, control: Element) -> bool:
    """Whether a number is too small, too large, or between two steps (counted from `min`, else from the default)."""
    low, high, step = (_number(control.get(key, "")) for key in ("min", "max", "step"))
    if (low is not None and value < low) or (high is not None and value > high):
        return True
    start = low if low is not None else _number(control.get("value", "")) or 0.0
    steps = (value - start) / (step if step is not None and step > 0 else 1.0)
    return control.get("step", "").lower() != "any" and abs(steps - round(steps)) > 1e-9


def _number(text: str) -> float | None:
    return float(text) if is_number(text) else None


def _plus(text: str) -> str:
    crlf = text.replace("\r\n", "\n").replace("\n", "\r\n")
    return quote_plus(crlf, safe="*").replace("~", "%7E")
