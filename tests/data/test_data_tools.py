"""What is done with a transition store: exports that other tools read, statistics, contamination, labels, commands."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from chat_server import chat_server
from core_kit import Cli
from folders import KITS

from dynaweb.config.server import Server
from dynaweb.data.codec import from_json
from dynaweb.data.exports import COLUMNS, export, sharegpt_row, trl_row
from dynaweb.data.inspect import contamination, summarise
from dynaweb.data.labels import estimate, label, read_words
from dynaweb.data.store import TransitionStore
from dynaweb.engines.server import OpenAIEngine
from dynaweb.errors import CheckpointError, ConfigError
from dynaweb.types import Action, Node, Observation, Transition
from dynaweb.web.delta import apply, parse
from dynaweb.web.page.text import parse_compact
from dynaweb.worldmodels.change import history_of, read_change
from dynaweb.worldmodels.pages import parse_page
from dynaweb.worldmodels.prompts import FORMS, SYSTEM, Form, answer, question, recent


def page(name: str, *, host: str = "shop") -> Observation:
    nodes = (Node(1, "link", "Cart"), Node(2, "textbox", "Search"), Node(3, "heading", f"{name} ü ' [3]"))
    return Observation(f"http://{host}.localhost/{name}", nodes)


def go(first: str, second: str, *, host: str = "shop", **info: Any) -> Transition:
    action = Action("click", 1, target_role="link", target_name="Cart")
    return Transition(page(first, host=host), action, page(second, host=host), f"task-{first}", "real", info)


TYPED = Transition(
    page("a"), Action("type", 2, "x", target_role="textbox", target_name="Search"), page("a"), "t", "real"
)
ITEMS = [go("a", "b"), TYPED, go("b", "c", history=(Action("wait"),)), go("c", "c")]


@pytest.fixture
def store(tmp_path: Path) -> TransitionStore:
    made = TransitionStore(tmp_path / "real.jsonl.gz")
    made.extend(iter(ITEMS))
    return made


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def check_columns(rows: list[dict[str, str]]) -> None:
    assert [tuple(row) for row in rows] == [COLUMNS] * 4
    for row, item in zip(rows, ITEMS, strict=True):
        before = parse_compact(row["observation"])
        assert (before, from_json(json.loads(row["action"]))) == (item.observation, item.action)
        assert apply(before, parse(row["delta"], before)) == parse_compact(row["next_observation"])
        assert parse_compact(row["next_observation"]) == item.next_observation
        assert from_json(json.loads(row["info"])) == item.info


def test_parquet_and_datasets_hold_everything_exactly(store: TransitionStore, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    assert export(store, "parquet", tmp_path / "out.parquet") == (4, tmp_path / "out.parquet")
    check_columns(parquet.read_table(tmp_path / "out.parquet").to_pylist())


def test_a_folder_of_datasets(store: TransitionStore, tmp_path: Path, cli: Cli) -> None:
    pytest.importorskip("datasets")
    done = cli("data", "export", str(store.path), "out", "--to", "datasets", HF_DATASETS_OFFLINE="1")
    assert done.returncode == 0, done.stderr
    code = "import datasets, json; print(json.dumps(datasets.load_from_disk('out').to_list()))"
    read = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    check_columns(json.loads(read.stdout))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "real.jsonl.gz"]


def test_trl_and_llamafactory_hold_what_a_world_model_is_asked(store: TransitionStore, tmp_path: Path) -> None:
    assert export(store, "trl", tmp_path / "trl.jsonl")[0] == 3
    (first, _, last) = lines(tmp_path / "trl.jsonl")
    assert [part["role"] for part in first["prompt"]] == ["system", "user"]
    (said,) = first["completion"]
    assert read_change(said["content"], page("a")).next_observation == page("b")
    assert "same" in last["completion"][0]["content"]
    export(store, "llamafactory", tmp_path / "pages.jsonl", form="page", history=1)
    shared = lines(tmp_path / "pages.jsonl")[1]
    human, model = shared["conversations"]
    assert (human["from"], model["from"], "wait" in human["value"]) == ("human", "gpt", True)
    assert parse_page(model["value"], page("b"))[0] == page("c")
    export(store, "llamafactory", tmp_path / "words.jsonl", form="words")
    info = json.loads((tmp_path / "dataset_info.json").read_text())
    assert info["pages"] == {
        "file_name": "pages.jsonl",
        "formatting": "sharegpt",
        "columns": {"messages": "conversations", "system": "system"},
    }
    assert set(info) == {"pages", "words"}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("history", "goal"), [(0, True), (2, False), (1, True)])
def test_exported_questions_are_those_of_a_model_that_is_asked(form: Form, history: int, goal: bool) -> None:
    """With the same settings, what other trainers learn from is what the world model is asked in a dream."""
    item = go("a", "b", history=(Action("wait"), Action("go_back")), goal="Buy the red kettle")
    asked = question(
        item.observation,
        item.action,
        recent(history_of(item), history),
        goal="Buy the red kettle" if goal else "",
    )
    (system, user), (said,) = trl_row(item, form, history, goal)["prompt"], trl_row(item, form)["completion"]
    assert (system["content"], user["content"], said["content"]) == (SYSTEM[form], asked, answer(item, form))
    assert sharegpt_row(item, form, history, goal)["conversations"][0]["value"] == asked
    assert ("red kettle" in asked) is goal


def test_the_goal_is_exported_unless_it_is_not_wanted(tmp_path: Path, cli: Cli) -> None:
    TransitionStore(tmp_path / "real.jsonl.gz").append([go("a", "b", goal="Buy the red kettle")])
    for name, more, shown in (("with", (), True), ("without", ("--no-goal",), False)):
        done = cli("data", "export", "real.jsonl.gz", f"{name}.jsonl", "--to", "llamafactory", *more)
        assert done.returncode == 0, done.stderr
        assert ("Buy the red kettle" in (tmp_path / f"{name}.jsonl").read_text()) is shown


@pytest.mark.parametrize("to", ["trl", "parquet"])
def test_an_export_never_replaces_its_store(tmp_path: Path, to: str) -> None:
    store = TransitionStore(tmp_path / "store.jsonl.gz")
    store.append(ITEMS[:1])
    before = store.path.read_bytes()
    with pytest.raises(ConfigError, match="is the store itself"):
        export(store, to, tmp_path / "." / "store.jsonl.gz")
    assert store.path.read_bytes() == before


def test_an_export_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    def broken() -> Any:
        yield ITEMS[0]
        raise RuntimeError("the disk is full")

    out = tmp_path / "x.jsonl"
    out.write_text("old")
    with pytest.raises(RuntimeError):
        export(broken(), "trl", out)
    assert out.read_text() == "old" and list(tmp_path.iterdir()) == [out]
    with pytest.raises(ConfigError, match=r"parqet.*parquet"):
        export([], "parqet", out)
    with pytest.raises(ConfigError, match="form"):
        export([], "trl", out, form="html")


def test_statistics_count_what_is_there() -> None:
    found = summarise([*ITEMS, go("x", "y", host="forum", reasoning="r", site="forum 7")]).data()
    assert (found["transitions"], found["for a world model"], found["labelled in words"]) == (5, 4, 1)
    assert found["without any change"] == 2 and found["distinct pages"] == 5
    assert found["actions"] == {"click": 4, "type": 1}
    assert found["sites"] == {"shop.localhost": 4, "forum 7": 1}
    assert found["elements of a page"] == 3 and found["most elements of a page"] == 3


def test_contamination_goes_from_loose_to_strict() -> None:
    train = [go("a", "b"), go("b", "c"), go("z", "z2", host="forum")]
    fresh = replace(go("q", "b"), task_id="other")
    notice = replace(go("b", "c"), observation=replace(page("b"), notice="hello"), task_id="other")
    levels, total = contamination(train, [go("a", "b"), go("b", "x"), fresh, notice, go("w", "v", host="tracker")])
    found = {one.level: (one.shared, one.total, one.affected) for one in levels}
    assert total == 5
    assert found["site"] == (1, 2, 4)
    assert found["task"] == (2, 4, 2)
    # a, b, c are shared; x, q, w, v are not. Notices of an earlier action do not make another page.
    # A transition counts once, whether the page before it, the one after it or both were seen.
    assert found["page"] == (3, 7, 4)
    assert found["question"] == (2, 4, 3)
    assert found["transition"] == (2, 5, 2)
    assert all(one.affected <= total for one in levels)
    assert next(one for one in levels if one.level == "task").examples == ("task-a", "task-b")


ANSWER = "REASONING: The link leads on.\n**Change**: A page is shown."


def test_labels_of_a_model_are_resumed_and_counted(store: TransitionStore, tmp_path: Path) -> None:
    pytest.importorskip("openai")
    out = TransitionStore(tmp_path / "labelled.jsonl.gz")
    out.append([replace(ITEMS[0], info={"reasoning": "earlier"})])
    with chat_server(ANSWER) as server:
        engine = OpenAIEngine(Server(model="big", base_url=server.url, price_in=1e6, price_out=0.0))
        expected = estimate(store, out, engine)
        done = asyncio.run(label(store, out, engine))
    # What code decides is never asked of a world model: it gets no words, and costs nothing.
    assert (done.labelled, done.by_template, done.passed, done.total) == (2, 0, 1, 4)
    assert expected.left == len(server.requests) == 2 and expected.cost == expected.prompt_tokens > 300
    assert f"{expected.prompt_tokens:,} prompt tokens" in str(expected)
    made = list(TransitionStore(out.path))
    assert [item.observation for item in made] == [item.observation for item in ITEMS]
    assert made[0].info["reasoning"] == "earlier"
    assert [item.info.get("labeller", "") for item in made] == ["", "", "big", "big"] and made[1] == TYPED
    words = next(item.info for item in made if item.info.get("labeller") == "big")
    assert (words["reasoning"], words["sentence"]) == ("The link leads on.", "A page is shown.")
    assert asyncio.run(label(store, out, engine)).labelled == 0


def test_a_model_that_says_nothing_of_use_is_replaced_by_the_template(store: TransitionStore, tmp_path: Path) -> None:
    pytest.importorskip("openai")
    out = TransitionStore(tmp_path / "labelled.jsonl.gz")
    with chat_server("no words") as server:
        done = asyncio.run(label(store, out, OpenAIEngine(Server(model="big", base_url=server.url))))
    assert (done.labelled, done.by_template, len(server.requests)) == (3, 3, 9)
    assert [item.info.get("labeller") for item in out] == ["template", None, "template", "template"]


def test_labels_from_templates_cost_nothing_and_foreign_targets_are_refused(
    store: TransitionStore, tmp_path: Path
) -> None:
    out = TransitionStore(tmp_path / "labelled.jsonl.gz")
    assert estimate(store, out, None).cost == 0
    done = asyncio.run(label(store, out))
    assert (done.labelled, done.by_template, done.passed) == (3, 3, 1)
    assert trl_row(out[0], "delta") == trl_row(store[0], "delta")
    other = TransitionStore(tmp_path / "other.jsonl.gz")
    other.append([go("z", "y")])
    with pytest.raises(CheckpointError, match="transition 0 differs"):
        asyncio.run(label(store, other))
    with pytest.raises(CheckpointError, match="more transitions"):
        asyncio.run(label(other, out))
    with pytest.raises(ConfigError, match="another file"):
        asyncio.run(label(store, store))
    assert read_words("CHANGE: only this") is None


KILLED = """
import sys
from pathlib import Path
from dynaweb.data import store
from dynaweb.data.store import TransitionStore
sys.path[:0] = sys.argv[2].split(":")
from test_data_tools import go
store.BATCH_RECORDS = 8
def endless():
    number = 0
    while True:
        yield go(f"a{number}", f"b{number}")
        number += 1
TransitionStore(Path(sys.argv[1])).extend(endless())
"""


def test_a_store_that_was_killed_in_mid_write_holds_whole_batches(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl.gz"
    for _ in range(3):
        modules = f"{Path(__file__).parent}:{KITS}"
        process = subprocess.Popen([sys.executable, "-c", KILLED, str(path), modules], env=os.environ)
        before = path.stat().st_size if path.exists() else 0
        deadline = time.monotonic() + 30
        while (path.stat().st_size if path.exists() else 0) <= before + 20_000 and time.monotonic() < deadline:
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        process.wait()
        count = len(TransitionStore(path))
        assert count > 0 and count % 8 == 0
        assert len(list(TransitionStore(path))) == count


def test_commands(store: TransitionStore, tmp_path: Path, cli: Cli) -> None:
    stats = json.loads(cli("data", "stats", str(store.path), "--json").stdout)
    assert stats["transitions"] == 4
    shared = cli("data", "contamination", str(store.path), str(store.path)).stdout
    assert shared.splitlines()[0].split()[:2] == ["same", "distinct"]
    assert "4 of 4" in next(line for line in shared.splitlines() if line.startswith("transition"))
    done = cli("data", "export", str(store.path), "x.jsonl", "--to", "trl")
    assert done.stdout == "3 rows: x.jsonl\n"
    assert cli("data", "export", str(store.path), "x.jsonl", "--to", "trl").returncode == 2
    assert cli("data", "stats", "gone.jsonl.gz").returncode == 3
    labelled = cli("data", "label", str(store.path), "y.jsonl.gz", "--json")
    assert json.loads(labelled.stdout)["labelled"] == 3 and "3 transitions to label" in labelled.stderr
    (tmp_path / "rows.jsonl").write_text('{"actions": 3}\n')
    done = cli("data", "import", "mind2web", "rows.jsonl", "z.jsonl.gz")
    assert done.returncode == 1 and "0 transitions of 1 steps" in done.stdout
    assert "nothing was kept: z.jsonl.gz is as it was" in done.stdout and not (tmp_path / "z.jsonl.gz").exists()


def test_a_server_is_not_asked_without_consent(store: TransitionStore, cli: Cli) -> None:
    pytest.importorskip("openai")
    with chat_server(ANSWER) as server:
        ask = ("data", "label", str(store.path), "y.jsonl.gz", "--model", "m", "--base-url", server.url)
        refused = cli(*ask)
        assert refused.returncode == 2 and "--yes" in refused.stderr and server.requests == []
        dry = cli(*ask, "--dry-run", "--price-in", "1000000", "--json")
        assert json.loads(dry.stdout)["left"] == 3 and server.requests == []
        done = cli(*ask, "--yes", "--json")
    assert json.loads(done.stdout)["spent"]["requests"] == len(server.requests) == 3
