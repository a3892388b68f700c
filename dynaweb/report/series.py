"""Lines of a chart as plain values, and what makes long and noisy ones readable."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

MAX_POINTS = 300
SMOOTH = 5
"""Updates in the running mean that is drawn over a noisy line, two before and two after."""

Points = Sequence[tuple[float, float | None]]


@dataclass(frozen=True, slots=True)
class Series:
    """A line: its name in the legend, its points, with None for gaps, and intervals (x, low, high) as thin lines.

    A `guide` is there to compare with: it is drawn in grey, without points.
    """

    label: str
    points: Points
    bars: Sequence[tuple[float, float, float]] = ()
    guide: bool = False

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

    def thin(self) -> Series:
        """At most `MAX_POINTS` points: means of equal stretches, so that a long run does not make a large file."""
        width = max(1, math.ceil(len(self.points) / MAX_POINTS))
        points = tuple(_mean(self.points[at : at + width]) for at in range(0, len(self.points), width))
        return Series(self.label, points, tuple(self.bars), self.guide)

    def smooth(self) -> Points:
        """Mean of the known values around each point."""
        half = SMOOTH // 2
        around = (self.points[max(0, at - half) : at + half + 1] for at in range(len(self.points)))
        return [
            (x, None if y is None else _mean(points)[1]) for (x, y), points in zip(self.points, around, strict=True)
        ]


def _mean(points: Points) -> tuple[float, float | None]:
    known = [y for _, y in points if y is not None]
    return points[len(points) // 2][0], sum(known) / len(known) if known else None
