"""The report as one HTML file that needs nothing else: no network, no fonts, no libraries.

Page text is untrusted. It reaches the file in two ways only: escaped as HTML, or as JSON without a `<`, which the
viewer shows as text. Beyond that the file forbids itself, by a content security policy, every request and every script
but its own, known by its hash.
"""

from __future__ import annotations

import base64
import hashlib
import shlex
from collections.abc import Collection, Sequence
from importlib import resources
from typing import Any

from dynaweb.report import sections, viewer
from dynaweb.report.data import ReportData
from dynaweb.report.markup import Child, Html, el, embed, join


def render(data: ReportData, *, stamp: str = "") -> str:
    """The report as HTML source, to be written as UTF-8.

    With `stamp` it is one that `dynaweb view` serves: it asks its own server, and nobody else, whether it has changed.
    """
    script, style = _static("report.js"), _static("report.css") + _static("viewer.css")
    head = el(
        "head",
        el("meta", charset="utf-8"),
        el("meta", http_equiv="Content-Security-Policy", content=_policy(script, style, live=bool(stamp))),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", name="referrer", content="no-referrer"),
        el("title", f"{data.title} - dynaweb"),
        el("style", Html(style)),
    )
    body = el("body", sections.header(data, live=bool(stamp)), el("main", *_sections(data)), _footer(data), _data(data))
    page = join(head, body, el("script", Html(script)))
    return f"<!doctype html>\n{el('html', page, lang='en', data_stamp=stamp or None)}\n"


def own_page(title: str, body: Html, *, stamp: str = "", interactive: bool = False) -> str:
    """Another self-contained page in the report's style, as HTML source; `stamp` is that of `render`.

    It has no script unless it is `interactive`: then `body` holds the buttons of `sections.live_buttons`, that for news
    only with a stamp.
    """
    style = _static("report.css")
    policy, script = f"default-src 'none'; style-src {_hash(style)}", Html("")
    if interactive:
        source = _static("report.js")
        policy, script = _policy(source, style, live=bool(stamp)), el("script", Html(source))
    head = el(
        "head",
        el("meta", charset="utf-8"),
        el("meta", http_equiv="Content-Security-Policy", content=policy),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("title", f"{title} - dynaweb"),
        el("style", Html(style)),
    )
    page = join(head, el("body", body), script)
    return f"<!doctype html>\n{el('html', page, lang='en', data_stamp=stamp or None)}\n"


def _sections(data: ReportData) -> list[Html | None]:
    # Side by side in a wide window: both are short.
    pair = [part for part in (sections.drift(data), sections.audits(data)) if part is not None]
    return [
        sections.arms(data),
        sections.prerequisites(data),
        sections.audited(data),
        sections.curves(data),
        sections.stages(data),
        sections.fidelity(data),
        el("div", *pair, class_="pair") if pair else None,
        sections.failures(data),
        _viewer(data),
        sections.recipe(data),
    ]


def _static(name: str) -> str:
    return resources.files("dynaweb.report").joinpath("static", name).read_text(encoding="utf-8")


def _policy(script: str, style: str, *, live: bool) -> str:
    own = f"script-src {_hash(script)}; style-src {_hash(style)}" + ("; connect-src 'self'" if live else "")
    return f"default-src 'none'; {own}; base-uri 'none'; form-action 'none'"


def _hash(source: str) -> str:
    digest = hashlib.sha256(source.encode("utf-8")).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _viewer(data: ReportData) -> Html | None:
    if not data.samples:
        return None
    total = max(data.total, len(data.samples))
    part = "All" if total == len(data.samples) else f"{len(data.samples):,} of"
    every = "The only trajectory" if total == 1 else f"{part} {total:,} trajectories"
    lead = f"{every}, step by step: the page, the action marked in it, and what followed."
    keys = ("j", "next"), ("k", "previous trajectory"), ("←", ""), ("→", "step"), ("/", "search")
    hints = [join(el("kbd", key), f" {word}  ") for key, word in keys]
    return el(
        "section",
        el("h2", "Trajectories"),
        el("p", lead, *([] if total == len(data.samples) else _more(data)), class_="lead"),
        _filters(viewer.index(data.samples, _labels(data)), _labels(data).values()),
        el("div", _list_pane(), el("div", class_="detail", aria_live="polite"), **_viewer_attributes()),
        el("p", *hints, class_="keys"),
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


def _viewer_attributes() -> dict[str, str | int]:
    return {"id": "viewer", "class_": "card viewer", "data_block": viewer.BLOCK}


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


def _filters(rows: Sequence[Sequence[Any]], arms: Collection[str]) -> Html:
    """The search and the choices; `arms` are the labels of arms: phases such as demonstrations are found by words."""
    played = dict.fromkeys(row[1] for row in rows)
    labels = [name for name in played if name in arms] or list(played)
    sources = list(dict.fromkeys(row[2] for row in rows))
    return el(
        "div",
        el("input", id="search", type="search", placeholder="Search tasks", aria_label="search tasks"),
        _select("arm", "all arms", labels),
        _select("source", "all sources", sources),
        _select("outcome", "all outcomes", ["success", "failure", "ungraded"]),
        class_="filters",
    )


def _select(name: str, everything: str, values: Sequence[str]) -> Html:
    options = [el("option", everything, value=""), *[el("option", value, value=value) for value in values]]
    return el("select", *options, id=f"filter-{name}", aria_label=name)


def _data(data: ReportData) -> Html:
    if not data.samples:
        return Html("")
    written = [embed(block, id=f"trajectories-{at}") for at, block in enumerate(viewer.blocks(data.samples))]
    return join(embed(viewer.index(data.samples, _labels(data)), id="trajectory-index"), *written)


def _footer(data: ReportData) -> Html:
    version = data.versions.get("dynaweb")
    return el("footer", f"Made by dynaweb{' ' + version if version else ''}.")
