"""The session without a browser: names, values, forms, history and refusals, on a small application of our own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest
from flask import Flask, redirect, request
from werkzeug.wrappers import Response

from dynaweb.errors import BrowserError
from dynaweb.types import Action, ActionKind, Node, Observation
from dynaweb.web.page.view import compact_view
from dynaweb.web.session import Session
from dynaweb.web.static.addresses import resolve_url
from dynaweb.web.static.dom import load
from dynaweb.web.static.session import StaticSession

T = TypeVar("T")

FORM = """<!doctype html><title>Form</title><h1>Form</h1>
<form action="/echo" method="{method}">
<label for="t">Text</label><input id="t" name="t" value="old">
<textarea name="a" aria-label="Area">
first
second</textarea>
<label><input type="checkbox" name="c" value="yes"> Box</label>
<input type="checkbox" name="d" aria-label="On" checked>
<input type="radio" name="r" value="1" aria-label="One" checked><input type="radio" name="r" value="2" aria-label="Two">
<select name="s" aria-label="List"><option value="n">New</option><option>Old</option><option disabled>No</option>
</select>
<input type="hidden" name="h" value="hid"><input name="off" aria-label="Off" value="x" disabled><input value="nameless">
<input name="ro" aria-label="Fixed" value="ro" readonly>
<button name="b" value="go">Send</button><button name="b" value="two">Send two</button>
<button type="button">Nothing</button><button type="reset">Reset</button>
</form><button form="other" name="x">Far</button>
<form id="other" action="/echo?gone=1"><input name="q" aria-label="Alone"></form>
<form action="/echo"><input name="n" type="number" aria-label="Number" min="1" max="9" value="2">
<input name="must" aria-label="Must" required><button>Check</button></form>
<a href="/form?method=get">Again</a><a href="#part">Part</a><a href="/loop">Loop</a><a href="http://shop.localhost:1/">Port</a>
<a href="mailto:x@y.z">Mail</a><a href="/echo?q=é x#ü" target="_blank">New</a>"""


def make_app() -> Flask:
    app = Flask(__name__)
    visits = {"n": 0}

    @app.get("/form")
    def form() -> str:
        return FORM.replace("{method}", request.args.get("method", "get"))

    @app.route("/echo", methods=["GET", "POST"])
    def echo() -> str:
        pairs = (request.args if request.method == "GET" else request.form).items(multi=True)
        return "".join(f"<p>{key}={value}</p>" for key, value in pairs) + f"<p>{request.headers.get('X-Who', '')}</p>"

    @app.get("/count")
    def count() -> Response:
        visits["n"] += 1
        headers = {"Cache-Control": "no-store"} if "fresh" in request.args else {}
        return Response(
            f"<p>visit {visits['n']}</p><input aria-label=Note><a href=/form>Form</a>",
            headers=headers,
            mimetype="text/html",
        )

    @app.get("/loop")
    def loop() -> Response:
        return redirect("/loop")  # type: ignore[return-value]

    @app.post("/jump")
    def jump() -> Response:
        return redirect("/count", code=303)  # type: ignore[return-value]

    @app.get("/plain")
    def plain() -> Response:
        return Response("a < b & c", mimetype="text/plain")

    return app


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(coroutine)


async def opened(path: str = "/form", **headers: str) -> tuple[StaticSession, Observation]:
    session = StaticSession(make_app(), hosts=["shop.localhost"])
    await session.reset(headers=headers)
    await session.goto(f"http://shop.localhost{path}")
    return session, await session.observe()


def find(page: Observation, name: str) -> Node:
    return next(node for node in page.nodes if node.name == name)


async def do(
    session: Session, kind: ActionKind, name: str = "", text: str = "", *, enter: bool = False
) -> tuple[str, Observation]:
    """Act on the element of that name and look: (reason, page)."""
    target = find(await session.observe(), name).id if name else None
    reason = await session.act(Action(kind, target, text, enter))
    return reason, await session.observe()


def texts(page: Observation) -> list[str]:
    return [node.name for node in page.nodes if node.role == "text" and node.name]


def test_it_is_a_session() -> None:
    assert isinstance(StaticSession(make_app()), Session)


def test_controls_are_read_with_names_values_and_properties() -> None:
    _, page = run(opened())
    assert page.url == "http://shop.localhost/form"
    assert (page.title, page.tabs, page.truncated) == ("", (), False)
    assert find(page, "Area").value == "first\nsecond"
    assert find(page, "On").props == (("checked", "true"),)
    assert find(page, "List") == Node(8, "combobox", "List", "New", (("options", "New|Old|No"),))
    assert find(page, "Off").props == (("disabled", "true"),)
    assert find(page, "Must").props == (("required", "true"),)
    assert [node.id for node in page.nodes] == list(range(1, len(page.nodes) + 1))


@pytest.mark.parametrize("method", ["get", "post"])
def test_a_form_sends_what_was_entered(method: str) -> None:
    async def play() -> Observation:
        session, _ = await opened(f"/form?method={method}")
        await do(session, "type", "Text", "é ~*'&=+")
        await do(session, "click", "Box")
        await do(session, "click", "On")
        await do(session, "click", "Two")
        await do(session, "select", "List", "Old")
        return (await do(session, "click", "Send two"))[1]

    page = run(play())
    assert texts(page) == ["t=é ~*'&=+", "a=first second", "c=yes", "r=2", "s=Old", "h=hid", "ro=ro", "b=two"]
    query = "?t=%C3%A9+%7E*%27%26%3D%2B&a=first%0D%0Asecond&c=yes&r=2&s=Old&h=hid&ro=ro&b=two"
    assert page.url == f"http://shop.localhost/echo{query if method == 'get' else ''}"


def test_enter_presses_the_first_button_or_sends_a_lone_field() -> None:
    async def play() -> tuple[Observation, Observation, Observation]:
        session, _ = await opened()
        _, first = await do(session, "type", "Text", "x", enter=True)
        await do(session, "go_back")
        _, lone = await do(session, "type", "Alone", "y", enter=True)
        await do(session, "go_back")
        await do(session, "type", "Area", "z", enter=True)
        return first, lone, await session.observe()

    first, lone, area = run(play())
    assert texts(first)[-1] == "b=go"
    assert lone.url == "http://shop.localhost/echo?x=&q=y"
    assert find(area, "Area").value == "z\n"


def test_state_lives_until_the_page_is_left_and_comes_back_with_it() -> None:
    async def play() -> list[Observation]:
        session, _ = await opened()
        pages = []
        for kind, name, text in [("type", "Text", "new"), ("click", "Two", ""), ("click", "Again", "")]:
            pages.append((await do(session, kind, name, text))[1])  # type: ignore[arg-type]
        pages.append((await do(session, "go_back"))[1])
        _, page = await do(session, "click", "Reset")
        return [*pages, page]

    typed, ticked, again, back, reset = run(play())
    assert find(typed, "Text").value == "new"
    assert (find(ticked, "One").props, find(ticked, "Two").props) == ((), (("checked", "true"),))
    assert find(again, "Text").value == "old"
    assert (find(back, "Text").value, find(back, "Two").props) == ("new", (("checked", "true"),))
    assert (find(reset, "Text").value, find(reset, "Two").props) == ("old", ())


def test_back_shows_the_stored_copy_unless_the_response_forbids_it() -> None:
    async def play(path: str) -> tuple[str, str, str]:
        session, page = await opened(path)
        first = page.nodes[0].name
        await do(session, "click", "Form")
        _, back = await do(session, "go_back")
        await session.goto(f"http://shop.localhost{path}")
        return first, back.nodes[0].name, (await session.observe()).nodes[0].name

    assert run(play("/count")) == ("visit 1", "visit 1", "visit 2")
    assert run(play("/count?fresh=1")) == ("visit 1", "visit 2", "visit 3")


def test_history_ends_are_refused_and_new_pages_cut_it() -> None:
    async def play() -> list[str]:
        session, _ = await opened("/count")
        steps = [("go_back", ""), ("click", "Form"), ("go_back", ""), ("go_forward", ""), ("go_forward", "")]
        return [(await do(session, kind, name))[0] for kind, name in steps]  # type: ignore[arg-type]

    assert run(play()) == ["there is no page to go back to", "", "", "", "there is no page to go forward to"]


def test_invalid_forms_stay_where_they_are() -> None:
    async def play() -> list[str]:
        session, _ = await opened()
        urls = [(await do(session, "click", "Check"))[1].url]
        await do(session, "type", "Must", "x")
        for number in ("12", "1.5", "3"):
            await do(session, "type", "Number", number)
            urls.append((await do(session, "click", "Check"))[1].url)
        return urls

    stays = "http://shop.localhost/form"
    assert run(play()) == [stays, stays, stays, "http://shop.localhost/echo?n=3&must=x"]


REFUSALS = [
    ("click", "Off", "", "textbox 'Off' is disabled"),
    ("type", "Fixed", "x", "textbox 'Fixed' is read-only"),
    ("type", "Form", "x", "heading 'Form' takes no text"),
    ("type", "Box", "x", "checkbox 'Box' takes no text"),
    ("type", "Number", "many", "textbox 'Number' did not take 'many' as it is; it holds ''"),
    ("select", "List", "Best", "combobox 'List' has no option 'Best'; it has 'New' 'Old' 'No'"),
    ("select", "List", "No", "combobox 'List': its option 'No' is disabled"),
    ("select", "Text", "x", "textbox 'Text' is not a native select; click it, then click the option"),
    (
        "goto",
        "",
        "evil.org",
        "goto 'http://evil.org/': this host is not allowed; allowed are *.localhost, localhost, 127.0.0.1",
    ),
    ("goto", "", "file:///etc/passwd", "goto 'file:///etc/passwd': only http and https addresses can be opened"),
    ("close_tab", "", "", "this is the only tab; it stays open"),
]


@pytest.mark.parametrize(("kind", "name", "text", "reason"), REFUSALS)
def test_refusals_are_said_and_noticed_once(kind: ActionKind, name: str, text: str, reason: str) -> None:
    async def play() -> tuple[str, Observation, Observation]:
        session, _ = await opened()
        refusal, page = await do(session, kind, name, text)
        return refusal, page, await session.observe()

    refusal, page, later = run(play())
    assert refusal == reason
    assert (page.notice, later.notice) == (reason, "")
    assert page.url == "http://shop.localhost/form"


def test_actions_without_effect() -> None:
    async def play() -> tuple[Observation, Observation]:
        session, before = await opened()
        for kind, name in [
            ("click", "Form"),
            ("click", "Nothing"),
            ("click", "Mail"),
            ("hover", "Text"),
            ("wait", ""),
            ("scroll", ""),
        ]:
            reason, _ = await do(session, kind, name)  # type: ignore[arg-type]
            assert reason == ""
        return before, await session.observe()

    before, after = run(play())
    assert before == after


def test_numbers_of_an_earlier_page_are_refused() -> None:
    async def play() -> tuple[str, str]:
        session, page = await opened()
        missing = await session.act(Action("click", 99))
        await session.act(Action("click", find(page, "Again").id))
        return missing, await session.act(Action("click", find(page, "Text").id))

    missing, stale = run(play())
    assert missing == "there is no element [99] on this page"
    assert stale == "textbox 'Text' is not on the page any more; look at the page again"


def test_a_key_goes_to_the_element_it_names_and_old_names_are_refused() -> None:
    async def play() -> None:
        session, page = await opened()
        alone = find(page, "Alone")
        assert await session.act(Action("press", alone.id, "Enter", target_role="textbox", target_name="Alone")) == ""
        after = await session.observe()
        assert after.url.endswith("/echo?x=&q=")
        old = Action("click", 1, target_role="textbox", target_name="Alone")
        assert await session.act(old) == "[1] is text 'x=' now, not textbox 'Alone'; look at the page again"

    run(play())


def test_addresses_that_cannot_be_loaded() -> None:
    async def play() -> list[Observation]:
        session, _ = await opened()
        pages = [(await do(session, "click", name))[1] for name in ("Loop",)]
        await do(session, "go_back")
        return [*pages, (await do(session, "click", "Port"))[1]]

    for page in run(play()):
        assert [(node.role, node.name) for node in page.nodes] == [("heading", "This page is not available")]


def test_links_tabs_and_fragments() -> None:
    async def play() -> tuple[Observation, Observation, Observation, Observation]:
        session, _ = await opened()
        await do(session, "type", "Text", "kept")
        _, part = await do(session, "click", "Part")
        _, new = await do(session, "click", "New")
        await session.act(Action("tab_focus", index=0))
        first = await session.observe()
        await session.act(Action("tab_focus", index=1))
        await session.act(Action("close_tab"))
        return part, new, first, await session.observe()

    part, new, first, closed = run(play())
    assert (part.url, find(part, "Text").value) == ("http://shop.localhost/form#part", "kept")
    assert new.url == "http://shop.localhost/echo?q=%C3%A9%20x#%C3%BC"
    assert new.notice == "a new tab was opened; it is tab 1 and current"
    assert first == closed == part


def test_headers_html_and_reset() -> None:
    async def play() -> tuple[list[str], str, str, Observation]:
        session, page = await opened("/echo?q=1", **{"X-Who": "me"})
        last, other = await session.html("last"), await session.html("shop.localhost/plain")
        await session.reset()
        blank = await session.observe()
        await session.close()
        await session.close()
        return texts(page), last, other, blank

    copy, last, other, blank = run(play())
    assert copy == ["q=1", "me"]
    assert last == "<html><body><p>q=1</p><p>me</p></body></html>"
    assert "a &lt; b &amp; c" in other
    assert (blank.url, blank.nodes) == ("about:blank", ())


def test_what_needs_a_browser_says_so() -> None:
    async def play() -> None:
        session, _ = await opened()
        with pytest.raises(BrowserError, match="no scripts"):
            await session.evaluate("last", "1 + 1")

    run(play())


@pytest.mark.parametrize(
    ("reference", "url"),
    [
        ("", "http://shop.localhost/a/b?q=1"),
        ("?x=é ü", "http://shop.localhost/a/b?x=%C3%A9%20%C3%BC"),
        ("?", "http://shop.localhost/a/b?"),
        ("#", "http://shop.localhost/a/b?q=1#"),
        ("a\\b", "http://shop.localhost/a/a/b"),
        ("../c d", "http://shop.localhost/c%20d"),
        ("/p'\"<>`{}|^", "http://shop.localhost/p'%22%3C%3E%60%7B%7D%7C%5E"),
        ("HTTP://SHOP.localhost:80", "http://shop.localhost/"),
        (" /a\n%C3%A9%zz ", "http://shop.localhost/a%C3%A9%zz"),
        ("http://[", "about:invalid"),
        ("mailto:a@b.c", "mailto:a@b.c"),
    ],
)
def test_addresses_are_written_as_browsers_do(reference: str, url: str) -> None:
    assert resolve_url("http://shop.localhost/a/b?q=1", reference) == url


@pytest.mark.parametrize(
    "source", [b"", b"<!-- only -->", b"<p>\xff\xfe</p>", b"<p>" * 3000, b"<select><option>a", b"\x00"]
)
def test_broken_documents_are_read(source: bytes) -> None:
    assert len(compact_view(load("http://shop.localhost/", source).tree()).nodes) <= 1


def test_speed() -> None:
    rows = "".join(f"<li><a href=/{i}>Item {i}</a><p>Price: {i}.50</p></li>" for i in range(12))
    source = f"<!doctype html><nav><a href=/>Home</a></nav><main><ul>{rows}</ul></main>".encode()
    times = []
    for _ in range(20):
        start = time.perf_counter()
        compact_view(load("http://shop.localhost/", source).tree())
        times.append(time.perf_counter() - start)
    assert min(times) < 0.005
