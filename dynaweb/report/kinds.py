"""Kinds of measures: what values one can take, and so which interval its mean has.

A measure is declared with its kind where it is defined. The values themselves do not tell: numbers of attempts that are
all 1 are no proportion, and the mean of a score is no count of successes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from dynaweb.report.stats import Estimate, mean, wider, wilson


@dataclass(frozen=True, slots=True)
class Kind:
    """`low` and `high` bound every single value (None = no bound); `binary` values are 0 or 1 and nothing between."""

    name: str
    low: float | None = None
    high: float | None = None
    binary: bool = False

    def cut(self, found: Estimate) -> Estimate:
        """An estimate whose interval stays within the bounds, as the mean does."""
        if found.low is None or found.high is None:
            return found
        low = found.low if self.low is None else max(self.low, found.low)
        high = found.high if self.high is None else min(self.high, found.high)
        return replace(found, low=low, high=high)


PROPORTION = Kind("proportion", 0.0, 1.0, binary=True)
"""Yes or no of each observation; the mean is a share with Wilson's interval."""
SCORE = Kind("score", 0.0, 1.0)
"""A number in [0, 1] of each observation, such as an F1."""
COUNT = Kind("count", 0.0)
"""A number of things, or a cost: never negative."""
TRIES = Kind("tries", 1.0)
"""A number of attempts: the first one counts."""
MEAN = Kind("mean")
"""Any number."""


def estimate(kind: Kind, values: Sequence[float]) -> Estimate:
    """Mean of independent observations with its 95 % interval, which never leaves the bounds of the kind.

    Proportions: Wilson. Others: Student's t, cut at the bounds, and no interval where the values have no spread, since
    a few equal values do not show that all are. Raises `ValueError` for a value that the kind does not allow.
    """
    wrong = [value for value in values if not _allowed(kind, value)]
    if wrong:
        raise ValueError(f"{wrong[0]} is no value of a {kind.name}")
    if kind.binary:
        return wilson(math.fsum(values), len(values))
    return kind.cut(mean(values))


def over_seeds(kind: Kind, by_seed: Sequence[Sequence[float]]) -> Estimate:
    """The same over the observations of all seeds, which `n` counts.

    The interval is the wider of two: that over all observations, and, from two seeds on, Student's t over the means of
    the seeds, laid around the mean of all: models of different seeds differ by more than their observations tell.
    """
    pooled = estimate(kind, [value for values in by_seed for value in values])
    across = mean([math.fsum(values) / len(values) for values in by_seed if values])
    return kind.cut(wider(pooled, across))


def _allowed(kind: Kind, value: float) -> bool:
    if kind.binary:
        return value in (0, 1)
    return (kind.low is None or value >= kind.low) and (kind.high is None or value <= kind.high)
