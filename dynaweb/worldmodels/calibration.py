"""How far a dreamed page can be trusted: the model's own confidence, calibrated against measured fidelity.

A dreamed page is *sound* when it is of the right kind and its elements are right: at least 0.9 of them by role
(`structure`: names and prices of pages never seen cannot be known), or 0.8 of them wholly (`content`). A logistic
regression maps what the model's answer tells about itself (mean log-probability of its tokens, their number) to the
probability that its page is sound. Of a dream, the product over its dreamed steps is the expected fidelity: one unsound
page spoils the rest.

Reliability and the Brier score (Brier, 1950) are out of sample: each fold of sites is predicted by a regression on the
others. The score of always saying the share of sound pages stands beside it; a confidence that knows nothing has that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

from dynaweb.errors import ConfigError
from dynaweb.plugin import contracts
from dynaweb.types import Action, Observation, Prediction

if TYPE_CHECKING:
    import numpy as np

    from dynaweb.protocols import WorldModel

Fidelity = Literal["structure", "content"]
SOUND: Mapping[Fidelity, tuple[str, float]] = {"structure": ("role_f1", 0.9), "content": ("element_f1", 0.8)}
"""The measure that decides whether a page of the right kind is sound, and from where on it is."""
FEWEST = 20
"""Pages that a calibration needs at least."""
FOLDS = 5
BINS = 5
RIDGE = 1.0
"""Strength of the penalty on the slopes of standardised features: few pages must not give a steep curve."""


@dataclass(frozen=True, slots=True)
class Case:
    """A page that a model dreamed: what it tells about itself, whether it was sound, and the site it belongs to."""

    logprob: float | None
    tokens: int
    sound: bool
    site: str = ""


@dataclass(frozen=True, slots=True)
class Bin:
    """Pages with a similar confidence: mean confidence, share that was sound, and how many they are."""

    expected: float
    sound: float
    n: int


@dataclass(frozen=True, slots=True)
class Calibration:
    """The regression (`weights`: intercept, then slopes of features standardised by `means` and `scales`), and how
    good it is on `n` pages, out of sample. `base_rate` is the share of sound pages, `brier_of_base_rate` its score."""

    weights: tuple[float, ...]
    means: tuple[float, ...]
    scales: tuple[float, ...]
    n: int
    base_rate: float
    brier: float
    brier_of_base_rate: float
    reliability: tuple[Bin, ...]

    def confidence(self, prediction: Prediction) -> float:
        """Probability that a dreamed page is sound; 0 where there is no page."""
        if prediction.next_observation is None:
            return 0.0
        features = _features(prediction.logprob, last_tokens(prediction))
        standard = [(x - mean) / scale for x, mean, scale in zip(features, self.means, self.scales, strict=True)]
        return _sigmoid(self.weights[0] + sum(w * x for w, x in zip(self.weights[1:], standard, strict=True)))

    def data(self) -> dict[str, Any]:
        """Plain data."""
        from dataclasses import asdict

        return asdict(self)

    @classmethod
    def of_data(cls, data: Mapping[str, Any]) -> Calibration:
        """What `data` gave."""
        plain: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in data.items()}
        plain["reliability"] = tuple(Bin(**one) for one in data["reliability"])
        return cls(**plain)


def is_sound(graded: Mapping[str, float | None], fidelity: Fidelity = "structure") -> bool:
    """Whether a page with these measures (`dynaweb.worldmodels.fidelity.grade`) can be dreamed on."""
    name, least = SOUND[fidelity]
    return bool(graded["page_kind"]) and (graded[name] or 0.0) >= least


def calibrate(cases: Sequence[Case]) -> Calibration:
    """Fit the regression. Raises `ConfigError` with fewer than `FEWEST` pages."""
    check_enough(len(cases))
    import numpy as np

    x = np.array([_features(case.logprob, case.tokens) for case in cases])
    y = np.array([float(case.sound) for case in cases])
    folds = _folds([case.site for case in cases])
    expected = np.empty(len(cases))
    for fold in range(FOLDS):
        here = folds == fold
        if here.any():
            expected[here] = _predict(_fit(x[~here], y[~here]), x[here]) if (~here).any() else y.mean()
    weights, means, scales = _fit(x, y)
    rate = float(y.mean())
    return Calibration(
        weights=tuple(weights.tolist()),
        means=tuple(means.tolist()),
        scales=tuple(scales.tolist()),
        n=len(cases),
        base_rate=rate,
        brier=float(((expected - y) ** 2).mean()),
        brier_of_base_rate=rate * (1 - rate),
        reliability=reliability(expected.tolist(), y.tolist()),
    )


def check_enough(pages: int) -> None:
    """Raise `ConfigError` for fewer pages than a calibration needs."""
    if pages < FEWEST:
        raise ConfigError(
            f'dream.horizon = "auto" needs at least {FEWEST} held-out pages to calibrate on, there are {pages}; '
            "raise explore.episodes or wm_fit.holdout, or give dream.horizon a number"
        )


def reliability(expected: Sequence[float], sound: Sequence[float], bins: int = BINS) -> tuple[Bin, ...]:
    """Pages in `bins` groups of nearly equal size, from the least to the most confident."""
    order = sorted(range(len(expected)), key=lambda at: expected[at])
    cuts = [round(len(order) * part / bins) for part in range(bins + 1)]
    groups = [order[low:high] for low, high in pairwise(cuts) if high > low]
    return tuple(
        Bin(sum(expected[at] for at in g) / len(g), sum(sound[at] for at in g) / len(g), len(g)) for g in groups
    )


class Trusted:
    """A world model whose predictions carry their calibrated confidence."""

    def __init__(self, world_model: WorldModel, calibration: Calibration) -> None:
        self.world_model = world_model
        self.calibration = calibration

    async def predict(
        self, observation: Observation, action: Action, *, seed: int, history: Sequence[Action] = (), goal: str = ""
    ) -> Prediction:
        """The prediction of the model itself, with `confidence`."""
        answer = await self.world_model.predict(observation, action, seed=seed, history=history, goal=goal)
        prediction = contracts.prediction(self.world_model, answer)
        return replace(prediction, confidence=self.calibration.confidence(prediction))


def _features(logprob: float | None, tokens: int) -> tuple[float, float]:
    """Mean log-probability (0 where it is not known, then the same for all) and logarithm of the length."""
    known = logprob if logprob is not None and math.isfinite(logprob) else 0.0
    return known, math.log(max(1, tokens))


def last_tokens(prediction: Prediction) -> int:
    """Tokens of the answer that was read; where a model does not tell, its mean over the attempts."""
    return max(1, prediction.answer_tokens or prediction.tokens // max(1, prediction.attempts))


def _folds(sites: Sequence[str]) -> np.ndarray:
    """A fold for each page; pages of one site share theirs where there are enough sites, else pages are dealt out."""
    import numpy as np

    names = {site: number for number, site in enumerate(dict.fromkeys(sites))}
    if len(names) >= FOLDS:
        return np.array([names[site] % FOLDS for site in sites])
    return np.arange(len(sites)) % FOLDS


_Fitted = tuple["np.ndarray", "np.ndarray", "np.ndarray"]


def _fit(x: np.ndarray, y: np.ndarray) -> _Fitted:
    """Weights, means and scales of a penalised logistic regression, by Newton's method."""
    import numpy as np

    means, scales = x.mean(0), x.std(0)
    scales[scales < 1e-9] = 1.0
    design = np.column_stack([np.ones(len(x)), (x - means) / scales])
    # A little of the penalty on the intercept too: with all pages sound the answer must not run away.
    penalty = np.diag([0.1, *([RIDGE] * x.shape[1])])
    weights = np.zeros(design.shape[1])
    for _ in range(50):
        p = 1 / (1 + np.exp(-np.clip(design @ weights, -30, 30)))
        gradient = design.T @ (p - y) + penalty @ weights
        hessian = (design * (p * (1 - p))[:, None]).T @ design + penalty
        step = np.linalg.solve(hessian, gradient)
        weights = weights - step
        if float(np.abs(step).max()) < 1e-9:
            break
    return weights, means, scales


def _predict(fitted: _Fitted, x: np.ndarray) -> np.ndarray:
    import numpy as np

    weights, means, scales = fitted
    score = weights[0] + ((x - means) / scales) @ weights[1:]
    result: np.ndarray = 1 / (1 + np.exp(-np.clip(score, -30, 30)))
    return result


def _sigmoid(score: float) -> float:
    return 1 / (1 + math.exp(-max(-30.0, min(30.0, score))))
