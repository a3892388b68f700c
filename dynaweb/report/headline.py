"""The headline in words, and the numbers of the closing table: what text, JSON and HTML have in common."""

from __future__ import annotations

from dataclasses import dataclass

from dynaweb.report.data import KINDS, Arm, ReportData
from dynaweb.report.stats import NO_INTERVAL, Estimate, PairedDifference


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
    found = []
    if data.reference != data.start and data.start is not None:
        found.append(_compared(data.against_start(main), "", f" since it started as {data.start.label}"))
    if data.reference is not None:
        label = data.reference.label
        found.append(_compared(data.against_reference(main), f" to {label}", f" against {label}"))
    known = [words for words in found if words]
    return f"{first}{': ' if known else ''}{'; '.join(known)}."


def _compared(against: PairedDifference | None, to: str, than: str) -> str:
    if against is None or against.difference.value is None:
        return ""
    n = against.difference.n
    points = f"{100 * against.difference.value:+.1f} points {interval_text(against.difference, signed=True)}"
    if against.is_shown:
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
