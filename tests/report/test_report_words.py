"""Words and numbers of the report that a reader meets outside its tables: signs, plurals, times."""

from __future__ import annotations

import re
from dataclasses import replace
from html import unescape

import pytest
from report_fakes import episode, fake_report

from dynaweb.report.data import Arm, Curve, Measure, ReportData, Sample, Stage
from dynaweb.report.html import render
from dynaweb.report.markup import with_minus
from dynaweb.report.table import closing_text, headline
from dynaweb.runs.names import sft_label
from dynaweb.stats import Estimate


def visible(html: str) -> str:
    """What a reader sees or hears: text and descriptions, without code, which stays as programs write it."""
    body = re.sub(r"(?s)<(script|style|code)\b.*?</\1>", " ", html.split("</head>")[-1])
    told = re.findall(r'(?:aria-label|title|data-label)="([^"]*)"', body)
    return unescape("\n".join([re.sub(r"<[^>]+>", " ", body), *told]))


def losing() -> ReportData:
    """A run whose every number can be negative and is."""
    arms = (
        Arm("sft", "SFT-2", "sft", ((1.0, 1.0, 1.0, 0.0) * 9,)),
        Arm("sft-3", "SFT 2024-05-01", "sft", ((1.0, 1.0, 1.0, 1.0) * 9,)),
        Arm("x", "DynaWeb", "main", ((0.0, 0.0, 0.0, 1.0) * 9,)),
    )
    falling = tuple((float(at), -(10.0**at) * 1e-5) for at in range(12))
    curves = (Curve("rl", "loss", falling), Curve("rl", "kl", ((0, -1.5e-7),)), Curve("rl", "x", ((-3, 1.0), (0, 2.0))))
    return ReportData(
        "run-1",
        arms=arms,
        curves=curves,
        fidelity=(Measure("Gain", Estimate(-0.25, -0.5, -0.125, 9)),),
        prerequisites=("It fell by -3 points.",),
        alarms=("Success fell by -0.25.",),
    )


def test_a_report_has_one_minus_sign() -> None:
    shown = visible(render(losing()))
    assert re.findall(r"(?<![\w.-])-\.?\d.*|\de-\d.*", shown) == []
    for number in ("\N{MINUS SIGN}50.0 points [\N{MINUS SIGN}", "\N{MINUS SIGN}0.250", "[\N{MINUS SIGN}0.500, "):
        assert number in shown
    assert "SFT-2" in shown and "2024-05-01" in shown and "run-1" in shown
    assert "\N{MINUS SIGN}1.5e\N{MINUS SIGN}7" in shown


def test_one_statement_stands_beside_a_difference() -> None:
    """Its interval. McNemar's p, which may say otherwise, is for those who ask for the whole table."""
    shown = visible(render(fake_report()))
    assert re.search(r"n = \d+: \d+ gained, \d+ lost", shown)
    assert not re.search(r"\bp\s*[=<]|McNemar", shown) and "McNemar p" in closing_text(fake_report())


def test_a_terminal_has_the_sign_of_its_keyboard() -> None:
    assert "\N{MINUS SIGN}" not in closing_text(losing()) + headline(losing())
    assert "-50.0 [-" in closing_text(losing()) and "-50.0 points [-" in headline(losing())


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("-1", "−1"),
        ("[-1.5, -.5]", "[−1.5, −.5]"),
        ("1e-5 (-2e-9)", "1e−5 (−2e−9)"),
        ("a-1 2024-05-01 --5 - [-] 3 - 4", "a-1 2024-05-01 --5 - [-] 3 - 4"),
    ],
)
def test_names_and_dates_keep_their_hyphens(words: str, shown: str) -> None:
    assert with_minus(words) == shown


def test_one_is_no_plural() -> None:
    assert [sft_label(steps) for steps in (1, "1", 2, "30")] == [
        *("SFT, 1 update", "SFT, 1 update", "SFT, 2 updates", "SFT, 30 updates"),
    ]
    one = (Arm("a", "A", "sft", ((1.0,),)), Arm("b", "B", "main", ((0.0,),)))
    audits = tuple(replace(audit, failed=1, solved=1) for audit in fake_report().audits[:1])
    graded = (Curve("audit", "graded", ((1, 1.0),)), Curve("rl", "kl", ((0, 0.5),)))
    samples = (Sample("b", episode(3, "success")),)
    data = ReportData("x", arms=one, audits=audits, curves=graded, alarms=("It fell.",), samples=samples, total=1)
    shown = f"{visible(render(data))}\n{closing_text(data)}"
    nouns = "updates|alarms|rollouts|trajectories|failures|successes|values|curves|seeds|settings|plugins|parts"
    assert re.findall(rf"(?<![\d.,])1 (?:{nouns})\b.*", shown) == []
    assert "at each audit: 1 rollout." in shown and "1 value without a curve" in shown


def chips(data: ReportData) -> dict[str, str]:
    """The words of the chips under the title, with what they tell when pointed at."""
    header = render(data).split("<header>")[1].split("</header>")[0]
    return {words: about for about, words in re.findall(r'class="chip[^"]*"(?: title="([^"]*)")?>(.*?)<', header)}


def test_the_time_is_that_of_all_stages_whichever_call_made_them() -> None:
    stages = (
        Stage("sft", "cached", cost={"seconds": 9.0}),
        Stage("rl", "done", cost={"seconds": 0.4}),
        Stage("old", "done"),
    )
    resumed = ReportData("x", seconds=0.6, stages=stages)
    found = chips(resumed)
    assert "in this call or before" in found["all stages 9.4 s"] and "0.6 s" not in " ".join(found)
    assert "all stages 9.4 s" in closing_text(resumed)
    assert "stages so far 9.4 s" in chips(replace(resumed, status="running"))
    assert "stages so far 9.4 s" in chips(replace(resumed, status="interrupted"))


def test_without_times_of_stages_it_is_that_of_the_last_call() -> None:
    assert chips(ReportData("x", seconds=0.6))["0.6 s"] == "the last call"
    assert not any(words.endswith(" s") for words in chips(ReportData("x")))


def test_the_world_model_is_what_was_not_fitted() -> None:
    lead = visible(render(ReportData("x", fidelity=(Measure("Exact", Estimate(0.5, 0.1, 0.9, 9)),))))
    assert "sites that the world model was not fitted on" in lead and "nothing was fitted" not in lead
