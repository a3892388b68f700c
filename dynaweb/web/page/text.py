"""An observation as text, and back: `render` and `parse_page` in any dialect, and the dialect `compact`.

`compact` is for small models. The first line is the address without `http://`, then one line an element:

    shop.localhost/search?q=x
    link 'Home' [1]
    textbox 'Search' [2] = 'abc'
    combobox 'Sort' [4] = 'Newest' of 'Newest' 'Price'
    checkbox 'Gift wrap' [5] checked
    notice 'message'

The number stands after the name on purpose: a small model then points by copying. Views with depth indent by one
space a level; a title, tabs and the truncation mark `...` have lines of their own when there are any. `parse_compact`
is the exact inverse. Other dialects are parts of formats, which plugins bring (`dynaweb.web.observation_formats`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

from dynaweb.types import Node, Observation, Props, Tab
from dynaweb.web import observation_formats
from dynaweb.web.quoting import literal, quote, scan, unquote

TRUNCATED = "..."
"""The line that marks an observation cut by a budget."""
TRISTATE = frozenset({"checked", "pressed"})
"""Properties that the DevTools protocol gives as words, not as booleans."""
CAPITAL = {"true": "True", "false": "False"}
"""Booleans as the texts of benchmarks write them."""

_HOST_FIRST = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]*(?::\d+)?(?:[/?#][!-&(-~]*)?")
_PLAIN_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:(?!\d)[!-&(-~]*")
_HEAD = re.compile(r"( *)([A-Za-z][\w-]*) (?=')")
_ID = re.compile(r" \[(\d+)\]")
_PROP = re.compile(r" ([A-Za-z_][\w-]*)(?:=(?:([^\s'=]+)|(?=')))?")
_WORD = re.compile(r"[^\s'=]+")


def render(observation: Observation, dialect: str = "compact") -> str:
    """The observation as text, without a final newline. Raises `MissingError` for a dialect that nobody offers."""
    lines = _compact_lines if dialect == "compact" else observation_formats.dialect(dialect).lines
    return "\n".join(lines(observation))


def parse_page(text: str, dialect: str = "compact", url: str = "") -> Observation:
    """Read what `render` wrote; `url` is the address where the text holds none. Raises `ValueError` naming the line."""
    return parse_compact(text) if dialect == "compact" else observation_formats.dialect(dialect).parse(text, url)


def parse_compact(text: str) -> Observation:
    """Read `compact` text back. Raises `ValueError` naming the line that is not valid."""
    lines = text.split("\n")
    reader = _CompactReader(parse_url(lines[0]))
    for number, line in enumerate(lines[1:], start=2):
        try:
            reader.read(line)
        except ValueError as error:
            raise ValueError(f"line {number} of a compact page, {line[:80]!r}: {error}") from None
    return reader.observation()


def format_node(node: Node, *, with_id: bool = True) -> str:
    """One element as a `compact` line; without its number as the `+` lines of a delta write it."""
    number = f" [{node.id}]" if with_id else ""
    return f"{' ' * node.depth}{node.role} {quote(node.name)}{number}{format_tail(node.value, node.props)}"


def parse_node(line: str, *, with_id: bool = True) -> Node:
    """Read one `compact` line (id 0 when `with_id` is false). Raises `ValueError`."""
    head = _HEAD.match(line)
    if head is None:
        raise ValueError("expected a role and a name in single quotes")
    name, end = scan(line, head.end())
    number = 0
    if with_id:
        id_match = _ID.match(line, end)
        if id_match is None:
            raise ValueError("expected an element number such as [3] after the name")
        number, end = int(id_match[1]), id_match.end()
    value, props = parse_tail(line[end:])
    return Node(number, head[2], name, value, props, depth=len(head[1]))


def format_tail(value: str | None, props: Iterable[tuple[str, str]]) -> str:
    """What follows name and number: ` = 'value'`, ` of 'A' 'B'`, bare words for true, `key=word` for the rest."""
    parts = [] if value is None else [f" = {quote(value)}"]
    parts.extend(_format_prop(key, text) for key, text in props)
    return "".join(parts)


def parse_tail(tail: str) -> tuple[str | None, Props]:
    """Read what `format_tail` wrote: (value, props). Raises `ValueError`."""
    value: str | None = None
    position = 0
    if tail.startswith(" = "):
        value, position = scan(tail, 3)
    props: list[tuple[str, str]] = []
    while position < len(tail):
        key, text, position = _scan_prop(tail, position)
        props.append((key, text))
    return value, tuple(props)


class _CompactReader:
    """Collects what the lines of a compact page say."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._title = ""
        self._notice = ""
        self._truncated = False
        self._tabs: list[Tab] = []
        self._nodes: list[Node] = []

    def read(self, line: str) -> None:
        """Take one line."""
        if line == TRUNCATED:
            self._truncated = True
        elif not self._read_meta(line):
            self._nodes.append(parse_node(line))

    def observation(self) -> Observation:
        """What was read."""
        return Observation(self._url, tuple(self._nodes), self._title, tuple(self._tabs), self._notice, self._truncated)

    def _read_meta(self, line: str) -> bool:
        """Title, notice and tab lines carry no number: that is how they differ from elements of those roles."""
        word, _, rest = line.partition(" ")
        if word not in ("title", "notice", "tab") or not rest.startswith("'"):
            return False
        text, end = scan(rest, 0)
        if word == "tab" and rest.startswith(" '", end):
            url, end = scan(rest, end + 1)
            self._tabs.append(Tab(text, url, rest[end:] == " current"))
            return rest[end:] in ("", " current")
        if word == "tab" or end != len(rest):
            return False
        if word == "title":
            self._title = text
        else:
            self._notice = text
        return True


def _compact_lines(observation: Observation) -> Iterator[str]:
    yield format_url(observation.url)
    if observation.title:
        yield f"title {quote(observation.title)}"
    for tab in observation.tabs:
        yield f"tab {quote(tab.title)} {quote(tab.url)}{' current' if tab.current else ''}"
    yield from map(format_node, observation.nodes)
    if observation.truncated:
        yield TRUNCATED
    if observation.notice:
        yield f"notice {quote(observation.notice)}"


def closing_lines(observation: Observation) -> Iterator[str]:
    """The last lines in texts of benchmarks: the mark of a cut page, and the notice as a Python string."""
    if observation.truncated:
        yield TRUNCATED
    if observation.notice:
        yield f"notice: {observation.notice!r}"


def parse_nodes(body: str, parse: Callable[[str, int], Node]) -> tuple[tuple[Node, ...], bool, str]:
    """(nodes, truncated, notice) of lines that end as `closing_lines` has it; `parse` takes a line and its number."""
    nodes: list[Node] = []
    truncated, notice = False, ""
    for line in body.split("\n") if body else []:
        if line == TRUNCATED:
            truncated = True
        elif line.startswith("notice: "):
            notice = literal(line, 8)[0]
        else:
            nodes.append(parse(line, len(nodes) + 1))
    return tuple(nodes), truncated, notice


def format_url(url: str) -> str:
    """The address as the first line of a compact page: without `http://`, quoted if it could be misread."""
    bare = url.removeprefix("http://")
    if bare != url and _HOST_FIRST.fullmatch(bare):
        return bare
    return url if _PLAIN_URL.fullmatch(url) else quote(url)


def parse_url(text: str) -> str:
    """Read what `format_url` wrote. Raises `ValueError` for a broken quoted string."""
    if text.startswith("'"):
        return unquote(text)
    return f"http://{text}" if _HOST_FIRST.fullmatch(text) else text


def _format_prop(key: str, text: str) -> str:
    if key == "options":
        return " of" + "".join(f" {quote(option)}" for option in text.split("|"))
    if text == "true" and key != "of":
        return f" {key}"
    return f" {key}={text if _WORD.fullmatch(text) else quote(text)}"


def _scan_prop(tail: str, position: int) -> tuple[str, str, int]:
    if tail.startswith(" of '", position):
        return _scan_options(tail, position + 3)
    match = _PROP.match(tail, position)
    if match is None:
        raise ValueError(f"expected ` = 'value'`, ` of 'A' 'B'` or a property at {tail[position : position + 20]!r}")
    if match[2] is not None:
        return match[1], match[2], match.end()
    if match[0].endswith("="):
        text, end = scan(tail, match.end())
        return match[1], text, end
    return match[1], "true", match.end()


def _scan_options(tail: str, position: int) -> tuple[str, str, int]:
    options: list[str] = []
    while tail.startswith(" '", position):
        option, position = scan(tail, position + 1)
        options.append(option)
    return "options", "|".join(options), position
