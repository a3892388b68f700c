"""Long pages and long lists: a budget of elements that moves with the window, and options that are told on demand."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator

import pytest
import pytest_asyncio
from web_pages import PageServer, acted, names, opened, serving

from dynaweb.types import Action, Node, Observation
from dynaweb.web.actions.grammar import parse_action
from dynaweb.web.chromium.pool import BrowserPool
from dynaweb.web.chromium.session import ChromiumSession
from dynaweb.web.near_options import nearest_labels
from dynaweb.web.page.text import parse_compact, parse_page, render
from dynaweb.web.page.view import Viewed, nearest
from dynaweb.web.static.session import StaticSession
from dynaweb.worldmodels.dynamics import in_page, refusal

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def server() -> Iterator[PageServer]:
    with serving() as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool() -> AsyncIterator[BrowserPool]:
    async with BrowserPool(timeout=20, deadline=60) as pool:
        yield pool


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def session(pool: BrowserPool) -> AsyncIterator[ChromiumSession]:
    session = await pool.session()
    yield session
    await session.close()


def _links(count: int) -> str:
    return "<ul>" + "".join(f"<li><a href=/{i}>Item {i}</a>" for i in range(count)) + "</ul>"


def _in_scroller(count: int) -> str:
    return f"<h1>Head</h1><main style='height:500px;overflow:auto' tabindex=0 id=m>{_links(count)}</main>"


def _in_columns(count: int) -> str:
    aside = "<aside style='float:left;width:200px'>" + "".join(f"<p>Side {i}" for i in range(count // 4)) + "</aside>"
    return f"{aside}<section style='margin-left:300px'>{_links(count)}</section>"


def _with_script(count: int) -> str:
    header = "<header style='position:fixed'><button>Menu</button></header>"
    return f"{header}{_links(count)}<script>onscroll = () => 0</script>"


SCROLL_TO_END = """(() => { const box = document.querySelector('main') || document.scrollingElement;
box.scrollTop = box.scrollHeight })()"""


@pytest.mark.parametrize(
    ("make", "view"),
    [
        (_links, "compact"),
        (_in_scroller, "full"),
        (_in_columns, "webarena"),
        (_with_script, "browsergym"),
        (_with_script, "compact"),
    ],
)
async def test_what_is_shown_of_a_long_page_moves_with_the_window(
    session: ChromiumSession,
    pool: BrowserPool,
    server: PageServer,
    monkeypatch: pytest.MonkeyPatch,
    make: Callable[[int], str],
    view: str,
) -> None:
    monkeypatch.setattr(pool, "view", view)
    monkeypatch.setattr(pool, "max_nodes", 300)
    page = await opened(session, server, make(800))
    assert "Item 0" in names(page) and "Item 799" not in names(page)
    assert page.truncated and "below; scroll" in page.notice and "above" not in page.notice
    assert len(page.nodes) <= 300 and [node.id for node in page.nodes] == list(range(1, len(page.nodes) + 1))
    await session.evaluate("last", SCROLL_TO_END)
    page = await session.observe()
    assert "Item 799" in names(page) and "Item 0" not in names(page)
    assert page.truncated and "above; scroll" in page.notice and "below" not in page.notice
    assert len(page.nodes) <= 300 and parse_compact(render(page)) == page
    reason, page = await acted(session, page, "click 'Item 799' []")
    assert (reason, page.url) == ("", server.url("/799"))


async def test_a_long_page_that_is_scrolled_by_actions_can_be_read_to_its_end(
    session: ChromiumSession, pool: BrowserPool, server: PageServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "max_nodes", 60)
    page = await opened(session, server, _links(200))
    seen = set(names(page))
    for _ in range(12):
        _, page = await acted(session, page, "scroll down")
        seen.update(names(page))
    assert seen == {f"Item {i}" for i in range(200)}
    assert "above" in page.notice
    monkeypatch.setattr(pool, "max_nodes", 1500)
    monkeypatch.setattr(pool, "max_chars", 900)
    page = await session.observe()
    assert "Item 199" in names(page) and page.truncated and len(render(page)) < 1100


HUGE = {
    "flat": lambda: _links(15_500),
    "deep rows": lambda: "<table>" + "".join(f"<tr><td><b>Item {i}</b><td>x" for i in range(8000)) + "</table>",
    "long texts": lambda: "".join(f"<p>Item {i}<p>{'word ' * 500}" for i in range(900)),
}


@pytest.mark.parametrize("kind", HUGE)
async def test_a_page_of_tens_of_thousands_of_elements_shows_what_is_near(
    session: ChromiumSession, server: PageServer, kind: str
) -> None:
    page = await opened(session, server, HUGE[kind]())
    last = await session.evaluate("last", "[...document.body.innerText.matchAll(/Item \\d+/g)].pop()[0]")
    assert "Item 0" in names(page) and last not in names(page)
    assert "below; scroll" in page.notice and 300 < len(page.nodes) <= 1500
    assert await session.act(Action("press", text="End")) == ""
    page = await session.observe()
    assert last in names(page) and "Item 0" not in names(page)
    assert "above; scroll" in page.notice and 300 < len(page.nodes) <= 1500


async def test_nearest_keeps_what_a_node_stands_in() -> None:
    nodes = tuple(Node(i + 1, "generic", str(i), depth=depth) for i, depth in enumerate((0, 1, 2, 1, 2, 2)))
    viewed, above, below = nearest(Viewed(nodes), [-9, -9, -9, -9, -1, 5], max_nodes=3)
    assert [(node.id, node.name) for node in viewed.nodes] == [(1, "0"), (2, "3"), (3, "4")]
    assert (viewed.truncated, above, below) == (True, 2, 1)
    assert nearest(Viewed(nodes), [0] * 6, max_nodes=6) == (Viewed(nodes), 0, 0)


LANGUAGES = [f"Language {i}" for i in range(100)]


def _select(attributes: str = "", chosen: int = 0) -> str:
    options = "".join(f"<option{' selected' if i == chosen else ''}>{name}" for i, name in enumerate(LANGUAGES))
    return f"<select aria-label=Language {attributes}>{options}</select><button>After</button>"


def _list(page: Observation) -> Node:
    return next(node for node in page.nodes if node.name == "Language")


def _options(page: Observation) -> list[str]:
    return dict(_list(page).props)["options"].split("|")


SCRIPT = "<p id=o></p><script>document.querySelector('button').onclick = () => o.textContent = 'pressed'</script>"


@pytest.mark.parametrize("script", ["", SCRIPT])
@pytest.mark.parametrize("view", ["compact", "full"])
async def test_a_long_list_tells_a_few_options_until_it_is_clicked(
    session: ChromiumSession,
    pool: BrowserPool,
    server: PageServer,
    monkeypatch: pytest.MonkeyPatch,
    view: str,
    script: str,
) -> None:
    monkeypatch.setattr(pool, "view", view)
    page = await opened(session, server, _select(chosen=50) + script)
    assert _options(page) == [*LANGUAGES[:10], "Language 50"]
    assert (_list(page).value, dict(_list(page).props)["total"]) == ("Language 50", "100")
    assert parse_compact(render(page)) == page and parse_page(render(page, "html"), "html").nodes == page.nodes
    _, page = await acted(session, page, "click 'Language' []")
    assert _options(page) == LANGUAGES and "total" not in dict(_list(page).props)
    _, page = await acted(session, page, "click 'After' []")
    assert len(_options(page)) == 11 and ("pressed" in names(page)) == bool(script)
    reason, page = await acted(session, page, "select 'Language' [] 'Language 77'")
    assert (reason, _list(page).value, _options(page)[-1]) == ("", "Language 77", "Language 77")
    number = _list(page).id
    reason = await session.act(Action("select", number, "language 9"))
    assert "has no option 'language 9'; the nearest of its 100 are 'Language 9' 'Language 9" in reason
    assert reason.count("'Language ") == 5


async def test_options_that_are_not_told_keep_labels_of_their_own(session: ChromiumSession, server: PageServer) -> None:
    groups = "".join(
        f"<optgroup label={group}>" + "".join(f"<option>Shade {i}" for i in range(12)) + "</optgroup>"
        for group in ("Front", "Back")
    )
    page = await opened(session, server, f"<select multiple aria-label=Language>{groups}</select>")
    assert _options(page) == [f"Front: Shade {i}" for i in range(10)]
    for label in ("Back: Shade 11", "Front: Shade 11"):
        reason, page = await acted(session, page, f"select 'Language' [] '{label}'")
        assert reason == "" and label in _options(page)
    assert _list(page).value == "Front: Shade 11|Back: Shade 11"


@pytest.mark.parametrize("view", ["webarena", "browsergym"])
async def test_lists_whose_options_are_elements_are_short_too(
    session: ChromiumSession, pool: BrowserPool, server: PageServer, monkeypatch: pytest.MonkeyPatch, view: str
) -> None:
    monkeypatch.setattr(pool, "view", view)
    page = await opened(session, server, _select(chosen=50))
    told = [node.name for node in page.nodes if node.role == "option"]
    assert told == [*LANGUAGES[:10], "Language 50"]
    text = render(page, view)
    assert "total" in text and parse_page(text, view, page.url).nodes == page.nodes
    _, page = await acted(session, page, "click 'Language' []")
    assert [node.name for node in page.nodes if node.role == "option"] == LANGUAGES
    reason, page = await acted(session, page, "click 'Language 99' []")
    assert (reason, [node.name for node in page.nodes if node.role == "option"][-1]) == ("", "Language 99")


@pytest.mark.parametrize(("limit", "told"), [(0, 100), (3, 3), (99, 99), (100, 100)])
async def test_how_many_options_are_told_is_a_setting(
    session: ChromiumSession,
    pool: BrowserPool,
    server: PageServer,
    monkeypatch: pytest.MonkeyPatch,
    limit: int,
    told: int,
) -> None:
    monkeypatch.setattr(pool, "max_options", limit)
    page = await opened(session, server, _select())
    assert len(_options(page)) == told


async def test_the_static_driver_tells_the_same(session: ChromiumSession, server: PageServer) -> None:
    html = f"<!doctype html><title>t</title><body>{_select(chosen=50)}".encode()

    def app(environ: object, start: Callable[..., object]) -> list[bytes]:
        start("200 OK", [("Content-Type", "text/html")])
        return [html]

    static = StaticSession(app)
    await static.goto("http://site.localhost/")
    page = await opened(session, server, _select(chosen=50))
    for reply in ("click 'Language' []", "select 'Language' [] 'Language 77'", "click 'After' []"):
        one, other = await acted(session, page, reply), await acted(static, await static.observe(), reply)
        assert one[0] == other[0] and render(one[1]).split("\n")[1:] == render(other[1]).split("\n")[1:]
        page = one[1]
    wrong = Action("select", _list(page).id, "Language 777")
    assert await session.act(wrong) == await static.act(wrong) != ""


async def test_dreams_do_not_refuse_an_option_that_is_not_told() -> None:
    node = Node(1, "combobox", "Language", "A", (("total", "100"), ("options", "A|B")))
    page = Observation("http://a/", (node,))
    action = parse_action("select 'Language' [1] 'Z'", page)
    assert isinstance(action, Action) and refusal(page, action) == ""
    after = in_page(page, action)
    assert after is not None and (after.nodes[0].value, dict(after.nodes[0].props)["options"]) == ("Z", "A|B|Z")


@pytest.mark.parametrize(
    ("label", "first"),
    [("germn", "German"), ("GERMAN", "German"), ("Deutsch (German)", "German"), ("Itallian", "Italian"), ("", None)],
)
async def test_near_labels_come_first(label: str, first: str | None) -> None:
    labels = ["French", "German", "Italian", "Low German", "Spanish", "Swedish"]
    near = nearest_labels(label, labels)
    assert len(near) == 5 and first in (near[0], None)
