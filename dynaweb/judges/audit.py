"""Any judge against the environment's own verdicts on real episodes: confusion, false positives, by site and length.

Only episodes that the judge's model is asked about count as its decisions; those that did not end by themselves are
scored 0 by code, some by a rule of the judge, and would make every judge look better than it is. They and episodes
without a score are counted apart, never as NO.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dynaweb.judges.calibration import Quality, quality
from dynaweb.judges.reward import SUCCESS, judge_all, needs_judge, reached_model, success_of
from dynaweb.stats import Estimate, interval_text, text_table, wilson
from dynaweb.types import Trajectory

if TYPE_CHECKING:
    from dynaweb.protocols import Judge

QUALITIES = {"accuracy": "accuracy", "auc": "AUC", "brier": "Brier score"}
WIDTH = 100
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
        if real is None or not needs_judge(trajectory):
            continue
        if not reached_model(trajectory):
            counts["ruled_out_wrongly" if real >= SUCCESS else "ruled_out"] += 1
            continue
        score = trajectory.judgement.score if trajectory.judgement is not None else None
        if score is None:
            counts["silent"] += 1
            continue
        right = (score >= SUCCESS) == (real >= SUCCESS)
        counts[f"{'true' if right else 'false'}_{'positive' if score >= SUCCESS else 'negative'}"] += 1
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
        whole = _table("judge", [one.whole for one in self.judges])
        lines = [textwrap.fill(head, WIDTH), "", whole, "", textwrap.fill(LEGEND, WIDTH), "", self._qualities()]
        for one in self.judges:
            lines += ["", _table(f"{one.name} by site", one.sites), "", _table(f"{one.name} by length", one.lengths)]
        return "\n".join([*lines, "", f"{self.file}"])

    __repr__ = __str__

    def _qualities(self) -> str:
        rows = []
        for one in self.judges:
            quality = one.quality
            if quality is None:
                rows.append((f"{one.name}: gives no probability", "-", "0"))
                continue
            for name, label in QUALITIES.items():
                value: Estimate = getattr(quality, name)
                rows.append((f"{one.name}: {label}", value.text().rsplit(" n=", 1)[0], str(value.n)))
            n = str(quality.brier.n)
            plain = {"Brier of base rate": quality.brier_of_base_rate, "calibration error": quality.calibration_error}
            for label, number in plain.items():
                rows.append((f"{one.name}: {label}", "-" if number is None else f"{number:.3f}", n))
        return text_table(("probabilities", "value  [95 %]", "n"), rows, width=WIDTH)


LEGEND = (
    "r/w: right and wrong decisions of the judge's model; silent: it gave no score; rule: what a rule of the judge "
    "scored 0 without asking; accepts failures: wrong yes of all failures that it decided on; rejects "
    "successes: wrong no of all such successes"
)


def _table(head: str, rows: Sequence[Confusion]) -> str:
    cells = [
        (
            one.name,
            f"{one.true_positive}/{one.false_positive}",
            f"{one.true_negative}/{one.false_negative}",
            str(one.silent),
            f"{one.ruled_out}/{one.ruled_out_wrongly}",
            _share(one.accepts_failures),
            _share(one.rejects_successes),
        )
        for one in rows
    ]
    names = ("yes, r/w", "no, r/w", "silent", "rule, r/w", "accepts failures %", "rejects successes %")
    return text_table((head, *names), cells, width=WIDTH)


def _share(rate: Estimate) -> str:
    return "-" if rate.value is None else f"{100 * rate.value:.1f} {interval_text(rate)}"


async def report_on(name: str, judge: Judge, episodes: Sequence[Trajectory]) -> JudgeReport:
    """Ask a judge about graded real episodes, and compare."""
    judged = await judge_all(judge, episodes)
    return JudgeReport(
        name,
        confusion(name, judged),
        _grouped(judged, lambda t: t.task.site),
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
        and reached_model(t)
        and (real := success_of(t)) is not None
    ]
    if not pairs:
        return None
    return quality([p for p, _, _ in pairs], [label for _, label, _ in pairs], [yes for _, _, yes in pairs])
