"""The built documentation in Chromium: questions are found, pages fit every window, and axe has nothing to say.

`scripts/check_site.sh FOLDER` builds it; DYNAWEB_SITE names the folder. Without it there is nothing to look at.
"""

from __future__ import annotations

import functools
import os
import re
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from dynaweb.web.chromium.install import find

SITE = os.environ.get("DYNAWEB_SITE", "")
pytestmark = pytest.mark.skipif(not SITE, reason="DYNAWEB_SITE names no site; run scripts/check_site.sh FOLDER")
QUESTIONS = {
    "how do I use my own trajectories": "faq/#how-do-i-use-my-own-trajectories",
    "what does evidence mean": "faq/#what-does-evidence-mean",
    "how do I write a judge": "write-a-judge/",
    "reward.evidence": "faq/#what-does-evidence-mean",
    "rl.negative_scale": "optimizers/",
    "dynaweb.types.Trajectory": "reference/types/#dynaweb.types.Trajectory",
    "go on after a crash": "faq/#how-do-i-go-on-after-ctrl-c-a-crash-or-a-full-disk",
    "GRPOTrainer": "coming-from/#trl",
}
"""What a reader types -> what one of the first pages that are found must hold."""
FIRST = 5
"""Pages that are looked at."""
PAGES = ("", "faq/", "coming-from/", "gallery/", "write-a-judge/", "reference/errors/", "concepts/")
THEME = {"landmark-unique", "region", "scrollable-region-focusable"}
"""What axe says of the theme's own frame, which is not ours to mend."""
LINKS = "all => all.map(a => a.href)"


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(Path(SITE))))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=str(find().path), args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture
def page(browser: Browser, address: str) -> Iterator[Page]:
    """A page of the site; the test fails where a page asks another machine for anything, or writes an error."""
    trouble: list[str] = []
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    own = (address, "data:", "blob:")
    page.on("request", lambda request: None if request.url.startswith(own) else trouble.append(request.url))
    page.on("pageerror", lambda error: trouble.append(str(error)))
    yield page
    context.close()
    assert trouble == []


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_question_is_found_at_once(question: str, page: Page, address: str) -> None:
    """Typed into the search of the front page, the answer is among the first results."""
    page.goto(address)
    page.locator("label.md-search__icon[for=__search], .md-search__input").first.click()
    page.locator(".md-search__input").fill(question)
    page.locator(".md-search-result__item").first.wait_for(timeout=20_000)
    items = page.locator(".md-search-result__item")
    links = [link for at in range(FIRST) for link in items.nth(at).locator("a").evaluate_all(LINKS)]
    # The words that were searched for stand in the address, to be marked on the page.
    found = [re.sub(r"\?[^#]*", "", link) for link in links]
    wanted = QUESTIONS[question]
    assert any(wanted in one for one in found), found


@pytest.mark.parametrize("path", PAGES)
def test_pages_fit_every_window_and_pass_the_checks_of_axe(path: str, page: Page, address: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    page.goto(address + path)
    for width in (390, 320, 1280):
        page.set_viewport_size({"width": width, "height": 900})
        page.wait_for_timeout(500)  # the menu moves out of sight
        assert page.evaluate("document.documentElement.scrollWidth") <= width, (path, width)
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        page.wait_for_timeout(300)  # colours fade from one scheme to the other
        found = axe.run(page, context={"include": [["main"]]}).response["violations"]
        told = {one["id"]: [node["html"][:120] for node in one["nodes"]][:3] for one in found}
        assert {rule: nodes for rule, nodes in told.items() if rule not in THEME} == {}, (path, scheme)


def test_navigation_leads_to_every_page(page: Page, address: str) -> None:
    """Two clicks from the front page: a tab, and a page of its section."""
    page.goto(address)
    tabs = page.locator(".md-tabs__link").evaluate_all("all => all.map(a => [a.textContent.trim(), a.href])")
    assert [name for name, _ in tabs] == ["Start", "Guides", "Concepts", "Reference", "Results", "Contribute"]
    reached = set()
    for _, link in tabs:
        page.goto(link)
        links = page.locator(".md-sidebar--primary a.md-nav__link").evaluate_all(LINKS)
        reached |= {one.partition("#")[0] for one in links}
    assert {f"{address}{path}" for path in PAGES} <= reached
