"""Grading a world model's pages, and the meter that warns when dreams improve while reality does not."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from dynaweb.rl.checkpoints import History
from dynaweb.stages.evaluate import estimates, judge_errors, summary
from dynaweb.stages.world_model import Questions, fidelity_estimates, modelled, probes_in, split
from dynaweb.types import (
    Action,
    EpisodeFacts,
    Judgement,
    Node,
    Observation,
    Prediction,
    Step,
    Task,
    Trajectory,
    Transition,
)
from dynaweb.worldmodels.fidelity import Probe, f1, grade, page_kind, probes_of, rules_hold, transitions_of
from dynaweb.worldmodels.memory import question

TASK = Task(id="t", intent="", start_url="")
HOME = Observation("http://shop.localhost/", (Node(1, "link", "Cart"), Node(2, "textbox", "Search")))
CART = Observation("http://shop.localhost/cart", (Node(1, "heading", "Cart"), Node(2, "button", "Check out")))
GO, TYPE = Action("click", 1, target_role="link", target_name="Cart"), Action("type", 2, "wool")
BUY = Action("click", 2, target_role="button", target_name="Check out")


def test_a_perfect_page_is_perfect_in_every_measure() -> None:
    graded = grade(Probe(Transition(HOME, GO, CART), BUY), Prediction(CART, tokens=9))
    assert graded.pop("tokens") == 9 and graded.pop("invalid") == 0 and graded.pop("attempts") == 1
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


def with_node(page: Observation, number: int, **changes: object) -> Observation:
    nodes = list(page.nodes)
    nodes[number - 1] = replace(nodes[number - 1], **changes)  # type: ignore[arg-type]
    return replace(page, nodes=tuple(nodes))


def changed(before: Observation, real: Observation, dreamed: Observation) -> tuple[float | None, float | None]:
    graded = grade(Probe(Transition(before, GO, real)), Prediction(dreamed))
    return graded["changed_precision"], graded["changed_recall"]


def test_what_changed_counts_what_came_and_what_went() -> None:
    same_link = replace(CART, nodes=(HOME.nodes[0], CART.nodes[0]))
    assert changed(HOME, same_link, with_node(same_link, 2, name="Basket")) == (0.5, 0.5)
    assert changed(HOME, CART, CART) == (1.0, 1.0)
    assert changed(HOME, HOME, HOME) == (1.0, 1.0)
    # Nothing predicted where something changed, and a change that is not there.
    assert changed(HOME, CART, HOME) == (0.0, 0.0)
    assert changed(HOME, HOME, with_node(HOME, 2, value="abc")) == (0.0, 0.0)
    unread = grade(Probe(Transition(HOME, GO, HOME)), Prediction(None, error="?"))
    assert (unread["changed_f1"], unread["element_recall"], unread["exact"]) == (0.0, 0.0, 0.0)


def test_precision_and_recall_tell_missing_from_invented() -> None:
    more = replace(CART, nodes=(*CART.nodes, Node(3, "link", "Cart"), Node(4, "text", "?")))
    graded = grade(Probe(Transition(HOME, GO, CART)), Prediction(more))
    assert (graded["element_precision"], graded["element_recall"]) == (0.5, 1.0)
    graded = grade(Probe(Transition(HOME, GO, more)), Prediction(CART))
    assert (graded["element_precision"], graded["element_recall"]) == (1.0, 0.5)


def test_the_heading_is_the_one_that_the_page_before_did_not_have() -> None:
    shop = Node(1, "heading", "Shop")
    before = replace(HOME, nodes=(shop, *HOME.nodes))
    real = replace(CART, nodes=(shop, *CART.nodes))
    dreamed = replace(CART, nodes=(shop, Node(2, "heading", "Basket")))
    assert grade(Probe(Transition(before, GO, real)), Prediction(dreamed))["heading"] == 0.0
    assert grade(Probe(Transition(before, GO, real)), Prediction(real))["heading"] == 1.0


def test_transitions_tell_what_came_before_and_whether_the_environment_ended_there() -> None:
    played = replace(episode(Step(HOME, TYPE), Step(HOME, GO, error="no"), Step(HOME, GO)), end="terminal")
    first, last = transitions_of([played])
    assert (first.info["history"], first.info["step"], "done" in first.info) == ((), 0, False)
    assert (last.info["history"], last.info["step"], last.info["done"]) == ((TYPE,), 2, True)


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
    base = Trajectory(
        "e", TASK, (Step(HOME, Action("stop")),), HOME, "real", end, facts=EpisodeFacts(Judgement(verdict))
    )  # type: ignore[arg-type]
    return base.scored(Judgement(said), said)


def test_the_judges_errors_and_ungraded_episodes_are_counted_apart() -> None:
    judged = [
        graded_episode(0.0, 1.0),
        graded_episode(0.0, 0.0),
        graded_episode(1.0, 0.0),
        graded_episode(None, 1.0),
        graded_episode(1.0, None, "infrastructure"),
        *[graded_episode(0.0, 0.0, end) for end in ("max-steps", "invalid", "max-steps")],
    ]
    errors = judge_errors(judged)
    # Code gave the last three their 0: they say nothing of the judge.
    assert (errors["judge_false_positive"], errors["judge_failed_n"], errors["judge_failed_all"]) == (0.5, 2, 5)
    assert (errors["judge_false_negative"], errors["judge_solved_n"], errors["judge_solved_all"]) == (1.0, 1, 1)
    found = summary(judged)
    assert found["success"] == pytest.approx(1 / 6)
    assert (found["graded"], found["infrastructure"]) == (6, 1)
    assert str(estimates(judged)["judge_false_positive"]).endswith("n=2")
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
    history.save(tmp_path, 6)
    early = History()
    early.load(tmp_path, 5)
    assert early.marks == [(3, 0.5), (5, 0.4)]
    assert early.rewards[3:] == [0.4, 0.5] and math.isnan(early.rewards[1])


def on_site(seed: int, *steps: Step, template: str = "", final: Observation = CART) -> Trajectory:
    task = Task(id=f"{template}:{seed}", intent="", start_url="", template=template, meta={"site_seed": seed})
    return replace(episode(*steps, final=final, source="real"), task=task)


def on_page(name: str) -> Observation:
    return replace(HOME, url=f"http://shop.localhost/{name}")


@pytest.mark.parametrize("sites", [2, 8])
@pytest.mark.parametrize("templates", [3, 6, 10])
def test_whole_sites_are_held_out_whatever_the_order_of_episodes(sites: int, templates: int) -> None:
    played = [on_site(i % sites, Step(HOME, GO), template=f"t{i % templates}") for i in range(120)]
    fitted, held_out = split(played, 0.1, seed=3)
    here, away = ({t.task.meta["site_seed"] for t in part} for part in (fitted, held_out))
    assert not here & away and len(away) == 1 and len(here) == sites - 1
    assert len(fitted) + len(held_out) == 120
    assert (fitted, held_out) == split(played, 0.1, seed=3)
    assert split(played, 0.0, seed=3) == (played, [])
    assert split([on_site(1, Step(HOME, GO))], 0.1, seed=3)[1] == []


def test_no_question_of_fidelity_was_fitted_on_and_seen_sites_are_apart() -> None:
    a, b = on_page("a"), on_page("b")
    fitted = [on_site(1, Step(HOME, GO), Step(a, GO))]
    # A page that all sites share, said with and without a notice, is known from the fitted site.
    held_out = [on_site(2, Step(replace(HOME, notice="hello"), GO), Step(HOME, GO), Step(b, GO))]
    stop = Step(CART, Action("stop"))
    away = [Step(HOME, GO), Step(a, GO), Step(on_page("c"), GO)]
    demos = [on_site(1, Step(a, GO), Step(b, GO), stop), on_site(2, *away, stop)]
    known = modelled(fitted)
    questions = Questions.of(known, fitted, held_out, demos, 256)
    assert [p.transition.observation.url[-1] for p in questions.unseen] == ["b", "c"]
    assert [p.transition.observation.url[-1] for p in questions.seen] == ["b"]
    measured = {question(p.transition.observation, p.transition.action) for p in [*questions.unseen, *questions.seen]}
    assert not measured & {question(t.observation, t.action) for t in known}
    assert len(questions.transitions) == 3
    # The setting limits each kind: explored, demonstrated elsewhere, demonstrated on fitted sites.
    for most, counts in ((1, (2, 1)), (0, (0, 0))):
        limited = Questions.of(known, fitted, held_out, [*demos, *demos], most)
        assert (len(limited.unseen), len(limited.seen)) == counts, most


def test_fidelity_has_intervals_and_counts() -> None:
    found = fidelity_estimates({"probes": [{"exact": 1.0}, {"exact": None}], "seen": [{"exact": 0.0}], "rules": []})
    assert (found["exact"].n, found["seen_exact"].value, set(found)) == (1, 0.0, {"exact", "seen_exact"})
    assert str(found["exact"]) == "1.000 [0.207, 1.000] n=1"


def test_questions_of_a_store_know_the_next_action_of_the_same_episode_only() -> None:
    played = transitions_of([episode(Step(HOME, GO), Step(CART, BUY), final=HOME)])
    other = [replace(one, info={**one.info, "episode": "f"}) for one in played]
    found = probes_in([*played, *other])
    assert [probe.next_action for probe in found] == [BUY, None, BUY, None]
    assert probes_in([]) == []
