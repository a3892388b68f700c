from __future__ import annotations

from dataclasses import replace

from report_fakes import fake_report

from dynaweb.report.data import Arm, JudgeAudit, ReportData, Stage
from dynaweb.report.headline import duration, headline
from dynaweb.report.markup import el, embed
from dynaweb.report.stats import wilson
from dynaweb.report.table import closing_text, text_table


def test_lines_fit_the_width_and_columns_line_up() -> None:
    alarm = "update 20: the judge's reward rises while real success falls; " * 3
    for width in (80, 88, 100):
        lines = closing_text(replace(fake_report(), alarms=(alarm,)), width=width).split("\n")
        assert max(map(len, lines)) <= width
    table = text_table(["arm", "n"], [["a very long name of an arm", "7"], ["b", "1234"]], width=20)
    assert table.split("\n") == [
        "arm                n",
        "--------------------",
        "a very long...     7",
        "b               1234",
    ]


def test_every_share_of_the_table_has_its_count() -> None:
    text = closing_text(fake_report())
    for arm in fake_report().arms:
        row = next(line for line in text.split("\n") if line.startswith(arm.label + " "))
        assert f"  {arm.success.n}  " in row
        assert row.count("[") == (1 if "reference" in row else 2)


def arms(main: float, *, role: str = "main") -> ReportData:
    old = tuple(float(at < 50) for at in range(100))
    new = tuple(float(at < 100 * main) for at in range(100))
    return ReportData("x", arms=(Arm("sft", "SFT", "sft", (old,)), Arm("m", "Main", "main", (new,))))


def test_a_difference_is_called_one_only_when_its_interval_says_so() -> None:
    assert "; no difference to SFT is shown (+2.0 points" in headline(arms(0.52))
    assert ": +30.0 points [+21.0, +39.0] against SFT (paired, n = 100)." in headline(arms(0.8))
    assert ": -20.0 points" in headline(arms(0.3))
    assert headline(ReportData("x")) == ""


def test_the_reference_is_the_best_sft_arm_and_no_other() -> None:
    data = fake_report()
    assert data.reference is not None
    assert data.reference.name == "sft-300"
    assert data.against_reference(data.reference) is None
    main = data.main
    assert main is not None
    assert data.against_reference(main) == data.against_reference(main)


def test_arms_that_do_not_pair_get_no_difference() -> None:
    half = ReportData("x", arms=(Arm("sft", "SFT", "sft", ((1.0, 0.0),)), Arm("m", "Main", "main", ((1.0,),))))
    assert half.against_reference(half.arms[1]) is None
    assert headline(half) == "Main succeeds on 100.0 % [20.7, 100.0] of 1 held-out episodes in the real browser."


def test_browser_steps_of_training_and_evaluation_are_told_apart() -> None:
    stages = (
        Stage("explore", "done", cost={"browser_steps": 900.0}),
        Stage("rl", "done", cost={"browser_steps": 250.0, "browser_steps_evaluation": 50.0}),
        Stage("eval", "done", cost={"browser_steps": 400.0, "browser_steps_evaluation": 400.0}),
        Stage("eval", "done", cost={"browser_steps": 30.0}),
    )
    text = closing_text(ReportData("x", stages=stages)).replace("\n", " ")
    assert "real browser steps 1,100 for training and 480 for evaluation" in text
    static = closing_text(ReportData("x", stages=(Stage("demos", "done", cost={"static_steps": 7.0}),)))
    assert "steps without a browser 7" in static and "real browser" not in static


def test_the_judges_shares_name_both_denominators() -> None:
    audit = JudgeAudit("DynaWeb", wilson(3, 12), wilson(1, 50), failed=40, solved=50)
    row = next(line for line in closing_text(ReportData("x", audits=(audit,))).split("\n") if "DynaWeb" in line)
    assert "25.0" in row and "12/40" in row and "50/50" in row


def test_markup_escapes_all_but_markup() -> None:
    assert el("p", "<b> & \ud800", el("i", "x"), title='"', data_n=0, hidden=True, id=None) == (
        '<p title="&quot;" data-n="0" hidden>&lt;b&gt; &amp; \ufffd<i>x</i></p>'
    )
    assert embed({"a": "</script><!--\u2028"}) == (
        '<script type="application/json">{"a":"\\u003c/script\\u003e\\u003c!--\\u2028"}</script>'
    )


def test_durations_read_well() -> None:
    assert [duration(value) for value in (3.21, 59.4, 61, 3599, 7500)] == [
        "3.2 s",
        "59 s",
        "1 min 01 s",
        "59 min 59 s",
        "2 h 05 min",
    ]
