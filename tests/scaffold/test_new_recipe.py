"""`dynaweb new recipe`: what it writes passes a dry run, what is wrong is named, and nothing is overwritten."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from core_kit import Cli
from own_kit import nnetnav_rows, tasks, webarena_trace

import dynaweb
from dynaweb import api
from dynaweb.config import resolve
from dynaweb.data.store import TrajectoryStore
from dynaweb.errors import ConfigError, DynawebError, MissingError
from dynaweb.estimate.refusals import examined
from dynaweb.scaffold.recipe import parse_sites

SHOP = "http://shop.test:7770"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with tasks and trajectories, to work in."""
    for name in ("SHOP", "WA_SHOP"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tasks.json").write_text(json.dumps(tasks()), encoding="utf-8")
    (tmp_path / "traces").mkdir()
    (tmp_path / "traces" / "render_0.html").write_text(webarena_trace(SHOP), encoding="utf-8")
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in nnetnav_rows(SHOP)))
    yield tmp_path


FLAGS: dict[str, Any] = {
    "model": "tiny",
    "tasks": "tasks.json",
    "sites": [f"shop={SHOP}"],
    "demos": ["traces:webarena"],
    "gpus": 0,
}


def write(name: str = "mine", **changes: Any) -> Any:
    return dynaweb.new_recipe(name, **{**FLAGS, **changes})


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("trial", [False, True])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"demos": ["traces:webarena", "rows.jsonl:nnetnav"]},
        {"gpus": 1, "model": "Qwen/Qwen2.5-1.5B-Instruct"},
        {"gpus": None, "on": "8xh100", "model": "meta-llama/Llama-3.1-8B-Instruct"},
        {"gpus": None, "on": "l4", "model": "Qwen/Qwen2.5-1.5B-Instruct"},
        {"gpus": None, "on": "laptop"},
        {"eval_tasks": "other.json"},
        {"folder": "deep/er"},
    ],
    ids=str,
)
def test_what_is_written_passes_a_dry_run_on_its_machine(here: Path, changes: dict[str, Any], trial: bool) -> None:
    if "eval_tasks" in changes:
        others = [{**task, "task_id": f"o{task['task_id']}", "intent": f"{task['intent']} now"} for task in tasks()]
        (here / "other.json").write_text(json.dumps(others))
    written = write(**changes, trial=trial)
    assert all(path.is_file() for path in written.files)
    recipe = resolve(written.files[0])
    assert recipe.needs == {} and recipe.env.name == "dream" and recipe.model.path == changes.get("model", "tiny")
    ranks = int(written.run.partition(" --nproc ")[2] or 1)
    on = changes.get("on") or ("h100" if changes.get("gpus") else "")
    result = examined(recipe, ranks, on)
    result.problems.check()
    assert result.sources.episodes == len(changes.get("demos", [1])) and result.sources.tasks["train"] > 0
    assert (recipe.rl.updates == 1) is trial
    text = written.files[0].read_text(encoding="utf-8")
    assert written.run in text and all(len(line) <= 120 for line in text.splitlines())
    assert tomllib.loads(text)["extends"] == "own"


def test_templates_without_demonstrations_are_kept_for_the_evaluation(here: Path) -> None:
    write()
    train, test = (json.loads((here / f"mine-{part}.json").read_text()) for part in ("train", "test"))
    assert {task["intent_template_id"] for task in train} == {1} and {task["intent_template_id"] for task in test} == {
        2
    }
    assert sorted(task["task_id"] for task in [*train, *test]) == sorted(task["task_id"] for task in tasks())


@pytest.mark.parametrize("count", [2, 3, 7])
def test_one_template_or_none_is_divided_by_tasks(here: Path, count: int) -> None:
    for template in ({"intent_template_id": 5}, {}):
        few = [
            {**{k: v for k, v in tasks()[0].items() if k != "intent_template_id"}, **template, "task_id": number}
            for number in range(count)
        ]
        few = [{**task, "intent": "Open the page of tea" if at == 0 else f"Task {at}"} for at, task in enumerate(few)]
        (here / "few.json").write_text(json.dumps(few))
        name = f"few{len(template)}"
        write(name, tasks="few.json")
        parts = [json.loads((here / f"{name}-{part}.json").read_text()) for part in ("train", "test")]
        assert [len(part) for part in parts] == [count - max(1, round(0.3 * count)), max(1, round(0.3 * count))]
        assert "Open the page of tea" in [task["intent"] for task in parts[0]]


def test_a_store_is_named_as_it_is_and_others_are_imported(here: Path) -> None:
    api.import_data("webarena", here / "traces", here / "store.jsonl.gz", trajectories=True)
    written = write("one", demos=["store.jsonl.gz"])
    assert resolve(written.files[0]).data.demos == "store.jsonl.gz" and not (here / "one-demos.jsonl.gz").exists()
    written = write("two", demos=["store.jsonl.gz", "rows.jsonl:nnetnav"])
    assert resolve(written.files[0]).data.demos == "two-demos.jsonl.gz"
    assert len(list(TrajectoryStore(here / "two-demos.jsonl.gz"))) == 2
    assert len(written.notes) == 2 and "1 trajectories" in written.notes[0]


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no model": ({"model": ""}, "--model NAME|PATH, such as --model Qwen/"),
    "no tasks": ({"tasks": ""}, "--tasks FILE"),
    "no demos": ({"demos": []}, r"--demos FILE\[:FORMAT\]"),
    "tasks that are not there": ({"tasks": "gone.json"}, "the task file gone.json cannot be read"),
    "tasks that are no JSON": ({"tasks": "rows.jsonl"}, "is no JSON"),
    "an empty folder of tasks": ({"tasks": "empty"}, "holds no tasks"),
    "a task without eval": ({"tasks": "broken.json"}, "has no eval"),
    "one task": ({"tasks": "one.json"}, "holds one task, .* give others with --eval-tasks"),
    "a site that no task names": ({"sites": [f"shpo={SHOP}"]}, "no task names the site 'shpo'.*did you mean 'shop'"),
    "a site without an address": ({"sites": []}, "shop has no address"),
    "an address that is none": ({"sites": ["shop=my-host:7770"]}, "write it as NAME=ADDRESS"),
    "a name alone": ({"sites": ["shop"]}, "write it as NAME=ADDRESS"),
    "demos that are not there": ({"demos": ["gone.jsonl.gz"]}, "there is no file or folder gone.jsonl.gz"),
    "an unknown format": ({"demos": ["rows.jsonl:nnetnva"]}, "no format is called 'nnetnva'; did you mean 'nnetnav'"),
    "a format that it is not": ({"demos": ["rows.jsonl:webarena"]}, "rows.jsonl"),
    "a folder without any": ({"demos": ["empty:webarena"]}, "empty"),
    "rows that were not imported": ({"demos": ["rows.jsonl"]}, "rows.jsonl"),
    "too many GPUs": ({"gpus": 99}, "one host has 8 at most"),
    "a machine that is none": ({"gpus": None, "on": "8xfoo"}, "is no machine"),
    "two answers": ({"gpus": 2, "on": "8xh100"}, "disagree"),
    "a model that fits nowhere": (
        {"gpus": None, "on": "laptop", "model": "meta-llama/Llama-3.1-8B-Instruct"},
        "does not fit",
    ),
}


@pytest.mark.parametrize("kind", WRONG)
def test_what_is_wrong_is_named_and_nothing_is_written(here: Path, kind: str) -> None:
    changes, words = WRONG[kind]
    (here / "empty").mkdir()
    (here / "one.json").write_text(json.dumps(tasks()[:1]))
    broken = [{key: value for key, value in task.items() if key != "eval"} for task in tasks()]
    (here / "broken.json").write_text(json.dumps(broken))
    before = files(here)
    with pytest.raises(DynawebError, match=f"(?s){words}"):
        write(**changes)
    assert files(here) == before


@pytest.mark.parametrize("name", ["", "a b", "../x", "-x", "mine.toml", "a/b"])
def test_names_that_are_none(here: Path, name: str) -> None:
    before = files(here)
    with pytest.raises(ConfigError, match="is no name of a recipe"):
        write(name)
    assert files(here) == before


@pytest.mark.parametrize("taken", ["mine.toml", "mine-train.json", "mine-test.json", "mine-demos.jsonl.gz"])
def test_nothing_is_overwritten(here: Path, taken: str) -> None:
    (here / taken).write_text("precious")
    before = files(here)
    with pytest.raises(ConfigError, match=rf"{taken} is there already, and nothing is overwritten"):
        write()
    assert files(here) == before


# --- Questions


def asked(*answers: str) -> tuple[list[str], Any]:
    questions, left = list[str](), list(answers)

    def ask(question: str) -> str:
        questions.append(question)
        return left.pop(0)

    return questions, ask


def test_on_a_terminal_what_was_left_out_is_asked_with_defaults(here: Path) -> None:
    questions, ask = asked("tiny", "tasks.json", "", SHOP, "traces:webarena rows.jsonl:nnetnav", "0")
    written = dynaweb.new_recipe("mine", ask=ask)
    assert len(questions) == 6 and all("[" in questions[at] for at in (0, 2, 3, 5))
    assert "Address of the site shop" in questions[3]
    recipe = resolve(written.files[0])
    assert recipe.env.config.task_settings["urls"] == {"shop": SHOP}  # type: ignore[attr-defined]
    assert len(list(TrajectoryStore(here / "mine-demos.jsonl.gz"))) == 2


def test_flags_are_not_asked_for(here: Path) -> None:
    questions, ask = asked("")
    write(model="", gpus=1, ask=ask)
    assert len(questions) == 1 and resolve("mine.toml").model.path == "Qwen/Qwen2.5-1.5B-Instruct"


def test_a_question_without_a_default_is_asked_again_and_then_given_up(here: Path) -> None:
    questions, ask = asked("", "tasks.json", "", "", "", "")
    with pytest.raises(ConfigError, match="no answer to: Trajectories"):
        dynaweb.new_recipe("mine", model="tiny", sites=FLAGS["sites"], gpus=0, ask=ask)
    assert questions[0] == questions[1]


@pytest.mark.parametrize("count", ["two", "-1", "1.5"])
def test_a_number_of_gpus_is_a_number(here: Path, count: str) -> None:
    _, ask = asked(count)
    with pytest.raises(ConfigError, match="is no number of GPUs"):
        write(gpus=None, ask=ask)


def test_sites_are_read_as_people_write_them() -> None:
    assert parse_sites(["Shop=http://a:1/", "forum=https://b/c?d=e"]) == {
        "shop": "http://a:1",
        "forum": "https://b/c?d=e",
    }
    with pytest.raises(ConfigError):
        parse_sites(["=http://a"])


def test_the_command_line_writes_says_what_is_next_and_asks_nobody(here: Path, cli: Cli) -> None:
    words = ["--model", "tiny", "--tasks", "tasks.json", "--site", f"shop={SHOP}", "--demos", "traces:webarena"]
    done = cli("new", "recipe", "mine", *words, "--gpus", "0")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "mine.toml" and "next: dynaweb run mine.toml --dry-run" in done.stderr
    done = cli("new", "recipe", "other")
    assert done.returncode == 2 and done.stderr.count("--") >= 3 and "nobody is there to be asked" in done.stderr
    with pytest.raises(MissingError):
        write("third", demos=["nowhere/"])
