"""What a person could do is done, and what a person could not is refused: keys, lists, frames, scrolling, dialogs."""

from __future__ import annotations

import json
import random
import time
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio
from web_pages import PageServer, acted, names, one_session, opened, serving

from dynaweb.types import Action
from dynaweb.web.actions.keys import browser_keys
from dynaweb.web.chromium.pool import BrowserPool
from dynaweb.web.chromium.session import ChromiumSession

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def server() -> Iterator[PageServer]:
    with serving() as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def session() -> AsyncIterator[ChromiumSession]:
    async with one_session(timeout=3.0) as session:
        yield session


# --- typing ---

LOG = """<script>const log = [];
for (const kind of ['keydown', 'keypress', 'beforeinput', 'input', 'keyup'])
  (TARGET).addEventListener(kind, e => log.push(kind + ':' + (e.key || e.data || e.inputType)));</script>"""
FIELDS = {
    "field": "<input aria-label=F id=f value=old>",
    "area": "<textarea aria-label=F id=f>old</textarea>",
    "number": "<input type=number aria-label=F id=f value=7>",
    "editor": "<div contenteditable aria-label=F id=f role=textbox>old</div>",
    "plain editor": "<div contenteditable=plaintext-only aria-label=F id=f>old</div>",
    "password": "<input type=password aria-label=F id=f>",
}


@pytest.mark.parametrize("target", ["f", "document", "window"])
@pytest.mark.parametrize("kind", FIELDS)
async def test_keys_are_typed_where_somebody_listens(
    session: ChromiumSession, server: PageServer, kind: str, target: str
) -> None:
    page = await opened(session, server, FIELDS[kind] + LOG.replace("TARGET", target))
    reason, page = await acted(session, page, "type 'F' [] '12'")
    assert reason == ""
    assert await session.evaluate("last", "f.value ?? f.innerText") == "12"
    assert await session.evaluate("last", "log") == [
        f"{event}:{char}" for char in "12" for event in ("keydown", "keypress", "beforeinput", "input", "keyup")
    ]


LISTS = {
    "a listener": "f.addEventListener('keyup', fill)",
    "a property": "f.onkeyup = fill",
    "a listener above": "document.body.addEventListener('keyup', fill)",
    "a listener of the window": "window.onkeyup = fill",
    "key by key": "f.addEventListener('keydown', e => { if (e.key.length === 1) setTimeout(fill) })",
    "before the input": "f.addEventListener('beforeinput', () => setTimeout(fill))",
}


@pytest.mark.parametrize("kind", [*LISTS, "an attribute"])
async def test_lists_fill_as_one_types(session: ChromiumSession, server: PageServer, kind: str) -> None:
    attribute = "onkeyup=fill()" if kind == "an attribute" else ""
    page = await opened(
        session, server, f"<input aria-label=City id=f {attribute}><ul id=l></ul><script>"
        "function fill() { l.innerHTML = ['Łódź', 'Kraków'].filter(c => c.startsWith(f.value)).map(c => "
        f"'<li>' + c).join('') }} {LISTS.get(kind, '')}</script>"
    )  # fmt: skip
    reason, page = await acted(session, page, "type 'City' [] 'Łó'")
    assert (reason, names(page)) == ("", ["City", "Łódź"])


GUARDS = {
    "keydown": "f.onkeydown = e => /[0-9]/.test(e.key) || e.preventDefault()",
    "keypress": "f.onkeypress = e => /[0-9]/.test(e.key)",
    "beforeinput": "f.addEventListener('beforeinput', e => /[0-9]/.test(e.data) || e.preventDefault())",
    "shift": "f.onkeydown = e => { if (e.shiftKey || e.key === ' ' || /[a-z]/.test(e.key)) e.preventDefault() }",
    "code": "f.onkeydown = e => { if (!e.code.startsWith('Digit') || e.shiftKey) e.preventDefault() }",
    "number": "f.onkeydown = e => { if (e.keyCode < 48 || e.keyCode > 57) e.preventDefault() }",
}


@pytest.mark.parametrize("kind", GUARDS)
async def test_guards_of_keys_are_not_passed_by(session: ChromiumSession, server: PageServer, kind: str) -> None:
    page = await opened(session, server, f"<input aria-label=F id=f><script>{GUARDS[kind]}</script>")
    reason, page = await acted(session, page, "type 'F' [] '1 aB2'")
    assert reason == "textbox 'F' did not take '1 aB2' as it is; it holds '12'"


@pytest.mark.parametrize(
    "text", ["Ünï 羊 'q' \"x\"", "a\\nb\\nc", "~!@#$%^&*()_+{}|:<>?", "\U0001f600 ok", "", "x" * 700, "tab\\tx"]
)
async def test_every_text_arrives(session: ChromiumSession, server: PageServer, text: str) -> None:
    text = text.replace("\\n", "\n").replace("\\t", "\t")
    page = await opened(session, server, FIELDS["area"] + "<script>onkeyup = () => {}</script>")
    assert await session.act(Action("type", page.nodes[0].id, text)) == ""
    assert await session.evaluate("last", "f.value") == text
    page = await opened(session, server, FIELDS["field"] + "<script>onkeyup = () => {}</script>")
    assert await session.act(Action("type", page.nodes[0].id, text)) == ""
    assert await session.evaluate("last", "f.value") == text.replace("\n", " ")


async def test_a_line_break_does_not_send_what_was_written_so_far(session: ChromiumSession, server: PageServer) -> None:
    page = await opened(
        session, server, "<textarea aria-label=Chat id=c></textarea><p id=p></p><script>c.onkeydown = e => {"
        "if (e.key === 'Enter' && !e.shiftKey) { e.preventDefault(); p.textContent = c.value; c.value = '' } }</script>"
    )  # fmt: skip
    reason, page = await acted(session, page, "type 'Chat' [] 'one\\ntwo'")
    assert (reason, page.nodes[0].value, names(page)) == ("", "one\ntwo", ["Chat"])
    _, page = await acted(session, page, "type 'Chat' [] 'one\\ntwo' enter")
    assert names(page) == ["Chat", "one two"]


async def test_fields_for_one_digit_each(session: ChromiumSession, server: PageServer) -> None:
    cells = "".join(f"<input maxlength=1 aria-label=D{number}>" for number in range(4))
    page = await opened(
        session, server, cells + "<script>document.querySelectorAll('input').forEach(i => i.onkeyup = () => "
        "i.value && i.nextElementSibling && i.nextElementSibling.focus())</script>"
    )  # fmt: skip
    reason, page = await acted(session, page, "type 'D0' [] '1234'")
    assert (reason, [node.value for node in page.nodes[:4]]) == ("", ["1", "2", "3", "4"])


async def test_nobody_listens_so_a_text_is_put_in_at_once(session: ChromiumSession, server: PageServer) -> None:
    page = await opened(
        session, server, "<input aria-label=F id=f><script>log = []; f.oninput = e => log.push(e.inputType)</script>"
    )
    await acted(session, page, "type 'F' [] 'many letters'")
    assert await session.evaluate("last", "log") == ["insertText"]


# --- what can be reached ---

SLOTS = {
    "a text": "<x-a>Buy now</x-a>|<button onclick=HIT><slot></slot></button>",
    "an element": "<x-a><span>Buy now</span></x-a>|<button onclick=HIT><slot></slot></button>",
    "a named slot": "<x-a><b slot=label>Buy now</b></x-a>|<button onclick=HIT><i></i><slot name=label></slot></button>",
    "text in text": "<x-a><b>Buy <i>now</i></b></x-a>|<button onclick=HIT><span><slot></slot></span></button>",
    "a link": "<x-a>Buy now</x-a>|<a href='javascript:HIT'><slot></slot></a>",
    "a role": "<x-a>Buy now</x-a>|<div role=button tabindex=0 onclick=HIT><slot></slot></div>",
    "a picture": "<x-a>Buy now<svg width=20 height=20></svg></x-a>|<button onclick=HIT><slot></slot></button>",
}


@pytest.mark.parametrize("mode", ["open", "closed"])
@pytest.mark.parametrize("kind", SLOTS)
async def test_a_label_may_come_through_a_slot(
    session: ChromiumSession, server: PageServer, kind: str, mode: str
) -> None:
    light, shadow = SLOTS[kind].split("|")
    shadow = shadow.replace("onclick=HIT", "onclick=\"document.body.append('hit')\"").replace(
        "HIT", "document.body.append(`hit`)"
    )
    page = await opened(
        session, server, f"{light}<script>document.querySelector('x-a').attachShadow({{mode: '{mode}'}}).innerHTML = "
        f"{json.dumps(shadow)}</script>"
    )  # fmt: skip
    reason, page = await acted(session, page, f"click '{page.nodes[0].name}' []")
    assert reason == ""
    assert "hit" in " ".join(names(page))


async def test_a_slotted_label_can_be_covered(session: ChromiumSession, server: PageServer) -> None:
    page = await opened(
        session, server, "<x-a>Buy</x-a><div style='position:fixed;inset:0;background:#fff'>Cookies?</div><script>"
        "document.querySelector('x-a').attachShadow({mode: 'open'}).innerHTML = '<button><slot></slot></button>'"
        "</script>"
    )  # fmt: skip
    reason, _ = await acted(session, page, "click 'Buy' []")
    assert "covered" in reason


TRANSFORMS = (
    "transform: scale(1.5); transform-origin: 0 0", "transform: scale(0.5)", "transform: rotate(20deg)",
    "transform: translate(80px, 40px) scale(0.8)", "zoom: 1.4", "border: 20px solid; padding: 10px",
    "transform: perspective(400px) rotateY(30deg)", "transform: skewX(20deg)",
)  # fmt: skip


@pytest.mark.parametrize("style", TRANSFORMS)
@pytest.mark.parametrize("host", ["site.localhost", "other.localhost"])
async def test_a_transformed_frame_is_clicked_where_it_is(
    session: ChromiumSession, server: PageServer, style: str, host: str
) -> None:
    server.pages[
        "/inner"
    ] = """<style>body{margin:0}button{position:absolute;width:30px;height:16px;padding:0;font-size:8px}
    </style><button style='left:5px;top:5px' onclick="this.textContent='A!'">A</button>
    <button style='left:260px;top:125px' onclick="this.textContent='B!'">B</button>
    <button style='left:180px;top:50px' onclick="this.textContent='C!'">C</button>"""
    frame = f"<iframe src='{server.url('/inner', host=host)}' width=300 height=150 style='{style}'></iframe>"
    page = await opened(session, server, f"<h1>Top</h1><div style='margin:60px'>{frame}</div>")
    for name in "ABC":
        reason, page = await acted(session, page, f"click '{name}' []")
        assert reason == ""
    assert names(page) == ["Top", "A!", "B!", "C!"]


async def test_a_transformed_frame_in_a_transformed_frame(session: ChromiumSession, server: PageServer) -> None:
    server.pages["/core"] = "<button onclick=\"this.textContent='Done'\">Core</button>"
    server.pages["/outer"] = "<iframe src=/core width=200 height=80 style='transform:scale(0.7)'></iframe>"
    page = await opened(session, server, "<iframe src=/outer width=400 height=200 style='transform:scale(1.3)"
                        " rotate(5deg);margin:80px'></iframe>")  # fmt: skip
    reason, page = await acted(session, page, "click 'Core' []")
    assert (reason, names(page)) == ("", ["Done"])


# --- lists ---

LONG = "A name that differs from that of its neighbour only after so many letters that a list does not show all: " * 2
GROUPS = (
    "<select aria-label=S id=s><optgroup label=Front><option value=1>Red<option value=2>Blue</optgroup>"
    "<optgroup label=Back><option value=3>Red</optgroup><option value=4>Red<option value=5>Red"
    f"<option value=6>{LONG}one<option value=7>{LONG}two<option value=8>a|b"
    "<optgroup label=X><option value=9>Only</select>"
)


async def test_options_of_one_name_can_all_be_chosen(session: ChromiumSession, server: PageServer) -> None:
    for script in ("", "<script>1</script>"):
        page = await opened(session, server, GROUPS + script)
        labels = dict(page.nodes[0].props)["options"].split("|")
        assert labels[:5] == ["Front: Red", "Blue", "Back: Red", "Red", "Red (2)"]
        assert labels[-2:] == ["a/b", "Only"]
        assert len(set(labels)) == 9
        for number, label in enumerate(labels, start=1):
            assert len(label) <= 120
            assert await session.act(Action("select", page.nodes[0].id, label)) == ""
            page = await session.observe()
            assert (page.nodes[0].value, await session.evaluate("last", "s.value")) == (label, str(number))


async def test_page_and_python_number_equal_options_alike(session: ChromiumSession, server: PageServer) -> None:
    """Labels are told by Python and found by a script of the page."""
    texts = ["Red", "Red (2)", "Red (3)", "Red (10)", "o" * 130, "o" * 119 + "p", "o" * 114 + " (2)", "a b"]
    rng = random.Random(0)
    options = "".join(f"<option value={at}>{rng.choice(texts)}" for at in range(60))
    grouped = f"<optgroup label=G>{options}</optgroup>" + options.replace("value=", "value=1")
    page = await opened(session, server, f"<select aria-label=S id=s>{grouped}</select>")
    await session.act(Action("click", page.nodes[0].id))
    page = await session.observe()
    labels = dict(page.nodes[0].props)["options"].split("|")
    assert len(set(labels)) == len(labels) == 120
    values = await session.evaluate("last", "[...s.options].map(one => one.value)")
    for label, value in list(zip(labels, values, strict=True))[::3]:
        assert await session.act(Action("select", page.nodes[0].id, label)) == ""
        assert await session.evaluate("last", "s.value") == value


async def test_thousands_of_equal_options_are_read_and_chosen_at_once(
    session: ChromiumSession, server: PageServer
) -> None:
    options = "<optgroup label=G>" + "<option>Red" * 4000
    page = await opened(session, server, f"<select aria-label=S id=s>{options}</select>")
    begun = time.process_time()
    page = await session.observe()
    assert await session.act(Action("select", page.nodes[0].id, "G: Red (4000)")) == ""
    assert await session.evaluate("last", "s.selectedIndex") == 3999
    assert time.process_time() - begun < 5


@pytest.mark.parametrize(
    "html",
    [
        "<select aria-label=S><optgroup disabled label=G><option>B</optgroup><option>A</select>",
        "<select aria-label=S><option>A<option disabled>B</select>",
        "<select aria-label=S><optgroup label=G><option>A<option disabled>B</optgroup></select>",
        "<select aria-label=S multiple><option>A<option disabled>B</select>",
        "<select aria-label=S size=4><option>A<optgroup disabled label=G><option>B</optgroup></select>",
        "<select aria-label=S><optgroup disabled label=G><option>A</optgroup><option>A<option disabled>B</select>",
    ],
)
async def test_a_disabled_option_is_refused_by_name(session: ChromiumSession, server: PageServer, html: str) -> None:
    page = await opened(session, server, html)
    before = await session.evaluate("last", "document.querySelector('select').selectedIndex")
    reason, page = await acted(session, page, "select 'S' [] 'B'")
    assert reason == f"{page.nodes[0].role} 'S': its option 'B' is disabled"
    assert await session.evaluate("last", "document.querySelector('select').selectedIndex") == before
    page = await opened(session, server, f"<fieldset disabled>{html}</fieldset>")
    reason, _ = await acted(session, page, "select 'S' [] 'B'")
    assert reason == f"{page.nodes[0].role} 'S' is disabled"


async def test_choices_of_a_list_are_added_and_taken_back(session: ChromiumSession, server: PageServer) -> None:
    page = await opened(
        session, server, "<select multiple aria-label=S><option selected>A<option>B<option selected>C</select>"
        "<p id=p></p>"
        "<script>document.querySelector('select').onchange = e => p.textContent = [...e.target.selectedOptions].map("
        "o => o.text).join(' ')</script>"
    )  # fmt: skip
    for label, value in (("B", "A|B|C"), ("A", "B|C"), ("C", "B"), ("B", None), ("A", "A")):
        reason, page = await acted(session, page, f"select 'S' [] '{label}'")
        assert (reason, page.nodes[0].value) == ("", value)
        assert names(page)[1:] == ([(value or "").replace("|", " ")] if value else [])


# --- scrolling ---

TALL = "<div style='height:3000px'>" + "<p>row</p>" * 20 + "</div>"
SCROLLERS = {
    "main": "<style>html,body{height:100%;margin:0;overflow:hidden}main{height:100%;overflow:auto}</style>"
    f"<main id=s>{TALL}</main>",
    "a box beside a bar": "<body style='display:flex;margin:0;height:100vh'><nav style='width:200px'>Menu</nav>"
    f"<div id=s style='flex:1;overflow-y:scroll'>{TALL}</div>",
    "a dialog": f"{TALL}<dialog id=s style='height:300px;overflow:auto'>{TALL}</dialog><script>s.showModal()</script>",
    "a box in a dialog": f"{TALL}<div role=dialog aria-modal=true style='position:fixed;inset:50px;background:#fff'>"
    f"<div id=s style='height:300px;overflow:auto'>{TALL}</div></div>",
    "around a dialog": f"{TALL}<div id=s style='position:fixed;inset:0;overflow:auto;background:#fff'>"
    f"<div role=dialog aria-modal=true style='margin:40px'>{TALL}</div></div>",
    "the body": "<style>html{height:100%;overflow:hidden}body{height:100%;overflow:auto;margin:0}</style>"
    f"<body id=s>{TALL}",
    "a small box": f"<h1>Top</h1><div id=s style='height:200px;width:300px;overflow:auto'>{TALL}</div>",
    "the page": f"<div style='height:100px;overflow:auto'>{TALL}</div>{TALL}<script>s = document.scrollingElement"
    "</script>",
}  # fmt: skip


@pytest.mark.parametrize("kind", SCROLLERS)
async def test_what_scrolls_is_scrolled(session: ChromiumSession, server: PageServer, kind: str) -> None:
    page = await opened(session, server, SCROLLERS[kind] + "<script>1</script>")
    assert (await acted(session, page, "scroll down"))[0] == ""
    assert await session.evaluate("last", "s.scrollTop") > 100
    assert (await acted(session, page, "scroll up"))[0] == ""
    assert await session.evaluate("last", "s.scrollTop") == 0
    reason, page = await acted(session, page, "scroll up")
    assert reason == page.notice == "scroll up: nothing on this page scrolls further up"


@pytest.mark.parametrize("host", ["site.localhost", "other.localhost"])
async def test_a_frame_that_fills_the_window_is_scrolled(
    session: ChromiumSession, server: PageServer, host: str
) -> None:
    server.pages["/tall"] = f"{TALL}<script>onscroll = () => document.title = parent.postMessage(scrollY, '*')</script>"
    page = await opened(
        session, server, f"<body style='margin:0;overflow:hidden'><iframe src='{server.url('/tall', host=host)}' style="
        "'width:100vw;height:100vh;border:0'></iframe><script>onmessage = e => y = e.data</script>"
    )  # fmt: skip
    assert (await acted(session, page, "scroll down"))[0] == ""
    assert await session.evaluate("last", "y") > 300
    await acted(session, page, "scroll up")
    reason, _ = await acted(session, page, "scroll up")
    assert "nothing on this page scrolls" in reason


async def test_a_box_at_its_end_hands_on_and_wheels_are_turned(session: ChromiumSession, server: PageServer) -> None:
    page = await opened(
        session, server, "<div style='height:100px;overflow:auto'><button>B</button><div style='height:150px'></div>"
        f"</div>{TALL}<script>1</script>"
    )  # fmt: skip
    for _ in range(2):
        assert (await acted(session, page, "scroll 'B' [] down"))[0] == ""
    assert await session.evaluate("last", "scrollY") > 300
    page = await opened(session, server, "<button>B</button><p id=p>0</p><script>1</script>")
    reason, _ = await acted(session, page, "scroll 'B' [] down")
    assert reason == "button 'B' does not scroll further down"
    page = await opened(
        session,
        server,
        "<p id=p>0</p><script>addEventListener('wheel', e => p.textContent = Math.sign(e.deltaY))</script>",
    )
    reason, page = await acted(session, page, "scroll down")
    assert (reason, names(page)) == ("", ["1"])


# --- keys, dialogs and files ---


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("Ctrl+a", "Control+a"), ("enter", "Enter"), ("ESC", "Escape"), ("Return", "Enter"), ("space", "Space"),
        ("arrow_down", "ArrowDown"), ("Del", "Delete"), ("Cmd+a", "ControlOrMeta+a"), ("CTRL-A", "Control+a"),
        ("ctrl + shift + t", "Control+Shift+t"), ("Control++", "Control++"), ("+", "+"), (" ", "Space"),
        ("Page Down", "PageDown"), ("pgup", "PageUp"), ("left arrow", "ArrowLeft"), ("f5", "F5"), ("A", "A"),
        ("Shift+A", "Shift+A"), ("Control+foo", "Control+foo"), ("KeyA", "KeyA"), ("alt-left", "Alt+ArrowLeft"),
        ("Command+Return", "ControlOrMeta+Enter"), ("BACKSPACE", "Backspace"), ("-", "-"), ("ü", "ü"),
    ],
)  # fmt: skip
async def test_usual_names_of_keys(text: str, keys: str) -> None:
    assert browser_keys(text) == keys


async def test_usual_names_of_keys_are_pressed(session: ChromiumSession, server: PageServer) -> None:
    page = await opened(
        session, server, "<input aria-label=F value=abc><p id=p></p><script>addEventListener('keydown', e => "
        "p.textContent = (e.ctrlKey ? 'C+' : '') + e.key)</script>"
    )  # fmt: skip
    for text, key in (
        ("Ctrl+A", "C+a"), ("Del", "Delete"), ("ESC", "Escape"), ("space", " "), ("return", "Enter"), ("Cmd+a", "C+a"),
        ("arrow_down", "ArrowDown"), ("ü", "ü"), ("x", "x"),
    ):  # fmt: skip
        reason, _ = await acted(session, page, f"press 'F' [] '{text}'")
        assert (reason, await session.evaluate("last", "p.textContent")) == ("", key)
    reason, _ = await acted(session, page, "press 'Ctrl+foo'")
    assert reason.startswith("press 'Ctrl+foo': ")
    await acted(session, page, "press 'F' [] 'x'")
    assert await session.evaluate("last", "p.textContent") == "x"


@pytest.mark.parametrize(
    ("script", "value", "notice"),
    [
        ("prompt('Qty?', '3')", "3", "prompt accepted: Qty? (with '3')"),
        ("prompt('Qty?', 3)", "3", "prompt accepted: Qty? (with '3')"),
        ("prompt('Qty?')", "", "prompt accepted: Qty?"),
        ("prompt('Name?', 'it\\'s')", "it's", "prompt accepted: Name? (with 'it\\'s')"),
        ("prompt('', 'x')", "x", "prompt accepted:  (with 'x')"),
        ("confirm('Sure?')", "true", "confirm accepted: Sure?"),
    ],
)
async def test_a_prompt_keeps_its_default(
    session: ChromiumSession, server: PageServer, script: str, value: str, notice: str
) -> None:
    page = await opened(session, server, f'<button onclick="p.textContent = {script}">Ask</button><p id=p></p>')
    reason, page = await acted(session, page, "click 'Ask' []")
    assert (reason, page.notice) == ("", notice)
    assert await session.evaluate("last", "p.textContent") == value


@pytest.mark.parametrize(
    "html",
    [
        "<button onclick='f.click()'>Go</button><input type=file id=f hidden>",
        "<button onclick=\"Object.assign(document.createElement('input'), {type: 'file'}).click()\">Go</button>",
        "<button onclick='f.showPicker()'>Go</button><input type=file id=f multiple hidden>",
        "<label>Go<input type=file id=f hidden onclick='1'></label>",
        "<button onclick='setTimeout(() => f.click(), 300)'>Go</button><input type=file id=f hidden>",
        "<p role=button tabindex=0 onclick='document.getElementById(`f`).click()'>Go</p><input type=file id=f hidden>",
    ],
)
async def test_a_chooser_of_files_is_spoken_of(session: ChromiumSession, server: PageServer, html: str) -> None:
    page = await opened(session, server, html)
    node = next(node for node in page.nodes if node.name == "Go")
    for _ in range(2):
        assert await session.act(Action("click", node.id)) == ""
        page = await session.observe()
        assert page.notice == "the page asks for a file, and there is none to choose here; go on without it"


async def test_a_listener_to_keys_that_does_not_end_is_stopped_once(server: PageServer) -> None:
    async with BrowserPool(timeout=1.0, deadline=2.0) as pool:
        session = await pool.session()
        page = await opened(
            session, server, "<h1>Top</h1><input aria-label=F id=f><script>f.onkeydown = () => { for (;;); }</script>"
        )
        reason, page = await acted(session, page, "type 'F' [] 'abc'")
        assert "did not take 'abc'" in reason
        assert "a script of the page did not end within 2 s and was stopped" in page.notice
        assert names(page) == ["Top", "F"]
        await session.close()
