"""Whole recipes side by side: what is set for all of them, what stays each one's own, and the table with costs."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from core_kit import Cli

from dynaweb.compare.groups import Group
from dynaweb.compare.records import read_run
from dynaweb.config import resolve
from dynaweb.errors import ConfigError
from dynaweb.matrix import Plan, plan_of, read_matrix
from dynaweb.matrix.recipes import comparison
from dynaweb.matrix.table import measure_label, value_text

NAMES = ("sft", "prompted", "filtered-bc", "webrl", "webdreamer", "dynaweb-frozen", "dynaweb")
SETS = (
    *("rl.updates=7", "sft.steps=3", "wm_fit.steps=5", "rl.expert_share=0.5", "env.task_settings.driver=static"),
    *("webrl:rl.updates=2", "filtered-bc:offline.episodes=9"),
)


def planned(*sets: str, names: tuple[str, ...] = NAMES, seeds: tuple[int, ...] = (0,)) -> Plan:
    matrix, _ = comparison(names, sets=sets, seeds=seeds)
    return plan_of(matrix)


def test_every_recipe_stays_what_it_is() -> None:
    cells = {dict(cell.labels)["recipe"]: cell.recipe for cell in planned(*SETS).cells}
    assert list(cells) == list(NAMES)
    updates = {name: recipe.rl.updates for name, recipe in cells.items()}
    assert updates == {**dict.fromkeys(NAMES, 7), "sft": 0, "prompted": 0, "webdreamer": 0, "webrl": 2}
    assert {name for name, recipe in cells.items() if recipe.sft.steps == 0} == {"prompted"}
    assert {name for name, recipe in cells.items() if recipe.wm_fit.steps == 0} == {"webdreamer", "dynaweb-frozen"}
    assert {name: recipe.offline.episodes for name, recipe in cells.items() if recipe.offline.episodes} == {
        "filtered-bc": 9
    }
    # A share that is 0 is no stage that is left out.
    assert {recipe.rl.expert_share for recipe in cells.values()} == {0.5}
    assert set(comparison(NAMES, sets=SETS)[1]) == {
        *(f"{name} keeps rl.updates = 0" for name in ("sft", "prompted", "webdreamer")),
        *(f"{name} keeps wm_fit.steps = 0" for name in ("webdreamer", "dynaweb-frozen")),
        "prompted keeps sft.steps = 0",
    }
    for recipe in cells.values():
        settings = recipe.env.config.model_dump()
        assert settings.get("task_settings", settings)["driver"] == "static"
    # Longer SFT is what the recipe `sft` is about, and only a control of the others.
    assert {name for name, recipe in cells.items() if recipe.controls.sft_steps} == {"sft"}


def test_a_setting_of_one_recipe_is_taken_as_it_is() -> None:
    cells = {
        dict(cell.labels)["recipe"]: cell.recipe for cell in planned("sft:rl.updates=3", "prompted:sft.steps=1").cells
    }
    assert (cells["sft"].rl.updates, cells["prompted"].sft.steps) == (3, 1)
    assert cells["dynaweb"].rl.updates == resolve("dynaweb").rl.updates


def test_seeds_and_recipes_make_the_cells_of_a_matrix() -> None:
    plan = planned(names=("sft", "dynaweb"), seeds=(4, 5))
    assert [(str(cell), cell.recipe.run.seed) for cell in plan.cells] == [
        (f"recipe={name}, seed {seed}", seed) for seed in (4, 5) for name in ("sft", "dynaweb")
    ]
    assert {cell.id for cell in plan_of(read_matrix("sft", axes=["recipe=sft,dynaweb"], seeds=(4,))).cells} >= {
        plan.cells[0].id
    }


@pytest.mark.parametrize(
    ("names", "sets", "says"),
    [
        (("sft", "dynawep"), (), "no recipe is called 'dynawep'; did you mean 'dynaweb'"),
        (("sft", "sft"), (), "has a value twice"),
        (("sft", "webrl"), ("webrll:rl.updates=1",), "'webrll' is none of the recipes to compare"),
        (("sft", "webrl"), ("rl.updates",), "write it as path=value"),
        (("sft", "webrl"), ("rl.updatez=1",), "no setting is called 'rl.updatez'"),
    ],
)
def test_mistakes_are_told_before_anything_runs(names: tuple[str, ...], sets: tuple[str, ...], says: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(says)):
        planned(*sets, names=names)


def run_folder(path: Path, seed: int, steps: int) -> Path:
    path.mkdir(parents=True)
    arm = {"name": "sft", "role": "sft", "outcomes": [[1.0, 0.0]]}
    (path / "summary.json").write_text(json.dumps({"arms": [arm]}), encoding="utf-8")
    (path / "status.json").write_text('{"status": "done"}', encoding="utf-8")
    (path / "seeds.json").write_text(json.dumps({"run": seed}), encoding="utf-8")
    costs = {
        "demos": {"browser_steps": steps, "static_steps": 0},
        "explore": {"static_steps": 10, "tokens_generated": 400},
        "eval": {"browser_steps": 7, "browser_steps_evaluation": 7, "static_steps": 5, "tokens_generated": 100},
    }
    rows = [
        {"event": "stage", "name": name, "key": name, "time.status": "cached", "metrics": cost, "time.seconds": 2.0}
        for name, cost in costs.items()
    ]
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_costs_are_means_over_seeds_with_interval_and_the_evaluation_uses_no_real_steps(tmp_path: Path) -> None:
    runs = tuple(read_run(run_folder(tmp_path / str(seed), seed, steps)) for seed, steps in ((0, 20), (1, 30)))
    group = Group("sft", runs)
    found = {name: group.cost(name) for name in ("real_steps", "tokens_generated", "seconds")}
    assert {name: (one.value, one.n) for name, one in found.items() if one} == {
        "real_steps": (35.0, 2),
        "tokens_generated": (500.0, 2),
        "seconds": (6.0, 2),
    }
    steps = found["real_steps"]
    # Student's interval of 30 and 40 reaches below 0; no run does.
    assert steps is not None and (steps.low, (steps.high or 0) > 90) == (0.0, True)
    assert value_text("tokens_generated", found["tokens_generated"]) == "500 [-]"
    assert measure_label("real_steps") == "Real steps"
    # A run whose arms say of none that it is the main one is about its last.
    assert group.success("main").n == 4


TINY = (
    *(
        "env.task_settings.driver=static",
        "data.demos=2",
        "sft.steps=1",
        "sft.batch=2",
        "eval.episodes=3",
        "eval.steps=1",
    ),
    *("sft:controls.sft_steps=[]", "model.threads=1", "web.contexts=4"),
)


def test_recipes_are_run_and_compared_by_one_command(cli: Cli, tmp_path: Path) -> None:
    sets = [word for setting in TINY for word in ("--set", setting)]
    command = ("compare", "--recipes", "prompted,sft", "--seeds", "0", *sets, "--out", "both")
    done = cli(*command)
    assert done.returncode == 0, done.stderr
    head, _, *rows = done.stdout.splitlines()
    for column in ("recipe", "Success %  [95 %]", "Real steps  [95 %]", "Tokens generated  [95 %]", "Time, s  [95 %]"):
        assert column in head
    assert [row.split()[:2] for row in rows[:2]] == [["prompted", "1"], ["sft", "1"]]
    assert "reference" in rows[0] and re.search(r"[+-]\d+\.\d \[.*\]", rows[1])
    assert "Real steps" in (tmp_path / "both" / "report.html").read_text(encoding="utf-8")
    again = cli(*command, "--json")
    assert again.stderr.count("was done already") == 2
    cost = [row["measures"]["real_steps"] for row in json.loads(again.stdout)["rows"]]
    # Prompting plays nothing before its evaluation; demonstrations are real steps.
    assert cost[0]["value"] == 0 < cost[1]["value"] and cost[0]["n"] == 1
    assert "prompted keeps sft.steps = 0" in again.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "give run folders to compare, or --recipes A,B"),
        (("runs/a", "--recipes", "sft,webrl"), "one of the two"),
        (("runs/a", "--seeds", "1"), "go with --recipes"),
    ],
)
def test_what_does_not_go_together_is_refused(arguments: tuple[str, ...], says: str, cli: Cli) -> None:
    done = cli("compare", *arguments)
    assert done.returncode == 2 and says in done.stderr
