"""The mouse of an episode that is over is nowhere: nothing that a later page shows gets its events."""

from __future__ import annotations

import pytest
from web_pages import acted, names, serving

from dynaweb.types import Action
from dynaweb.web.chromium.pool import BrowserPool

pytestmark = pytest.mark.asyncio

BUTTON = "<button style='position:fixed;inset:0;width:100%' onclick=0>Press</button>"
# What shows up under a mouse that rests is entered without a move, as the list of a field that completes words.
MENU = """<p id=p>nothing</p><button onclick="document.body.append(menu)">Open</button>
<script>const menu = document.createElement('div');
menu.style = 'position:fixed;inset:80px 0 0 0;background:white';
menu.textContent = 'Menu';
menu.onmouseenter = () => p.textContent = 'entered';
setTimeout(() => document.body.append(menu), 50);</script>"""

FRAMES = "new Promise(done => { let left = 9; (function next() { left-- ? requestAnimationFrame(next) : done() })() })"


async def test_a_page_does_not_feel_the_mouse_of_the_episode_before() -> None:
    with serving() as server:
        server.pages["/button"], server.pages["/menu"] = BUTTON, MENU
        async with BrowserPool() as pool:
            session = await pool.session()
            for _ in range(3):
                await session.reset()
                await session.goto(server.url("/button"))
                assert (await acted(session, await session.observe(), "click 'Press' []"))[0] == ""
                await session.reset()
                await session.goto(server.url("/menu"))
                for _ in range(200):
                    if "Menu" in names(await session.observe()):
                        break
                # It is entered when the next frame is drawn, if at all.
                await session.evaluate("last", FRAMES)
                page = await session.observe()
                assert {"nothing", "Menu"} <= set(names(page))
            # Within an episode it stays where it was put.
            menu = next(node.id for node in page.nodes if node.name == "Menu")
            await session.act(Action("hover", menu))
            assert "entered" in names(await session.observe())
