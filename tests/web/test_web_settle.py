"""When a page is read: requests, timers, frames and pages that lead on by themselves are waited for, with a bound."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio
from web_pages import PageServer, acted, names, one_session, opened, serving

from dynaweb.web.chromium.pool import BrowserPool
from dynaweb.web.chromium.session import ChromiumSession

pytestmark = pytest.mark.asyncio(loop_scope="module")

ADD = "document.body.append(Object.assign(document.createElement('p'), {textContent: 'late'}))"
HEAD = "<h1>Shop</h1>"


@pytest.fixture(scope="module")
def server() -> Iterator[PageServer]:
    with serving() as running:
        running.files |= {
            "/data": ("application/json", '{"text": "late"}'),
            "/late.js": ("text/javascript", ADD),
            "/module.js": ("text/javascript", f"{ADD}; export default 1"),
            "/ready.js": (
                "text/javascript",
                "document.querySelector('button').addEventListener('click', () => {" + ADD + "})",
            ),
            "/image": ("image/svg+xml", "<svg xmlns='http://www.w3.org/2000/svg'/>"),
            "/poll": ("text/plain", "ok"),
        }
        running.pages |= {
            "/next": "<h1>Next</h1>",
            "/frame": f"<p>inner</p><script>setTimeout(() => {ADD}, 400)</script>",
        }
        running.delays |= {path: 0.4 for path in ("/data", "/late.js", "/module.js", "/ready.js", "/image", "/frame")}
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def session() -> AsyncIterator[ChromiumSession]:
    async with one_session(timeout=5.0) as session:
        yield session


IMAGE = "document.body.append(Object.assign(new Image(), {src: '/image'}))"
SCRIPT = "document.head.append(Object.assign(document.createElement('script'), {src: '/late.js'}))"
LATE = {
    "a timer": f"setTimeout(() => {ADD}, 350)",
    "a slow timer": f"setTimeout(() => {ADD}, 550)",
    "a timer as text": f'setTimeout("{ADD}", 350)',
    "timers one after another": f"setTimeout(() => setTimeout(() => setTimeout(() => {ADD}, 150), 150), 150)",
    "awaited timers": "(async () => { for (const i of [1, 2, 3]) await new Promise(r => setTimeout(r, 150)); ADD })()",
    "fetch": f"fetch('/data').then(r => r.json()).then(() => {ADD})",
    "fetch of fetch": f"fetch('/data').then(() => fetch('/data?2')).then(() => {ADD})",
    "a timer, then fetch": f"setTimeout(async () => {{ await (await fetch('/data')).text(); {ADD} }}, 300)",
    "XMLHttpRequest": f"const x = new XMLHttpRequest(); x.open('GET', '/data'); x.onload = () => {ADD}; x.send()",
    "a request that fails": f"fetch('http://site.localhost:1/').catch(() => setTimeout(() => {ADD}, 300))",
    "a script that is put in": SCRIPT,
    "idle time": f"requestIdleCallback(() => setTimeout(() => {ADD}, 200))",
    "the end of loading": f"{IMAGE}; onload = () => {ADD}",
    "a listener to it": f"addEventListener('load', () => {ADD}); {IMAGE}",
}


@pytest.mark.parametrize("kind", LATE)
async def test_content_that_comes_late_is_seen(session: ChromiumSession, server: PageServer, kind: str) -> None:
    script = LATE[kind].replace("ADD", ADD)
    assert names(await opened(session, server, f"{HEAD}<script>{script}</script>")) == ["Shop", "late"]
    if kind in ("the end of loading", "a listener to it"):
        return
    # The same after an action, on a page that has long been loaded.
    button = f"<button>Go</button><script>document.querySelector('button').onclick = () => {{ {script} }}</script>"
    page = await opened(session, server, HEAD + button)
    _, page = await acted(session, page, "click 'Go' []")
    assert names(page) == ["Shop", "Go", "late"]


@pytest.mark.parametrize(
    "script",
    [
        "<script async src=/ready.js></script>",
        "<script type=module src=/ready.js></script>",
        "<script defer src=/ready.js></script>",
        "<script>addEventListener('DOMContentLoaded', () => setTimeout(() => document.head.append("
        "Object.assign(document.createElement('script'), {src: '/ready.js'})), 100))</script>",
        "<script>fetch('/data').then(() => { document.querySelector('button').onclick = () => { ADD } })</script>",
        "<img src=/image><script>onload = () => { document.querySelector('button').onclick = () => { ADD } }</script>",
    ],
)
async def test_nothing_is_pressed_before_its_script_is_there(
    session: ChromiumSession, server: PageServer, script: str
) -> None:
    page = await opened(session, server, f"<button>Go</button>{script.replace('ADD', ADD)}")
    _, page = await acted(session, page, "click 'Go' []")
    assert names(page) == ["Go", "late"]


LEADS_ON = {
    "a tag": ("<meta http-equiv=refresh content='0;url=/next'>", {}),
    "a late tag": ("<meta http-equiv=Refresh content='1; URL=/next'><p>Wait</p>", {}),
    "a tag and a slow picture": ("<meta http-equiv=refresh content='0;url=/next'><img src=/image>", {}),
    "a header": ("<p>Wait</p>", {"Refresh": "0; url=/next"}),
    "a late header": ("<p>Wait</p>", {"Refresh": "1; url=/next"}),
    "a script": ("<p>Wait</p><script>setTimeout(() => location = '/next', 400)</script>", {}),
    "a form that sends itself": (
        "<form action=/next method=post></form><script>setTimeout(() => document.forms[0].submit(), 300)</script>", {},
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", LEADS_ON)
async def test_a_page_that_leads_on_is_followed(session: ChromiumSession, server: PageServer, kind: str) -> None:
    html, headers = LEADS_ON[kind]
    server.headers["/wait"] = headers
    server.pages["/wait"] = html
    page = await opened(session, server, "<a href=/wait>Pay</a>")
    _, page = await acted(session, page, "click 'Pay' []")
    assert (page.url, names(page)) == (server.url("/next"), ["Next"])
    await session.goto(server.url("/wait"))
    assert (await session.observe()).url == server.url("/next")


@pytest.mark.parametrize("reply", ["click 'Send' []", "type 'Name' [] 'x' enter", "press 'Send' [] 'Enter'"])
@pytest.mark.parametrize("script", ["", "<script>1</script>"])
async def test_a_form_whose_answer_redirects_late_is_waited_for(
    session: ChromiumSession, server: PageServer, reply: str, script: str
) -> None:
    server.headers["/order"] = {"Location": "/thanks"}
    server.delays |= {"/order": 0.7, "/thanks": 0.7}
    server.pages["/thanks"] = "<h1>Thanks</h1>"
    page = await opened(
        session, server, f"<form action=/order method=post><input aria-label=Name><button>Send</button></form>{script}"
    )
    reason, page = await acted(session, page, reply)
    assert (reason, page.url, names(page)) == ("", server.url("/thanks"), ["Thanks"])


async def test_a_page_that_loads_itself_again_is_not_followed(session: ChromiumSession, server: PageServer) -> None:
    start = time.perf_counter()
    page = await opened(session, server, "<meta http-equiv=refresh content=1><p>News</p>")
    assert names(page) == ["News"]
    page = await opened(session, server, "<meta http-equiv=refresh content='30;url=/next'><p>News</p>")
    assert names(page) == ["News"]
    assert time.perf_counter() - start < 1.0


@pytest.mark.parametrize(
    "script",
    [
        "const s = document.currentScript; b.onclick = () => { ADD }; s.remove()",
        "b.addEventListener('click', () => { ADD }); document.querySelector('script').remove()",
        "b.onclick = () => { ADD }; document.currentScript.replaceWith('')",
        "b.onclick = () => { ADD }; const s = document.currentScript; s.parentNode.removeChild(s)",
        "const n = document.createElement('div'), s = document.currentScript; b.onclick = () => { ADD }; s.before(n);"
        "n.append(s); n.remove()",
    ],
)
async def test_a_script_that_removed_itself_counts(session: ChromiumSession, server: PageServer, script: str) -> None:
    late = "const e = event; setTimeout(() => document.body.append(String(e.isTrusted)), 300)"
    script = script.replace("ADD", late)
    page = await opened(session, server, f"<button id=b>Go</button><script>{script}</script>")
    _, page = await acted(session, page, "click 'Go' []")
    assert names(page) == ["Go", "true"]


async def test_frames_are_waited_for_as_pages_are(session: ChromiumSession, server: PageServer) -> None:
    other = server.url("/frame", host="other.localhost")
    for source in ("/frame", other):
        page = await opened(session, server, f"{HEAD}<iframe src='{source}'></iframe>")
        assert names(page) == ["Shop", "inner", "late"]
    page = await opened(
        session, server, "<button onclick=\"document.body.append(Object.assign(document.createElement('iframe'), {src: "
        "'/frame'}))\">Open</button>"
    )  # fmt: skip
    _, page = await acted(session, page, "click 'Open' []")
    assert names(page) == ["Open", "inner", "late"]


BUSY = {
    "a timer that polls": "(function poll() { fetch('/poll'); setTimeout(poll, 300) })()",
    "awaited": "(async () => { for (;;) { await fetch('/poll'); await new Promise(r => setTimeout(r, 300)) } })()",
    "an interval": "setInterval(() => fetch('/poll').then(r => r.text()), 100)",
    "an answer that never comes": "fetch('/hang')",
    "XMLHttpRequest again and again": "(function poll() { const x = new XMLHttpRequest(); x.open('GET', '/poll'); "
    "x.onload = () => setTimeout(poll, 200); x.send() })()",
}


@pytest.mark.parametrize("kind", BUSY)
async def test_a_page_that_always_works_is_waited_for_once(
    session: ChromiumSession, server: PageServer, kind: str
) -> None:
    start = time.perf_counter()
    button = "<button onclick=\"this.textContent='Done'\">Go</button>"
    page = await opened(session, server, f"{HEAD}{button}<script>{BUSY[kind]}</script>")
    assert time.perf_counter() - start < 3.5
    start = time.perf_counter()
    _, page = await acted(session, page, "click 'Go' []")
    assert names(page) == ["Shop", "Done"]
    assert time.perf_counter() - start < 1.0


async def test_messages_that_vanish_are_seen(session: ChromiumSession, server: PageServer) -> None:
    page = await opened(
        session, server, "<p id=p></p><button>Save</button><script>document.querySelector('button').onclick = () => {"
        "p.textContent = 'Saved'; setTimeout(() => p.textContent = '', 1500) }</script>"
    )  # fmt: skip
    _, page = await acted(session, page, "click 'Save' []")
    assert names(page) == ["Saved", "Save"]


async def test_the_bound_is_a_setting(server: PageServer) -> None:
    async with BrowserPool(settle=0.1) as pool:
        session = await pool.session()
        await session.reset()
        start = time.perf_counter()
        page = await opened(session, server, f"{HEAD}<script>fetch('/hang'); setTimeout(() => {ADD}, 900)</script>")
        assert names(page) == ["Shop"]
        assert time.perf_counter() - start < 5
        await session.close()


async def test_what_the_watch_wraps_looks_as_before(session: ChromiumSession, server: PageServer) -> None:
    await opened(session, server, f"{HEAD}<script>1</script>")
    seen = await session.evaluate(
        "last",
        "[setTimeout, fetch, EventTarget.prototype.addEventListener, XMLHttpRequest.prototype.send].map(f => "
        "/native code/.test(f.toString()) + ' ' + f.name + ' ' + f.length).concat("
        "Object.keys(window).filter(name => name.includes('dynaweb'))).join()",
    )
    assert seen == "true setTimeout 1,true fetch 1,true addEventListener 2,true send 0"
    assert await session.evaluate("last", "(async () => { const r = await fetch('/poll'); return r.text() })()") == "ok"
