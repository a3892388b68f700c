"""Follows every internal link of a built site: pages, files, anchors, pictures. Other addresses are not visited.

    python scripts/check_links.py FOLDER

Exits with 1 and one line for each link that leads nowhere, and for each id that a page has twice.
"""

from __future__ import annotations

import posixpath
import sys
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Anchors(HTMLParser):
    """The ids of a page, and what it links to."""

    def __init__(self) -> None:
        super().__init__()
        self.ids = Counter[str]()
        self.targets: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        # Drawings inside of notebooks repeat ids of their own.
        if given.get("id") and tag not in ("path", "g", "use", "clipPath", "defs", "symbol"):
            self.ids[str(given["id"])] += 1
        elif tag == "a" and given.get("name"):
            self.ids[str(given["name"])] += 1
        wanted = {"a": "href", "link": "href", "img": "src", "script": "src", "source": "src", "iframe": "src"}.get(tag)
        if wanted and given.get(wanted):
            self.targets.append(str(given[wanted]))


def trouble(site: Path) -> list[str]:
    """A line for everything that is wrong in the site."""
    pages = {path.relative_to(site).as_posix(): _read(path) for path in sorted(site.rglob("*.html"))}
    files = {path.relative_to(site).as_posix() for path in site.rglob("*") if path.is_file()}
    found = [
        f"{name}: the id {one!r} is there {count} times"
        for name, page in pages.items()
        for one, count in page.ids.items()
        if count > 1 and not one.startswith("__")
    ]
    for name, page in pages.items():
        for target in dict.fromkeys(page.targets):
            reason = _reason(name, target, pages, files)
            if reason:
                found.append(f"{name}: {target}: {reason}")
    return found


def _read(path: Path) -> Anchors:
    page = Anchors()
    page.feed(path.read_text(encoding="utf-8"))
    return page


def _reason(name: str, target: str, pages: dict[str, Anchors], files: set[str]) -> str:
    """Why a link leads nowhere; '' where it leads somewhere, or out of the site."""
    parts = urlsplit(target)
    if parts.scheme or parts.netloc:
        return ""
    path = unquote(parts.path)
    # Addresses from the root are those of the page for what is missing, which is shown anywhere.
    base = "" if path.startswith("/") else posixpath.dirname(name)
    place = posixpath.normpath(posixpath.join(base, path.lstrip("/"))) if path else name
    if place.startswith(".."):
        return "it leaves the site"
    if place not in files:
        place = posixpath.normpath(posixpath.join(place, "index.html"))
    if place not in files:
        return "there is no such file"
    anchor = unquote(parts.fragment)
    # What holds a `=` is read by the scripts of a report, such as `#episodes?arm=SFT`.
    named = anchor and "=" not in anchor and not anchor.startswith(("__", "top"))
    if named and place in pages and not pages[place].ids[anchor]:
        return f"{place} has no such anchor"
    return ""


def main() -> int:
    """Check the folder that is named."""
    site = Path(sys.argv[1])
    if not (site / "index.html").is_file():
        print(f"{site} holds no site: there is no index.html", file=sys.stderr)
        return 1
    found = trouble(site)
    print(*found, sep="\n", file=sys.stderr)
    links = sum(len(set(_read(path).targets)) for path in site.rglob("*.html"))
    print(f"{site}: {len(list(site.rglob('*.html')))} pages, {links} links, {len(found)} of them wrong")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
