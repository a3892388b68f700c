from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from report_fakes import fake_report

from dynaweb.report.data import Arm, JudgeAudit, Measure, ReportData, Setting, Stage
from dynaweb.report.html import render
from dynaweb.report.markup import el, embed
from dynaweb.report.table import closing_json, closing_short, closing_text, headline, reference_words
from dynaweb.runs.names import Role
from dynaweb.stats import TRIES, duration, estimate, interval_text, text_table, wilson


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
        rows = [line for line in text.split("\n") if line.startswith(arm.label + " ")]
        assert all(line.count("[") == 1 for line in rows[: 1 if arm.role == "sft" else 3])
        assert f"{interval_text(arm.success)}  {arm.success.n}" in rows[0]


def arms(main: float, *, role: str = "main") -> ReportData:
    old = tuple(float(at < 50) for at in range(100))
    new = tuple(float(at < 100 * main) for at in range(100))
    return ReportData("x", arms=(Arm("sft", "SFT", "sft", (old,)), Arm("m", "Main", "main", (new,))))


def test_a_difference_is_called_one_only_when_its_interval_says_so() -> None:
    assert ": no difference to SFT is shown (+2.0 points" in headline(arms(0.52))
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


def three(long: int, main: int) -> ReportData:
    """The first solves 50 of 100, the one trained longer `long`, the main one `main`."""
    arms: list[tuple[str, str, Role, int]] = [
        ("sft", "SFT, 30 updates", "sft", 50),
        ("sft-long", "SFT, 120 updates", "sft", long),
        ("m", "Main", "main", main),
    ]
    played = [
        (name, label, role, (tuple(float(at < solved) for at in range(100)),)) for name, label, role, solved in arms
    ]
    return ReportData("x", arms=tuple(Arm(*arm) for arm in played))


def block(text: str, head: str) -> list[str]:
    """The rows of the table with such a head."""
    return next(part for part in text.split("\n\n") if part.startswith(head)).split("\n")[2:]


def test_the_gain_since_the_start_is_told_and_the_start_is_not_marked_down() -> None:
    data = three(62, 63)
    text = closing_text(data)
    since = block(text, "against start: SFT, 30 updates")
    assert [line.split("  ")[0] for line in since] == ["SFT, 120 updates", "Main"]
    assert "+13.0 [" in since[1] and "*" in since[1] and " 100 " in since[1]
    (against,) = block(text, "against reference: SFT, 120 updates")
    assert against.startswith("Main") and "+1.0 [" in against and "*" not in against
    assert not any(line.startswith("SFT, 30") and "*" in line for line in text.split("\n"))
    assert "SFT, 120 updates is the reference because" in text.replace("\n", " ")
    assert "+13.0 points [+7.0, +20.0] since it started as SFT, 30 updates" in headline(data)
    assert headline(data).endswith(
        "; no difference to SFT, 120 updates is shown (+1.0 points [+0.0, +3.0], paired, n = 100)."
    )
    found = {arm["name"]: arm for arm in closing_json(data)["arms"]}
    assert found["m"]["against_start"]["value"] == 0.13 and found["m"]["against_reference"]["value"] == 0.01
    assert closing_json(data)["start"] == "sft" and "against_start" not in found["sft"]


def test_a_run_ends_with_a_sentence_six_arms_and_where_to_look() -> None:
    data = replace(three(62, 63), folder="runs/a b", alarms=("the judge is fooled",))
    more = tuple(Arm(f"c{at}", f"control {at}", "control", data.arms[0].outcomes) for at in range(9))
    text = closing_short(replace(data, arms=(*more, *data.arms)), report=Path("runs/a b/report.html"))
    sentence, table, alarm, look = text.split("\n\n")
    assert sentence.replace("\n", " ") == headline(data) and alarm == "ALARM: the judge is fooled"
    head, _, *rows = table.split("\n")
    assert head.endswith("against SFT, 120 updates") and len(rows) == 6
    labels = [row.split("  ")[0] for row in rows]
    assert labels == ["control 0", "control 1", "control 2", "SFT, 30 updates", "SFT, 120 updates", "Main"]
    assert rows[-2].endswith("reference") and "[" in rows[-1] and "+13.0" not in table
    assert look.split("\n") == [
        "look at it: dynaweb view 'runs/a b'",
        "all numbers: dynaweb report 'runs/a b' (also of 6 more arms)",
        "report: runs/a b/report.html",
    ]
    assert "McNemar" not in text and max(map(len, text.split("\n"))) <= 88


def test_one_statement_stands_beside_a_difference() -> None:
    """An interval without 0 beside a p above .05, as 11 gained and 2 lost of 60 give it."""
    old = tuple([0.0] * 11 + [1.0] * 2 + [1.0] * 47)
    new = tuple([1.0] * 11 + [0.0] * 2 + [1.0] * 47)
    data = ReportData("x", arms=(Arm("sft", "SFT", "sft", (old,)), Arm("m", "Main", "main", (new,))))
    assert "*" in closing_short(data) and "p" not in closing_short(data).split("\n\n")[1].split("\n")[0].split()
    assert "McNemar p: exact test" in closing_text(data).replace("\n", " ")


def test_a_start_that_is_the_reference_is_told_once() -> None:
    data = three(40, 63)
    text = closing_text(data)
    rows = block(text, "against start and reference: SFT, 30 updates")
    assert [line.split("  ")[0] for line in rows] == ["SFT, 120 updates", "Main"]
    assert text.count("against ") == 1 and reference_words(data) == ""
    assert headline(data).count("points") == 1


def test_the_head_says_what_ran() -> None:
    chosen = {"wm": "delta", "opt": "grpo", "reward": "orm", "env": "dream"}
    settings = (*(Setting(f"{kind}.name", name) for kind, name in chosen.items()), Setting("env.tasks", "sites"))
    data = ReportData("x", arms=three(1, 1).arms, settings=settings)
    assert closing_text(data).startswith(
        "x: world model delta, optimizer grpo, reward orm, environment dream (sites)\n"
    )
    real = replace(data, stages=(Stage("sft", "done"), Stage("rl", "done")))
    assert list(real.made_with) == ["opt", "reward", "env"]
    assert closing_json(data)["made_with"]["reward"] == "orm"


def test_what_the_rows_are_is_said_and_what_has_no_interval_says_so() -> None:
    text = closing_text(ReportData("x", fidelity=(Measure("Attempts", estimate(TRIES, [1.0] * 4)),)))
    assert "1.000 [-]  4" in text
    assert "F1: their harmonic mean" in text.replace("\n", " ")


def test_rollouts_on_real_pages_are_no_dreams() -> None:
    text = closing_text(ReportData("x", episodes={"rollouts": 1234, "dreams-filtered-bc": 9}))
    assert text == "rollouts on real pages 1,234"
    assert closing_text(ReportData("x", episodes={"dreams": 12})) == "dreams 12"


def test_time_of_cached_stages_is_called_so() -> None:
    stages = Stage("sft", "cached", cost={"seconds": 20.0}), Stage("rl", "done", cost={"seconds": 9.0})
    text = closing_text(ReportData("x", stages=stages)).replace("\n", " ")
    assert text == "all stages 29 s (those from the cache with what they took when they were made)"
    assert closing_text(ReportData("x", stages=stages[1:])) == "all stages 9.0 s"


def test_a_rule_of_the_judge_is_named_only_where_it_is_on() -> None:
    audit = JudgeAudit("DynaWeb", wilson(3, 12), wilson(1, 50), failed=40, solved=50)
    plain = closing_text(ReportData("x", audits=(audit,))).replace("\n", " ")
    assert "was asked about 12 of the 40 failures of DynaWeb; the others" in plain and "evidence" not in plain
    ruled = ReportData("x", audits=(audit,), settings=(Setting("reward.evidence", True),))
    assert "(reward.evidence)" in closing_text(ruled)
    assert "the others" not in closing_text(ReportData("x", audits=(replace(audit, failed=12),)))


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


def test_the_report_tells_both_differences_and_no_other() -> None:
    cells = re.findall(r'data-label="(Against[^"]*)"[^>]*>(.*?)</td>', render(three(62, 63)))
    start, reference = "Against the start: SFT, 30 updates", "Against the reference: SFT, 120 updates"
    assert [label for label, _ in cells] == [start, start, reference, start, reference]
    assert [re.sub("<[^>]*>", "", text).split(" ")[0] for _, text in cells] == [
        "start",
        "+12.0",
        "reference",
        "+13.0",
        "+1.0",
    ]
    why = "is the reference because"
    assert why in render(three(62, 63)) and why not in render(three(40, 63))


def test_prompts_that_were_cut_are_told_by_stage() -> None:
    """At the end of a run and in the report; nothing where none was cut."""
    none = {"prompts": 40.0, "prompts_cut": 0.0, "prompt_tokens_left_out": 0.0}
    some = {"prompts": 120.0, "prompts_cut": 42.0, "prompt_tokens_left_out": 12345.0}
    whole = replace(fake_report(), stages=(Stage("sft", "done", cost=none),))
    assert "cut" not in closing_text(whole) and "Prompts cut" not in render(whole)
    both = replace(whole, stages=(*whole.stages, Stage("rl", "done", cost=some)))
    text = " ".join(closing_text(both).split())
    assert "max_prompt_tokens: rl 42 of 120 (35 %), 12,345 tokens left out" in text and "sft 0" not in text
    page = render(both)
    assert "Prompts cut" in page and "42 of 120 (35 %)" in page and "12,345" in page
    assert "42 of 160 (26 %)" in page  # the sum over all stages
    assert closing_json(both)["cost"]["prompts_cut"] == 42
