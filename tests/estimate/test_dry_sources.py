"""Dry runs read what a run would learn from, and refuse what cannot work."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from core_kit import Cli
from own_kit import nnetnav_rows, tasks, webarena_trace

from dynaweb import api
from dynaweb.config import resolve
from dynaweb.config.layers import recipe_layers
from dynaweb.data.store import TrajectoryStore
from dynaweb.errors import ConfigError, MissingError
from dynaweb.estimate.sources import sources_of
from dynaweb.pipeline.artifacts import Artifact
from dynaweb.pipeline.context import RunContext
from dynaweb.plugin.registry import current
from dynaweb.runs import StageCache
from dynaweb.stages.demos import demos

SHOP = "http://shop.test:7770"


@pytest.fixture(autouse=True)
def _no_sites(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SHOP", "WA_SHOP"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def brought(tmp_path: Path) -> list[str]:
    """Settings for tasks of one template to practise on, those of the other held out, and two trajectories."""
    listed = tasks()
    for name, template in (("train", 1), ("test", 2)):
        part = [task for task in listed if task["intent_template_id"] == template]
        (tmp_path / f"{name}.json").write_text(json.dumps(part), encoding="utf-8")
    (tmp_path / "render_0.html").write_text(webarena_trace(SHOP), encoding="utf-8")
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in nnetnav_rows(SHOP)))
    store = tmp_path / "mine.jsonl.gz"
    api.import_data("webarena", tmp_path, store, trajectories=True)
    api.import_data("nnetnav", tmp_path / "rows.jsonl", store, trajectories=True)
    settings = "env.task_settings."
    return [
        *(f"{settings}train={tmp_path}/train.json", f"{settings}path={tmp_path}/test.json"),
        *(f"{settings}urls.shop={SHOP}", f"data.demos={store}"),
    ]


def test_tasks_and_trajectories_are_counted(brought: list[str], tmp_path: Path) -> None:
    found, problems = sources_of(resolve("own", model="tiny", overrides=brought))
    assert problems == []
    assert found.tasks == {"train": 3, "test": 3} and found.skipped == {}
    assert (found.episodes, found.steps, found.matched, found.matched_tasks) == (2, 4, 2, 2)
    assert "2 of them of 2 of the environment's own tasks" in str(found)


def test_a_trajectory_of_a_held_out_task_is_not_learned_from(brought: list[str], tmp_path: Path) -> None:
    store = TrajectoryStore(tmp_path / "mine.jsonl.gz")
    (one, *_) = list(store)
    away = replace(one, id="away", task=replace(one.task, id="foreign", intent="What is the  price of tea?"))
    store.extend([away])
    found, problems = sources_of(resolve("own", model="tiny", overrides=brought))
    assert problems == [] and found.episodes == 2
    assert found.dropped == {"its task is held out by the environment": 1} and "left out: 1 x its task" in str(found)


def test_how_much_is_trained_makes_no_other_demonstrations(brought: list[str], tmp_path: Path) -> None:
    """The environment lists its tasks, so that the stage, and SFT on it, need not ask how many RL draws."""

    async def stage(name: str, key: Any, body: Any, **more: Any) -> Artifact:
        return Artifact(key, tmp_path)

    keys = set()
    for change in ("rl.updates=3", "rl.updates=30", "rl.tasks=2", "explore.episodes=9"):
        recipe = resolve("own", model="tiny", overrides=[*brought, change])
        ctx = RunContext(recipe, current(), StageCache(tmp_path / "cache"))
        ctx.stage = stage  # type: ignore[method-assign]
        keys.add(str(asyncio.run(demos(ctx)).key))
    assert len(keys) == 1


def without(settings: list[str], path: str) -> list[str]:
    return [setting for setting in settings if not setting.startswith(path)]


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        (("data.demos", "data.demos=0"), MissingError, "has no scripted experts, and this recipe learns"),
        (("data.demos", "data.demos=gone.jsonl.gz"), MissingError, "there is no file or folder gone.jsonl.gz"),
        (("data.demos", "data.demos={tmp}/train.json"), ConfigError, "train.json"),
        (("env.task_settings.train", "rl.n=8"), ConfigError, "has no tasks of split 'train'"),
        (("env.task_settings.train", "env.task_settings.train=gone.json"), ConfigError, "gone.json cannot be read"),
        (("env.task_settings.urls", "rl.n=8"), MissingError, "shop has no address"),
    ],
    ids=str,
)
def test_what_a_run_could_not_learn_from_is_refused(
    brought: list[str], tmp_path: Path, change: tuple[str, str], kind: type[Exception], words: str
) -> None:
    sets = [*without(brought, change[0]), change[1].replace("{tmp}", str(tmp_path))]
    _, problems = sources_of(resolve("own", model="tiny", overrides=sets))
    assert any(words in str(problem) for problem in problems), problems
    assert any(isinstance(problem, kind | Exception) for problem in problems)


@pytest.mark.parametrize("recipe", ["dynaweb", "sft", "webevolver"])
def test_any_recipe_that_learns_from_demonstrations_is_refused_without(recipe: str, brought: list[str]) -> None:
    sets = [setting.replace("task_settings.", "") for setting in without(brought, "data.")]
    if resolve(recipe).env.name == "dream":
        sets = ["env.tasks=webarena", *without(brought, "data.")]
        changed = resolve(recipe, overrides=sets)
    else:
        changed = resolve(recipe, env="webarena", overrides=sets)
    (problem,) = sources_of(changed)[1]
    assert "learns from demonstrations" in str(problem) and "dynaweb collect" in str(problem)


def test_what_learns_from_none_needs_none(brought: list[str]) -> None:
    sets = [setting.replace("task_settings.", "") for setting in without(brought, "data.")]
    assert sources_of(resolve("prompted", env="webarena", overrides=sets))[1] == []
    assert sources_of(resolve("dynaweb"))[1] == []


def test_the_command_line_says_it(brought: list[str], cli: Cli) -> None:
    sets = [word for setting in brought for word in ("--set", setting)]
    done = cli("run", "own", "--model", "tiny", "--dry-run", "--json", *sets)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["sources"]["episodes"] == 2
    done = cli("run", "own", "--model", "tiny", "--dry-run", *sets, "--set", "data.demos=0")
    assert done.returncode == 3 and "this recipe learns from demonstrations" in done.stderr
    assert "--set data.demos=mine.jsonl.gz" in done.stderr


# --- What a recipe leaves to its user


def test_the_recipe_own_says_what_only_its_user_knows(cli: Cli, tmp_path: Path) -> None:
    assert set(resolve("own").needs) == {
        *("model.path", "env.task_settings.train", "env.task_settings.path", "data.demos"),
    }
    for words in (("run", "own", "--dry-run"), ("run", "own")):
        done = cli(*words)
        assert done.returncode == 2
        assert "recipe own leaves 4 of its settings to you" in done.stderr
        assert "--set data.demos=mine.jsonl.gz" in done.stderr and "--model Qwen/" in done.stderr
    done = cli("run", "own", "--dry-run", "--model", "tiny", "--set", "data.demos=x.jsonl.gz")
    assert "leaves 2 of its settings to you" in done.stderr and "data.demos:" not in done.stderr
    assert not (tmp_path / "runs").exists()
    done = cli("config", "show", "own")
    assert done.returncode == 0


def test_any_recipe_may_need_settings(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('extends = "smoke"\n[needs]\n"rl.lr" = "--set rl.lr=1e-6"\n"env.tasks" = "one"\n')
    assert set(resolve(file).needs) == {"rl.lr", "env.tasks"}
    changed = resolve(file, overrides={"rl.lr": 1e-6})
    assert set(changed.needs) == {"env.tasks"}
    assert resolve(changed, overrides={"env.tasks": "sites"}).needs == {}
    above = tmp_path / "above.toml"
    above.write_text('extends = "mine.toml"\n[rl]\nlr = 1e-5\n')
    assert set(resolve(above).needs) == {"env.tasks"}
    assert recipe_layers(above)[0].values["rl.lr"] == 1e-5


@pytest.mark.parametrize("wrong", ["needs = 3", 'needs = ["rl.lr"]', "[needs]\nrl.lr = 3"])
def test_needs_are_a_table_of_texts(tmp_path: Path, wrong: Any) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(wrong + "\n")
    with pytest.raises(ConfigError, match="needs is a table of settings, each with an example as text"):
        resolve(file)
