"""The values of the delta algebra: operations, the delta, and the one error of this area."""

from __future__ import annotations

from dataclasses import dataclass, field

from dynaweb.errors import DynawebError
from dynaweb.types import Node

Props = tuple[tuple[str, str], ...]


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


@dataclass(frozen=True, slots=True)
class Keep:
    """The old nodes `first` to `last` (numbers of the old page, both included) stay as they are."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Add:
    """A new node. Its id is 0: numbers are given when the new page is complete."""

    node: Node


@dataclass(frozen=True, slots=True)
class Change:
    """The old node `id` stays, with this value and these properties instead of its own.

    The property `options` is inherited when `props` does not hold it: what a list offers rarely changes.
    """

    id: int
    value: str | None = None
    props: Props = ()


Op = Keep | Add | Change


@dataclass(frozen=True, slots=True)
class Delta:
    """How to rebuild the new page out of the old one: `ops` in the order of the new page; what is not kept is gone.

    `url`, `title` and `truncated` are None where nothing changes; `notice` is the new page's own. `same` says that
    nothing at all changes, `replaced` that (almost) nothing of the old page is kept. `sentence` puts the change in
    words; `repairs` tells what a lenient parser mended. Neither takes part in comparisons.
    """

    ops: tuple[Op, ...] = ()
    url: str | None = None
    title: str | None = None
    notice: str = ""
    truncated: bool | None = None
    same: bool = False
    replaced: bool = False
    sentence: str = field(default="", compare=False)
    repairs: tuple[str, ...] = field(default=(), compare=False)


def inherit_options(old: Props, new: Props) -> Props:
    """`new` with the `options` of `old` at their old place, unless `new` brings its own."""
    if any(key == "options" for key, _ in new):
        return new
    place = next((index for index, (key, _) in enumerate(old) if key == "options"), None)
    if place is None:
        return new
    return (*new[:place], old[place], *new[place:])


def is_replaced(ops: tuple[Op, ...], old_size: int) -> bool:
    """Whether at most a tenth of the old page's `old_size` nodes lives on and something new is there."""
    kept = sum(op.last - op.first + 1 if isinstance(op, Keep) else 1 for op in ops if not isinstance(op, Add))
    return old_size > 0 and kept * 10 <= old_size and any(isinstance(op, Add) for op in ops)
