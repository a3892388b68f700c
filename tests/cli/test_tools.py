"""The Python API besides training does what its commands do: each call is made, and compared with its command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from core_kit import Cli

import dynaweb
from dynaweb.cli.output import plain
from dynaweb.data.store import TransitionStore
from dynaweb.errors import CheckpointError, ConfigError, DynawebError, MissingError
from dynaweb.types import Action, Node, Observation, Transition


def test_listings_are_those_of_the_commands(cli: Cli) -> None:
    assert json.loads(cli("plugins", "list", "--json").stdout) == plain(dynaweb.list_plugins())
    assert json.loads(cli("config", "recipes", "--json").stdout) == dynaweb.list_recipes()
    assert json.loads(cli("matrix", "list", "--json").stdout) == dynaweb.list_matrices()
    assert json.loads(cli("config", "schema").stdout) == json.loads(json.dumps(dynaweb.recipe_schema()))


def test_an_estimate_is_refused_like_a_run() -> None:
    found = dynaweb.estimate_run(dynaweb.resolve("smoke"))
    assert found is not None and found.parameters > 0
    with pytest.raises(ConfigError, match="cannot score dream episodes"):
        dynaweb.estimate_run(dynaweb.resolve("smoke", reward="checker"))


def test_tasks_and_places() -> None:
    recipe = dynaweb.resolve("smoke", env="sites", overrides=["env.driver=static"])
    tasks = dynaweb.list_tasks(recipe, count=3)
    assert len(tasks) == 3 and tasks == dynaweb.open_environment(recipe).tasks("", 3)
    with pytest.raises(MissingError, match="no reward judge is called 'chekcer'; did you mean 'checker'"):
        dynaweb.check_plugin("reward", "chekcer")
    with pytest.raises(ConfigError, match="no such environment"):
        dynaweb.install_environment("brwsergym")


def test_a_plugin_is_written(tmp_path: Path) -> None:
    files = dynaweb.new_plugin("reward", "mine", tmp_path / "mine")
    assert all(file.is_file() for file in files)


def test_a_matrix_is_planned_and_its_table_waits(tmp_path: Path) -> None:
    plan = dynaweb.plan_matrix("smoke", axes=["wm=delta,full-state"], seeds=[0, 1], overrides={"rl.updates": 1})
    assert len(plan.cells) == 4 and all(cell.recipe.rl.updates == 1 for cell in plan.cells)
    table = dynaweb.matrix_table(plan, out=tmp_path / "none")
    assert not (tmp_path / "none").exists() and table.plain()
    with pytest.raises(DynawebError):
        dynaweb.run_matrix(plan, out=tmp_path / "none", measures=["elemnt_f1"])
    assert not (tmp_path / "none").exists()


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    for call in (
        lambda: dynaweb.compare_runs([tmp_path / "a", tmp_path / "b"]),
        lambda: dynaweb.write_report(tmp_path / "a"),
        lambda: dynaweb.data_stats(tmp_path / "a"),
        lambda: dynaweb.contamination(tmp_path / "a", tmp_path / "b"),
        lambda: dynaweb.export_data(tmp_path / "a", tmp_path / "b"),
        lambda: dynaweb.report_server(tmp_path / "a"),
    ):
        with pytest.raises((ConfigError, MissingError, CheckpointError), match="a"):
            call()
    assert list(tmp_path.iterdir()) == []


def test_data_goes_in_and_out(tmp_path: Path) -> None:
    pages = [Observation("http://a.localhost/", (Node(1, "link", name),)) for name in ("Old", "New")]
    store = tmp_path / "store.jsonl.gz"
    TransitionStore(store).append([Transition(pages[0], Action("click", 1, target_name="Old"), pages[1])])
    assert dynaweb.data_stats(store).data()["transitions"] == 1
    overlaps, total = dynaweb.contamination(store, store)
    assert total == 1 and all(one.shared == one.total for one in overlaps)
    assert dynaweb.export_data(store, tmp_path / "rows.jsonl", to="trl")[0] == 1
    done = dynaweb.label_data(store, tmp_path / "labelled.jsonl.gz")
    assert done.total == 1 and dynaweb.data_stats(tmp_path / "labelled.jsonl.gz").data()["transitions"] == 1
    with pytest.raises(DynawebError, match="nnetnv"):
        dynaweb.import_data("nnetnv", store, tmp_path / "new.jsonl.gz")
