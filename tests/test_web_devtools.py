"""Commands go to the browser past Playwright's walk through answers, and say the same."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from web_pages import serving

from dynaweb.web.browser import BrowserPool
from dynaweb.web.devtools import TabError, sender_of


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
    ("inner", "said"),
    [(_with_timeout, "inner a {} None"), (_without, "inner a {}"), (_otherwise, "public a"), (_plain, "public a")],
)
def test_only_a_method_that_looks_as_expected_is_used(inner: Any, said: str) -> None:
    async def ask() -> Any:
        return await sender_of(_Session(inner))("a", {})

    assert asyncio.run(ask()) == said


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
