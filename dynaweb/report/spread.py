"""Which trajectories of a long file a report shows: successes and failures alike, from its beginning to its end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from dynaweb.report.outcome import Outcome
from dynaweb.types import Trajectory

HELD = 4
Found = tuple[int, Trajectory, int]
"""Place in the file, trajectory, update."""


@dataclass(slots=True)
class Spread:
    """About `each` of the trajectories added, spread evenly over each outcome; None keeps all.

    Of each outcome at most `HELD` times its share is held: when there are more, every second one is dropped and from
    then on only every second, fourth, eighth... is taken, so that a file of any length is read once in constant memory.
    """

    each: int | None
    _found: dict[Outcome, list[Found]] = field(default_factory=dict)
    _seen: dict[Outcome, int] = field(default_factory=dict)
    _every: dict[Outcome, int] = field(default_factory=dict)
    _last: dict[Outcome, Found] = field(default_factory=dict)
    _count: int = 0

    @property
    def _share(self) -> int:
        """Successes and failures in equal shares: a report that shows only one of them would mislead."""
        return max(1, (self.each or 0) // 2)

    def add(self, trajectory: Trajectory, kind: Outcome, update: int) -> None:
        """Look at the next trajectory of the file."""
        found = self._found.setdefault(kind, [])
        self._last[kind] = one = self._count, trajectory, update
        self._count += 1
        seen = self._seen[kind] = self._seen.get(kind, -1) + 1
        if seen % self._every.setdefault(kind, 1):
            return
        found.append(one)
        if self.each is not None and len(found) > HELD * self._share:
            del found[1::2]
            self._every[kind] *= 2

    def chosen(self) -> Iterator[tuple[Trajectory, int]]:
        """The trajectories to show, with their updates, in the order of the file."""
        kept = [one for kind, found in self._found.items() for one in self._of(kind, found)]
        yield from ((trajectory, update) for _, trajectory, update in sorted(kept, key=lambda one: one[0]))

    def _of(self, kind: Outcome, found: list[Found]) -> list[Found]:
        if self.each is None:
            return found
        last = self._last[kind]
        ends = found if found[-1] is last else [*found, last]
        count = min(self._share, len(ends))
        if count == 1:
            return ends[:1]
        return [ends[round(at * (len(ends) - 1) / (count - 1))] for at in range(count)]
