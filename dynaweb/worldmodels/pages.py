"""A whole page as a full-state world model writes it: the address, then one element a line, without numbers.

    shop.localhost/cart
    heading 'Cart'
    link 'Home'
    notice 'Added to the cart'
    end                         the episode is over on this page

`title` and `notice` are no roles of elements. Numbers are left out on purpose: they follow from the order, and a model
that has to write them makes most of its pages invalid. The title has a line where the view shows titles.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from dynaweb.types import Node, Observation, Prediction, Transition
from dynaweb.web.delta import DeltaError, diff
from dynaweb.web.delta.repair import known_keys, mend_line
from dynaweb.web.page.text import TRUNCATED, format_node, format_url, parse_node, parse_url
from dynaweb.web.quoting import quote, unquote
from dynaweb.worldmodels.change import DONE, END

_FENCE = re.compile(r"\s*```\w*\s*")


def page_text(page: Observation) -> str:
    """The page as text, without a final newline; `parse_page` gives it back (tabs apart)."""
    return "\n".join(_lines(page))


def page_answer(transition: Transition) -> str:
    """The true next page as a model should write it, with a last line `end` where the episode is over there."""
    text = page_text(transition.next_observation)
    return f"{text}\n{END}" if transition.info.get(DONE) else text


def read_page(text: str, before: Observation) -> Prediction:
    """The prediction in a written page; `page_answer` is read back. Raises `DeltaError` when it is none."""
    lines = text.rstrip().split("\n")
    while lines and _is_nothing(lines[-1]):
        lines.pop()
    done = bool(lines) and lines[-1].strip() == END
    page, _ = parse_page("\n".join(lines[:-1] if done else lines), before)
    return Prediction(page, diff(before, page), done=done)


def parse_page(text: str, before: Observation) -> tuple[Observation, tuple[str, ...]]:
    """The page that a model wrote after `before`, and what was mended: spelling that can be meant in one way only.

    Tabs stay those of `before`. Raises `DeltaError` (line and reason) for text that is no page.
    """
    lines = [(number, line) for number, line in enumerate(text.split("\n"), start=1) if not _is_nothing(line)]
    if not lines:
        raise DeltaError("nothing was written; expected the address, then one element a line")
    reader = _Reader(before)
    for number, line in lines:
        try:
            reader.read(line, number)
        except ValueError as error:
            raise DeltaError(str(error), number, line) from None
    return reader.page()


def _lines(page: Observation) -> Iterator[str]:
    yield format_url(page.url)
    if page.title:
        yield f"title {quote(page.title)}"
    yield from (format_node(node, with_id=False) for node in page.nodes)
    if page.truncated:
        yield TRUNCATED
    if page.notice:
        yield f"notice {quote(page.notice)}"


def _is_nothing(line: str) -> bool:
    return not line.strip() or _FENCE.fullmatch(line) is not None


class _Reader:
    """Collects what the lines of a page say."""

    def __init__(self, before: Observation) -> None:
        self._before = before
        self._keys = known_keys(before)
        self._heads: dict[str, str] = {}
        self._nodes: list[Node] = []
        self._repairs: list[str] = []
        self._truncated = False

    def read(self, line: str, number: int) -> None:
        """Take one line; `ValueError` when it makes no sense."""
        if self._read_head(line):
            return
        self._nodes.append(self._node(line, number))

    def page(self) -> tuple[Observation, tuple[str, ...]]:
        """What was read, as a whole."""
        if not self._nodes:
            raise DeltaError("the page has no element; expected the address, then one element a line")
        if "url" not in self._heads:
            self._repairs.append("the address is missing; that of the page before is kept")
        nodes = tuple(replace(node, id=number) for number, node in enumerate(self._nodes, start=1))
        url = self._heads.get("url", self._before.url)
        title, notice = self._heads.get("title", ""), self._heads.get("notice", "")
        page = Observation(url, nodes, title, self._before.tabs, notice, self._truncated)
        return page, tuple(self._repairs)

    def _read_head(self, line: str) -> bool:
        word, _, rest = line.partition(" ")
        if line == TRUNCATED:
            self._truncated = True
        elif word in ("title", "notice") and rest.startswith("'"):
            self._heads.setdefault(word, unquote(rest))
        elif word == "url" and rest and not self._nodes:
            self._heads.setdefault("url", parse_url(rest))
        elif not self._nodes and "url" not in self._heads and (" " not in line or line.startswith("'")):
            self._heads["url"] = parse_url(line)
        else:
            return False
        return True

    def _node(self, line: str, number: int) -> Node:
        try:
            node = parse_node(line, with_id=False)
        except ValueError:
            node = self._mended(line, number)
        unknown = [key for key, _ in node.props if key not in self._keys]
        self._repairs += [f"line {number}: unknown property {key[:40]!r} left out" for key in unknown]
        return replace(node, props=tuple(prop for prop in node.props if prop[0] in self._keys))

    def _mended(self, line: str, number: int) -> Node:
        depth = len(line) - len(line.lstrip(" "))
        mended = mend_line(line if line.lstrip().startswith("+") else f"+ {line.lstrip()}")
        node = parse_node(mended.line.removeprefix("+ "), with_id=False)
        self._repairs += [f"line {number}: {note}" for note in mended.notes]
        return replace(node, depth=depth)
