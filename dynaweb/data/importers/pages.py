"""Pages of other projects as observations: BrowserGym's and WebArena's text, and HTML.

Each reader gives the page with our own numbers and a table from the source's element ids to them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from dynaweb.types import Node, Observation, Tab
from dynaweb.web.page.text import parse_page
from dynaweb.web.page.tree import PROPERTIES

_LITERAL = r"'(?:[^'\\\n]|\\.)*'|\"(?:[^\"\\\n]|\\.)*\""
# What is in `(?>...)`, or before a `+`, is never tried again another way, so that a line takes a time linear in it.
_ATTRIBUTE = rf",? ([A-Za-z_][\w-]*+)(?:=((?>{_LITERAL}|[^,\s]+)))?+"
_PART = re.compile(_ATTRIBUTE)
_LINE = re.compile(
    rf"(?P<tabs>\t*)(?:\[(?P<id>\w+)\] )?(?P<role>[A-Za-z][\w-]*) (?P<name>{_LITERAL})(?P<tail>(?:{_ATTRIBUTE})*+)"
)
_HTML_IDS = ("backend_node_id", "bid", "id")


@dataclass(frozen=True, slots=True)
class ForeignPage:
    """A page, and the number of each element by the id that the source gave it. `unread` counts lines left out."""

    page: Observation
    ids: Mapping[str, int]
    unread: int = 0


def from_axtree_text(text: str, url: str) -> ForeignPage:
    """BrowserGym's `flatten_axtree_to_str`, which NNetNav's prompts hold too; the root line gives the title.

    Lines that are cut off or spread over several lines are left out and counted; a cut last line marks the page as
    truncated. Raises `ValueError` when no line can be read.
    """
    nodes: list[Node] = []
    ids: dict[str, int] = {}
    title, unread, last = "", 0, True
    for line in text.split("\n"):
        if not line.strip():
            continue
        match = _LINE.fullmatch(line)
        node = _node(match, len(nodes) + 1) if match is not None else None
        last = node is not None
        if match is None or node is None:
            unread += 1
        elif node.role == "RootWebArea" and not nodes:
            title = node.name
        else:
            nodes.append(node)
            if match["id"]:
                ids[match["id"]] = len(nodes)
    if not nodes:
        raise ValueError("no line of the page is an element")
    return ForeignPage(Observation(url, tuple(nodes), title, truncated=not last), ids, unread)


def from_webarena_text(text: str, url: str) -> ForeignPage:
    """WebArena's own text. Raises `ValueError` naming the line that is not valid."""
    seen = parse_page(text.strip("\n"), "webarena", url)
    if not seen.nodes:
        raise ValueError("the page has no element")
    nodes = tuple(replace(node, id=number) for number, node in enumerate(seen.nodes, start=1))
    tabs: tuple[Tab, ...] = seen.tabs
    page = Observation(url, nodes, seen.title, tabs, seen.notice, seen.truncated)
    return ForeignPage(page, {str(node.id): number for number, node in enumerate(seen.nodes, start=1)})


def from_html(source: str, url: str) -> ForeignPage:
    """An HTML document without scripts, read as the static driver reads one; ids are `backend_node_id`, `bid` or `id`.

    An element that the view does not show (a picture in a link) counts as the nearest shown one around it.
    """
    from dynaweb.web.page.view import compact_view
    from dynaweb.web.static import dom

    parsed = dom.load(url, source.encode("utf-8", "replace"))
    viewed = compact_view(parsed.tree())
    numbered = {parsed.elements[int(node.ref)]: node.id for node in viewed.nodes if node.ref is not None}
    ids: dict[str, int] = {}
    for element in parsed.root.iter():
        name = next((element.get(key) for key in _HTML_IDS if element.get(key)), None) if _is_tag(element) else None
        near = next((one for one in (element, *element.iterancestors()) if one in numbered), None) if name else None
        if name is not None and near is not None:
            ids.setdefault(name, numbered[near])
    title = next((" ".join((element.text or "").split()) for element in parsed.root.iter("title")), "")
    if not viewed.nodes:
        raise ValueError("the document shows no element")
    nodes = tuple(replace(node, ref=None) for node in viewed.nodes)
    return ForeignPage(Observation(url, nodes, title, truncated=viewed.truncated), ids)


def _is_tag(element: object) -> bool:
    return isinstance(getattr(element, "tag", None), str)


def _node(match: re.Match[str], number: int) -> Node | None:
    """The element of a line; None where an escape in its texts means nothing."""
    try:
        attributes, name = dict(_parts(match["tail"])), _text(match["name"])
    except (SyntaxError, ValueError):
        return None
    props = tuple(
        (key, attributes[key]) for key in PROPERTIES if attributes.get(key, "false") not in ("false", "False")
    )
    depth = max(0, len(match["tabs"]) - 1)
    return Node(number, match["role"], name, attributes.get("value"), props, depth)


def _parts(tail: str) -> Iterator[tuple[str, str]]:
    for part in _PART.finditer(tail):
        yield part[1], _text(part[2]) if part[2] else "true"


def _text(literal: str | None) -> str:
    if not literal:
        return ""
    return str(ast.literal_eval(literal)) if literal[0] in "'\"" else literal


def numbers(ids: Mapping[str, int], wanted: Sequence[str]) -> int | None:
    """The number of the first of these ids that the page shows."""
    return next((ids[name] for name in wanted if name in ids), None)
