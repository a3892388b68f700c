"""What a judge may say. A score is a number in [0, 1] or None; anything else is a fault of the judge, and is no score.

None is never turned into 0: an episode without a score leaves its group and teaches nothing. A judge that scores none
of the episodes that it was asked about ends the run, since there is nothing to learn from and no reason to go on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from dynaweb.errors import TrainingError
from dynaweb.types import Judgement, Trajectory

REFUSED = "the judge returned"
"""How the reason of a refused score begins."""


def checked(judgement: Judgement) -> Judgement:
    """The judgement itself, or one without a score and with the reason, where the score is no number in [0, 1]."""
    score = judgement.score
    if score is None:
        return judgement
    fine = isinstance(score, int | float) and math.isfinite(score) and 0.0 <= score <= 1.0
    if fine:
        chance = judgement.probability
        sound = chance is not None and math.isfinite(chance) and 0.0 <= chance <= 1.0
        return replace(judgement, score=float(score), probability=chance if sound else None)
    return Judgement(
        None, why=f"{REFUSED} {score!r}, which is no score in [0, 1]" + (f" ({judgement.why})" * bool(judgement.why))
    )


def bent(probability: float, middle: float) -> float:
    """The number in [0, 1] whose odds are those of `probability` divided by those of `middle`.

    `middle` becomes one half, and 0.5 leaves every probability as it is. A judge that is nearly always sure gives true
    episodes and some of its mistakes probabilities close to 1; around a high `middle` these are far apart again.
    """
    if middle == 0.5:
        return probability
    if not 0.0 < middle < 1.0:
        return float(probability >= middle)
    for_it, against = probability * (1.0 - middle), (1.0 - probability) * middle
    return for_it / (for_it + against)


def refused(judged: Trajectory) -> bool:
    """Whether the judge's score of an episode was no score."""
    return judged.judgement is not None and judged.judgement.why.startswith(REFUSED)


def refuse_silence(answers: Sequence[Judgement], what: str) -> None:
    """Raise `TrainingError` when a judge was asked and gave not one score; `answers` are those that it was asked
    for."""
    if answers and all(answer.score is None for answer in answers):
        raise TrainingError(
            f"{what}: the judge scored none of {len(answers)} episodes that it was asked about; the first: "
            f"{answers[0].why.rstrip('.') or 'no reason given'}. Mend that and resume the run, or take another judge "
            "with --reward; `dynaweb judge audit` shows what a judge says of real episodes"
        )
