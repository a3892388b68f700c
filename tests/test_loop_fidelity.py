"""Grading a world model's pages, and the meter that warns when dreams improve while reality does not."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from dynaweb.loop.evaluate import judge_errors, summary
from dynaweb.loop.fidelity import Probe, f1, grade, page_kind, probes_of, rules_hold, transitions_of
from dynaweb.loop.history import History
from dynaweb.types import Action, Judgement, Node, Observation, Prediction, Step, Task, Trajectory, Transition

TASK = Task(id="t", intent="", start_url="")
HOME = Observation("http://shop.localhost/", (Node(1, "link", "Cart"), Node(2, "textbox", "Search")))
CART = Observation("http://shop.localhost/cart", (Node(1, "heading", "Cart"), Node(2, "button", "Check out")))
GO, TYPE = Action("click", 1, target_role="link", target_name="Cart"), Action("type", 2, "wool")
BUY = Action("click", 2, target_role="button", target_name="Check out")


def test_a_perfect_page_is_perfect_in_every_measure() -> None:
    graded = grade(Probe(Transition(HOME, GO, CART), BUY), Prediction(CART, tokens=9))
    assert graded.pop("tokens") == 9 and graded.pop("invalid") == 0
    assert set(graded.values()) == {1.0}


def test_structure_is_told_apart_from_facts() -> None:
    dreamed = replace(CART, url="http://shop.localhost/cart?x=1", nodes=(CART.nodes[0], Node(2, "button", "Pay")))
    graded = grade(Probe(Transition(HOME, GO, CART), BUY), Prediction(dreamed))
    assert (graded["exact"], graded["element_f1"], graded["role_f1"]) == (0.0, 0.5, 1.0)
    assert (graded["url"], graded["page_kind"], graded["heading"], graded["next_action"]) == (0.0, 1.0, 1.0, 0.0)


def test_an_unreadable_answer_is_wrong_and_measures_that_do_not_apply_are_none() -> None:
    graded = grade(Probe(Transition(HOME, GO, CART)), Prediction(None, error="bad line"))
    assert (graded["invalid"], graded["element_f1"], graded["heading"], graded["next_action"]) == (1.0, 0.0, 0.0, None)
    assert grade(Probe(Transition(CART, GO, HOME)), Prediction(HOME))["heading"] is None
    assert grade(Probe(Transition(HOME, GO, CART), Action("stop")), Prediction(CART))["next_action"] is None


def test_f1_counts_duplicates() -> None:
    assert f1("aab", "abb") == pytest.approx(2 / 3)
    assert f1("", "") == 1.0
    assert f1("a", "") == 0.0


def test_page_kind_is_host_and_first_part() -> None:
    assert page_kind("http://shop.localhost/product/3?x=/1#top") == "shop.localhost/product"
    assert page_kind("http://shop.localhost/") == page_kind("http://shop.localhost?q=1") + "/"


def episode(*steps: Step, final: Observation = CART, source: str = "expert") -> Trajectory:
    return Trajectory("e", TASK, steps, final, source, "stop")  # type: ignore[arg-type]


def test_transitions_leave_out_what_was_refused_unparsed_or_a_stop() -> None:
    refused = Step(HOME, BUY, error="no such element")
    played = episode(Step(HOME, None, error="?"), refused, Step(HOME, GO), Step(CART, Action("stop")))
    assert [(t.observation, t.action, t.next_observation) for t in transitions_of([played])] == [(HOME, GO, CART)]


def test_probes_carry_what_the_expert_did_next() -> None:
    typed = replace(HOME, nodes=(HOME.nodes[0], replace(HOME.nodes[1], value="wool")))
    played = episode(Step(HOME, TYPE), Step(typed, GO), Step(CART, BUY), final=HOME)
    assert [(p.transition.action, p.next_action) for p in probes_of([played])] == [(GO, BUY)]
    assert rules_hold(transitions_of([played])) == [1.0]
    wrong = episode(Step(HOME, TYPE))
    assert rules_hold(transitions_of([wrong])) == [0.0]


def graded_episode(verdict: float | None, said: float | None, end: str = "stop") -> Trajectory:
    base = Trajectory("e", TASK, (Step(HOME, Action("stop")),), HOME, "real", end, info={"verdict": {"score": verdict}})  # type: ignore[arg-type]
    return base.scored(Judgement(said), said)


def test_the_judges_errors_and_ungraded_episodes_are_counted_apart() -> None:
    judged = [
        graded_episode(0.0, 1.0),
        graded_episode(0.0, 0.0),
        graded_episode(1.0, 0.0),
        graded_episode(None, 1.0),
        graded_episode(1.0, None, "infrastructure"),
    ]
    errors = judge_errors(judged)
    assert (errors["judge_false_positive"], errors["judge_failed_n"]) == (0.5, 2)
    assert (errors["judge_false_negative"], errors["judge_solved_n"]) == (1.0, 1)
    found = summary(judged)
    assert found["success"] == pytest.approx(1 / 3)
    assert (found["graded"], found["infrastructure"]) == (3, 1)
    assert math.isnan(judge_errors([])["judge_false_positive"])


def test_a_warning_when_rewards_rise_while_real_success_falls(tmp_path: Path) -> None:
    history = History()
    history.rewards += [0.1, math.nan, 0.2]
    assert history.validated(0.5) == ""
    history.rewards += [0.4, 0.5]
    warning = history.validated(0.4)
    assert "rose from 0.150 to 0.450" in warning and "fell from 0.500 to 0.400" in warning
    history.rewards += [0.6]
    assert history.validated(0.6) == ""
    history.save(tmp_path)
    early = History.load(tmp_path, updates=5)
    assert early.marks == [(3, 0.5), (5, 0.4)]
    assert early.rewards[3:] == [0.4, 0.5] and math.isnan(early.rewards[1])
