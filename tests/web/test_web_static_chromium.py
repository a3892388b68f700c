"""The static session against real Chromium: equal on our own pages, in a script of actions, on the sites."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import cast

import pytest
from flask import Flask, redirect, request
from waitress import create_server
from werkzeug.wrappers import Response

from dynaweb.types import Action, ActionKind, Observation
from dynaweb.web.actions.grammar import format_action
from dynaweb.web.chromium.pool import BrowserPool
from dynaweb.web.page.text import render
from dynaweb.web.session import Session, UrlMap
from dynaweb.web.static.session import StaticSession
from dynaweb_env_sites.server import SitesServer, create_app
from dynaweb_env_sites.world_store import HEADER

pytestmark = pytest.mark.timeout(180)

PAGES = [
    "",
    "plain text",
    "<div>Hello <b>bold</b> and <small>small</small><i>i</i></div><p>Key: <strong>v</strong> <time>now</time></p>",
    "<div>text <p>para</p> more</div><ul><li>one<ul><li>two</li></ul>three</li></ul><ol><li>x<br>y</li></ol>",
    "<dl><dt>K</dt><dd>V</dd><div><dt>a</dt><dd>b <em>c</em></dd></div></dl><address>ad</address><hr>after",
    "<table><caption>cap</caption><tr><th>a</th><td>b <small>c</small></td></tr><tr><td><p>d</p><p>e</p></td>"
    "</tr></table>",
    "<table><thead><tr><th>H<th>I</thead><tbody><tr><td>1<td><a href=x>2</a> three<td><button>go</button></table>",
    "<header><nav aria-label=Main><ul><li><a href=/>Home</a></li></ul></nav></header><main><article><section>"
    "<h1>T</h1>"
    "<p>x</p></section></article></main><aside><h2>A</h2></aside><footer><p>f</p></footer>",
    "<p><a href=1>1</a> <strong>2</strong> <a href=3>Next</a></p>"
    "<p>pre <span>in <a href=x>l</a> span</span> post</p>",
    "<a href=x>é ü ł “q” 'x' &amp; &lt;b&gt; &nbsp; &hellip; &apos; \\ 中文 😀</a><p>A&nbsp;B   C\n D</p>",
    "<p role=status>Hi <b>you</b></p><p role=status></p><div role=alert>Al</div>"
    "<div role=dialog aria-label=Dlg><p>in</p><button>OK</button></div>",
    "<h2>Foo<b>bar</b> <span>x</span></h2><h2><a href=x>l</a> more</h2><h3><img alt=pic></h3>"
    "<h3> <em>c</em>d</h3><h1></h1>",
    "<button><span>a</span><span>b</span></button><button>»</button><button aria-label=L>»</button>"
    "<button title=t></button>"
    "<button title=t>»</button><button type=button disabled>\n x\n y </button><button><img alt=foo></button>",
    "<a href=x></a><a>no link</a><a href=x title=q>Foo<b>bar</b><div>baz</div><br>x</a><a href=x aria-label=AL>z</a>"
    "<a href=x><img alt=''></a><a href=x><img src=q alt=i> t</a><img alt=lonely>",
    "<label>Gift <input type=checkbox> wrap</label><label for=a>Qty <b>n</b>um</label>"
    "<input id=a title=t placeholder=p>"
    "<input title=t placeholder=p><input placeholder=p value=''><input aria-label='' value=v><input>",
    "<label for=z>one</label><label for=z>two</label><input id=z><label for=q>L <input id=r value=5> u</label>"
    "<input id=q>"
    "<span id=l1>L1</span> <span id=l2>L2 <b>x</b></span><input aria-labelledby='l1 l2'>",
    "<input type=search placeholder=Find value='x y'><input type=number value=1.50 required>"
    "<input type=number value=abc>"
    "<input type=password value=abc><input type=email required disabled value=q><input type=hidden value=h>",
    "<input type=submit><input type=reset><input type=submit value=Go><input type=button value=B>"
    "<input type=submit value=''>",
    "<textarea required aria-label=T>\nab\n cd</textarea><textarea placeholder=ph>  x </textarea><textarea>"
    "</textarea>",
    "<label>Sort<select><option>A</option><option selected>B &amp; C</option></select> after</label>"
    "<select><option value='' disabled>none</option></select><select><option label=lab>t<option value=v>a|b</select>"
    "<select><optgroup label=g><option>x</optgroup><option disabled selected>y</select><select required></select>",
    "<label><input type=radio name=a checked> One</label><label><input type=radio name=a> Two</label>"
    "<input type=checkbox id=c checked disabled required><label for=c>C</label><input type=checkbox title=tc>",
    "<fieldset disabled><legend>Leg</legend><input aria-label=i><button>x</button></fieldset>"
    "<label>W <button>b</button></label>",
    "<div hidden>h</div><div aria-hidden=true>i<button>x</button></div><div style='display: none'>j</div><p>seen</p>",
    "<p>" + "long word " * 40 + "</p><a href=x>" + "y" * 200 + "</a><textarea>" + "z" * 30 + "\n\n q</textarea>",
    "<p>x<span title=t>y</span>z</p><div>x<span id=t>y</span>z</div>"
    "<div>a<code>c</code>b <abbr title=q>ab</abbr></div>",
    "<form><div><label for=n>N</label><input id=n></div><p>Total: <b>3</b></p><form><button>b</button></form></form>",
    "<!-- c --><p>a<!-- c -->b</p><script>'no'</script><style>p{}</style><p>c",
    "<blockquote>b<cite>c</cite></blockquote><figure><img alt=i><figcaption>cap</figcaption></figure>"
    "<pre>c\n d</pre><del>o</del>",
]  # fmt: skip

FORM = """<!doctype html><p>Visit {n}</p><form action="/post" method="post"><label for="t">T</label>
<input id="t" name="t" value="d">
<textarea name="a" aria-label="A">x</textarea><input type="checkbox" name="c" aria-label="C">
<select name="s" aria-label="S">
<option>1<option>2</select><button name="g" value="1">Go</button><button type="reset">Reset</button></form>
<form action="/get"><input name="q" aria-label="Lone"></form><form action="/get#f">
<input name="n" aria-label="N" type="number" min="2">
<input name="m" aria-label="M" maxlength="3" required><button>Check</button></form><form action="/">
<button>Home form</button></form>
<a href="/get?q=é x~*'&b=^|">Query</a> <a href="#f">Part</a> <a href="#">Top</a> <a href="/">Self</a>
<a href="/move">Move</a>
<a href="http://evil.org/">Evil</a> <a href="/none">None</a> <a href="/secret">Secret</a>"""

SCRIPT = r"""
type|T|typed
type|A|one\ntwo|enter
click|C
select|S|2
click|Query
go_back
click|Reset
go_forward
click|Back
type|T|é ~*'"&=+\n2|enter
click|Back
go_back
go_back
go_back
click|Self
click|Home form
click|Home form
go_back
click|Part
type|Lone|a b
click|Top
go_back
press||Enter
type|Lone||enter
click|Back
click|Check
type|M|abcdef
type|N|1
click|Check
type|N|1e1x
type|N|7.0
click|Check
go_back
click|None
go_back
click|Move
go_back
click|Evil
go_back
click|Secret
click|Back
go_back
goto||evil.org/x
goto||ftp://x/
goto||shop.localhost/get?a=é b'#z z
go_back
click|Visit 1
type|Back|x
go_forward
go_forward
scroll||down
"""
"""Kind, name of the element, text, `enter`; `\\n` stands for a line break."""


def make_app() -> Flask:
    app = Flask(__name__)
    app.config["visits"] = 0

    @app.get("/")
    def home() -> str:
        app.config["visits"] += 1
        return FORM.replace("{n}", str(app.config["visits"]))

    @app.get("/page/<int:number>")
    def page(number: int) -> str:
        return f"<!doctype html><title>Page</title>{PAGES[number]}"

    @app.get("/get")
    def get() -> str:
        return f"<p>{sorted(request.args.items())}</p><a href='/'>Back</a>"

    @app.post("/post")
    def post() -> str:
        return f"<p>{sorted(request.form.items())}</p><a href='/'>Back</a>"

    @app.get("/move")
    def move() -> Response:
        return redirect("/get?moved=1")  # type: ignore[return-value]

    @app.get("/secret")
    def secret() -> Response:
        app.config["visits"] += 1
        body = f"<p>Secret {app.config['visits']}</p><input aria-label=I><a href='/'>Back</a>"
        return Response(body, mimetype="text/html", headers={"Cache-Control": "no-store"})

    return app


@pytest.fixture
def served() -> Iterator[tuple[Flask, UrlMap]]:
    app = make_app()
    server = create_server(app, host="127.0.0.1", port=0)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    yield app, UrlMap({f"http://shop.localhost:{server.effective_port}": "http://shop.localhost"})
    server.close()
    thread.join(timeout=5)


@asynccontextmanager
async def chromium(urls: UrlMap) -> AsyncIterator[Session]:
    async with BrowserPool(urls=urls) as pool:
        session = await pool.session()
        await session.reset()
        yield session


def lines(page: Observation) -> list[str]:
    """What a model reads of a page, then where its links lead, which no model reads."""
    addresses = [f"{node.id} {node.address}" for node in page.nodes if node.address]
    return [*render(page).split("\n"), *addresses]


async def look(session: Session, url: str) -> list[str]:
    await session.goto(url)
    return lines(await session.observe())


def test_pages_are_read_alike(served: tuple[Flask, UrlMap]) -> None:
    app, urls = served

    async def read() -> list[tuple[str, list[str], list[str]]]:
        static = StaticSession(app)
        snapshots = []
        async with chromium(urls) as browser:
            for number, source in enumerate(PAGES):
                url = f"http://shop.localhost/page/{number}"
                snapshots.append((source, await look(browser, url), await look(static, url)))
        return snapshots

    for source, wanted, got in asyncio.run(read()):
        assert got == wanted, source


async def play(app: Flask, session: Session) -> list[tuple[str, str, list[str]]]:
    app.config["visits"] = 0
    await session.goto("http://shop.localhost/")
    page = await session.observe()
    seen = []
    for line in SCRIPT.strip().split("\n"):
        kind, name, text, enter = (line.split("|") + [""] * 3)[:4]
        target = next((node.id for node in page.nodes if node.name == name), None)
        reason = await session.act(Action(cast(ActionKind, kind), target, text.replace("\\n", "\n"), bool(enter)))
        page = await session.observe()
        seen.append((line, reason, lines(page)))
    return seen


def test_a_script_of_actions_gives_the_same_pages_and_reasons(served: tuple[Flask, UrlMap]) -> None:
    app, urls = served

    async def both() -> tuple[list[tuple[str, str, list[str]]], list[tuple[str, str, list[str]]]]:
        async with chromium(urls) as browser:
            return await play(app, browser), await play(app, StaticSession(app, hosts=["shop.localhost"]))

    wanted, got = asyncio.run(both())
    for number, (left, right) in enumerate(zip(wanted, got, strict=True)):
        assert right == left, f"step {number}"


def random_action(page: Observation, chance: random.Random) -> Action:
    """Mostly something that can be acted on; texts that find something, nothing, or need escapes."""
    nodes = [node for node in page.nodes if node.role in ("link", "button", "textbox", "combobox", "checkbox")]
    if not nodes or chance.random() < 0.12:
        return Action(chance.choice(["go_back", "go_back", "go_forward", "scroll"]))
    node = chance.choice(nodes)
    if node.role == "textbox":
        text = chance.choice(["a", "12", "Łóż q", "x & y", "", "o'n é", "wool~*"])
        return Action("type", node.id, text, chance.random() < 0.5, target_name=node.name)
    if node.role == "combobox":
        return Action("select", node.id, chance.choice(dict(node.props)["options"].split("|")), target_name=node.name)
    return Action("click", node.id, target_name=node.name)


STEPS = 64


@pytest.mark.parametrize("host", ["shop", "forum", "tracker"])
def test_a_random_walk_on_the_sites_gives_the_same_pages_and_state(host: str) -> None:
    app = create_app()

    async def walk(browser: Session, static: Session) -> set[str]:
        chance, urls, trail = random.Random(host), set(), [host]
        for number in range(STEPS):
            if number % 16 == 0:
                for session, token in ((browser, "1"), (static, "2")):
                    app.store.put(token, app.store.world(number, "pretrain"))
                    await session.reset(headers={HEADER: token})
                    await session.goto(f"http://{host}.localhost/")
            page, other = await browser.observe(), await static.observe()
            assert lines(other) == lines(page), trail
            urls.add(page.url)
            action = random_action(page, chance)
            trail.append(format_action(action))
            assert await static.act(action) == await browser.act(action), trail
            worlds = [app.store.get(token) for token in ("1", "2")]
            assert worlds[0] and worlds[1] and worlds[0].snapshot(host) == worlds[1].snapshot(host), trail
        return urls

    async def play_sites() -> set[str]:
        with SitesServer(app) as server:
            async with chromium(server.urls) as browser:
                return await walk(browser, StaticSession(app, [site.host for site in app.store.sites.values()]))

    assert len(asyncio.run(play_sites())) > STEPS // 4
