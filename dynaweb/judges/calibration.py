"""Probabilities that mean what they say, and measures of how well they do.

Platt scaling (Platt, 1999): P(success) = 1 / (1 + exp(-(a z + b))), z the judge's log-odds, a >= 0 and b fitted by
maximum likelihood with Platt's softened targets, so that a perfect separation does not drive them to infinity.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import NormalDist, fmean

from dynaweb.stats import SCORE, Estimate, estimate, wilson

ITERATIONS = 100
FEWEST = 4
"""Examples of each outcome that a calibration needs."""
BINS = 5
LIMIT = 50.0
"""Log-odds beyond this are as good as certain."""


@dataclass(frozen=True, slots=True)
class Platt:
    """Slope and intercept on log-odds; `n` examples fitted (0: nothing was, and the judge's own probability stands).

    `prior` is the log-odds of success among them.
    """

    slope: float = 1.0
    intercept: float = 0.0
    n: int = 0
    prior: float = 0.0

    def probability(self, log_odds: float) -> float:
        """P(success)."""
        return sigmoid(self.slope * log_odds + self.intercept)

    def evidence(self, log_odds: float) -> float:
        """P(success) if successes and failures were equally frequent: what the episode itself says.

        A decision by the probability would accept most failures where success is frequent, and reward them.
        """
        return sigmoid(self.slope * log_odds + self.intercept - self.prior)

    def data(self) -> dict[str, float]:
        """Plain data."""
        return asdict(self)


def sigmoid(value: float) -> float:
    """1 / (1 + exp(-value)), without overflow."""
    return 1.0 / (1.0 + math.exp(-max(-LIMIT, min(LIMIT, value))))


def fit_platt(log_odds: Sequence[float], labels: Sequence[bool]) -> Platt:
    """Newton's method on the two parameters; the identity where either outcome has fewer than `FEWEST` examples."""
    good = sum(labels)
    bad = len(labels) - good
    if min(good, bad) < FEWEST:
        return Platt()
    targets = [(good + 1) / (good + 2) if label else 1 / (bad + 2) for label in labels]
    z = [max(-LIMIT, min(LIMIT, value)) for value in log_odds]
    a, b = 1.0, 0.0
    for _ in range(ITERATIONS):
        step = _newton(z, targets, a, b)
        a, b = a - step[0], b - step[1]
        if max(map(abs, step)) < 1e-9:
            break
    # A judge whose order is wrong on few examples is not turned around: its probability then is the base rate.
    prior = math.log(good / bad)
    return Platt(a, b, len(z), prior) if a > 0 else Platt(0.0, prior, len(z), prior)


def _newton(z: Sequence[float], targets: Sequence[float], a: float, b: float) -> tuple[float, float]:
    """The Newton step of the mean cross-entropy; a little ridge keeps it finite, and long steps are cut."""
    p = [sigmoid(a * value + b) for value in z]
    errors = [one - target for one, target in zip(p, targets, strict=True)]
    weights = [one * (1 - one) for one in p]
    ga, gb = fmean([e * v for e, v in zip(errors, z, strict=True)]), fmean(errors)
    haa = fmean([w * v * v for w, v in zip(weights, z, strict=True)]) + 1e-9
    hab = fmean([w * v for w, v in zip(weights, z, strict=True)])
    hbb = fmean(weights) + 1e-9
    det = haa * hbb - hab * hab
    if det <= 1e-18:
        return ga, gb
    return _cut((hbb * ga - hab * gb) / det), _cut((haa * gb - hab * ga) / det)


def _cut(value: float) -> float:
    return max(-1.0, min(1.0, value))


def auc(scores: Sequence[float], labels: Sequence[bool]) -> Estimate:
    """Area under the ROC curve: the chance that a success scores above a failure (ties count half).

    The interval is that of Hanley and McNeil (1982), cut to [0, 1]; `n` counts successes and failures. No value where
    either is missing; no interval where the formula gives it no width, as for an area of 1.
    """
    good = [s for s, label in zip(scores, labels, strict=True) if label]
    bad = [s for s, label in zip(scores, labels, strict=True) if not label]
    if not good or not bad:
        return Estimate(None, None, None, len(scores))
    wins = sum((g > b) + 0.5 * (g == b) for g in good for b in bad)
    area = wins / (len(good) * len(bad))
    q1, q2 = area / (2 - area), 2 * area * area / (1 + area)
    spread = area * (1 - area) + (len(good) - 1) * (q1 - area**2) + (len(bad) - 1) * (q2 - area**2)
    if spread <= 0:
        return Estimate(area, None, None, len(scores))
    half = NormalDist().inv_cdf(0.975) * math.sqrt(spread / (len(good) * len(bad)))
    return Estimate(area, max(0.0, area - half), min(1.0, area + half), len(scores))


@dataclass(frozen=True, slots=True)
class Bin:
    """Episodes whose probability lies in [`low`, `high`): their mean probability, and how many really succeeded."""

    low: float
    high: float
    said: float | None
    happened: Estimate


@dataclass(frozen=True, slots=True)
class Quality:
    """How well probabilities of success do on episodes whose outcome is known.

    `accepts_failures` is the false-positive rate; `brier_of_base_rate` is the Brier score of always saying the base
    rate, which any useful judge is below; `calibration_error` the mean distance of said and happened over bins,
    weighted by their size.
    """

    accuracy: Estimate
    accepts_failures: Estimate
    auc: Estimate
    brier: Estimate
    brier_of_base_rate: float | None
    calibration_error: float | None
    bins: tuple[Bin, ...]

    def estimates(self) -> dict[str, Estimate]:
        """The measures that have an interval."""
        names = ("accuracy", "accepts_failures", "auc", "brier")
        return {name: getattr(self, name) for name in names}


def quality(probabilities: Sequence[float], labels: Sequence[bool], decisions: Sequence[bool] | None = None) -> Quality:
    """Accuracy and false positives of decisions (default: from 0.5 on), AUC, Brier score and calibration."""
    n = len(labels)
    positive = [p >= 0.5 for p in probabilities] if decisions is None else decisions
    right = sum(yes == label for yes, label in zip(positive, labels, strict=True))
    accepted = sum(yes and not label for yes, label in zip(positive, labels, strict=True))
    squares = [(p - label) ** 2 for p, label in zip(probabilities, labels, strict=True)]
    rate = fmean(labels) if n else None
    bins = reliability(probabilities, labels)
    off = sum(b.happened.n * abs(b.said - (b.happened.value or 0.0)) for b in bins if b.said is not None)
    return Quality(
        wilson(right, n),
        wilson(accepted, n - sum(labels)),
        auc(probabilities, labels),
        estimate(SCORE, squares),
        rate * (1 - rate) if rate is not None else None,
        off / n if n else None,
        bins,
    )


def reliability(probabilities: Sequence[float], labels: Sequence[bool]) -> tuple[Bin, ...]:
    """`BINS` equal bins of probability."""
    filled: list[list[tuple[float, bool]]] = [[] for _ in range(BINS)]
    for p, label in zip(probabilities, labels, strict=True):
        filled[min(BINS - 1, int(p * BINS))].append((p, label))
    return tuple(
        Bin(
            index / BINS,
            (index + 1) / BINS,
            fmean([p for p, _ in inside]) if inside else None,
            wilson(sum(label for _, label in inside), len(inside)),
        )
        for index, inside in enumerate(filled)
    )
