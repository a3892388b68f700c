"""Any judge against the environment's own verdicts on real episodes: confusion, false positives, by site and length.

Only episodes that the judge's model is asked about count as its decisions; those that did not end by themselves are
scored 0 by code, some by a rule of the judge, and would make every judge look better than it is. They and episodes
without a score are counted apart, never as NO.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dynaweb.judges.calibration import Quality, quality
from dynaweb.loop.evaluate import SUCCESS
from dynaweb.loop.outcomes import site_name
from dynaweb.loop.verdicts import answers_for, judge_all, success_of, was_asked
from dynaweb.report.stats import Estimate, wilson
from dynaweb.report.table import text_table
from dynaweb.types import Trajectory

if TYPE_CHECKING:
    from dynaweb.protocols import Judge

SHOWN = ("accuracy", "auc", "brier")
WIDTH = 160
"""Characters of a line of the tables."""
LONG = 6
"""Episodes of at least so many steps are one group."""


@dataclass(frozen=True, slots=True)
class Confusion:
    """Decisions on episodes that the judge's model was asked about, by the environment's verdict.

    `silent` got no score. `ruled_out` are failures, `ruled_out_wrongly` successes, that a rule of the judge scored 0.
    """

    name: str
    true_positive: int = 0
    false_positive: int = 0
    true_negative: int = 0
    false_negative: int = 0
    silent: int = 0
    ruled_out: int = 0
    ruled_out_wrongly: int = 0

    @property
    def accepts_failures(self) -> Estimate:
        """False-positive rate: the share of real failures that the judge accepts."""
        return wilson(self.false_positive, self.false_positive + self.true_negative)

    @property
    def rejects_successes(self) -> Estimate:
        """False-negative rate: the share of real successes that the judge rejects."""
        return wilson(self.false_negative, self.false_negative + self.true_positive)

    @property
    def agrees(self) -> Estimate:
        """Accuracy."""
        right = self.true_positive + self.true_negative
        return wilson(right, right + self.false_positive + self.false_negative)

    def data(self) -> dict[str, Any]:
        """Plain data, rates included."""
        rates = ("accepts_failures", "rejects_successes", "agrees")
        return asdict(self) | {name: getattr(self, name) for name in rates}


def confusion(name: str, judged: Sequence[Trajectory]) -> Confusion:
    """Count the judge's decisions on graded episodes that carry its judgement."""
    counts: Counter[str] = Counter()
    for trajectory in judged:
        real = success_of(trajectory)
        if real is None or not answers_for(trajectory):
            continue
        if not was_asked(trajectory):
            counts["ruled_out_wrongly" if real >= SUCCESS else "ruled_out"] += 1
            continue
        said = trajectory.judgement.score if trajectory.judgement is not None else None
        if said is None:
            counts["silent"] += 1
            continue
        right = (said >= SUCCESS) == (real >= SUCCESS)
        counts[f"{'true' if right else 'false'}_{'positive' if said >= SUCCESS else 'negative'}"] += 1
    return Confusion(name, **counts)


@dataclass(frozen=True, slots=True)
class JudgeReport:
    """One judge: all its decisions, by site, by length, and how good its probabilities are, where it gives any."""

    name: str
    whole: Confusion
    sites: tuple[Confusion, ...]
    lengths: tuple[Confusion, ...]
    quality: Quality | None = None


@dataclass(frozen=True)
class JudgeAudits:
    """Judges side by side on the same real episodes. Its text is the table."""

    file: Path
    episodes: int
    successes: int
    unfinished: int
    """Graded episodes that did not end by themselves: nobody asks a judge about these."""
    judges: tuple[JudgeReport, ...]
    origin: str = ""

    def __str__(self) -> str:
        head = (
            f"{self.episodes} graded real episodes ({self.origin}): {self.successes} succeeded, {self.unfinished} did "
            "not end by themselves and are scored 0 by code"
        )
        lines = [head, "", _table("judge", [one.whole for one in self.judges]), "", self._qualities()]
        for one in self.judges:
            lines += ["", _table(f"{one.name} by site", one.sites), "", _table(f"{one.name} by length", one.lengths)]
        return "\n".join([*lines, "", f"{self.file}"])

    __repr__ = __str__

    def _qualities(self) -> str:
        rows = []
        for one in self.judges:
            found = one.quality
            values = [getattr(found, name).text() if found is not None else "-" for name in SHOWN]
            off = found.calibration_error if found is not None else None
            base = found.brier_of_base_rate if found is not None else None
            rows.append((one.name, *values, *("-" if value is None else f"{value:.3f}" for value in (base, off))))
        return text_table(
            ("judge", "accuracy", "AUC", "Brier", "Brier of base rate", "calibration error"), rows, width=WIDTH
        )


def _table(head: str, rows: Sequence[Confusion]) -> str:
    cells = [
        (
            one.name,
            str(one.true_positive),
            str(one.false_positive),
            str(one.true_negative),
            str(one.false_negative),
            str(one.silent),
            f"{one.ruled_out} + {one.ruled_out_wrongly}",
            one.accepts_failures.text(),
            one.rejects_successes.text(),
        )
        for one in rows
    ]
    names = ("yes, right", "yes, wrong", "no, right", "no, wrong", "no score", "by rule: right + wrong")
    head_row = (head, *names, "accepts failures [95 %]", "rejects successes [95 %]")
    return text_table(head_row, cells, width=WIDTH)


async def report_on(name: str, judge: Judge, episodes: Sequence[Trajectory]) -> JudgeReport:
    """Ask a judge about graded real episodes, and compare."""
    judged = await judge_all(judge, episodes)
    return JudgeReport(
        name,
        confusion(name, judged),
        _grouped(judged, lambda t: site_name(t.task)),
        _grouped(judged, length_name),
        _quality(judged),
    )


def length_name(trajectory: Trajectory) -> str:
    """Length of an episode in steps, long ones together."""
    steps = len(trajectory.steps)
    return f"{steps} step{'s' * (steps != 1)}" if steps < LONG else f"{LONG} steps or more"


def _grouped(judged: Sequence[Trajectory], key: Callable[[Trajectory], str]) -> tuple[Confusion, ...]:
    groups: dict[str, list[Trajectory]] = {}
    for trajectory in judged:
        groups.setdefault(key(trajectory), []).append(trajectory)
    return tuple(confusion(name, group) for name, group in sorted(groups.items()))


def _quality(judged: Sequence[Trajectory]) -> Quality | None:
    pairs = [
        (t.judgement.probability, real >= SUCCESS, (t.judgement.score or 0.0) >= SUCCESS)
        for t in judged
        if t.judgement is not None
        and t.judgement.probability is not None
        and was_asked(t)
        and (real := success_of(t)) is not None
    ]
    if not pairs:
        return None
    return quality([p for p, _, _ in pairs], [label for _, label, _ in pairs], [yes for _, _, yes in pairs])
