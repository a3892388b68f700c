"""The closing table of a run and its headline in words, as plain text for terminals and as plain data for `--json`.

A difference has one statement beside it, that of its interval. McNemar's p stands in the whole table, by its name.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any

from dynaweb.report.data import KINDS, Arm, JudgeAudit, Measure, ReportData
from dynaweb.runs.names import PROMPT_TOKENS_LEFT_OUT, cut_share
from dynaweb.stats import (
    NO_INTERVAL,
    WIDTH,
    Estimate,
    PairedDifference,
    count,
    difference_text,
    duration,
    estimate_json,
    interval_text,
    p_text,
    text_table,
)


@dataclass(frozen=True, slots=True)
class ClosingRow:
    """One arm of the closing table, with its differences to `ReportData.reference` and `ReportData.start`."""

    arm: Arm
    success: Estimate
    against: PairedDifference | None
    since_start: PairedDifference | None
    is_reference: bool
    is_start: bool


def closing_rows(data: ReportData) -> list[ClosingRow]:
    """The arms in their order, each with its difference to where it started and to the best SFT arm."""
    reference, start = data.reference, data.start
    return [
        ClosingRow(
            arm,
            arm.success,
            data.against_reference(arm),
            data.against_start(arm),
            reference is not None and arm.name == reference.name,
            start is not None and arm.name == start.name,
        )
        for arm in data.arms
    ]


def headline(data: ReportData) -> str:
    """How the main arm does, what it has gained since it started, and whether it differs from the best SFT arm."""
    main = data.main
    if main is None or main.success.value is None:
        return ""
    share = f"{100 * main.success.value:.1f} % {interval_text(main.success)}"
    first = f"{main.label} succeeds on {share} of {main.success.n} {data.episodes_are}"
    parts = []
    if data.reference != data.start and data.start is not None:
        parts.append(_compared(data.against_start(main), "", f" since it started as {data.start.label}"))
    if data.reference is not None:
        label = data.reference.label
        parts.append(_compared(data.against_reference(main), f" to {label}", f" against {label}"))
    known = [words for words in parts if words]
    return f"{first}{': ' if known else ''}{'; '.join(known)}."


def _compared(against: PairedDifference | None, to: str, than: str) -> str:
    if against is None or against.difference.value is None:
        return ""
    n = against.difference.n
    points = f"{100 * against.difference.value:+.1f} points {interval_text(against.difference, signed=True)}"
    if against.is_significant:
        return f"{points}{than} (paired, n = {n})"
    return f"no difference{to} is shown{'' if to else than} ({points}, paired, n = {n})"


def reference_words(data: ReportData) -> str:
    """Why the reference is the reference; empty where it is what the others started from."""
    reference, start = data.reference, data.start
    if reference is None or start is None or reference.name == start.name:
        return ""
    return (
        f"{reference.label} is the reference because it is the best arm here that learned from demonstrations alone: "
        "what is gained against it is more than longer training gives"
    )


def made_words(data: ReportData) -> str:
    """What the run was made with, as in `world model delta, optimizer gspo`."""
    return ", ".join(f"{KINDS[kind]} {name}" for kind, name in data.made_with.items())


def closing_text(data: ReportData, *, report: Path | None = None, width: int = WIDTH) -> str:
    """The closing table and what belongs to it, lines of at most `width` characters (80 at least), no final newline."""
    sample = textwrap.fill(data.browser_sample, width)
    parts = [_head(data, width), sample, _arms(data, width), _measures(data.fidelity, width)]
    parts += [_audits(data, width), _costs(data, width), _cut_prompts(data, width)]
    parts += [textwrap.fill(f"ALARM: {why}", width) for why in data.alarms]
    if report is not None:
        parts.append(f"report: {report}")
    return "\n\n".join(part for part in parts if part)


ROWS = 6
"""Arms that the end of a run shows; the whole closing table has all."""


def closing_short(data: ReportData, *, report: Path | None = None, width: int = WIDTH) -> str:
    """How a run ends on a terminal: one sentence, at most `ROWS` arms, and where the rest is."""
    every = closing_rows(data)
    # The main arm, the reference and where all began stay, whatever else there is.
    first = sorted(every, key=lambda row: not (row.is_reference or row.is_start or row.arm.role == "main"))[:ROWS]
    rows = [
        [*_arm_cells(row), "reference" if row.is_reference else _against_cell(row)] for row in every if row in first
    ]
    reference = data.reference.label if data.reference is not None else "-"
    sentences = " ".join(text for text in (headline(data), data.browser_sample) if text)
    parts = [textwrap.fill(sentences, width, break_on_hyphens=False)]
    if rows:
        parts.append(text_table(["arm", "success %  [95 %]", "n", f"against {reference}"], rows, width=width))
    parts += [textwrap.fill(f"ALARM: {why}", width) for why in data.alarms]
    look = [f"look at it: dynaweb view {quote(data.folder)}", f"all numbers: dynaweb report {quote(data.folder)}"]
    if len(every) > len(first):
        look[1] += f" (also of {count(len(every) - len(first), 'more arm')})"
    parts.append("\n".join([*(look if data.folder else []), *([f"report: {report}"] if report is not None else [])]))
    return "\n\n".join(part for part in parts if part)


def _against_cell(row: ClosingRow) -> str:
    if row.is_start or row.against is None:
        return ""
    return difference_text(row.against.difference) + (" *" if row.against.is_significant else "  ")


def closing_json(data: ReportData) -> dict[str, Any]:
    """The same as plain data: rates and differences as fractions, each with its interval and n."""
    start, reference = data.start, data.reference
    return {
        "headline": headline(data),
        "browser_sample": data.browser_sample,
        "made_with": data.made_with,
        "start": start.name if start is not None else None,
        "reference": reference.name if reference is not None else None,
        "arms": [_arm_json(row) for row in closing_rows(data)],
        "world_model": {measure.label: estimate_json(measure.estimate) for measure in data.fidelity},
        "judge": {audit.label: _audit_json(audit) for audit in data.audits},
        "failures": {name: dict(counts) for name, counts in data.failures.items()},
        "cost": cost_totals(data),
        "prerequisites": list(data.prerequisites),
        "alarms": list(data.alarms),
    }


def cost_totals(data: ReportData) -> dict[str, float]:
    """What all stages cost together, cached or not; memory is the highest."""
    totals: dict[str, float] = {}
    for stage in data.stages:
        for key, value in stage.cost.items():
            totals[key] = max(totals.get(key, 0), value) if key == "peak_memory_mib" else totals.get(key, 0) + value
    return totals


def _head(data: ReportData, width: int) -> str:
    choices = made_words(data)
    return textwrap.fill(f"{data.title}: {choices}", width) if choices else ""


def _arms(data: ReportData, width: int) -> str:
    if not data.arms:
        return ""
    rows = closing_rows(data)
    parts = [text_table(["arm", "success %  [95 %]", "n"], [_arm_cells(row) for row in rows], width=width)]
    parts.append(textwrap.fill(f"success: {data.episodes_are}", width))
    start, reference = data.start, data.reference
    if start is not None:
        both = "start and reference" if start == reference else "start"
        parts.append(_differences(f"{both}: {start.label}", [(row.arm, row.since_start) for row in rows], width))
    if reference is not None and reference != start:
        # Where the others started stands above the reference in time: its distance to that is told the other way round.
        others = [(row.arm, row.against) for row in rows if not row.is_start]
        parts.append(_differences(f"reference: {reference.label}", others, width))
    if any(parts[2:]):
        note = (
            "differences in points, same episodes; * interval without 0; McNemar p: exact test, which takes the "
            "episodes as independent and can disagree with the interval"
        )
        why = reference_words(data)
        parts.append("\n".join(textwrap.fill(words, width) for words in (note, why) if words))
    return "\n\n".join(part for part in parts if part)


def _arm_cells(row: ClosingRow) -> list[str]:
    success = row.success
    share = "-" if success.value is None else f"{100 * success.value:.1f} {interval_text(success)}"
    return [row.arm.label, share, str(success.n)]


def _differences(to: str, differences: Sequence[tuple[Arm, PairedDifference | None]], width: int) -> str:
    rows = [
        [
            arm.label,
            difference_text(one.difference) + (" *" if one.is_significant else "  "),
            str(one.difference.n),
            p_text(one.p),
        ]
        for arm, one in differences
        if one is not None
    ]
    return text_table([f"against {to}", "points  [95 %]  ", "n", "McNemar p"], rows, width=width) if rows else ""


def _measures(measures: Sequence[Measure], width: int) -> str:
    if not measures:
        return ""
    rows = [[measure.label, *_estimate_cells(measure.estimate)] for measure in measures]
    table = text_table(["world model, held-out sites", "value  [95 %]", "n"], rows, width=width)
    return f"{table}\n\n{textwrap.fill(LEGEND, width)}"


LEGEND = (
    "precision: predicted that is real; recall: real that was predicted; F1: their harmonic mean; changed: elements "
    "that came or went; role: kinds only; invalid: answers that are no page"
)
"""Words for the rows of the world model."""


def _estimate_cells(estimate: Estimate) -> list[str]:
    if estimate.value is None:
        return ["-", str(estimate.n)]
    if estimate.low is None or estimate.high is None:
        return [f"{estimate.value:.3f} {NO_INTERVAL}", str(estimate.n)]
    return [f"{estimate.value:.3f} [{estimate.low:.3f}, {estimate.high:.3f}]", str(estimate.n)]


def _audits(data: ReportData, width: int) -> str:
    if not data.audits:
        return ""
    rows = [
        [audit.label, *_share(audit.false_positive, audit.failed), *_share(audit.false_negative, audit.solved)]
        for audit in data.audits
    ]
    head = ["judge, real episodes", "false positives %", "asked/all", "false negatives %", "asked/all"]
    return f"{text_table(head, rows, width=width)}\n\n{textwrap.fill(_asked(data), width)}"


def _asked(data: ReportData) -> str:
    """What the shares are of, with the first row as an example."""
    audits, one = data.audits, data.audits[0]
    n_asked, every = one.false_positive.n, max(one.failed, one.false_positive.n)
    words = (
        "false positives: real failures that the judge calls a success; false negatives: real successes that it "
        f"rejects. asked/all: the judge was asked about {n_asked} of the {count(every, 'failure')} of {one.label}"
    )
    if all(item.failed <= item.false_positive.n and item.solved <= item.false_negative.n for item in audits):
        return words
    ruled = any(item.path == "reward.evidence" and item.value is True for item in data.settings)
    rule = ", or because their answer is not on the last page (reward.evidence)" if ruled else ""
    return f"{words}; the others were scored 0 without asking, because they did not end by themselves{rule}"


def _share(estimate: Estimate, every: int) -> list[str]:
    share = "-" if estimate.value is None else f"{100 * estimate.value:.1f} {interval_text(estimate)}"
    return [share, f"{estimate.n}/{max(every, estimate.n)}"]


def _costs(data: ReportData, width: int) -> str:
    totals = cost_totals(data)
    words = [
        _browser_steps(data) if "browser_steps" in totals else "",
        f"steps without a browser {totals['static_steps']:,.0f}" if "static_steps" in totals else "",
        f"tokens generated {totals['tokens_generated']:,.0f}" if "tokens_generated" in totals else "",
        f"peak memory {totals['peak_memory_mib']:,.0f} MiB" if "peak_memory_mib" in totals else "",
        _times(data, totals["seconds"]) if "seconds" in totals else "",
    ]
    played = (("dreams", "dreams"), ("rollouts", "rollouts on real pages"))
    counts = [f"{words} {data.episodes[name]:,}" for name, words in played if data.episodes.get(name)]
    return textwrap.fill(", ".join(counts + [word for word in words if word]), width)


def _cut_prompts(data: ReportData, width: int) -> str:
    """The stages in which prompts were cut to fit the model; nothing where none was."""
    stages = [
        f"{stage.name} {share}, {stage.cost.get(PROMPT_TOKENS_LEFT_OUT, 0):,.0f} tokens left out"
        for stage in data.stages
        if (share := cut_share(stage.cost))
    ]
    if not stages:
        return ""
    text = f"prompts cut to fit policy.max_prompt_tokens and model.max_prompt_tokens: {'; '.join(stages)}"
    return textwrap.fill(text, width)


def _times(data: ReportData, seconds: float) -> str:
    cached = any(stage.status == "cached" or " cached" in stage.detail for stage in data.stages)
    note = " (those from the cache with what they took when they were made)" if cached else ""
    return f"all stages {duration(seconds)}{note}"


def real_steps(data: ReportData) -> float:
    """Steps in the real environment, with a browser or without, before the evaluation."""
    training, _ = browser_steps(data)
    return training + sum(stage.cost.get("static_steps", 0.0) for stage in data.stages if stage.name != "eval")


def browser_steps(data: ReportData) -> tuple[float, float]:
    """Steps in the real browser: those that training used (demonstrations, exploration), and those of evaluations."""
    total = evaluation = 0.0
    for stage in data.stages:
        steps = stage.cost.get("browser_steps", 0.0)
        total += steps
        evaluation += stage.cost.get("browser_steps_evaluation", steps if stage.name == "eval" else 0.0)
    return total - evaluation, evaluation


def _browser_steps(data: ReportData) -> str:
    training, evaluation = browser_steps(data)
    return f"real browser steps {training:,.0f} for training and {evaluation:,.0f} for evaluation"


def _arm_json(row: ClosingRow) -> dict[str, Any]:
    data: dict[str, Any] = {
        "name": row.arm.name,
        "label": row.arm.label,
        "role": row.arm.role,
        "seeds": len(row.arm.outcomes),
        "success": estimate_json(row.success),
    }
    for name, against in (("against_start", row.since_start), ("against_reference", row.against)):
        if against is not None:
            counts = {"gained": against.gained, "lost": against.lost, "p": against.p, "shown": against.is_significant}
            data[name] = estimate_json(against.difference) | counts
    return data


def _audit_json(audit: JudgeAudit) -> dict[str, Any]:
    false_positive, false_negative = estimate_json(audit.false_positive), estimate_json(audit.false_negative)
    every = {"failed": audit.failed, "solved": audit.solved}
    return {"false_positive": false_positive, "false_negative": false_negative, **every}
