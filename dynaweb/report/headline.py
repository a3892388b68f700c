"""The headline in words, and the numbers of the closing table: what text, JSON and HTML have in common."""

from __future__ import annotations

from dataclasses import dataclass

from dynaweb.report.data import Arm, ReportData
from dynaweb.report.stats import Estimate, PairedDifference


@dataclass(frozen=True, slots=True)
class ClosingRow:
    """One arm of the closing table."""

    arm: Arm
    success: Estimate
    against: PairedDifference | None
    is_reference: bool


def closing_rows(data: ReportData) -> list[ClosingRow]:
    """The arms in their order, each with its difference to the best SFT arm."""
    reference = data.reference
    return [
        ClosingRow(arm, arm.success, data.against_reference(arm), reference is not None and arm.name == reference.name)
        for arm in data.arms
    ]


def headline(data: ReportData) -> str:
    """One sentence: how the main arm does, and whether it differs from the best SFT arm. Empty without arms."""
    main = data.main
    if main is None or main.success.value is None:
        return ""
    share = f"{100 * main.success.value:.1f} % {interval_text(main.success)}"
    first = f"{main.label} succeeds on {share} of {main.success.n} {data.episodes_are}"
    against, reference = data.against_reference(main), data.reference
    if against is None or reference is None or against.difference.value is None:
        return f"{first}."
    points = f"{100 * against.difference.value:+.1f} points {interval_text(against.difference, signed=True)}"
    if against.is_shown:
        return f"{first}: {points} against {reference.label} (paired, n = {against.difference.n})."
    return f"{first}; no difference to {reference.label} is shown ({points}, paired, n = {against.difference.n})."


def interval_text(estimate: Estimate, *, signed: bool = False) -> str:
    """The interval in points, as in `[78.3, 91.4]`; empty without one."""
    if estimate.low is None or estimate.high is None:
        return ""
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
