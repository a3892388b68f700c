"""Pages that would say nothing: empty answers, and what waits for a service worker."""

from __future__ import annotations

from web_pages import serving

from dynaweb.web.chromium.pool import BrowserPool


async def test_empty_answers_and_service_workers() -> None:
    with serving() as server:
        server.pages["/worker"] = """<p id=out>no</p><script>
addEventListener('unhandledrejection', () => out.textContent = 'thrown');
navigator.serviceWorker.register('/sw.js').then(found => {
  found.addEventListener('updatefound', () => 0);
  if (!found.installing && !found.active && found.scope) return found.update();
}).then(() => found = navigator.serviceWorker.getRegistration()).then(one => out.textContent = 'done ' + one);
</script>"""
        server.pages["/blank"] = ""
        async with BrowserPool(timeout=2.0) as pool:
            session = await pool.session()
            await session.reset()
            for status in (404, 500, 403, 503, 410):
                await session.goto(server.url(f"/empty/{status}"))
                page = await session.observe()
                assert str(status) in page.notice or [node.name for node in page.nodes] == [
                    "This page is not available"
                ]
                assert page.url == server.url(f"/empty/{status}")
            for path in ("/blank", "/empty/200"):
                await session.goto(server.url(path))
                assert (await session.observe()).notice == ""
            await session.goto(server.url("/worker"))
            assert [node.name for node in (await session.observe()).nodes] == ["done undefined"]
            assert not [path for _, path, _ in server.requests if path == "/sw.js"]
            await session.close()
