"""A session without a browser: a WSGI application played in-process, read as Chromium would read it.

For pre-training data and fast tests on sites that need no scripts, such as the embedded ones: a step costs about a
millisecond, and observations equal those of `ChromiumSession` in the compact view. What is left out: scripts, style
sheets, frames, downloads, dialogs, files.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlsplit

from werkzeug.datastructures import Headers
from werkzeug.test import Client

from dynaweb.errors import BrowserError
from dynaweb.types import TARGETED, Action, Observation
from dynaweb.web.actions.keys import browser_keys
from dynaweb.web.actions.rules import TEXTBOXES
from dynaweb.web.chromium.network import LOOPBACK
from dynaweb.web.near_options import no_option
from dynaweb.web.page.view import MAX_OPTIONS, NAME_LIMIT, TOTAL, compact_view, left_out, shorten_lists
from dynaweb.web.quoting import quote
from dynaweb.web.session import with_scheme
from dynaweb.web.static.addresses import resolve_url
from dynaweb.web.static.dom import (
    Element,
    StaticPage,
    input_type,
    is_disabled,
    labelled_options,
    load,
    option_label,
    option_value,
    role_of,
)
from dynaweb.web.static.forms import (
    FormState,
    Request,
    is_reset,
    is_submit,
    on_enter,
    reset,
    restore_state,
    save_state,
    submit,
    tick,
    typed,
)

BLANK = "about:blank"
UNAVAILABLE = b"<html><body><h1>This page is not available</h1></body></html>"
"""What stands for an address that cannot be loaded."""
MAX_REDIRECTS = 20
MAX_BYTES = 8_000_000
"""Bytes of a response that are read."""
_SCHEMES = ("http", "https")


@dataclass(slots=True)
class _Entry:
    """A place in a tab's history: what was asked for last, the page, and its controls when it was left."""

    request: Request
    page: StaticPage
    state: FormState = field(default_factory=dict)


@dataclass(slots=True)
class _Tab:
    history: list[_Entry] = field(default_factory=lambda: [_Entry(Request(BLANK), load(BLANK, b""))])
    position: int = 0

    @property
    def entry(self) -> _Entry:
        return self.history[self.position]


class StaticSession:
    """Implements `Session` over a WSGI application that tells its sites apart by the Host header.

    Addresses are canonical (`http://shop.localhost/`). `hosts` names the hosts that the application serves; when it is
    empty, it is asked for every one. Like Chromium, going back and forward shows the copy that was loaded last, unless
    the response forbids to store it, and puts back what was typed there. `max_options`: see `BrowserPool`. Not safe for
    concurrent use: one session per episode.
    """

    def __init__(self, app: Callable[..., Any], hosts: Collection[str] = (), *, max_options: int = MAX_OPTIONS) -> None:
        self._app = app
        self._max_options = max_options
        self._hosts = frozenset(hosts)
        self._clear({})

    async def reset(self, *, headers: Mapping[str, str] | None = None, storage_state: Path | None = None) -> None:
        """Start clean, with `headers` on every request. A stored login is not supported and refused."""
        if storage_state is not None:
            raise BrowserError("the static session takes no stored login; use the chromium session for that")
        self._clear(headers or {})

    async def goto(self, url: str) -> None:
        """Open an address in the current tab."""
        refusal = self._open(url)
        self._notices += [refusal] if refusal else []

    async def observe(self) -> Observation:
        """The current page in the compact view."""
        page = self._page
        raw = shorten_lists(page.tree(), self._max_options, self._opened)
        view = compact_view(raw)
        if view.truncated:
            below = len(compact_view(raw, max_nodes=len(raw)).nodes) - len(view.nodes)
            self._notices.append(left_out(0, below))
        notice = "; ".join(dict.fromkeys(self._notices))
        self._last = Observation(page.url, view.nodes, notice=notice, truncated=view.truncated)
        self._last_page = page
        self._notices.clear()
        return self._last

    async def act(self, action: Action) -> str:
        """Do an action of the last observation: '' or the reason why it was refused (also the next notice)."""
        self._opened.clear()
        on_node = action.kind in TARGETED or action.target is not None
        reason = self._act_on_node(action) if on_node else self._act_on_tab(action)
        self._notices += [reason] if reason else []
        return reason

    async def html(self, url: str) -> str:
        """The HTML of an address, parsed and written again as a browser does; `last` is the current page.

        Raises `BrowserError` for an address that does not exist.
        """
        if url == "last":
            return self._page.html()
        address = resolve_url(BLANK, with_scheme(url))
        if not self._exists(address):
            raise BrowserError(f"{url} could not be loaded")
        return self._fetch(Request(address))[1].html()

    async def evaluate(self, url: str, script: str) -> NoReturn:
        """Not available: scripts need a browser."""
        raise BrowserError(f"the static session runs no scripts, so {script[:60]!r} cannot be evaluated; use chromium")

    async def close(self) -> None:
        """Forget everything."""
        self._clear({})

    @property
    def _tab(self) -> _Tab:
        return self._tabs[self._current]

    @property
    def _page(self) -> StaticPage:
        return self._tab.entry.page

    def _clear(self, headers: Mapping[str, str]) -> None:
        self._headers = dict(headers)
        self._client = Client(self._app)
        self._cache: dict[Request, bytes] = {}
        self._tabs = [_Tab()]
        self._current = 0
        self._focus: Element | None = None
        self._opened: set[str | None] = set()
        """The long list that was clicked last: its options are told in full."""
        self._notices: list[str] = []
        self._last = Observation(BLANK, ())
        self._last_page = self._page

    def _visit(self, request: Request, *, submitted: bool = False) -> None:
        """Load a page and put it into the history, in place of the same address unless a form was submitted.

        An address that differs in its fragment only loads nothing.
        """
        tab, here = self._tab, self._tab.entry
        bare, mark, _ = request.url.partition("#")
        if mark and request.body is None and bare == here.page.url.partition("#")[0]:
            here.page.url = request.url
            entry = _Entry(request, here.page)
        else:
            here.state = save_state(here.page)
            entry = _Entry(*self._fetch(request))
            self._focus = None
        if (submitted or request != here.request) and here.request.url != BLANK:
            tab.position += 1
        tab.history[tab.position :] = [entry]

    def _fetch(self, request: Request) -> tuple[Request, StaticPage]:
        """Follow all redirects: the last request and its page."""
        for _ in range(MAX_REDIRECTS):
            if not self._exists(request.url):
                self._refuse(urlsplit(request.url).hostname or "")
                break
            status, headers, body = self._ask(request)
            if status not in (301, 302, 303, 307, 308) or "Location" not in headers:
                return request, self._load(request, headers, body)
            target = resolve_url(request.url, headers["Location"])
            request = Request(target, request.body if status in (307, 308) else None)
        return request, load(request.url, b"" if request.url == BLANK else UNAVAILABLE)

    def _load(self, request: Request, headers: Headers, body: bytes) -> StaticPage:
        if request.body is not None:
            self._cache.pop(_stored(Request(request.url)), None)
        source = _as_html(headers.get("Content-Type", ""), body)
        if "no-store" not in headers.get("Cache-Control", ""):
            self._cache[_stored(request)] = source
        return load(request.url, source)

    def _ask(self, request: Request) -> tuple[int, Headers, bytes]:
        parts = urlsplit(request.url)
        response = self._client.open(
            parts.path or "/",
            base_url=f"{parts.scheme}://{parts.netloc}/",
            query_string=parts.query,
            method="GET" if request.body is None else "POST",
            data=request.body,
            content_type=None if request.body is None else "application/x-www-form-urlencoded",
            headers=self._headers,
        )
        return response.status_code, response.headers, response.get_data()[:MAX_BYTES]

    def _exists(self, url: str) -> bool:
        parts = urlsplit(url)
        return parts.scheme == "http" and parts.netloc == parts.hostname and self._serves(parts.hostname)

    def _refuse(self, host: str) -> None:
        if host and not _is_allowed(host):
            self._notices.append(f"a request to {host} was refused: this host is not allowed")

    def _serves(self, host: str) -> bool:
        return host in self._hosts if self._hosts else _is_allowed(host)

    def _open(self, address: str) -> str:
        url = resolve_url(BLANK, with_scheme(address))
        if urlsplit(url).scheme not in _SCHEMES and url != BLANK:
            return f"goto {quote(url[:120])}: only http and https addresses can be opened"
        if url != BLANK and not _is_allowed(urlsplit(url).hostname or ""):
            return f"goto {quote(url[:120])}: this host is not allowed; allowed are {', '.join(LOOPBACK)}"
        self._visit(Request(url))
        return ""

    def _act_on_node(self, action: Action) -> str:
        page = self._page
        node = self._last.node(action.target or 0)
        if node is None:
            return f"there is no element [{action.target}] on this page"
        target = f"{node.role} {quote(node.name)}"
        if action.target_role and (action.target_role, action.target_name) != (node.role, node.name):
            expected = f"{action.target_role} {quote(action.target_name)}"
            return f"[{node.id}] is {target} now, not {expected}; look at the page again"
        if page is not self._last_page:
            return f"{target} is not on the page any more; look at the page again"
        element = None if node.ref is None else page.elements[int(node.ref)]
        if element is not None and is_disabled(element) and action.kind not in ("hover", "scroll"):
            return f"{target} is disabled"
        if action.kind == "press":
            self._focus = element
            return self._press(action.text)
        if action.kind == "type":
            return self._type(element, target, action)
        if action.kind == "select":
            return self._select(element, target, action.text)
        if action.kind == "click" and element is not None:
            if any(key == TOTAL for key, _ in node.props):
                self._opened.add(node.ref)
            self._click(element)
        return ""

    def _click(self, element: Element) -> None:
        page = self._page
        self._focus = element
        form = page.form_of(element) if element.tag in ("button", "input") else None
        if element.tag == "a" and element.get("href") is not None:
            self._follow(element)
        elif input_type(element) in ("checkbox", "radio"):
            tick(page, element)
        elif form is not None and is_submit(element):
            self._send(submit(page, form, element))
        elif form is not None and is_reset(element):
            reset(page, form)

    def _follow(self, link: Element) -> None:
        target = resolve_url(self._page.url, link.get("href"))
        if urlsplit(target).scheme not in _SCHEMES:
            return
        if link.get("target", "") == "_blank":
            self._open_tab()
            self._notices.append(f"a new tab was opened; it is tab {self._current} and current")
        self._visit(Request(target))

    def _type(self, element: Element | None, target: str, action: Action) -> str:
        if element is None or element.tag not in ("input", "textarea") or role_of(element) not in TEXTBOXES:
            return f"{target} takes no text"
        if element.get("readonly") is not None:
            return f"{target} is read-only"
        text = self._page.values[element] = typed(element, action.text)
        self._focus = element
        if action.enter:
            self._enter(element)
        if text.split() != action.text.split():
            return f"{target} did not take {quote(action.text)} as it is; it holds {quote(text[:120])}"
        return ""

    def _select(self, element: Element | None, target: str, label: str) -> str:
        if element is None or element.tag != "select":
            return f"{target} is not a native select; click it, then click the option"
        labels = labelled_options(element)
        wanted = " ".join(label.split())
        ways = (labels.__getitem__, lambda option: option_label(option)[:NAME_LIMIT].rstrip())
        matches = [option for way in ways for option in labels if way(option) == wanted]
        matches += [option for option in labels if option_value(option) == label]
        if not matches:
            return no_option(target, label, list(labels.values()))
        option = matches[0]
        if any(part.get("disabled") is not None for part in (option, *option.iterancestors("optgroup"))):
            return f"{target}: its option {quote(labels[option])} is disabled"
        self._page.choices[element] = option
        self._focus = element
        return ""

    def _enter(self, element: Element) -> None:
        page = self._page
        if element.tag == "textarea":
            page.values[element] = f"{page.value(element)}\n"
        elif element.tag in ("a", "button") or is_submit(element):
            self._click(element)
        elif element.tag == "input":
            self._send(on_enter(page, element))

    def _send(self, request: Request | None) -> None:
        if request is not None:
            self._visit(request, submitted=True)

    def _act_on_tab(self, action: Action) -> str:
        moves: dict[str, Callable[[], str]] = {
            "goto": lambda: self._open(action.text),
            "go_back": lambda: self._move(-1),
            "go_forward": lambda: self._move(1),
            "new_tab": self._open_tab,
            "close_tab": self._close_tab,
            "tab_focus": lambda: self._show_tab(action.index),
            "press": lambda: self._press(action.text),
        }
        return moves[action.kind]() if action.kind in moves else ""

    def _press(self, keys: str) -> str:
        if browser_keys(keys) == "Enter" and self._focus is not None:
            self._enter(self._focus)
        return ""

    def _move(self, by: int) -> str:
        tab = self._tab
        position = tab.position + by
        if not 0 <= position < len(tab.history) or tab.history[position].request.url == BLANK:
            return f"there is no page to go {'back' if by < 0 else 'forward'} to"
        here, there = tab.entry, tab.history[position]
        tab.position = position
        if there.page is here.page:
            there.page.url = there.request.url
            return ""
        here.state = save_state(here.page)
        stored = self._cache.get(_stored(there.request))
        there.page = self._fetch(there.request)[1] if stored is None else load(there.request.url, stored)
        restore_state(there.page, there.state)
        self._focus = None
        return ""

    def _open_tab(self) -> str:
        self._tabs.append(_Tab())
        self._current = len(self._tabs) - 1
        return ""

    def _close_tab(self) -> str:
        if len(self._tabs) == 1:
            return "this is the only tab; it stays open"
        del self._tabs[self._current]
        self._current = max(self._current - 1, 0)
        return ""

    def _show_tab(self, index: int | None) -> str:
        if index is None or not 0 <= index < len(self._tabs):
            return f"there is no tab {index}; tabs are 0 to {len(self._tabs) - 1}"
        self._current = index
        return ""


def _stored(request: Request) -> Request:
    """The key of a stored copy: fragments do not reach the server."""
    return Request(request.url.partition("#")[0], request.body)


def _is_allowed(host: str) -> bool:
    return any(fnmatchcase(host, pattern) for pattern in LOOPBACK)


def _as_html(content_type: str, body: bytes) -> bytes:
    """Plain text as a page, as browsers show it; everything but text and HTML as an empty one."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind in ("text/html", "application/xhtml+xml", ""):
        return body
    if not kind.startswith("text/"):
        return b""
    escaped = body.replace(b"&", b"&amp;").replace(b"<", b"&lt;")
    return b"<html><body><pre>" + escaped + b"</pre></body></html>"
