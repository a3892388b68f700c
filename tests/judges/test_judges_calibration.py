"""Calibration, quality, alarms and confusion: laws, closed forms, and cases counted by hand."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from judge_kit import episode

from dynaweb.config.sections import Audit
from dynaweb.judges.alarm import Mark, alarm, fell
from dynaweb.judges.audit import confusion, length_name
from dynaweb.judges.calibration import FEWEST, Platt, auc, fit_platt, quality, sigmoid
from dynaweb.types import Judgement

odds = st.floats(-30, 30)
pairs = st.lists(st.tuples(odds, st.booleans()), min_size=1, max_size=40)


def split(found: list[tuple[float, bool]]) -> tuple[list[float], list[bool]]:
    return [value for value, _ in found], [label for _, label in found]


@given(pairs)
def test_calibration_keeps_the_order_and_stays_a_probability(found: list[tuple[float, bool]]) -> None:
    platt = fit_platt(*split(found))
    chances = [platt.probability(value) for value, _ in sorted(found)]
    assert all(0 < p < 1 for p in chances)
    assert all(a <= b + 1e-12 for a, b in pairwise(chances))
    _, labels = split(found)
    assert (platt.n == 0) == (min(sum(labels), len(labels) - sum(labels)) < FEWEST)


def test_calibration_finds_the_scale_that_the_data_were_made_with() -> None:
    rng = random.Random(5)
    values = [rng.uniform(-6, 6) for _ in range(4000)]
    labels = [rng.random() < sigmoid(0.5 * value - 1.0) for value in values]
    platt = fit_platt(values, labels)
    assert platt.slope == pytest.approx(0.5, abs=0.05) and platt.intercept == pytest.approx(-1.0, abs=0.1)
    raw, mended = (quality([p.probability(v) for v in values], labels) for p in (Platt(), platt))
    assert (mended.brier.value or 1) < (raw.brier.value or 0)
    assert (mended.calibration_error or 1) < 0.03 < (raw.calibration_error or 0)


@given(pairs)
def test_auc_is_the_chance_that_a_success_stands_above_a_failure(found: list[tuple[float, bool]]) -> None:
    scores, labels = split(found)
    area = auc(scores, labels)
    mirrored = auc([-s for s in scores], labels)
    if len(set(labels)) < 2:
        assert area.value is None
        return
    assert area.value is not None and mirrored.value is not None
    assert area.value + mirrored.value == pytest.approx(1)
    assert (area.low or 0) <= area.value <= (area.high or 1)


def test_auc_and_brier_by_hand() -> None:
    found = quality([0.9, 0.6, 0.6, 0.1], [True, True, False, False])
    assert found.auc.value == pytest.approx((1 + 1 + 0.5 + 1) / 4)
    assert found.brier.value == pytest.approx((0.01 + 0.16 + 0.36 + 0.01) / 4)
    assert found.brier_of_base_rate == 0.25
    assert found.accuracy.value == 0.75 and found.accuracy.n == 4


def test_quality_of_nothing_has_no_numbers() -> None:
    found = quality([], [])
    assert found.accuracy.value is None and found.auc.value is None and found.calibration_error is None


# Alarms

SETTINGS = Audit(every=1)


def test_the_alarm_sounds_when_reward_rises_and_success_falls() -> None:
    calm = [Mark(5, 0.5, 20, 32), Mark(10, 0.6, 21, 32)]
    assert alarm(calm, SETTINGS) == ""
    why = alarm([*calm, Mark(15, 0.9, 6, 32)], SETTINGS)
    assert "from update 5 to 15" in why and "0.500 to 0.900" in why and "0.625 (n=32) to 0.188 (n=32)" in why


@pytest.mark.parametrize(
    "now",
    [
        Mark(10, 0.5, 4, 32),  # both fall
        Mark(10, 0.9, 20, 32),  # success stays
        Mark(10, 0.9, 19, 32),  # a fall that is chance
        Mark(10, 0.9, 0, 0),  # nothing could be graded
        Mark(10, math.nan, 4, 32),  # no reward at all
    ],
)
def test_nothing_sounds_without_a_rise_and_a_fall(now: Mark) -> None:
    assert alarm([Mark(5, 0.5, 20, 32), now], SETTINGS) == ""


def test_a_slow_drift_is_seen_against_the_first_audits() -> None:
    marks = [Mark(k, 0.5 + 0.02 * k, 24 - k, 32) for k in range(14)]
    quiet = [alarm(marks[: k + 1], SETTINGS) for k in range(len(marks))]
    assert quiet[0] == quiet[2] == "" and quiet[-1]


def test_a_judge_that_accepts_everything_is_alarming_once_there_are_failures_enough() -> None:
    assert alarm([Mark(1, 1.0, 8, 10, accepted=2, failed=2)], SETTINGS) == ""
    why = alarm([Mark(1, 1.0, 8, 10, accepted=3, failed=3), Mark(2, 1.0, 8, 10, accepted=3, failed=3)], SETTINGS)
    assert "accepts 1.000" in why and "n=6" in why


@given(st.integers(0, 40), st.integers(1, 40), st.integers(0, 40), st.integers(1, 40), st.floats(0.5, 0.99))
def test_success_never_falls_both_ways(a: int, n: int, b: int, m: int, confidence: float) -> None:
    first, second = Mark(1, 0.0, min(a, n), n), Mark(2, 0.0, min(b, m), m)
    assert not (fell(first, second, confidence) and fell(second, first, confidence))
    assert not fell(first, replace(first, update=2), confidence)


# Confusion


def test_confusion_counts_what_the_judge_was_asked_about() -> None:
    def judged(name: str, real: float | None, said: float | None, **more: object) -> object:
        return episode(name, success=real, **more).scored(Judgement(said), said)  # type: ignore[arg-type]

    found = confusion(
        "all",
        [
            judged("a", 1.0, 1.0),
            judged("b", 1.0, 0.0),
            judged("c", 0.0, 1.0),
            judged("d", 0.0, 0.2),
            judged("e", 0.0, None),
            judged("f", 0.0, 0.0, end="max-steps"),
            judged("g", None, 1.0),
        ],  # type: ignore[list-item]
    )
    assert (found.true_positive, found.false_negative, found.false_positive, found.true_negative) == (1, 1, 1, 1)
    assert found.silent == 1
    assert found.accepts_failures.value == 0.5 and found.accepts_failures.n == 2


def test_lengths_have_names() -> None:
    assert [length_name(episode(steps=k)) for k in (1, 2, 6, 9)] == ["1 step", "2 steps", *["6 steps or more"] * 2]
