"""The report as one HTML file that needs nothing else: no network, no fonts, no libraries.

Page text is untrusted. It reaches the file in two ways only: escaped as HTML, or as JSON without a `<`, which the
viewer shows as text. Beyond that the file forbids itself, by a content security policy, every request and every script
but its own, known by its hash.
"""

from __future__ import annotations

import base64
import hashlib
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources

from dynaweb.data.images import pictures_of
from dynaweb.report import sections, viewer
from dynaweb.report.data import EpisodeFile, ReportData
from dynaweb.report.markup import Child, Html, anchor, el, embed, heading, join, section
from dynaweb.report.tokens import TokenTexts, token_texts


@dataclass(frozen=True, slots=True)
class Linked:
    """How a page stands among others of a folder of runs, as `dynaweb view` serves or writes them.

    `stamp` is that of a live page, which asks its own server, and nobody else, whether it has changed. `ups` are the
    ways back, to the list of runs and to a matrix: words and address. `compare` is the address of the comparison of
    this run's arms, '' where there is none. Trajectories are files beside the page (`data/<file>/<block>.js`), loaded
    when they are opened; while the server is still `reading` them the page says so.
    """

    stamp: str = ""
    ups: tuple[tuple[str, str], ...] = ()
    compare: str = ""
    reading: bool = False


def render(data: ReportData, *, linked: Linked | None = None) -> str:
    """The report as HTML source, to be written as UTF-8: one file, or a page that is `linked` with others."""
    texts = token_texts(data.path) if data.path is not None and linked is None else None
    files = list(data.files) if linked is not None else viewer.sampled(data.samples)
    body = join(
        sections.header(data, live=bool(linked and linked.stamp), up=way_back(linked)),
        el("main", *_sections(data, files, linked)),
        _footer(data),
        _index(files, data),
        *([] if linked is not None else _blocks(data, texts)),
    )
    # Those of a linked page come later.
    pictures = linked is not None or any(True for sample in data.samples for _ in pictures_of(sample.trajectory))
    scripts, styles = ("episode.js", "viewer.js"), ("viewer.css",)
    return own_page(data.title, body, linked=linked, scripts=scripts, styles=styles, pictures=pictures)


def own_page(
    title: str,
    body: Html,
    *,
    linked: Linked | None = None,
    interactive: bool = True,
    scripts: Sequence[str] = (),
    styles: Sequence[str] = (),
    pictures: bool = False,
) -> str:
    """A self-contained page in the report's style, as HTML source.

    It has no script unless it is `interactive`: then `body` holds the buttons of `sections.live_buttons`, that for news
    only with a stamp. With `pictures` it may show those beside it. `scripts` and `styles` are files of `static`
    besides those of every page.
    """
    style = "".join(map(_static, ("report.css", *styles)))
    policy, script = f"default-src 'none'; style-src {_hash(style)}", Html("")
    if interactive:
        source = "".join(map(_static, ("base.js", *scripts, "start.js")))
        policy, script = _policy(source, style, linked, pictures), el("script", Html(source))
    head = el(
        "head",
        el("meta", charset="utf-8"),
        el("link", rel="icon", href="data:,") if pictures else None,
        el("meta", http_equiv="Content-Security-Policy", content=policy),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", name="referrer", content="no-referrer"),
        el("title", f"{title} - dynaweb"),
        el("style", Html(style)),
    )
    page = join(head, el("body", body), script)
    return f"<!doctype html>\n{el('html', page, lang='en', data_stamp=(linked.stamp if linked else '') or None)}\n"


def way_back(linked: Linked | None) -> Html | None:
    """The links to the list of runs and to the matrix."""
    if linked is None or not linked.ups:
        return None
    links = [el("a", words, href=address) for words, address in linked.ups]
    return el("nav", *links, class_="up", aria_label="way back")


def _sections(data: ReportData, files: Sequence[EpisodeFile], linked: Linked | None) -> list[Html | None]:
    # Side by side in a wide window: both are short.
    pair = [part for part in (sections.drift(data), sections.audits(data)) if part is not None]
    labels = _labels(data)
    shown = {(labels.get(row.arm, row.arm), row.failure) for file in files for row in file.rows if row.failure}
    parts = [
        sections.arms(data),
        sections.prerequisites(data),
        sections.audited(data),
        sections.asynchronous(data),
        sections.curves(data),
        sections.stages(data),
        sections.fidelity(data),
        el("div", *pair, class_="pair") if pair else None,
        sections.failures(data, shown),
        _viewer(data, files, linked),
        sections.recipe(data),
    ]
    return [_contents([part for part in parts if part is not None]), *parts]


def _contents(parts: Sequence[Html]) -> Html | None:
    """Links to the sections; nothing where there are few."""
    titles = [match for part in parts for match in re.findall(r'<section id="([^"]+)"><h2>([^<]+)<', part)]
    if len(titles) < 3:
        return None
    # The words are those of the headings, which are escaped there.
    links = [el("a", Html(title), href=f"#{anchor}") for anchor, title in titles]
    return el("nav", *links, class_="contents", aria_label="sections")


@cache
def _static(name: str) -> str:
    return resources.files("dynaweb.report").joinpath("static", name).read_text(encoding="utf-8")


def _policy(script: str, style: str, linked: Linked | None, pictures: bool) -> str:
    """What the page may load: nothing but itself and its pictures; where it is linked, files beside it, and its
    server's news.

    A browser may not count a file beside it as its own, so a page that is no server's names the scheme.
    """
    scripts = _hash(script)
    if linked is not None:
        scripts += " 'self'" if linked.stamp else " 'self' file:"
    own = f"script-src {scripts}; style-src {_hash(style)}" + (
        "; connect-src 'self'" if linked and linked.stamp else ""
    )
    if pictures:
        # `data:` is for the empty icon, without which a browser asks the server for one.
        own += f"; img-src 'self' data:{'' if linked and linked.stamp else ' file:'}"
    return f"default-src 'none'; {own}; base-uri 'none'; form-action 'none'"


def _hash(source: str) -> str:
    digest = hashlib.sha256(source.encode("utf-8")).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _viewer(data: ReportData, files: Sequence[EpisodeFile], linked: Linked | None) -> Html | None:
    shown = sum(len(file.rows) for file in files)
    if not shown and linked is not None and linked.reading:
        return section("Trajectories", "The trajectories are being read. They stand here as soon as that is done.")
    if not shown:
        return None
    total = max(data.total, shown)
    part = "All" if total == shown else f"{shown:,} of"
    every = "The only trajectory" if total == 1 else f"{part} {total:,} trajectories"
    lead = f"{every}, step by step: the page, the action marked in it, and what followed."
    keys = ("j", "next"), ("k", "previous trajectory"), ("\N{LEFTWARDS ARROW}", ""), ("\N{RIGHTWARDS ARROW}", "step")
    hints = [join(el("kbd", key), f" {word}  ") for key, word in (*keys, ("/", "search"))]
    compare = el("p", el("a", "Two arms side by side", href=linked.compare)) if linked and linked.compare else None
    return el(
        "section",
        heading("Trajectories"),
        el("p", lead, *([] if total == shown else _more(data)), class_="lead"),
        compare,
        _filters(files, _labels(data)),
        el("p", class_="found", role="status"),
        el("div", _list_pane(), el("div", class_="detail"), id="viewer", class_="card viewer", data_block=viewer.BLOCK),
        el("p", *hints, class_="keys"),
        id=anchor("Trajectories"),
    )


def _more(data: ReportData) -> list[Child]:
    """How the trajectories shown were chosen, and how to see all."""
    folder = data.folder or data.title
    return [
        " They are spread from the first update to the last, successes and failures in equal shares where there are. "
        "All of them: ",
        el("code", f"dynaweb report --all {shlex.quote(folder)}"),
        ".",
    ]


def _list_pane() -> Html:
    pager = el(
        "div",
        el("button", "\N{LEFTWARDS ARROW}", class_="back", type="button", aria_label="previous page of the list"),
        el("span", class_="range"),
        el("button", "\N{RIGHTWARDS ARROW}", class_="on", type="button", aria_label="next page of the list"),
        class_="pager",
    )
    return el("aside", el("ol"), pager)


def _labels(data: ReportData) -> dict[str, str]:
    return {arm.name: arm.label for arm in data.arms}


def _filters(files: Sequence[EpisodeFile], labels: Mapping[str, str]) -> Html:
    """The search and the choices; `labels` are those of arms: phases such as demonstrations come after them."""
    rows = [row for file in files for row in file.rows]
    played = dict.fromkeys(labels.get(row.arm, row.arm) for row in rows)
    arms = [name for name in played if name in labels.values()] or list(played)
    failures = sorted({row.failure for row in rows if row.failure})
    return el(
        "div",
        el(
            "input",
            id="search",
            type="search",
            placeholder="Search tasks, pages, replies, errors",
            aria_label="search tasks, pages, replies, errors",
        ),
        _select("arm", "all arms", arms),
        _select("source", "all sources", list(dict.fromkeys(row.source for row in rows))),
        _select("outcome", "all outcomes", ["success", "failure", "ungraded"]),
        _select("failure", "all kinds of failure", failures) if failures else None,
        class_="filters",
    )


def _select(name: str, everything: str, values: Sequence[str]) -> Html:
    options = [el("option", everything, value=""), *[el("option", value, value=value) for value in values]]
    return el("select", *options, id=f"filter-{name}", aria_label=name)


def _index(files: Sequence[EpisodeFile], data: ReportData) -> Html:
    has_rows = any(file.rows for file in files)
    return embed(viewer.index(files, _labels(data)), id="trajectory-index") if has_rows else Html("")


def _blocks(data: ReportData, texts: TokenTexts | None) -> Iterator[Html]:
    for at, block in enumerate(viewer.blocks(data.samples, texts)):
        yield embed(block, id=f"trajectories-{at}")


def _footer(data: ReportData) -> Html:
    version = data.versions.get("dynaweb")
    return el("footer", f"Made by dynaweb{' ' + version if version else ''}.")
