"""Importers, on small files in exactly the formats that the projects write, broken rows included."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from dynaweb.data.importers import ImportReport, read_foreign
from dynaweb.data.importers import steps as reasons
from dynaweb.data.importers.pages import from_axtree_text, from_html
from dynaweb.data.importers.pickles import DAMAGED
from dynaweb.data.importers.steps import do_action, gym_action, webarena_action
from dynaweb.errors import ConfigError, MissingError
from dynaweb.types import Action, Transition


def load(name: str, source: Path | str) -> tuple[list[Transition], ImportReport]:
    report = ImportReport()
    return list(read_foreign(name, source, report)), report


def gym_tree(title: str, *lines: str) -> str:
    return "\n".join([f"RootWebArea '{title}', focused, url='http://x.test/'", *(f"\t{line}" for line in lines)])


HOME = gym_tree(
    "Shop",
    "[21] navigation '', visible",
    "\t[23] link 'Cart', clickable, visible, url='http://x.test/cart'",
    "\t\tStaticText 'Cart'",
    "[30] textbox \"it's a Search\" value='tea, green', clickable, visible, focused",
    "[a31] checkbox 'Gift', clickable, visible, checked='true'",
)
CART = gym_tree("Cart", "[7] heading 'Cart', visible", "[8] button 'Pay', clickable, visible, disabled=True")


def test_browsergyms_text_is_read_with_values_properties_and_ids() -> None:
    found = from_axtree_text(HOME, "http://x.test/")
    page = found.page
    assert [(n.id, n.role, n.name, n.depth) for n in page.nodes] == [
        (1, "navigation", "", 0),
        (2, "link", "Cart", 1),
        (3, "StaticText", "Cart", 2),
        (4, "textbox", "it's a Search", 0),
        (5, "checkbox", "Gift", 0),
    ]
    assert page.nodes[3].value == "tea, green" and page.nodes[3].props == (("focused", "true"),)
    assert page.nodes[4].props == (("checked", "true"),)
    assert (page.title, page.truncated, found.ids) == ("Shop", False, {"21": 1, "23": 2, "30": 4, "a31": 5})
    cut = from_axtree_text(HOME + "\n\t[40] link 'half of a na", "u")
    assert cut.page.truncated and cut.unread == 1 and len(cut.page.nodes) == 5
    with pytest.raises(ValueError, match="no line"):
        from_axtree_text("RootWebArea 'Empty', focused", "u")


# NNetNav


def nnetnav(name: str, tree: str, action: str, *past: str, goal: str = "Pay", **changes: Any) -> dict[str, Any]:
    actions = "\n".join(f"{number}: {text}" for number, text in enumerate(["None", *past], 1))
    user = f"OBSERVATION:\n{tree}\nURL: http://x.test/{name}\nOBJECTIVE: {goal}\nPREVIOUS ACTIONS:\n{actions}"
    reply = (
        f"Let's think step-by-step. I saw ```nonsense```. In summary, the next action I will perform is ```{action}```"
    )
    messages = [
        {"role": "system", "content": "You are an agent."},
        {"role": "user", "content": user},
        {"role": "assistant", "content": reply},
    ]
    row = {"dataset": "webarena_x", "id": name, "task_name": name, "messages": messages, "n_tokens": 9}
    prompt = f"<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n{user}\n<|eot_id|>"
    output = f"<|start_header_id|>assistant<|end_header_id|>\n{reply}\n<|eot_id|>"
    return {**row, "prompt": prompt, "output": output, **changes}


NNETNAV = [
    nnetnav("a", CART, "stop [done]", "click [23] where [23] is Cart", "type [30] [oats] [1]"),
    nnetnav("a", HOME, "click [23]"),
    # The same id with another objective is another demonstration.
    nnetnav("a", CART, "click [7]", goal="Read"),
    nnetnav("a", HOME, "type [30] [oats [x]] [1]", "click [23] where [23] is Cart"),
    nnetnav("b", HOME, "click [99]"),
    nnetnav("b", CART, "hover [7]", "click [99] where [99] is gone"),
    nnetnav("b", CART, "stop [N/A]", "1", "2", "3"),
    nnetnav("c", HOME, "click [23]", messages=None),
    nnetnav("c", CART, "go_back", "click [23]", messages=None),
    nnetnav("c", CART, "go_back", "click [23]", messages=None),
    nnetnav("d", HOME, "click [23]", messages=[{"role": "user", "content": "no sections"}]),
    nnetnav("e", "RootWebArea 'Nothing', focused", "click [1]"),
    nnetnav("e", CART, "fly [7]", "click [1]"),
]


@pytest.fixture
def nnetnav_file(tmp_path: Path) -> Path:
    path = tmp_path / "train.jsonl"
    lines = [json.dumps(row) for row in NNETNAV]
    path.write_text("\n".join([*lines[:4], "{broken", *lines[4:], "[1]"]) + "\n", encoding="utf-8")
    return path


def check_nnetnav(found: list[Transition]) -> None:
    assert [(t.task_id, t.action.kind, t.action.text, t.action.target_name) for t in found] == [
        ("nnetnav/a", "click", "", "Cart"),
        ("nnetnav/a", "type", "oats [x]", "it's a Search"),
        ("nnetnav/c", "click", "", "Cart"),
    ]
    first, second, _ = found
    assert first.observation.title == "Shop" and first.next_observation == second.observation
    assert second.next_observation.title == "Cart" and second.action.enter
    assert [action.kind for action in second.info["history"]] == ["click"]
    assert first.info["goal"] == "Pay" and first.observation.url == "http://x.test/a"


def test_nnetnav_steps_are_put_in_order_and_what_is_dropped_is_said(nnetnav_file: Path) -> None:
    found, report = load("nnetnav", nnetnav_file)
    check_nnetnav(found)
    assert (report.read, report.transitions) == (15, 3)
    assert dict(report.dropped) == {
        "its row is no JSON object": 2,
        "its prompt lacks OBSERVATION, URL, OBJECTIVE or PREVIOUS ACTIONS": 1,
        "the same step stands there twice": 1,
        reasons.STOP: 2,
        reasons.REFUSED: 1,
        reasons.GAP: 1,
        reasons.LAST: 2,
        reasons.NO_PAGE: 1,
        reasons.NO_ACTION: 1,
    }
    assert report.transitions + report.dropped.total() == report.read
    assert "3 transitions of 15 steps" in str(report) and "left out: 2 x" in str(report)


def test_nnetnav_from_parquet(tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(arrow.Table.from_pylist(NNETNAV), tmp_path / "train-00000.parquet")
    found, report = load("nnetnav", tmp_path)
    check_nnetnav(found)
    assert report.read == 13


def test_a_name_of_the_hub_is_loaded_as_a_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def load_dataset(name: str, **options: Any) -> Iterator[dict[str, Any]]:
        asked.append((name, options))
        return iter(NNETNAV)

    # The hub cannot be reached from a test; everything up to its one call is ours.
    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    found, _ = load("nnetnav", "stanfordnlp/nnetnav-live")
    check_nnetnav(found)
    assert asked == [("stanfordnlp/nnetnav-live", {"split": "train", "streaming": True})]


# WebArena

TREE = (
    "Tab 0 (current): Shop\n\n[1000] RootWebArea 'Shop' focused: True\n\t[1582] link 'A <b> & c'\n"
    "\t[1590] textbox 'Search'"
)
TREE_2 = "Tab 0 (current): Cart | Tab 1: Shop\n\n[4] RootWebArea 'Cart'\n\t[5] heading 'Cart'"


def render_step(url: str, tree: str, raw: str, parsed: str = "") -> str:
    """As WebArena's RenderHelper writes it: nothing is escaped, and the page's block is closed by a new `<div>`."""
    action = f"<div class='raw_parsed_prediction' style='background-color:grey'><pre>{raw}</pre></div>"
    action += "<div class='action_object' style='background-color:grey'><pre>{'action_type': 6}</pre></div>"
    action += f"<div class='parsed_action' style='background-color:yellow'><pre>{parsed}</pre></div>"
    return (
        f"<h2>New Page</h2>\n<h3 class='url'><a href={url}>URL: {url}</a></h3>\n"
        f"<div class='state_obv'><pre>{tree}</pre><div>\n"
        "<div class='prev_action' style='background-color:pink'>None</div>\n"
        f"<div class='predict_action'>{action}</div>\n"
    )


def render_file(*steps: str) -> str:
    config = "<pre>task_id: 42\nintent: Open: the cart\nsites: ['shopping']\n</pre>\n"
    return f"<!DOCTYPE html>\n<head></head>\n<html>\n    <body>\n     {config}{''.join(steps)}\n    </body>\n</html>\n"


def test_webarena_render_files(tmp_path: Path) -> None:
    steps = [
        render_step("http://x.test/", TREE, "I think. ```click [1582]```", "click [1582] where [1582] is link 'A'"),
        render_step("http://x.test/2", TREE_2, "```go_back```"),
        render_step("http://x.test/", TREE, "```type [1590] [tea] [0]```", "type [1590] [tea] where [1590] is textbox"),
        render_step("http://x.test/3", "no tree at all", "```click [1]```"),
        render_step("http://x.test/", TREE, "```stop [5]```", "stop [5]"),
    ]
    (tmp_path / "render_42.html").write_text(render_file(*steps), encoding="utf-8")
    (tmp_path / "notes.html").write_text("nothing", encoding="utf-8")
    found, report = load("webarena", tmp_path)
    assert [(t.action.kind, t.action.target_name, t.next_observation.url) for t in found] == [
        ("click", "A <b> & c", "http://x.test/2"),
        ("go_back", "", "http://x.test/"),
    ]
    assert found[0].task_id == "webarena/42" and found[0].info["goal"] == "Open: the cart"
    assert [node.id for node in found[0].observation.nodes] == [1, 2, 3]
    assert len(found[0].next_observation.tabs) == 2
    assert dict(report.dropped) == {
        "the page after it cannot be read": 1,
        reasons.NO_PAGE: 1,
        reasons.STOP: 1,
    }


SIMPLE = '<html><div id="1"><a id="2" href="#">Cart</a><input id="3" type="text"/></div></html>'


def test_webarena_trace_files(tmp_path: Path) -> None:
    def row(index: int, response: str, page: str = SIMPLE, **more: Any) -> dict[str, Any]:
        head = {"trace_id": "t1", "index": index, "prompt": "** Simplified html **", "html": page}
        return {**head, "response": response, "target": "Open the cart", **more}

    rows = [
        row(2, '# Element: the box\ndo(action="Type", argument="a (b)", element="3")'),
        row(1, '# Note: x\ndo(action="Click", element="2")'),
        row(3, "go_backward()"),
        row(4, 'do(action="Click", element="99")'),
        row(5, 'exit(message="done")'),
        {"trace_id": "t2", "response": "x"},
    ]
    path = tmp_path / "traces" / "1.jsonl"
    path.parent.mkdir()
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    found, report = load("webarena", tmp_path)
    assert [(t.action.kind, t.action.text) for t in found] == [("click", ""), ("type", "a (b)"), ("go_back", "")]
    assert found[0].observation.url == "webarena:t1"
    assert report.dropped == {reasons.REFUSED: 1, reasons.STOP: 1, reasons.NO_PAGE: 1}


# BrowserGym


@dataclass
class StepInfo:
    """As in browsergym.experiments.loop."""

    step: int | None = None
    obs: dict[str, Any] | None = None
    reward: float = 0.0
    terminated: bool | None = None
    truncated: bool | None = None
    action: str | None = None
    agent_info: dict[str, Any] = field(default_factory=dict)


class Bomb:
    """Pickled as a call of `os.system`."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("exploded",)


def write_step(folder: Path, step: StepInfo) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with gzip.open(folder / f"step_{step.step}.pkl.gz", "wb") as file:
        pickle.dump(step, file)


def obs(tree: str | None, **more: Any) -> dict[str, Any]:
    page = {"axtree_txt": tree} if tree is not None else {}
    return {"url": "http://x.test/", "goal": "Pay", "last_action_error": "", **page, **more}


def test_browsergym_step_folders_are_read_without_running_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    numpy = pytest.importorskip("numpy")
    folder = tmp_path / "2024-01-01_agent_on_miniwob.click-test_7"
    extra = {"screenshot": numpy.zeros((2, 2, 3)), "elapsed_time": numpy.array([1.0]), "bomb": Bomb()}
    write_step(folder, StepInfo(0, obs(HOME, **extra), action="think()\nclick('23')"))
    write_step(folder, StepInfo(1, obs(CART), action="fill('8', 'x')"))
    write_step(folder, StepInfo(2, obs(CART), action="noop()"))
    write_step(folder, StepInfo(3, obs(None), action="go_back()"))
    write_step(folder, StepInfo(4, obs(CART), action="scroll(0, 200)"))
    write_step(folder, StepInfo(5, obs(HOME), action=None, terminated=True))
    (folder / "step_6.pkl.gz").write_bytes(b"not gzip")
    (folder / "summary_info.json").write_text(json.dumps({"task_name": "miniwob.click-test"}))
    found, report = load("browsergym", tmp_path)
    assert [(t.action.kind, t.action.target_name) for t in found] == [("click", "Cart"), ("scroll", "")]
    assert {t.task_id for t in found} == {"browsergym/miniwob.click-test"} and found[0].info["goal"] == "Pay"
    assert dict(report.dropped) == {
        reasons.REFUSED: 1,
        "the page after it cannot be read": 1,
        reasons.NO_PAGE: 1,
        DAMAGED: 1,
        "it has no action": 1,
    }
    assert not (tmp_path / "exploded").exists()


def test_browsergym_trees_of_the_devtools_protocol(tmp_path: Path) -> None:
    def node(number: int, role: str, name: str, children: list[str], **more: Any) -> dict[str, Any]:
        said = {"role": {"value": role}, "name": {"value": name}, "childIds": children}
        return {"nodeId": str(number), "backendDOMNodeId": number, "properties": [], **said, **more}

    tree = [
        node(1, "RootWebArea", "Shop", ["2", "3"]),
        node(2, "button", "Pay", [], browsergym_id="a4"),
        node(3, "textbox", "Name", [], browsergym_id="a5"),
    ]
    write_step(tmp_path, StepInfo(0, obs(None, axtree_object={"nodes": tree}), action="click('a4', button='left')"))
    write_step(tmp_path, StepInfo(1, obs(CART), terminated=True))
    (found,), _ = load("browsergym", tmp_path)
    assert (found.action.kind, found.action.target_role, found.action.target_name) == ("click", "button", "Pay")
    assert found.info["done"] is True and found.info["goal"] == "Pay"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("click('23')", Action("click", 2, target_role="link", target_name="Cart")),
        ("fill('30', 'a, b')", Action("type", 4, "a, b", target_role="textbox", target_name="it's a Search")),
        ("fill(bid='30', value='x')", Action("type", 4, "x", target_role="textbox", target_name="it's a Search")),
        ("keyboard_press('Enter')", Action("press", text="Enter")),
        ("press('30', 'Control+a')", Action("press", text="Control+a")),
        ("goto('http://x.test/2')", Action("goto", text="http://x.test/2")),
        ("send_msg_to_user('12')", Action("stop", text="12")),
        ("report_infeasible('no')", Action("stop", text="N/A")),
        ("tab_focus(1)", Action("tab_focus", index=1)),
        ("scroll(0, -10)", Action("scroll", text="up")),
        ("drag_and_drop('1', '2')", reasons.INEXACT),
        ("click('23'", reasons.NO_ACTION),
        ("__import__('os').system('x')", reasons.NO_ACTION),
        ("click(open('x'))", reasons.NO_ACTION),
    ],
)
def test_calls_of_browsergym(text: str, expected: Any) -> None:
    assert gym_action(text, from_axtree_text(HOME, "u")) == expected


@pytest.mark.parametrize(
    "text",
    [
        *("tab_focus('abc')", "tab_focus()", "scroll(0, 'down')", "scroll(None, [])", "click()", "fill()", "press()"),
        *("click(['23'])", "goto()", "click(23, button=1, text=2)", "f(*a)", "click(", "select_option('23', {})"),
    ],
)
def test_badly_written_calls_of_agents_are_no_reason_to_stop(text: str) -> None:
    found = gym_action(text, from_axtree_text(HOME, "u"))
    assert isinstance(found, Action | str)


@pytest.mark.parametrize("argument", ["C:\\x", "\\N{no such name}", "a\\", "tea"])
def test_arguments_that_are_no_python_text_are_no_reason_to_stop(argument: str) -> None:
    found = do_action(f'do(action="Type", argument="{argument}", element="23")', from_axtree_text(HOME, "u"))
    assert isinstance(found, Action | str)


def test_grammars_of_other_projects_refuse_what_they_cannot_mean() -> None:
    page = from_axtree_text(HOME, "u")
    assert webarena_action("so ```click [23] where [23] is link 'Cart'```", page) == gym_action("click('23')", page)
    assert webarena_action("CLICK [23]", page) == gym_action("click('23')", page)
    assert webarena_action("type [23] [x] [1]", page) == reasons.REFUSED
    assert do_action('do(action="Scroll Down")', page) == Action("scroll", text="down")
    assert do_action('do(action="Dance", element="23")', page) == reasons.NO_ACTION
    assert do_action("", page) == reasons.NO_ACTION


# Mind2Web

FORM = (
    '<html backend_node_id="1"><a backend_node_id="10" href="/x"><img backend_node_id="11" '
    'alt="Flights"/></a><select backend_node_id="12"><option backend_node_id="13">One</option><option '
    'backend_node_id="14">Two</option></select><input backend_node_id="15" type="text" aria-label="From"/></html>'
)


def operation(op: str, value: str = "") -> dict[str, str]:
    return {"op": op, "original_op": op, "value": value}


def test_mind2web(tmp_path: Path) -> None:
    def action(op: str, value: str, *ids: str, page: str = FORM) -> dict[str, Any]:
        candidates = [{"tag": "x", "backend_node_id": one, "is_original_target": True} for one in ids]
        return {
            "action_uid": "u",
            "cleaned_html": page,
            "operation": operation(op, value),
            "pos_candidates": candidates,
        }

    task = {
        "annotation_id": "a1",
        "website": "united",
        "confirmed_task": "Fly",
        "action_reprs": [],
        "actions": [
            action("CLICK", "", "11"),
            action("SELECT", "Two", "12"),
            action("TYPE", "Oslo", "99", "15"),
            action("CLICK", "", "99"),
            action("CLICK", ""),
            {"operation": operation("CLICK")},
            action("CLICK", "", "10"),
        ],
    }
    (tmp_path / "train_0.json").write_text(json.dumps([task, {"annotation_id": "broken"}]), encoding="utf-8")
    (tmp_path / "train_1.json").write_text("[{", encoding="utf-8")
    found, report = load("mind2web", tmp_path)
    assert [(t.action.kind, t.action.target_role, t.action.target_name, t.action.text) for t in found] == [
        ("click", "link", "Flights", ""),
        ("select", "combobox", "", "Two"),
        ("type", "textbox", "From", "Oslo"),
    ]
    assert {t.observation.url for t in found} == {"mind2web:united"} and found[0].info["site"] == "united"
    assert (report.read, dict(report.dropped)) == (
        9,
        {
            reasons.REFUSED: 1,
            "it has no positive candidate": 1,
            reasons.NO_PAGE: 1,
            reasons.LAST: 1,
            "its task has no list of actions": 1,
            "its file is no valid JSON": 1,
        },
    )


def test_html_ids_lead_to_the_nearest_shown_element() -> None:
    found = from_html(FORM, "u")
    assert found.ids["11"] == found.ids["10"]
    with pytest.raises(ValueError, match="no element"):
        from_html("", "u")


def test_unknown_formats_and_missing_sources_are_errors(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nnetnv.*nnetnav"):
        load("nnetnv", tmp_path)
    for name in ("nnetnav", "webarena", "browsergym", "mind2web"):
        with pytest.raises(MissingError, match="no folder that holds"):
            load(name, tmp_path / "gone")
