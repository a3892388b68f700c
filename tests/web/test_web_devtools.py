"""Commands go to the browser past Playwright's walk through answers, and say the same."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest
from web_pages import serving

from dynaweb.types import Action
from dynaweb.web.chromium.devtools import TabError, sender_of
from dynaweb.web.chromium.pool import BrowserPool
from dynaweb.web.chromium.tab import Tab


class _Session:
    """A session of Playwright whose inner method is `inner`."""

    def __init__(self, inner: Any) -> None:
        self._impl_obj = type("Inner", (), {"send": inner})()

    async def send(self, method: str, params: dict[str, Any]) -> str:
        return f"public {method}"


async def _with_timeout(self: object, method: str, params: object, timeout: object) -> str:
    return f"inner {method} {params} {timeout}"


async def _without(self: object, method: str, params: object) -> str:
    return f"inner {method} {params}"


async def _otherwise(self: object, method: str, message: object) -> str:
    raise AssertionError("unknown methods are not called")


def _plain(self: object, method: str, params: object) -> str:
    raise AssertionError("unknown methods are not called")


@pytest.mark.parametrize(
    ("inner", "message"),
    [(_with_timeout, "inner a {} None"), (_without, "inner a {}"), (_otherwise, "public a"), (_plain, "public a")],
)
def test_only_a_method_that_looks_as_expected_is_used(inner: Any, message: str) -> None:
    async def ask() -> Any:
        return await sender_of(_Session(inner))("a", {})

    assert asyncio.run(ask()) == message


@pytest.mark.asyncio
async def test_answers_are_those_of_the_public_method() -> None:
    with serving() as server:
        server.pages["/"] = "<h1 id=a>Title</h1><a href=/x>it's</a><input value=1>"
        async with BrowserPool() as pool:
            session = await pool.session()
            await session.reset()
            await session.goto(server.url())
            assert session._open is not None
            tab = session._open.current
            assert tab._sender != tab.cdp.send, "this Playwright has no inner method any more: reading is slower"
            tree = await tab.send("Accessibility.getFullAXTree")
            assert tree == await tab.cdp.send("Accessibility.getFullAXTree")
            assert any(node.get("name", {}).get("value") == "it's" for node in tree["nodes"])
            with pytest.raises(TabError, match="No node"):
                await tab.send("DOM.resolveNode", backendNodeId=10**6)


LIVE = "<button onclick='this.textContent = 1'>Press</button><script>document.title = 'Live'</script>"


@pytest.mark.asyncio
async def test_an_episode_takes_few_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every command is a way through three processes; what an episode costs is mostly their number."""
    sent: list[str] = []
    start = Tab._start

    def counted(tab: Tab, method: str, *rest: Any) -> Any:
        sent.append(method)
        return start(tab, method, *rest)

    monkeypatch.setattr(Tab, "_start", counted)

    async def cost(work: Awaitable[object]) -> int:
        before = len(sent)
        await work
        return len(sent) - before

    with serving() as server:
        server.pages["/live"], server.pages["/static"] = LIVE, "<a href=/live>Live</a>"
        async with BrowserPool() as pool:
            session = await pool.session()
            for _ in range(2):
                await session.reset()
                assert await cost(session.goto(server.url("/static"))) <= 2
                assert await cost(session.observe()) == 1
                assert await cost(session.goto(server.url("/live"))) <= 2
                assert await cost(session.observe()) == 2
                assert await cost(session.act(Action("click", 1))) <= 6
                assert [node.name for node in (await session.observe()).nodes] == ["1"]
            # One of them takes away `window.name`, which outlives pages.
            assert await cost(session.reset()) <= 9, sent[-10:]
