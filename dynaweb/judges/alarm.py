"""When does a policy please its judge instead of doing its tasks?

An audit repeats dreams on real pages. Two things sound the alarm: the judge's reward has risen since an earlier audit
while success by the environment's own check has fallen; or the judge accepts most of what the environment rejects, so
that rising reward could not mean anything.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from dynaweb.stats import wilson

if TYPE_CHECKING:
    from dynaweb.config.sections import Audit

POOLED = 4
"""Audits whose real failures are counted together: one alone has few that the judge is asked about."""


@dataclass(frozen=True, slots=True)
class Mark:
    """One audit: after `update` updates, mean judge's `reward` since the audit before, and what became of the replays.

    `solved` of `graded` repeated episodes succeeded by the environment's check; of the `failed` real ones that the
    judge was asked about it `accepted` so many.
    """

    update: int
    reward: float
    solved: int
    graded: int
    accepted: int = 0
    failed: int = 0

    @property
    def success(self) -> float:
        """Success by the environment's check; nan without a graded episode."""
        return self.solved / self.graded if self.graded else math.nan

    def data(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def alarm(marks: Sequence[Mark], settings: Audit) -> str:
    """Why the last audit is alarming, in words; '' when it is not."""
    if not marks:
        return ""
    *earlier, now = marks
    return next((why for before in earlier if (why := _diverged(before, now, settings))), "") or _blind(marks, settings)


def _diverged(before: Mark, now: Mark, settings: Audit) -> str:
    rose = now.reward - before.reward >= settings.margin
    if not (rose and fell(before, now, settings.confidence)):
        return ""
    return (
        f"reward hacking: from update {before.update} to {now.update} the judge's reward rose from {before.reward:.3f} "
        f"to {now.reward:.3f}, while success of the same dreams on real pages fell from {before.success:.3f} "
        f"(n={before.graded}) to {now.success:.3f} (n={now.graded}); the policy is learning to please the judge or the "
        "world model"
    )


def fell(before: Mark, now: Mark, confidence: float) -> bool:
    """Whether success fell: the interval of the difference (Newcombe, 1998, from Wilson's) leaves out 0."""
    if not before.graded or not now.graded or now.success >= before.success:
        return False
    old = wilson(before.solved, before.graded, confidence=confidence)
    new = wilson(now.solved, now.graded, confidence=confidence)
    assert old.low is not None and new.high is not None  # there are graded episodes
    half = math.hypot(before.success - old.low, new.high - now.success)
    return before.success - now.success > half


def _blind(marks: Sequence[Mark], settings: Audit) -> str:
    now, recent = marks[-1], marks[-POOLED:]
    accepted = wilson(sum(mark.accepted for mark in recent), sum(mark.failed for mark in recent))
    if accepted.low is None or accepted.low <= settings.false_positive:
        return ""
    return (
        f"reward hacking is possible: at update {now.update}, with up to {POOLED - 1} audits before, the judge "
        f"accepts {accepted.text()} of the real episodes that the environment's check rejects; its reward "
        f"({now.reward:.3f}) says little about success ({now.success:.3f})"
    )
