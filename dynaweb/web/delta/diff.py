"""`diff` and `apply`: from two pages to a delta, and back to the second page, exactly.

Nodes are matched in rounds, each of them deterministic. First nodes that are equal in everything: the common head
and tail of both pages, then nodes that occur once on each side (Heckel, "A technique for isolating differences
between files", 1978) with their equal neighbours, then what is left in the longest runs that can be found. After
that the same three steps for nodes that agree in role, name and depth and differ in value or properties. Runs may
cross, so a moved block costs one line. Time is about linear in the number of nodes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import replace

from dynaweb.errors import DynawebError
from dynaweb.types import Add, Change, Delta, Keep, Node, Observation, Op, Props, Tab

CANDIDATES = 8
"""How many equal old nodes are tried as the start of a run; bounds the work on pages full of equal nodes."""


class DeltaError(DynawebError):
    """A delta script cannot be read, or a delta does not fit the page that it is applied to.

    `line` counts from 1 (0 when the trouble is not one line), `reason` says what is wrong and what would be right.
    """

    def __init__(self, reason: str, line: int = 0, text: str = "") -> None:
        self.reason = reason
        self.line = line
        self.text = text
        where = f"line {line} of the delta, {text[:80]!r}: " if line else ""
        super().__init__(f"{where}{reason}")


def diff(before: Observation, after: Observation) -> Delta:
    """The delta with `apply(before, delta) == after`, up to `id`, `ref` and `tabs`, for any two observations.

    Numbers in the delta are positions 1..N of `before`. Pure and deterministic.
    """
    ops = _operations(before.nodes, after.nodes, match(before.nodes, after.nodes))
    url = after.url if after.url != before.url else None
    title = after.title if after.title != before.title else None
    truncated = after.truncated if after.truncated != before.truncated else None
    whole = ops == whole_page(len(before.nodes))
    same = whole and url is None and title is None and truncated is None and not after.notice
    return Delta(ops, url, title, after.notice, truncated, same, is_replaced(ops, len(before.nodes)))


def apply(before: Observation, delta: Delta) -> Observation:
    """The new page: ids run from 1 again, `ref` is None, and the current tab follows url and title.

    Raises `DeltaError` when the delta names a node that `before` does not have, or one node twice.
    """
    url = before.url if delta.url is None else delta.url
    title = before.title if delta.title is None else delta.title
    nodes = tuple(
        replace(node, id=number, ref=None) for number, node in enumerate(_rebuild(before.nodes, delta.ops), start=1)
    )
    tabs = tuple(Tab(title, url, True) if tab.current else tab for tab in before.tabs)
    truncated = before.truncated if delta.truncated is None else delta.truncated
    return Observation(url, nodes, title, tabs, delta.notice, truncated)


def whole_page(size: int) -> tuple[Op, ...]:
    """The operations that keep a page of `size` nodes as it is."""
    return (Keep(1, size),) if size else ()


def is_replaced(ops: tuple[Op, ...], old_size: int) -> bool:
    """Whether at most a tenth of the old page's `old_size` nodes lives on and something new is there."""
    survivors = sum(op.last - op.first + 1 if isinstance(op, Keep) else 1 for op in ops if not isinstance(op, Add))
    return old_size > 0 and survivors * 10 <= old_size and any(isinstance(op, Add) for op in ops)


def match(old: Sequence[Node], new: Sequence[Node]) -> list[int]:
    """For each new node the index of the old node it comes from, or -1; no old node is used twice."""
    matcher = _Matcher(len(old), len(new))
    matcher.round([_content(node) for node in old], [_content(node) for node in new])
    if -1 in matcher.source:
        matcher.round([_identity(node) for node in old], [_identity(node) for node in new])
    return matcher.source


def _content(node: Node) -> Hashable:
    return (node.role, node.name, node.depth, node.value, node.props)


def _identity(node: Node) -> Hashable:
    return (node.role, node.name, node.depth)


class _Matcher:
    """Matches of one pair of pages; `source[j]` is the old index of new node j, `used[i]` that old node i is taken."""

    def __init__(self, old_size: int, new_size: int) -> None:
        self.source = [-1] * new_size
        self.used = [False] * old_size

    def round(self, old: list[Hashable], new: list[Hashable]) -> None:
        """Match what is still free and has equal keys."""
        self.old, self.new = old, new
        self._ends()
        self._anchors()
        self._extend()
        self._tile()

    def _link(self, old_index: int, new_index: int) -> None:
        self.source[new_index] = old_index
        self.used[old_index] = True

    def _free(self, old_index: int, new_index: int) -> bool:
        """Whether the two exist, are unmatched, and have equal keys."""
        return (
            0 <= old_index < len(self.used)
            and 0 <= new_index < len(self.source)
            and not self.used[old_index]
            and self.source[new_index] < 0
            and self.old[old_index] == self.new[new_index]
        )

    def _ends(self) -> None:
        """The common head, then the common tail."""
        head = 0
        while self._free(head, head):
            self._link(head, head)
            head += 1
        old_tail, new_tail = len(self.used) - 1, len(self.source) - 1
        while self._free(old_tail, new_tail):
            self._link(old_tail, new_tail)
            old_tail, new_tail = old_tail - 1, new_tail - 1

    def _anchors(self) -> None:
        """Keys that occur once among the free nodes of each page."""
        old_free = [index for index, used in enumerate(self.used) if not used]
        new_free = [index for index, source in enumerate(self.source) if source < 0]
        old_count = Counter(self.old[index] for index in old_free)
        new_count = Counter(self.new[index] for index in new_free)
        unique = {self.old[index]: index for index in old_free if old_count[self.old[index]] == 1}
        for index in new_free:
            if new_count[self.new[index]] == 1 and self.new[index] in unique:
                self._link(unique[self.new[index]], index)

    def _extend(self) -> None:
        """Equal free neighbours after and before each matched node, as far as they go."""
        for index in range(1, len(self.source)):
            if self.source[index - 1] >= 0 and self._free(self.source[index - 1] + 1, index):
                self._link(self.source[index - 1] + 1, index)
        for index in range(len(self.source) - 2, -1, -1):
            if self.source[index + 1] >= 0 and self._free(self.source[index + 1] - 1, index):
                self._link(self.source[index + 1] - 1, index)

    def _tile(self) -> None:
        """What is left, from the top of the new page: each time the longest run of free old nodes."""
        positions: dict[Hashable, list[int]] = {}
        for index, used in enumerate(self.used):
            if not used:
                positions.setdefault(self.old[index], []).append(index)
        for index, key in enumerate(self.new):
            if self.source[index] < 0 and positions.get(key):
                self._take_run(index, positions)

    def _take_run(self, new_index: int, positions: dict[Hashable, list[int]]) -> None:
        """Link the best run that starts at `new_index`: the longest, then the nearest to where the page has come."""
        expected = self.source[new_index - 1] + 1 if new_index else 0
        choices = _nearest(positions[self.new[new_index]], expected)
        length, _, start = max((self._run(choice, new_index), -abs(choice - expected), -choice) for choice in choices)
        for step in range(length):
            old_index = step - start
            self._link(old_index, new_index + step)
            free = positions[self.old[old_index]]
            del free[bisect_left(free, old_index)]

    def _run(self, old_index: int, new_index: int) -> int:
        length = 1
        while self._free(old_index + length, new_index + length):
            length += 1
        return length


def _nearest(positions: list[int], expected: int) -> list[int]:
    """A window of at most `CANDIDATES` entries of a sorted list around `expected`."""
    start = max(0, min(bisect_left(positions, expected) - CANDIDATES // 2, len(positions) - CANDIDATES))
    return positions[start : start + CANDIDATES]


def _operations(old: Sequence[Node], new: Sequence[Node], source: Sequence[int]) -> tuple[Op, ...]:
    """The matches as operations, neighbouring kept nodes gathered into runs."""
    ops: list[Op] = []
    for node, index in zip(new, source, strict=True):
        op = _operation(old[index], node, index + 1) if index >= 0 else _add(node)
        last = ops[-1] if ops else None
        if isinstance(op, Keep) and isinstance(last, Keep) and last.last + 1 == op.first:
            ops[-1] = Keep(last.first, op.last)
        else:
            ops.append(op)
    return tuple(ops)


def _operation(old: Node, new: Node, number: int) -> Op:
    """Keep or change of a matched node; a new one where a change cannot say it (`options` taken away)."""
    if (old.value, old.props) == (new.value, new.props):
        return Keep(number, number)
    short = tuple(prop for prop in new.props if prop[0] != "options")
    for props in (short, new.props):
        if _inherit_options(old.props, props) == new.props:
            return Change(number, new.value, props)
    return _add(new)


def _add(node: Node) -> Add:
    return Add(Node(0, node.role, node.name, node.value, node.props, node.depth))


def _rebuild(old: Sequence[Node], ops: Sequence[Op]) -> list[Node]:
    """The new page's nodes, still with the numbers of the old page."""
    nodes: list[Node] = []
    used: set[int] = set()
    for op in ops:
        if isinstance(op, Add):
            nodes.append(op.node)
            continue
        numbers = range(op.first, op.last + 1) if isinstance(op, Keep) else range(op.id, op.id + 1)
        _claim(numbers, len(old), used)
        if isinstance(op, Keep):
            nodes.extend(old[op.first - 1 : op.last])
        else:
            node = old[op.id - 1]
            nodes.append(replace(node, value=op.value, props=_inherit_options(node.props, op.props)))
    return nodes


def _claim(numbers: range, size: int, used: set[int]) -> None:
    """Mark old nodes as used; `DeltaError` when they are not there or already used."""
    if not numbers or numbers.start < 1 or numbers.stop - 1 > size:
        raise DeltaError(f"[{numbers.start}]-[{numbers.stop - 1}] is no run of the old page, which has [1]-[{size}]")
    twice = next((number for number in numbers if number in used), None)
    if twice is not None:
        raise DeltaError(f"node [{twice}] is used twice; each node of the old page can be kept once")
    used.update(numbers)


def _inherit_options(old: Props, new: Props) -> Props:
    """`new` with the `options` of `old` at their old position, unless `new` brings its own."""
    if any(key == "options" for key, _ in new):
        return new
    at = next((index for index, (key, _) in enumerate(old) if key == "options"), None)
    if at is None:
        return new
    return (*new[:at], old[at], *new[at:])
