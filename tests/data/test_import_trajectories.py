"""Whole episodes of other projects: every step is said exactly, or the episode is left out with the reason."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_data_import import (
    CART,
    FORM,
    HOME,
    SIMPLE,
    TREE,
    TREE_2,
    StepInfo,
    gym_tree,
    load,
    nnetnav,
    obs,
    operation,
    render_file,
    render_step,
    write_step,
)

from dynaweb import api
from dynaweb.data.demonstrations import read_demonstrations
from dynaweb.data.importers import ImportReport, read_trajectories
from dynaweb.data.importers import steps as reasons
from dynaweb.data.importers.episodes import EARLY_STOP, NO_END, NO_NUMBER, NO_START
from dynaweb.data.importers.pages import from_axtree_text
from dynaweb.data.importers.steps import do_action, gym_action
from dynaweb.data.store import TrajectoryStore
from dynaweb.errors import ConfigError, MissingError
from dynaweb.types import Action, Judgement, Node, Observation, Step, Task, Trajectory


def whole(name: str, source: Path | str, only: Any = None) -> tuple[list[Trajectory], ImportReport]:
    report = ImportReport()
    return list(read_trajectories(name, source, report, only)), report


def account(report: ImportReport) -> dict[str, int]:
    """Why episodes were left out; every step that was read is in one, taken or counted."""
    assert report.steps + report.dropped.total() == report.read
    return dict(report.dropped_episodes)


def lines(path: Path, rows: list[Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return path


PAGE = from_axtree_text(
    gym_tree(
        "Shop",
        "[1] link 'Cart', clickable",
        "[2] textbox 'Name', focused",
        "[3] textbox 'Street'",
        "[4] checkbox 'Gift', checked='true'",
        "[5] checkbox 'Wrap'",
    ),
    "u",
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("click('1')\nfill('2', 'x')", reasons.SEVERAL),
        ("click('1'); click('1')", reasons.SEVERAL),
        ("think('a')\nclick('1')", Action("click", 1, target_role="link", target_name="Cart")),
        ("think('a')", reasons.NO_ACTION),
        ("goto(url='http://x.test/')", Action("goto", text="http://x.test/")),
        ("goto(address='http://x.test/')", reasons.NO_ACTION),
        ("goto('a', 'b')", reasons.NO_ACTION),
        ("goto('a', url='b')", reasons.NO_ACTION),
        ("click(bid='1')", Action("click", 1, target_role="link", target_name="Cart")),
        ("click('1', 'left')", Action("click", 1, target_role="link", target_name="Cart")),
        ("click('1', button='right')", reasons.INEXACT),
        ("click('1', 'middle')", reasons.INEXACT),
        ("click('1', modifiers=['Control'])", reasons.INEXACT),
        ("click('1', 'left', ['Shift'])", reasons.INEXACT),
        ("click('1', modifiers=[])", Action("click", 1, target_role="link", target_name="Cart")),
        ("dblclick('1')", reasons.INEXACT),
        ("scroll(300, 0)", reasons.INEXACT),
        ("scroll(3, 4)", reasons.INEXACT),
        ("scroll(0, 0)", reasons.INEXACT),
        ("scroll(delta_x=0, delta_y=-3)", Action("scroll", text="up")),
        ("select_option('1', ['a', 'b'])", reasons.INEXACT),
        ("select_option('1', [])", reasons.INEXACT),
        ("press('2', 'Enter')", Action("press", text="Enter")),
        ("press('3', 'Enter')", reasons.INEXACT),
        ("press('9', 'Enter')", reasons.REFUSED),
        ("check('5')", Action("click", 5, target_role="checkbox", target_name="Wrap")),
        ("check('4')", reasons.INEXACT),
        ("uncheck('4')", Action("click", 4, target_role="checkbox", target_name="Gift")),
        ("uncheck('5')", reasons.INEXACT),
        ("clear('2')", reasons.INEXACT),
        ("keyboard_type('abc')", reasons.INEXACT),
        ("mouse_click(3, 4)", reasons.INEXACT),
        ("fill('2', 7)", reasons.NO_ACTION),
        ("noop(wait_ms=500)", Action("wait")),
        ("x = 1", reasons.NO_ACTION),
        ("page.click('1')", reasons.NO_ACTION),
    ],
)
def test_a_call_of_browsergym_is_said_exactly_or_not_at_all(text: str, expected: Any) -> None:
    assert gym_action(text, PAGE) == expected


def test_several_calls_of_webrl_are_no_action_and_comments_are_no_call() -> None:
    assert do_action('do(action="Wait")\ndo(action="Wait")', PAGE) == reasons.SEVERAL
    assert do_action('do(action="Wait")\n# Note: done (nearly)', PAGE) == Action("wait")
    assert do_action('do(action="Right Click", element="1")', PAGE) == reasons.NO_ACTION


# NNetNav


def test_nnetnav_gives_whole_demonstrations(tmp_path: Path) -> None:
    rows = [
        nnetnav("a", CART, "stop [done]", "click [23] where [23] is Cart"),
        nnetnav("a", HOME, "click [23]"),
        nnetnav("b", HOME, "click [99]"),
        nnetnav("b", CART, "stop [N/A]", "click [99]"),
        nnetnav("c", CART, "stop [x]", "click [23]"),
        nnetnav("d", HOME, "click [23]"),
        nnetnav("e", HOME, "stop [x]"),
        nnetnav("e", HOME, "click [23]", "stop [x]"),
        nnetnav("e", CART, "stop [x]", "stop [x]", "click [23]"),
        nnetnav("f", HOME, "click [23]"),
        nnetnav("f", CART, "stop [x]", "1", "2"),
    ]
    (one,), report = whole("nnetnav", lines(tmp_path / "a.jsonl", rows))
    assert [(step.action.kind, step.action.text) for step in one.steps if step.action] == [
        ("click", ""),
        ("stop", "done"),
    ]
    assert one.steps[0].reasoning == "Let's think step-by-step. I saw ```nonsense```."
    assert one.steps[0].reply.endswith("```click [23]```") and one.final == one.steps[1].observation
    assert (one.task.id, one.task.intent, one.task.start_url) == ("nnetnav/a", "Pay", "http://x.test/a")
    assert (one.source, one.end, one.facts.verdict) == ("real", "stop", None)
    assert account(report) == {
        f"a step of it: {reasons.REFUSED}": 1,
        NO_START: 1,
        NO_END: 1,
        EARLY_STOP: 1,
        f"a step of it: {reasons.GAP}": 1,
    }
    assert "1 trajectories (2 steps) of 11 steps" in str(report) and "3 x in 1 episodes: it stops" in str(report)


@pytest.mark.parametrize("way", ["parts", "texts", "windows"])
def test_nnetnavs_messages_may_be_parts_or_end_lines_as_on_windows(way: str, tmp_path: Path) -> None:
    rows = [nnetnav("a", HOME, "type [30] [oats] [1]"), nnetnav("a", CART, "stop [done]", "click [23]")]
    expected, _ = whole("nnetnav", lines(tmp_path / "plain.jsonl", rows))
    for row in rows:
        for message in row["messages"]:
            text = message["content"]
            halves = [text[:40], text[40:]]
            message["content"] = {
                "parts": [{"type": "text", "text": part} for part in halves],
                "texts": halves,
                "windows": text.replace("\n", "\r\n"),
            }[way]
    episodes, report = whole("nnetnav", lines(tmp_path / "other.jsonl", rows))
    assert episodes == expected and len(episodes) == 1 and not report.dropped
    assert len(load("nnetnav", tmp_path / "other.jsonl")[0]) == 1


# WebArena


def test_webarena_files_give_whole_episodes_with_what_was_really_typed(tmp_path: Path) -> None:
    steps = [
        render_step("http://x.test/", TREE, "I think. ```click [1582]```", "click [1582] where [1582] is link 'A'"),
        render_step("http://x.test/2", TREE_2, "```go_back```", "go_back"),
        render_step("http://x.test/", TREE, "```type [1590] [tea] [0]```", "type [1590] [tea] where [1590] is textbox"),
        render_step("http://x.test/", TREE, "```stop [5]```", "stop [5]"),
    ]
    (tmp_path / "render_42.html").write_text(render_file(*steps), encoding="utf-8")
    (one,), report = whole("webarena", tmp_path)
    assert [(step.action.kind, step.action.enter) for step in one.steps if step.action] == [
        ("click", False),
        ("go_back", False),
        ("type", False),
        ("stop", False),
    ]
    assert one.steps[0].reasoning == "I think." and one.answer == "5"
    assert (one.task.id, one.task.sites, one.end) == ("webarena/42", ("shopping",), "stop")
    assert account(report) == {}


@pytest.mark.parametrize(
    ("spoken", "understood", "expected"),
    [
        ("```type [1590] [tea] [1]```", "type [1590] [tea ] where [1590] is x", True),
        ("```type [1590] [tea] [0]```", "type [1590] [tea] where [1590] is x", False),
        ("```type [1590] [coffee] [0]```", "type [1590] [tea] where [1590] is x", None),
        ("no action", "type [1590] [tea] where [1590] is x", None),
        ("```type [1590] [tea] [0]```", "", False),
    ],
)
def test_whether_enter_was_pressed_is_known_or_the_step_is_left_out(
    spoken: str, understood: str, expected: bool | None, tmp_path: Path
) -> None:
    steps = [
        render_step("http://x.test/", TREE, spoken, understood),
        render_step("http://x.test/", TREE, "```stop [5]```", "stop [5]"),
    ]
    (tmp_path / "render_1.html").write_text(render_file(*steps), encoding="utf-8")
    transitions, report = load("webarena", tmp_path)
    assert [one.action.enter for one in transitions] == ([] if expected is None else [expected])
    assert report.dropped[reasons.INEXACT] == (expected is None)


def test_webrls_traces_give_episodes_with_their_score_and_no_page_is_no_page(tmp_path: Path) -> None:
    def row(trace: str, index: int, response: str, page: Any = SIMPLE, **more: Any) -> dict[str, Any]:
        head = {"trace_id": trace, "index": index, "html": page, "target": "Open the cart"}
        return {**head, "response": response, **more}

    rows = [
        row("good", 1, '# Note: the cart\ndo(action="Click", element="2")', score=0),
        row("good", 2, 'exit(message="done")', score=1),
        row("bad", 0, 'exit(message="done")', score=0.0),
        row("null", 0, 'do(action="Click", element="2")', None),
        row("null", 1, 'exit(message="x")'),
        row("number", 0, 'exit(message="x")', 7),
        row("late", 3, 'exit(message="x")'),
        row("silent", 0, None),
    ]
    episodes, report = whole("webarena", lines(tmp_path / "traces" / "1.jsonl", rows))
    assert [(one.task.id, one.facts.verdict and one.facts.verdict.score) for one in episodes] == [
        ("webarena/good", 1.0),
        ("webarena/bad", 0.0),
    ]
    assert episodes[0].steps[0].reasoning == "Note: the cart"
    assert account(report) == {
        f"a step of it: {reasons.NO_PAGE}": 2,
        NO_START: 1,
        f"a step of it: {reasons.NO_ACTION}": 1,
    }
    assert len(read_demonstrations(str(saved(tmp_path / "s.jsonl.gz", episodes))).episodes) == 1


def saved(path: Path, episodes: list[Trajectory]) -> Path:
    TrajectoryStore.write(path, episodes)
    return path


# BrowserGym


def test_browsergym_gives_whole_episodes_with_thoughts_and_rewards(tmp_path: Path) -> None:
    done, failed, cut, odd = (tmp_path / name for name in ("done", "failed", "cut", "odd"))
    write_step(done, StepInfo(0, obs(HOME), action="click('23')", agent_info={"think": "The cart."}))
    write_step(done, StepInfo(1, obs(CART), reward=1.0, terminated=True))
    write_step(failed, StepInfo(0, obs(HOME), action="click('23')"))
    write_step(failed, StepInfo(1, obs(CART), truncated=True))
    write_step(cut, StepInfo(0, obs(HOME), action="send_msg_to_user('12')"))
    write_step(odd, StepInfo(0, obs(HOME), action="click('23', button='right')"))
    write_step(odd, StepInfo(1, obs(CART), terminated=True, reward=1.0))
    for name, reward in (("nan", math.nan), ("long", 10**400), ("text", "1"), ("list", [1.0])):
        write_step(tmp_path / name, StepInfo(0, obs(HOME), action="click('23')"))
        write_step(tmp_path / name, StepInfo(1, obs(CART), reward=reward, terminated=True))
    episodes, report = whole("browsergym", tmp_path)
    by_task = {one.task.id: one for one in episodes}
    good, bad, unknown = (by_task[f"browsergym/{name}"] for name in ("done", "failed", "cut"))
    assert good.steps[0].reasoning == "The cart." and good.final is not None and good.final.title == "Cart"
    assert (good.end, len(good.steps)) == ("terminal", 1)
    assert good.facts.verdict == Judgement(1.0, why="the sum of its rewards")
    assert bad.end == "max-steps" and bad.facts.verdict is not None and bad.facts.verdict.score == 0.0
    assert unknown.end == "stop" and unknown.facts.verdict is None and unknown.final == unknown.steps[0].observation
    assert account(report) == {f"a step of it: {reasons.INEXACT}": 1, NO_NUMBER: 4}


@pytest.mark.parametrize(
    ("folder", "summary", "name"),
    [
        ("2026-11-02_10-11-12_GenericAgent-a_on_b-4o_on_webarena.310_51", {}, "webarena.310"),
        ("2026-11-02_10-11-12_Agent_on_miniwob.click-test_3_1", {}, "miniwob.click-test"),
        ("2026-11-02_10-11-12_Agent_on_miniwob.click-test_3", {"task_name": "other"}, "other"),
        ("2026-11-02_10-11-12_Agent_on_miniwob.click-test_3", {"task_name": 7}, "miniwob.click-test"),
        ("mine", {}, "mine"),
    ],
)
def test_a_folder_of_browsergym_names_its_task(folder: str, summary: Any, name: str, tmp_path: Path) -> None:
    write_step(tmp_path / folder, StepInfo(0, obs(HOME), action="send_msg_to_user('12')"))
    (tmp_path / folder / "summary_info.json").write_text(json.dumps(summary))
    (episode,), _ = whole("browsergym", tmp_path)
    assert episode.task.id == f"browsergym/{name}"


# Mind2Web


def action(op: str, value: str, *ids: str, text: bool = False, **more: Any) -> dict[str, Any]:
    candidates: Any = [{"tag": "x", "backend_node_id": one} for one in ids]
    named: Any = operation(op, value) | more.pop("named", {})
    if text:
        candidates, named = [json.dumps(one) for one in candidates], json.dumps(named)
    return {"action_uid": "u", "cleaned_html": FORM, "operation": named, "pos_candidates": candidates, **more}


def task(*actions: Any, **more: Any) -> dict[str, Any]:
    return {"annotation_id": "a1", "website": "united", "confirmed_task": "Fly", "actions": list(actions), **more}


STEPS = (("CLICK", "", "11"), ("SELECT", "Two", "12"), ("TYPE", "Oslo", "99", "15"))


@pytest.mark.parametrize("form", ["plain", "parts are text", "actions are text", "all is text", "a row each"])
def test_mind2webs_rows_may_hold_json_inside_of_text(form: str, tmp_path: Path) -> None:
    text = form in ("parts are text", "all is text", "a row each")
    actions = [action(*step, text=text) for step in STEPS]
    rows: list[Any] = [task(*actions, action_reprs=["a", "b", "c"])]
    if form == "actions are text":
        rows[0]["actions"] = [json.dumps(one) for one in actions]
    elif form == "all is text":
        rows[0]["actions"] = json.dumps(actions)
    elif form == "a row each":
        head = {key: value for key, value in task().items() if key != "actions"} | {"action_reprs": ["a", "b", "c"]}
        rows = [{**head, **one, "target_action_index": str(at)} for at, one in enumerate(actions)][::-1]
    (one,), report = whole("mind2web", lines(tmp_path / "a.jsonl", rows))
    assert [(step.action.kind, step.action.text) for step in one.steps if step.action] == [
        ("click", ""),
        ("select", "Two"),
        ("type", "Oslo"),
    ]
    assert (one.task.id, one.task.intent, one.task.site) == ("mind2web/a1", "Fly", "united")
    assert one.final is None and one.end == "max-steps" and not report.dropped and report.read == 3
    transitions, _ = load("mind2web", tmp_path / "a.jsonl")
    assert [one.info["site"] for one in transitions] == ["united", "united"]


@pytest.mark.parametrize("broken", ["{", "7", "[]", "null", '"x"', '["x"]', '[{"a": 1}]', "[" * 100_000])
@pytest.mark.parametrize("where", ["actions", "operation", "pos_candidates", "action_reprs", "cleaned_html"])
def test_text_that_is_no_such_json_ends_no_import(broken: str, where: str, tmp_path: Path) -> None:
    row = task(action(*STEPS[0]), action(*STEPS[1]))
    (row if where in row or where == "action_reprs" else row["actions"][0])[where] = broken
    rows = [row, task(action(*STEPS[0]), annotation_id="a2")]
    episodes, report = whole("mind2web", lines(tmp_path / "a.jsonl", rows))
    assert episodes[-1].task.id == "mind2web/a2"
    account(report)
    load("mind2web", tmp_path / "a.jsonl")


@pytest.mark.parametrize(
    ("original", "kind"), [("HOVER", "hover"), ("CLICK", "click"), ("ENTER", ""), ("DANCE", ""), ("", "click")]
)
def test_mind2webs_original_operation_is_what_was_done(original: str, kind: str, tmp_path: Path) -> None:
    row = task(action("CLICK", "", "10", named={"original_op": original}))
    episodes, report = whole("mind2web", lines(tmp_path / "a.jsonl", [row]))
    assert [step.action.kind for one in episodes for step in one.steps if step.action] == ([kind] if kind else [])
    assert bool(account(report)) == (not kind)


def test_a_task_of_mind2web_of_which_actions_are_missing_is_none(tmp_path: Path) -> None:
    head = {"annotation_id": "a1", "website": "w", "confirmed_task": "Fly", "action_reprs": ["a", "b", "c"]}
    rows = [{**head, **action(*STEPS[0]), "target_action_index": "0"}, {**action(*STEPS[0]), "website": "w"}]
    episodes, report = whole("mind2web", lines(tmp_path / "a.jsonl", rows))
    assert not episodes and account(report) == {NO_END: 1}
    assert report.dropped["its task has no name"] == 1


# Runs


def test_a_run_gives_its_real_episodes_and_a_filter_those_that_were_seen_to_succeed(tmp_path: Path) -> None:
    steps = whole("nnetnav", lines(tmp_path / "a.jsonl", [nnetnav("a", HOME, "stop [x]")]))[0]
    (one,) = steps
    good = replace(one, id="good", facts=replace(one.facts, verdict=Judgement(1.0)))
    judged = replace(one, id="judged", judgement=Judgement(0.6), facts=replace(one.facts, verdict=Judgement(0.0)))
    dream, broken = replace(one, source="dream"), replace(one, end="infrastructure")
    folder = tmp_path / "run" / "trajectories"
    saved(folder / "explore.jsonl.gz", [one, dream, broken])
    saved(folder / "eval-sft.jsonl.gz", [good, judged])
    episodes, report = whole("run", tmp_path / "run")
    assert episodes == [good, judged, one]
    assert account(report) == {"its pages were dreamed": 1, "the infrastructure broke it": 1}
    for only, expected in (("checked", good), ("judged", judged)):
        chosen, report = whole("run", tmp_path / "run", only)
        assert chosen == [expected]
        assert account(report)[f"it is no success ({only})"] == 2
    assert whole("run", folder / "eval-sft.jsonl.gz")[0] == [good, judged]
    with pytest.raises(MissingError, match="no folder of a run"):
        whole("run", tmp_path)
    with pytest.raises(ConfigError, match=r"nnetnv.*nnetnav"):
        whole("nnetnv", tmp_path)


def test_a_run_gives_transitions_too(tmp_path: Path) -> None:
    rows = [nnetnav("a", HOME, "click [23]"), nnetnav("a", CART, "stop [x]", "click [23]")]
    episodes = whole("nnetnav", lines(tmp_path / "a.jsonl", rows))[0]
    transitions, report = load("run", saved(tmp_path / "s.jsonl.gz", episodes))
    assert [one.action.kind for one in transitions] == ["click"] and report.dropped.total() == 1


def test_transitions_are_counted_as_such_beside_dreams_that_are_left_out(tmp_path: Path) -> None:
    pages = [Observation("http://a.test/", (Node(1, "link", name),)) for name in ("Cart", "Buy")]
    step = Step(pages[0], Action("click", 1, target_role="link", target_name="Cart"))
    task = Task("t", "Open the cart", "http://a.test/")
    episodes = [Trajectory(kind, task, (step,), pages[1], kind, "stop") for kind in ("real", "dream")]
    TrajectoryStore(tmp_path / "from.jsonl.gz").append(episodes)
    for kept, lines in ((False, "1 transitions of 2 steps"), (True, "1 trajectories (1 steps) of 2 steps")):
        report = api.import_data("run", tmp_path / "from.jsonl.gz", tmp_path / f"{kept}.jsonl.gz", trajectories=kept)
        assert str(report).splitlines() == [lines, "  left out: 1 x in 1 episodes: its pages were dreamed"]
