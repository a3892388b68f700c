"""Lines of a chart as plain values, and what makes long and noisy ones readable."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

MAX_POINTS = 300
SMOOTH = 5
"""Updates in the running mean that is drawn over a noisy line, two before and two after."""

Points = Sequence[tuple[float, float | None]]


@dataclass(frozen=True, slots=True)
class Series:
    """A line: its name in the legend, its points, with None for gaps, and intervals (x, low, high) as thin lines.

    A `guide` is there to compare with: it is drawn in grey, without points. `colour` is the number of a colour of the
    palette; None takes the place of the line in its chart.
    """

    label: str
    points: Points
    bars: Sequence[tuple[float, float, float]] = ()
    guide: bool = False
    colour: int | None = None

    @property
    def known(self) -> list[tuple[float, float]]:
        """The points that have a value."""
        return [(x, y) for x, y in self.points if y is not None]

    @property
    def alone(self) -> Points:
        """The points between gaps, which no line reaches."""
        values = [None, *(y for _, y in self.points), None]
        return [
            (x, y) for at, (x, y) in enumerate(self.points) if y is not None and values[at] is values[at + 2] is None
        ]

    @property
    def is_noisy(self) -> bool:
        """Whether a running mean says more than the points."""
        return len(self.known) >= 4 * SMOOTH

    def place(self, at: int) -> int:
        """The number of its colour, as line `at` of a chart."""
        return at if self.colour is None else self.colour

    def thin(self) -> Series:
        """At most `MAX_POINTS` points: means of equal stretches, so that a long run does not make a large file."""
        width = max(1, math.ceil(len(self.points) / MAX_POINTS))
        points = tuple(_mean(self.points[at : at + width]) for at in range(0, len(self.points), width))
        return replace(self, points=points, bars=tuple(self.bars))

    def smooth(self) -> Points:
        """Mean of the known values around each point."""
        half = SMOOTH // 2
        around = (self.points[max(0, at - half) : at + half + 1] for at in range(len(self.points)))
        return [
            (x, None if y is None else _mean(points)[1]) for (x, y), points in zip(self.points, around, strict=True)
        ]


def palette(charts: Sequence[Sequence[str]], size: int, first: Sequence[str] = ()) -> dict[str, int]:
    """A colour of `size` for each name in charts, the same in all; those of `first` come first.

    Names of one chart differ while it has no more than `size`; a colour is used again only when all are.
    """
    found: dict[str, int] = {}
    names = dict.fromkeys(name for chart in charts for name in chart)
    for name in [*(name for name in dict.fromkeys(first) if name in names), *names]:
        if name not in found:
            beside = [found[other] for chart in charts if name in chart for other in set(chart) if other in found]
            used = list(found.values())
            found[name] = min(range(size), key=lambda at: (at in beside, used.count(at), at))
    return found


def _mean(points: Points) -> tuple[float, float | None]:
    known = [y for _, y in points if y is not None]
    return points[len(points) // 2][0], sum(known) / len(known) if known else None
