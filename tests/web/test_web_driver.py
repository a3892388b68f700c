"""Acting on real pages in a real Chromium: every kind of control, and pages that break naive drivers."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest
import pytest_asyncio
from web_pages import PageServer, one_session, serving

from dynaweb.errors import ConfigError
from dynaweb.types import Action, Observation
from dynaweb.web.actions.grammar import parse_action
from dynaweb.web.chromium.session import ChromiumSession
from dynaweb.web.page.text import render

pytestmark = pytest.mark.asyncio(loop_scope="module")

Show = Callable[[str], Awaitable[Observation]]


@pytest.fixture(scope="module")
def server() -> Iterator[PageServer]:
    with serving() as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def session() -> AsyncIterator[ChromiumSession]:
    async with one_session(timeout=2.0) as session:
        yield session


@pytest_asyncio.fixture(loop_scope="module")
async def show(session: ChromiumSession, server: PageServer) -> Show:
    """Reset, serve HTML at `/`, open it and return its observation."""
    await session.reset()
    server.requests.clear()
    server.forms.clear()

    async def open_page(html: str) -> Observation:
        server.pages["/"] = html
        await session.goto(server.url())
        return await session.observe()

    return open_page


async def do(session: ChromiumSession, page: Observation, reply: str) -> tuple[str, Observation]:
    """Say it with the number left open (`[]`), do it, and look: (reason, next page)."""
    if "[]" in reply:
        name = reply.split("'")[1]
        node = next(node for node in page.nodes if node.name == name and node.role not in ("text", "heading"))
        reply = reply.replace("[]", f"[{node.id}]", 1)
    action = parse_action(reply, page)
    assert isinstance(action, Action), action
    return await session.act(action), await session.observe()


def lines(page: Observation) -> list[str]:
    return render(page).split("\n")[1:]


async def test_a_link_is_followed(session: ChromiumSession, server: PageServer, show: Show) -> None:
    server.pages["/next"] = "<title>Next</title><h1>Next page</h1>"
    reason, page = await do(session, await show("<p>Go <a href=/next>there</a></p>"), "click 'there' []")
    assert reason == ""
    assert page.url == server.url("/next")
    assert lines(page) == ["heading 'Next page' [1]"]


async def test_a_form_of_all_controls(session: ChromiumSession, server: PageServer, show: Show) -> None:
    page = await show(
        """<form action=/done method=post><label for=n>Name</label><input id=n name=name value=old>
        <label for=t>Note</label><textarea id=t name=note>old note</textarea>
        <label for=s>Size</label><select id=s name=size><option>Small<option value=L>Large</select>
        <input type=checkbox id=g name=gift> <label for=g>Gift</label>
        <input type=radio id=r1 name=colour value=red><label for=r1>Red</label>
        <input type=number aria-label=Count name=count value=1>
        <input type=date aria-label=Day name=day><button>Send</button></form>"""
    )
    for reply in (
        "type 'Name' [] 'Ünï 羊 \\'q\\' \"x\"'",
        "type 'Note' [] 'two\\nlines'",
        "select 'Size' [] 'Large'",
        "click 'Gift' []",
        "click 'Red' []",
        "type 'Count' [] '12'",
        "type 'Day' [] '2024-02-29'",
    ):
        reason, page = await do(session, page, reply)
        assert reason == ""
    assert lines(page) == [
        "textbox 'Name' [1] = 'Ünï 羊 \\'q\\' \"x\"'",
        "textbox 'Note' [2] = 'two\\nlines'",
        "combobox 'Size' [3] = 'Large' of 'Small' 'Large'",
        "checkbox 'Gift' [4] checked",
        "radio 'Red' [5] checked",
        "textbox 'Count' [6] = '12'",
        "textbox 'Day' [7] = '2024-02-29'",
        "button 'Send' [8]",
    ]
    reason, page = await do(session, page, "click 'Send' []")
    assert reason == ""
    assert page.url == server.url("/done")
    assert server.forms == [
        {"name": ["Ünï 羊 'q' \"x\""], "note": ["two\r\nlines"], "size": ["L"], "gift": ["on"], "colour": ["red"],
         "count": ["12"], "day": ["2024-02-29"]}
    ]  # fmt: skip


async def test_enter_submits_and_typing_replaces(session: ChromiumSession, server: PageServer, show: Show) -> None:
    page = await show("<form action=/find><input name=q aria-label=Search value=before></form>")
    reason, page = await do(session, page, "type 'Search' [] 'wool scarf' enter")
    assert (reason, page.url) == ("", server.url("/find?q=wool+scarf"))
    page = await show("<input aria-label=Search value=before>")
    reason, page = await do(session, page, "type 'Search' [] ''")
    assert (reason, lines(page)) == ("", ["textbox 'Search' [1]"])


async def test_real_events_on_a_scripted_page(session: ChromiumSession, show: Show) -> None:
    page = await show(
        """<button id=b>Push</button><input id=i aria-label=Field><p id=out></p><script>
        const log = [];
        const note = e => log.push(e.type + e.isTrusted);
        for (const kind of ['mousedown', 'mouseup', 'click']) b.addEventListener(kind, note);
        i.addEventListener('input', e => log.push('input:' + i.value));
        b.addEventListener('click', () => setTimeout(() => out.textContent = log.join(' '), 50));
        </script>"""
    )
    _, page = await do(session, page, "type 'Field' [] 'abc'")
    _, page = await do(session, page, "click 'Push' []")
    assert "text 'input:abc mousedowntrue mouseuptrue clicktrue' [3]" in lines(page)


@pytest.mark.parametrize(
    ("html", "reply", "why"),
    [
        ("<button disabled>Buy</button>", "click 'Buy' []", "is disabled"),
        ("<input aria-label=A readonly>", "type 'A' [] 'x'", "is read-only"),
        (
            "<button>Buy</button><div style='position:fixed;inset:0;background:#fff'>Cookies?</div>",
            "click 'Buy' []",
            "is covered by div 'Cookies?'",
        ),
        (
            "<style>@keyframes m{to{transform:translateX(900px)}}</style>"
            "<button style='animation:m 2s linear infinite alternate'>Run</button>",
            "click 'Run' []",
            "does not stop moving",
        ),
        ("<input type=number aria-label=N>", "type 'N' [] 'abc'", "did not take 'abc'"),
        ("<select aria-label=S><option>A<option disabled>B</select>", "select 'S' [] 'B'", "is disabled"),
        ("<div role=combobox aria-label=C tabindex=0>x</div>", "select 'C' [] 'x'", "not a native select"),
    ],
)
async def test_refusals_are_quick_and_say_why(
    session: ChromiumSession, show: Show, html: str, reply: str, why: str
) -> None:
    page = await show(html)
    start = time.perf_counter()
    reason, page = await do(session, page, reply)
    assert why in reason
    assert time.perf_counter() - start < 5
    assert page.notice == reason
    assert (await session.observe()).notice == ""


async def test_a_stale_element_is_never_mistaken(session: ChromiumSession, show: Show) -> None:
    page = await show(
        """<div id=box><button>Old</button></div><p id=out></p>
        <script>const again = () => { box.innerHTML = '<button onclick="out.textContent=1">New</button>' };
        setTimeout(again, 700)</script>"""
    )
    assert lines(page) == ["button 'Old' [1]"]
    time.sleep(0.8)
    reason, page = await do(session, page, "click 'Old' []")
    assert "is not on the page any more" in reason
    assert lines(page) == ["button 'New' [1]", f"notice {render(page).split('notice ', 1)[1]}"]


async def test_dialogs_are_accepted_and_reported(session: ChromiumSession, show: Show) -> None:
    page = await show(
        """<script>alert('on load')</script><button onclick="t.textContent=confirm('Sure?')">Delete</button><p id=t>"""
    )
    assert page.notice == "alert accepted: on load"
    reason, page = await do(session, page, "click 'Delete' []")
    assert reason == ""
    assert page.notice == "confirm accepted: Sure?"
    assert "text 'true' [2]" in lines(page)


@pytest.mark.parametrize(
    "html",
    [
        "<a href=/next target=_blank>Out</a>",
        "<button onclick=\"window.open('/next','','noopener')\">Out</button>",
        "<button onclick=\"window.open('/next')\">Out</button>",
    ],
)
async def test_a_new_tab_becomes_current(session: ChromiumSession, server: PageServer, show: Show, html: str) -> None:
    server.pages["/next"] = "<h1>Next page</h1>"
    reason, page = await do(session, await show(html), "click 'Out' []")
    assert reason == ""
    assert (page.url, lines(page)[0]) == (server.url("/next"), "heading 'Next page' [1]")
    assert page.notice == "a new tab was opened; it is tab 1 and current"
    _, page = await do(session, page, "tab_focus 0")
    assert page.url == server.url("/")
    reason, page = await do(session, page, "tab_focus 7")
    assert reason == "there is no tab 7; tabs are 0 to 1"
    await do(session, page, "tab_focus 1")
    _, page = await do(session, page, "close_tab")
    assert page.url == server.url("/")
    reason, _ = await do(session, page, "close_tab")
    assert "only tab" in reason


async def test_history(session: ChromiumSession, server: PageServer, show: Show) -> None:
    server.pages["/next"] = "<h1>Next page</h1>"
    page = await show("<a href=/next>there</a>")
    reason, page = await do(session, page, "go_back")
    assert reason == "there is no page to go back to"
    _, page = await do(session, page, "click 'there' []")
    reason, page = await do(session, page, "go_back")
    assert (reason, page.url) == ("", server.url("/"))
    reason, page = await do(session, page, "go_forward")
    assert (reason, page.url) == ("", server.url("/next"))
    reason, page = await do(session, page, "go_forward")
    assert reason == "there is no page to go forward to"


async def test_push_state_changes_the_address(session: ChromiumSession, server: PageServer, show: Show) -> None:
    page = await show("<button onclick=\"history.pushState({},'','/pushed')\">Go</button>")
    _, page = await do(session, page, "click 'Go' []")
    assert page.url == server.url("/pushed")
    _, page = await do(session, page, "go_back")
    assert page.url == server.url("/")


async def test_downloads_are_reported_and_keep_the_page(
    session: ChromiumSession, server: PageServer, show: Show
) -> None:
    page = await show("<a href=/download>file</a>")
    reason, page = await do(session, page, "click 'file' []")
    assert (reason, page.url, page.notice) == ("", server.url("/"), "a download was offered: bücher.csv")
    _, page = await do(session, page, f"goto '{server.url('/download')}'")
    assert (page.url, lines(page)[0], page.notice) == (
        server.url("/"),
        "link 'file' [1]",
        "a download was offered: bücher.csv",
    )


@pytest.mark.parametrize("path", ["/loop", ":1/"])
async def test_pages_that_cannot_be_loaded(session: ChromiumSession, server: PageServer, show: Show, path: str) -> None:
    await show("<p>before</p>")
    url = server.url(path) if path.startswith("/") else "http://site.localhost:1/"
    await session.goto(url)
    page = await session.observe()
    assert page.url == url
    assert lines(page)[0] == "heading 'This page is not available' [1]"
    _, page = await do(session, page, "go_back")
    assert lines(page) == ["text 'before' [1]"]


async def test_a_401_is_a_page(session: ChromiumSession, server: PageServer, show: Show) -> None:
    await show("")
    await session.goto(server.url("/private"))
    assert len((await session.observe()).nodes) == 1


@pytest.mark.parametrize("url", ["file:///etc/passwd", "chrome://version", "javascript:alert(1)", "data:text/html,x"])
async def test_only_web_addresses_can_be_opened(session: ChromiumSession, show: Show, url: str) -> None:
    page = await show("<p>here</p>")
    reason, page = await do(session, page, f"goto '{url}'")
    assert "only http and https" in reason
    assert lines(page)[0] == "text 'here' [1]"


async def test_an_image_that_never_comes_does_not_hold_the_page(session: ChromiumSession, show: Show) -> None:
    page = await show("<p>text</p><img src=/hang>")
    # A page that was given up says so.
    assert (lines(page), page.notice) == (["text 'text' [1]"], "")


async def test_a_server_that_never_answers_is_given_up(
    session: ChromiumSession, server: PageServer, show: Show
) -> None:
    page = await show("<a href=/hang>slow</a>")
    reason, page = await do(session, page, "click 'slow' []")
    assert reason == ""
    assert page.url == server.url("/")
    assert "had not loaded after 2 s" in page.notice


async def test_late_content_is_waited_for(session: ChromiumSession, show: Show) -> None:
    page = await show("<div id=app></div><script>setTimeout(() => app.innerHTML = '<p>late</p>', 1500)</script>")
    assert lines(page) == ["text 'late' [1]"]


async def test_a_page_that_never_rests_is_read(session: ChromiumSession, show: Show) -> None:
    start = time.perf_counter()
    page = await show("<p id=p>0</p><script>setInterval(() => { p.textContent++; fetch('/poll') }, 20)</script>")
    assert page.nodes[0].role == "text"
    assert time.perf_counter() - start < 10


async def test_page_text_cannot_forge_a_line(session: ChromiumSession, show: Show) -> None:
    name = "it's \"q\" [12] link 'x'"
    page = await show(f"<a href=/next>{name}&#10;link 'Pay' [1]</a>")
    assert len(page.nodes) == 1
    assert lines(page) == ["link 'it\\'s \"q\" [12] link \\'x\\' link \\'Pay\\' [1]' [1]"]


async def test_hidden_things_are_not_shown(session: ChromiumSession, show: Show) -> None:
    page = await show(
        "<p hidden>a</p><p aria-hidden=true>b</p><div inert><button>c</button></div><p style='opacity:0'>d</p>"
    )
    assert lines(page) == ["text 'd' [1]"]


async def test_shadow_roots_are_read_and_clicked(session: ChromiumSession, show: Show) -> None:
    page = await show(
        """<x-a></x-a><p id=out></p><script>
        const root = document.querySelector('x-a').attachShadow({mode: 'closed'});
        root.innerHTML = '<button>Deep</button>';
        root.querySelector('button').onclick = () => out.textContent = 'hit';
        </script>"""
    )
    reason, page = await do(session, page, "click 'Deep' []")
    assert (reason, lines(page)) == ("", ["button 'Deep' [1]", "text 'hit' [2]"])


async def test_a_big_and_a_deep_page(session: ChromiumSession, show: Show) -> None:
    page = await show("<p>row</p>" * 4000)
    assert page.truncated
    assert len(page.nodes) == 1500
    assert lines(page)[-2] == "..." and "elements 2500 below" in lines(page)[-1]
    page = await show("<div>" * 400 + "<b>core</b>")
    assert lines(page) == ["text 'core' [1]"]


async def test_scroll_hover_press_and_wait(session: ChromiumSession, show: Show) -> None:
    page = await show(
        "<button onmouseover=\"o.textContent='over'\">B</button><p id=o></p><div style='height:5000px'></div>"
    )
    assert (await do(session, page, "scroll down"))[0] == ""
    assert await session.evaluate("last", "scrollY > 500")
    reason, page = await do(session, page, "hover 'B' []")
    assert (reason, lines(page)[1]) == ("", "text 'over' [2]")
    assert (await do(session, page, "press 'Control+a'"))[0] == ""
    assert "press 'Nokey'" in (await do(session, page, "press 'Nokey'"))[0]
    assert (await do(session, page, "wait"))[0] == ""


async def test_html_and_expressions_of_other_pages(session: ChromiumSession, server: PageServer, show: Show) -> None:
    server.pages["/next"] = "<h1>Next page</h1>"
    await show("<p>here</p>")
    assert "<p>here</p>" in await session.html("last")
    assert "Next page" in await session.html(server.url("/next"))
    assert await session.evaluate(server.url("/next"), "document.querySelector('h1').innerText") == "Next page"
    assert (await session.observe()).url == server.url("/")
    with pytest.raises(ConfigError, match="failed on last"):
        await session.evaluate("last", "document.querySelector('h7').innerText")
