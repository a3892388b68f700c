"""Estimates with their 95 % interval and n (proportions, means, paired differences), and how they are written.

Proportions have Wilson's score interval (Wilson, 1927), means Student's t, paired differences a percentile bootstrap
that draws seeds first and episodes within them second, since episodes of one trained model are not independent. No
interval is a point: where all observations are the same, it is one that allows for those not seen, or none. The
exact McNemar test (McNemar, 1947) counts the episodes on which two arms disagree. Missing outcomes (None: the episode
could not be graded) are left out and counted, never taken as failures.

A measure is declared with its `Kind` where it is defined: what values one observation can take, and so which interval
its mean has. The values themselves do not tell: numbers of attempts that are all 1 are no proportion, and the mean of a
score is no count of successes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import NormalDist, fmean, stdev
from typing import TYPE_CHECKING, Any

from dynaweb.errors import MissingError

if TYPE_CHECKING:
    import numpy as np

CONFIDENCE = 0.95
RESAMPLES = 10_000
NO_INTERVAL = "[-]"
"""What stands for an interval that cannot be given."""
WIDTH = 88
"""Characters of a line of a text table."""
GAP = "  "

Outcomes = Sequence[float | None]
"""One success in [0, 1] for each episode; None where it could not be graded."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number with its interval [`low`, `high`] and the `n` observations under it.

    `value` is None when n is 0. `low` and `high` are None when no interval can be given (a mean of one value, or
    of values without spread).
    `missing` counts observations that were left out.
    """

    value: float | None
    low: float | None
    high: float | None
    n: int
    missing: int = 0

    def __str__(self) -> str:
        return self.text()

    def text(self, digits: int = 3, *, signed: bool = False, scale: float = 1.0, unit: str = "") -> str:
        """As in `0.853 [0.812, 0.886] n=360`; `scale` 100 gives points, which `unit` may call ` %`."""
        if self.value is None:
            return f"- n={self.n}"
        sign = "+" if signed else ""
        value = f"{self.value * scale:{sign}.{digits}f}{unit}"
        if self.low is None or self.high is None:
            return f"{value} {NO_INTERVAL} n={self.n}"
        return f"{value} [{self.low * scale:{sign}.{digits}f}, {self.high * scale:{sign}.{digits}f}] n={self.n}"


@dataclass(frozen=True, slots=True)
class PairedDifference:
    """How much better the second arm does on the same episodes.

    `difference.n` counts episodes graded in both arms. `gained` are those that only the second arm solves, `lost`
    those that only the first does; `p` is McNemar's exact two-sided p-value. `seeds` is the number of clusters.
    """

    difference: Estimate
    gained: int
    lost: int
    p: float
    seeds: int

    @property
    def is_significant(self) -> bool:
        """Whether the interval leaves out 0: only then may it be called a difference."""
        low, high = self.difference.low, self.difference.high
        return low is not None and high is not None and (low > 0 or high < 0)


def wilson(successes: float, n: int, *, missing: int = 0, confidence: float = CONFIDENCE) -> Estimate:
    """Proportion of `successes` among `n` with Wilson's score interval. Raises `ValueError` outside 0..n."""
    if not 0 <= successes <= n:
        raise ValueError(f"expected between 0 and n={n} successes, got {successes}")
    if n == 0:
        return Estimate(None, None, None, 0, missing)
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    p = successes / n
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    # At the ends the bound is exact in theory and off by a rounding error in floating point.
    low = 0.0 if successes == 0 else max(0.0, centre - half)
    high = 1.0 if successes == n else min(1.0, centre + half)
    return Estimate(p, low, high, n, missing)


def proportion(outcomes: Outcomes, *, confidence: float = CONFIDENCE) -> Estimate:
    """Success rate of graded episodes, each taken as independent."""
    graded = [outcome for outcome in outcomes if outcome is not None]
    return wilson(math.fsum(graded), len(graded), missing=len(outcomes) - len(graded), confidence=confidence)


def success_rate(by_seed: Sequence[Outcomes], *, confidence: float = CONFIDENCE) -> Estimate:
    """Success rate over all episodes of all seeds; n counts episodes.

    The interval is the wider of two: Wilson's over episodes, and, from two seeds on, Student's t over the rates of the
    seeds, since models trained with different seeds differ by more than their episodes tell.
    """
    pooled = proportion([outcome for outcomes in by_seed for outcome in outcomes], confidence=confidence)
    rates = [rate for outcomes in by_seed if (rate := proportion(outcomes).value) is not None]
    pooled = wider(pooled, mean(rates, confidence=confidence))
    if pooled.low is None or pooled.high is None:
        return pooled
    return replace(pooled, low=max(0.0, pooled.low), high=min(1.0, pooled.high))


def wider(pooled: Estimate, across: Estimate) -> Estimate:
    """`pooled` with its interval at least as wide as that of `across`, laid around its own value."""
    if pooled.value is None or pooled.low is None or pooled.high is None or across.low is None or across.high is None:
        return pooled
    half = (across.high - across.low) / 2
    return replace(pooled, low=min(pooled.low, pooled.value - half), high=max(pooled.high, pooled.value + half))


def nanmean(values: Iterable[float]) -> float:
    """Mean of the values that are not nan; nan without any."""
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan


def mean(values: Iterable[float | None], *, confidence: float = CONFIDENCE) -> Estimate:
    """Arithmetic mean with Student's t interval.

    No interval for fewer than two values, nor for values that are all the same: it would have no width, and claim a
    certainty that they do not give. See `estimate` for means that have bounds.
    """
    every = list(values)
    known = [value for value in every if value is not None]
    n, missing = len(known), len(every) - len(known)
    if n < 2 or min(known) == max(known):
        return Estimate(known[0] if known else None, None, None, n, missing)
    centre = fmean(known)
    half = t_quantile((1 + confidence) / 2, n - 1) * stdev(known) / math.sqrt(n)
    return Estimate(centre, centre - half, centre + half, n, missing)


def paired_difference(
    first: Sequence[Outcomes],
    second: Sequence[Outcomes],
    *,
    seed: int = 0,
    resamples: int = RESAMPLES,
    confidence: float = CONFIDENCE,
) -> PairedDifference:
    """Success of `second` minus success of `first`, both given as episodes by seed, in the same order of episodes.

    A `first` of one seed is compared with every seed of `second` (a control that is trained once). The interval is a
    percentile bootstrap. Where all differences are the same, which it would take for certainty, it is `discordance` for
    outcomes of 0 and 1, and there is none for others. Raises `ValueError` when seeds or episodes do not match,
    `MissingError` without numpy; the same numbers give the same interval with every version of it.
    """
    pairs = _pairs(first, second)
    clusters = [[b - a for a, b in cluster] for cluster in pairs if cluster]
    flat = [pair for cluster in pairs for pair in cluster]
    gained = sum(a < 0.5 <= b for a, b in flat)
    lost = sum(b < 0.5 <= a for a, b in flat)
    missing = sum(len(outcomes) for outcomes in second) - len(flat)
    low, high = _interval(clusters, seed, resamples, confidence)
    value = fmean([b - a for a, b in flat]) if flat else None
    difference = Estimate(value, low, high, len(flat), missing)
    return PairedDifference(difference, gained, lost, mcnemar(gained, lost), len(clusters))


def contrast(by_seed: Sequence[Sequence[float]], *, seed: int = 0, resamples: int = RESAMPLES) -> Estimate:
    """Mean of one contrast an episode, such as a difference of differences, with the bootstrap of `paired_difference`.

    No interval where all are the same: it would claim a certainty that they do not give.
    """
    flat = [value for values in by_seed for value in values]
    if not flat or min(flat) == max(flat):
        return Estimate(flat[0] if flat else None, None, None, len(flat))
    low, high = _bootstrap([values for values in by_seed if values], seed, resamples, CONFIDENCE)
    return Estimate(fmean(flat), low, high, len(flat))


def discordance(gained: int, lost: int, n: int, *, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Interval of (gained - lost) / n from the Wilson intervals of the two shares of discordant pairs among n >= 1.

    With shares g, l, their bounds [g1, g2], [l1, l2] and correlation r = -sqrt(g l / ((1 - g)(1 - l))) of two cells of
    a multinomial, it is g - l - sqrt((g - g1)^2 - 2 r (g - g1)(l2 - l) + (l2 - l)^2) to the mirror image of that (Zou
    and Donner, 2008, Statistics in Medicine 27, "Construction of confidence limits about effect measures"). Without a
    discordant pair it is -u to u, u = z^2 / (n + z^2) being Wilson's upper bound of none in n: as many pairs as that
    may still differ.
    """
    more, less = (wilson(count, n, confidence=confidence) for count in (gained, lost))
    return max(-1.0, -_reach(less, more)), min(1.0, _reach(more, less))


def _reach(first: Estimate, second: Estimate) -> float:
    """Upper bound of `first` - `second`, two cells of a multinomial."""
    p, q = first.value or 0.0, second.value or 0.0
    up, down = (first.high or 0.0) - p, q - (second.low or 0.0)
    rest = (1 - p) * (1 - q)
    # A share of 1 leaves nothing for the other: they move against each other one to one.
    r = -math.sqrt(p * q / rest) if rest else -1.0
    return p - q + math.sqrt(up * up - 2 * r * up * down + down * down)


def mcnemar(gained: int, lost: int) -> float:
    """Exact two-sided p-value that gains and losses are equally likely (binomial test on the disagreements)."""
    total = gained + lost
    if total == 0:
        return 1.0
    tail = sum(math.comb(total, k) for k in range(min(gained, lost) + 1))
    return min(1.0, float(2 * tail / 2**total))


@lru_cache(maxsize=256)
def t_quantile(p: float, df: int) -> float:
    """Quantile of Student's t with `df` >= 1 degrees of freedom for 0.5 <= p < 1, to about 8 digits."""
    if not 0.5 <= p < 1 or df < 1:
        raise ValueError(f"expected 0.5 <= p < 1 and df >= 1, got p={p}, df={df}")
    low, high = 0.0, math.pi / 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _t_cdf(middle, df) < p else (low, middle)
    return math.tan(low) * math.sqrt(df)


def _t_cdf(angle: float, df: int) -> float:
    """P(T <= sqrt(df) tan(angle)): in the angle the density is a smooth power of the cosine (Simpson's rule)."""
    scale = math.exp(math.lgamma((df + 1) / 2) - math.lgamma(df / 2)) / math.sqrt(math.pi)
    cells = 400
    width = angle / cells
    heights = [math.pow(math.cos(at * width), df - 1) for at in range(cells + 1)]
    area = heights[0] + heights[-1] + 4 * math.fsum(heights[1:-1:2]) + 2 * math.fsum(heights[2:-1:2])
    return float(0.5 + scale * area * width / 3)


def _pairs(first: Sequence[Outcomes], second: Sequence[Outcomes]) -> list[list[tuple[float, float]]]:
    """Graded pairs of episodes, by seed."""
    if len(first) == 1 and len(second) > 1:
        first = [first[0]] * len(second)
    if len(first) != len(second):
        raise ValueError(f"arms are paired by seed, but one has {len(first)} seeds and the other {len(second)}")
    pairs: list[list[tuple[float, float]]] = []
    for at, (old, new) in enumerate(zip(first, second, strict=True)):
        if len(old) != len(new):
            raise ValueError(f"arms are paired by episode, but seed number {at} has {len(old)} and {len(new)} episodes")
        pairs.append([(a, b) for a, b in zip(old, new, strict=True) if a is not None and b is not None])
    return pairs


def _interval(
    clusters: Sequence[Sequence[float]], seed: int, resamples: int, confidence: float
) -> tuple[float | None, float | None]:
    """The interval of the mean of differences in [-1, 1]."""
    flat = [value for cluster in clusters for value in cluster]
    if not flat:
        return None, None
    if min(flat) < max(flat):
        return _bootstrap(clusters, seed, resamples, confidence)
    if flat[0] not in (-1, 0, 1):
        return None, None
    return discordance(flat.count(1), flat.count(-1), len(flat), confidence=confidence)


def _bootstrap(
    clusters: Sequence[Sequence[float]], seed: int, resamples: int, confidence: float
) -> tuple[float | None, float | None]:
    """Percentile interval of the mean over all values, clusters resampled first, then values within each."""
    if sum(map(len, clusters)) < 2:
        return None, None
    try:
        import numpy as np
    except ImportError:
        raise MissingError("the bootstrap needs numpy; install it with: pip install 'dynaweb[train]'") from None
    # NumPy's newer generators may draw otherwise in another version; this one's draws are frozen.
    rng = np.random.RandomState(np.random.MT19937(seed))
    count = len(clusters)
    chosen = rng.randint(count, size=(resamples, count)) if count > 1 else np.zeros((resamples, 1), dtype=np.int64)
    sums, sizes = np.zeros(resamples), np.zeros(resamples)
    for slot in range(count):
        for at, values in enumerate(clusters):
            rows = np.flatnonzero(chosen[:, slot] == at)
            sums[rows] += _resampled_sums(values, len(rows), rng)
            sizes[rows] += len(values)
    edges = np.quantile(sums / sizes, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(edges[0]), float(edges[1])


def _resampled_sums(values: Sequence[float], resamples: int, rng: np.random.RandomState) -> np.ndarray:
    """Sums of `resamples` bootstrap samples: by counts of each distinct value, of which there are few."""
    import numpy as np

    distinct, counts = np.unique(np.asarray(values, dtype=np.float64), return_counts=True)
    drawn = rng.multinomial(len(values), counts / len(values), size=resamples)
    return np.asarray(drawn @ distinct)


@dataclass(frozen=True, slots=True)
class Kind:
    """`low` and `high` bound every single value (None = no bound); `binary` values are 0 or 1 and nothing between."""

    name: str
    low: float | None = None
    high: float | None = None
    binary: bool = False

    def cut(self, bare: Estimate) -> Estimate:
        """An estimate whose interval stays within the bounds, as the mean does."""
        if bare.low is None or bare.high is None:
            return bare
        low = bare.low if self.low is None else max(self.low, bare.low)
        high = bare.high if self.high is None else min(self.high, bare.high)
        return replace(bare, low=low, high=high)


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


def interval_text(estimate: Estimate, *, signed: bool = False) -> str:
    """The interval in points, as in `[78.3, 91.4]`, or `[-]`; empty without a value."""
    if estimate.low is None or estimate.high is None:
        return "" if estimate.value is None else NO_INTERVAL
    sign = "+" if signed else ""
    return f"[{100 * estimate.low:{sign}.1f}, {100 * estimate.high:{sign}.1f}]"


def difference_text(estimate: Estimate) -> str:
    """As in `+9.3 [+3.1, +15.2]`."""
    return "-" if estimate.value is None else f"{100 * estimate.value:+.1f} {interval_text(estimate, signed=True)}"


def p_text(p: float) -> str:
    """A p-value with as many digits as it deserves."""
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def duration(seconds: float) -> str:
    """As in `42 s`, `4 min 20 s`, `1 h 05 min`."""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"


def count(n: int, what: str) -> str:
    """`1 curve`, `2 curves`, `2 successes`."""
    many = "es" if what.endswith("s") else "s"
    return f"{n} {what}{'' if n == 1 else many}"


def estimate_json(estimate: Estimate) -> dict[str, Any]:
    """An estimate as plain data."""
    low, high = estimate.low, estimate.high
    data = {"value": estimate.value, "low": low, "high": high, "n": estimate.n}
    return data | ({"missing": estimate.missing} if estimate.missing else {})


def text_table(head: Sequence[str], rows: Sequence[Sequence[str]], *, width: int = WIDTH) -> str:
    """Monospaced columns: the first to the left, the others to the right; the first is cut when it does not fit."""
    cells = [list(head), *map(list, rows)]
    widths = [max(len(row[at]) for row in cells) for at in range(len(head))]
    spare = width - sum(widths[1:]) - len(GAP) * (len(head) - 1)
    widths[0] = max(8, min(widths[0], spare))
    lines = [GAP.join(_cell(text, widths[at], at) for at, text in enumerate(row)).rstrip() for row in cells]
    return "\n".join([lines[0], "-" * max(map(len, lines)), *lines[1:]])


def _cell(text: str, width: int, at: int) -> str:
    if at:
        return text.rjust(width)
    return (text if len(text) <= width else text[: width - 3] + "...").ljust(width)
