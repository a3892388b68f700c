"""Forty small pages with every kind of element: what differential tests print with other packages' code.

Their bodies stand in `reference/pages.txt`, one below each line `== name`; the page `frames` shows a page `/inner`.
"""

from __future__ import annotations

from pathlib import Path

from folders import TESTS

INNER = "<p>inner</p><button>Press</button><input aria-label=Field value=x>"
MINIWOB = (
    "click-button", "enter-text", "login-user", "click-checkboxes", "click-tab", "choose-list", "search-engine",
    "email-inbox", "use-autocomplete", "click-collapsible", "social-media", "navigate-tree",
)  # fmt: skip
"""Tasks of MiniWoB++ whose pages are compared as well."""
MINIWOB_START = "(() => { Math.seedrandom('7'); core.EPISODE_MAX_TIME = 1e8; core.startEpisodeReal(); })()"


def rows(count: int) -> str:
    """A list of products: about thirteen nodes of the tree a row."""
    return "".join(f"<div><h4>Row {i}</h4><p>Text of row {i}</p><a href=/{i}>Open {i}</a></div>" for i in range(count))


def _read(path: Path) -> dict[str, str]:
    parts = path.read_text(encoding="utf-8").removeprefix("== ").split("\n== ")
    return {name: html.removesuffix("\n") for name, _, html in (part.partition("\n") for part in parts)}


PAGES = {**_read(TESTS / "reference" / "pages.txt"), "long": rows(40)}
"""HTML of the bodies by name."""
