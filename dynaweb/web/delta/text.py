"""A delta as text: the rebuild script that a world model writes, and its strict and lenient parsers.

    url shop.localhost/cart        the address, when it changes
    title 'Cart'                   the title, when it changes
    = [1]-[9]                      keep this run of old nodes (`= [5]` for one)
    ~ [4] = 'abc' required         keep node 4 with this value and these properties (its options stay)
    + heading 'Cart'               a new node, without a number; `+ 2 link 'Home'` at depth 2
    notice 'Added to the cart'     what the environment says about the action

Lines of nodes come in the order of the new page; old nodes that no line keeps are gone. `same` alone says that nothing
changes, `empty` that no node is left, `...` and `complete` that the page is now cut by a budget, or no longer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from dynaweb.types import Add, Change, Delta, Keep, Node, Observation, Op
from dynaweb.web.delta.diff import DeltaError, is_replaced, whole_page
from dynaweb.web.delta.repair import known_keys, mend_changes, mend_keep, mend_line
from dynaweb.web.page.text import TRUNCATED, format_node, format_tail, format_url, parse_node, parse_tail, parse_url
from dynaweb.web.quoting import quote, unquote

SAME, EMPTY, COMPLETE = "same", "empty", "complete"

MOST_REPAIRS = 10_000
"""Repairs of one script."""
_KEEP = re.compile(r"= \[([0-9]{1,9})\](?:-\[([0-9]{1,9})\])?")
_CHANGE = re.compile(r"~ \[([0-9]{1,9})\]")
_ADD = re.compile(r"\+ (?:([1-9][0-9]{0,3}) )?(?=[A-Za-z])")


def to_text(delta: Delta) -> str:
    """The script of a delta, without a final newline; `parse` gives the delta back (sentence and repairs apart)."""
    return SAME if delta.same else "\n".join(_lines(delta))


def parse(text: str, before: Observation, strict: bool = False) -> Delta:
    """Read a script that is meant for `before`.

    Strict takes the syntax as `to_text` writes it (a final newline is allowed). Lenient also mends what can be meant in
    one way only, and lists that in `Delta.repairs`: blank lines and code fences, missing spaces, an unclosed or
    unescaped quote, numbers beyond the page, nodes kept twice, a number after a new node, properties that no page has.
    Raises `DeltaError` (line and reason) for the rest, and nothing else for any string.
    """
    reader = _Reader(before, strict)
    lines = (text[:-1] if text.endswith("\n") else text).split("\n")
    number, line = 0, ""
    try:
        for number, line in enumerate(lines, start=1):
            reader.read(line, number)
        return reader.delta()
    except ValueError as error:
        raise DeltaError(str(error), number, line) from None


def _lines(delta: Delta) -> Iterator[str]:
    if delta.url is not None:
        yield f"url {format_url(delta.url)}"
    if delta.title is not None:
        yield f"title {quote(delta.title)}"
    if not delta.ops:
        yield EMPTY
    yield from map(_format_op, delta.ops)
    if delta.truncated is not None:
        yield TRUNCATED if delta.truncated else COMPLETE
    if delta.notice:
        yield f"notice {quote(delta.notice)}"


def _format_op(op: Op) -> str:
    if isinstance(op, Keep):
        return f"= [{op.first}]" if op.first == op.last else f"= [{op.first}]-[{op.last}]"
    if isinstance(op, Change):
        return f"~ [{op.id}]{format_tail(op.value, op.props)}"
    depth = f"{op.node.depth} " if op.node.depth else ""
    return f"+ {depth}{format_node(replace(op.node, depth=0), with_id=False)}"


@dataclass
class _Reader:
    """Reads one script; `number` is the line at hand."""

    before: Observation
    strict: bool
    ops: list[Op] = field(default_factory=list)
    used: set[int] = field(default_factory=set)
    repairs: list[str] = field(default_factory=list)
    heads: dict[str, str | bool] = field(default_factory=dict)
    late: dict[int, Change] = field(default_factory=dict)
    """Changes of nodes that are kept already."""
    keys: frozenset[str] = frozenset()
    number: int = 0

    def read(self, line: str, number: int) -> None:
        """Take one line; `ValueError` when it makes no sense."""
        self.number = number
        try:
            self._read_line(line)
        except _Known:
            raise
        except ValueError:
            if self.strict:
                raise
            mended = mend_line(line)
            for note in mended.notes:
                self._note(note)
            if mended.line:
                self._read_line(mended.line)

    def delta(self) -> Delta:
        """What was read, as a whole; `DeltaError` when it makes no page."""
        self._check_whole()
        self.ops = mend_changes(self.ops, self.late) if self.late else self.ops
        size = len(self.before.nodes)
        ops = whole_page(size) if self.heads.get(SAME) else tuple(self.ops)
        url, title, notice = (self.heads.get(key) for key in ("url", "title", "notice"))
        truncated = self.heads.get("truncated")
        plain = ops == whole_page(size) and not any(value is not None for value in (url, title, truncated))
        return Delta(
            ops,
            url if isinstance(url, str) else None,
            title if isinstance(title, str) else None,
            notice if isinstance(notice, str) else "",
            truncated if isinstance(truncated, bool) else None,
            same=plain and not notice,
            replaced=is_replaced(ops, size),
            repairs=tuple(self.repairs),
        )

    def _check_whole(self) -> None:
        others = [key for key in self.heads if key not in (SAME, "notice")]
        if self.heads.get(SAME) and (self.ops or others):
            raise ValueError("`same` stands alone, but other lines say that something changes")
        if self.heads.get(SAME) and "notice" in self.heads:
            self._note("`same` with a notice read as a page that is kept as it is")
        if self.heads.get(EMPTY) and self.ops:
            raise ValueError("`empty` says that no node is left, but other lines keep or add nodes")
        if not self.ops and not self.heads.get(SAME) and not self.heads.get(EMPTY):
            raise DeltaError("no line keeps or adds a node; write `same` when nothing changes, `empty` for no nodes")

    def _note(self, note: str) -> None:
        """Record a repair; in strict mode it is an error."""
        if self.strict:
            raise _Known(note)
        if len(self.repairs) >= MOST_REPAIRS:
            raise _Known(f"{note}; more than {MOST_REPAIRS:,} repairs, so this is no script for the page")
        self.repairs.append(f"line {self.number}: {note}")

    def _read_line(self, line: str) -> None:
        word, _, rest = line.partition(" ")
        plain: dict[str, Callable[[str], None]] = {"=": self._keep, "~": self._change, "+": self._add}
        if word in plain:
            plain[word](line)
        elif word == "url" and rest:
            self._head("url", parse_url(rest))
        elif word in ("title", "notice"):
            self._head(word, unquote(rest))
        elif line in (SAME, EMPTY):
            self._head(line, True)
        elif line in (TRUNCATED, COMPLETE):
            self._head("truncated", line == TRUNCATED)
        else:
            raise ValueError("expected `= [1]-[9]`, `+ role 'name'`, `~ [4]`, `url`, `title`, `notice` or `same`")

    def _head(self, key: str, value: str | bool) -> None:
        if key in self.heads:
            self._note(f"a second `{key}` left out")
        else:
            self.heads[key] = value

    def _keep(self, line: str) -> None:
        match = _KEEP.fullmatch(line)
        if match is None and self.strict:
            raise ValueError("expected `= [5]` or `= [1]-[9]`")
        if match is None:
            self._note("numbers of kept nodes read as `= [1]-[9]`")
        runs = mend_keep(line) if match is None else [(int(match[1]), int(match[2] or match[1]))]
        for first, last in runs:
            self._keep_run(first, last)

    def _keep_run(self, first: int, last: int) -> None:
        if last < first:
            self._note(f"[{first}]-[{last}] read from the smaller to the larger number")
            first, last = min(first, last), max(first, last)
        size = len(self.before.nodes)
        if first < 1 or last > size:
            self._note(f"[{first}]-[{last}] cut to the old page, which has [1]-[{size}]")
        run: list[int] = []
        for number in range(max(first, 1), min(last, size) + 1):
            if number in self.used:
                self._note(f"[{number}] is kept already, second mention left out")
                self._flush(run)
            else:
                run.append(number)
        self._flush(run)

    def _flush(self, run: list[int]) -> None:
        if run:
            self.ops.append(Keep(run[0], run[-1]))
            self.used.update(run)
            run.clear()

    def _change(self, line: str) -> None:
        match = _CHANGE.match(line)
        if match is None:
            raise ValueError("expected `~ [4]` and then the value and properties that node 4 now has")
        number = int(match[1])
        if not 1 <= number <= len(self.before.nodes):
            raise _Known(f"there is no node [{number}] to change; the old page has [1]-[{len(self.before.nodes)}]")
        value, props = self._tail(line[match.end() :])
        if number in self.used:
            self._note(f"[{number}] is kept already; the change is made where it is kept")
            self.late[number] = Change(number, value, props)
        else:
            self.ops.append(Change(number, value, props))
            self.used.add(number)

    def _add(self, line: str) -> None:
        match = _ADD.match(line)
        if match is None:
            raise ValueError("expected `+ role 'name'`, or `+ 2 role 'name'` at depth 2")
        node = parse_node(line[match.end() :], with_id=False)
        props = self._known(node.props)
        self.ops.append(Add(Node(0, node.role, node.name, node.value, props, int(match[1] or 0))))

    def _tail(self, tail: str) -> tuple[str | None, tuple[tuple[str, str], ...]]:
        value, props = parse_tail(tail)
        return value, self._known(props)

    def _known(self, props: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
        """Lenient: without the properties that neither ARIA nor the old page knows."""
        if self.strict or not props:
            return props
        keys = self.keys = self.keys or known_keys(self.before)
        for key, _ in props:
            if key not in keys:
                self._note(f"unknown property {key[:40]!r} left out")
        return tuple(prop for prop in props if prop[0] in keys)


class _Known(ValueError):
    """A line that was understood and is still wrong: mending its spelling would not help."""
