"""DevTools commands through Playwright: how they are sent, what their answers hold, and what their failures mean."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from playwright.async_api import Error as PlaywrightError

from dynaweb.errors import BrowserError

_GONE = ("has been closed", "Connection closed", "Target crashed", "browser has disconnected", "was detached")

Sender = Callable[[str, dict[str, Any]], Awaitable[Any]]
"""Sends one command with its parameters and gives Chromium's answer as plain data."""


def sender_of(session: Any) -> Sender:
    """How to send commands on a `CDPSession`.

    Playwright's own method copies every answer, value by value, in search of its objects. There are none in what
    DevTools says, and for a page of 4,000 nodes the search takes a third of the time of the whole reading. The method
    that it wraps is not public: where it does not look as expected, the public one is used.
    """
    inner = getattr(getattr(session, "_impl_obj", None), "send", None)
    if not inspect.iscoroutinefunction(inner):
        return _public(session)
    takes = tuple(inspect.signature(inner).parameters)
    if takes == ("method", "params", "timeout"):
        return lambda method, parameters: inner(method, parameters, None)
    return inner if takes == ("method", "params") else _public(session)


def _public(session: Any) -> Sender:
    send: Sender = session.send
    return send


class TabError(Exception):
    """The browser refused one command; the tab is alive."""


def as_error(error: Exception, what: str) -> Exception:
    """`TabError` for a refused command; `BrowserError` when the page, the browser or Playwright's driver is gone."""
    text = str(error).split("\n")[0]
    if not isinstance(error, PlaywrightError) or any(sign in text for sign in _GONE):
        return BrowserError(f"the browser is gone ({what}: {text})")
    return TabError(text)


def value_of(answer: Mapping[str, Any]) -> Any:
    """The value of an evaluated expression. Raises `TabError` when it threw."""
    details = answer.get("exceptionDetails")
    if details:
        thrown = details.get("exception", {}).get("description") or details.get("text", "")
        raise TabError(thrown.split("\n")[0])
    return answer.get("result", {}).get("value")
