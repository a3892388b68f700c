"""The commands around environments, in processes of their own: lists, a game, evaluations that go on."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from core_kit import Cli

from dynaweb import resolve
from dynaweb.serve.environment import ServedEnvironment
from dynaweb.web.actions.grammar import format_action

SITES = ("--env", "sites", "--set", "env.driver=static")


def test_tasks_are_listed_with_counts(cli: Cli) -> None:
    done = cli(
        "tasks", "list", *SITES, "--count", "9", "--set", "env.templates=['shop/add-to-cart','forum/open-thread']"
    )
    assert done.returncode == 0, done.stderr
    *rows, number, sites, kinds = done.stdout.strip().split("\n")
    assert number == "9 tasks" and sites == "by site: forum 4, shop 5"
    assert kinds.startswith("by kind: ") and len(rows) == 11


def test_a_task_is_shown_and_played_by_its_id_alone(warm_cli: Cli, tmp_path: Path) -> None:
    """Whatever draw it comes from, such as that of an evaluation; benchmarks mean their evaluation split."""
    drawn = warm_cli("tasks", "list", *SITES, "--split", "test", "--seed", "9", "--count", "1", "--json").stdout
    (task,) = json.loads(drawn)
    assert json.loads(warm_cli("tasks", "show", task["id"], *SITES).stdout) == task
    played = warm_cli("play", task["id"], *SITES, typed="quit\n")
    assert played.returncode == 0 and task["intent"] in played.stdout
    wrong = warm_cli("tasks", "show", "shop/add-to-cart:test:10000:1", *SITES)
    assert wrong.returncode == 2 and "did you mean 'shop/add-to-cart:train:" in wrong.stderr and "more" in wrong.stderr
    raw = {"task_id": 7, "sites": ["reddit"], "start_url": "__REDDIT__", "intent": "x", "eval": {"eval_types": []}}
    (tmp_path / "tasks.json").write_text(json.dumps([raw]))
    benchmark = ("--env", "webarena", "--set", "env.path=tasks.json", "--set", "env.urls.reddit=http://127.0.0.1:9")
    assert "1 tasks" in warm_cli("tasks", "list", *benchmark).stdout
    assert json.loads(warm_cli("tasks", "show", "7", *benchmark).stdout)["split"] == "test"


def test_an_environment_without_tasks_is_refused(cli: Cli) -> None:
    done = cli("tasks", "list", "--env", "dream")
    assert done.returncode == 2 and "brings no tasks of its own" in done.stderr
    assert cli("tasks", "list", *SITES, "--split", "tset").returncode == 2


def test_a_person_plays(warm_cli: Cli) -> None:
    lines = "help\nclick 999\nclick 1\nstop 'done\nstop it's done\n"
    done = warm_cli("play", *SITES, "--json", typed=lines)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["score"] == 0.0 and json.loads(done.stdout)["finished"]
    assert "Goal: " in done.stderr and "there is no element [999]" in done.stderr and "Actions: click" in done.stderr
    given_up = warm_cli("play", "1", *SITES, typed="click 999\nclikc 1\nclick 1\n")
    assert given_up.returncode == 0 and "did you mean click?" in given_up.stdout
    assert "given up after 1 steps" in given_up.stdout


DREAM_OF_STATIC = 'extends = "smoke"\n[env.task_settings]\ndriver = "static"\n'


def test_a_game_is_real_unless_a_dream_is_asked_for_and_says_which(warm_cli: Cli, tmp_path: Path) -> None:
    """A shipped recipe dreams in training: whoever plays it meets the real pages, with its own driver."""
    (tmp_path / "mine.toml").write_text(DREAM_OF_STATIC)
    recipe = ("play", "--recipe", str(tmp_path / "mine.toml"), "--json")
    right = asyncio.run(_solution())
    real = warm_cli(*recipe, typed="".join(f"{line}\n" for line in right))
    assert real.returncode == 0 and json.loads(real.stdout)["score"] == 1.0, real.stderr
    assert real.stderr.startswith("Real pages of sites;") and not json.loads(real.stdout)["dream"]
    dreamed = warm_cli(*recipe, "--env", "dream", typed="quit\n")
    assert dreamed.returncode == 0 and json.loads(dreamed.stdout)["dream"]
    assert dreamed.stderr.startswith("A dream of sites:") and "nobody fitted" in dreamed.stderr
    unused = warm_cli(*recipe, "--world-model", ".", typed="quit\n")
    assert unused.returncode == 2 and "shows real pages" in unused.stderr


@pytest.mark.parametrize("where", ["env", "env.task_settings"])
def test_settings_of_a_game_may_be_those_of_its_environment_or_of_the_dream(warm_cli: Cli, where: str) -> None:
    done = warm_cli("play", "--recipe", "smoke", "--set", f"{where}.driver=static", typed="quit\n")
    assert done.returncode == 0, done.stderr
    wrong = warm_cli("play", "--recipe", "smoke", "--set", f"{where}.driwer=static", typed="quit\n")
    assert wrong.returncode == 2 and "did you mean 'driver'" in wrong.stderr


async def _solution() -> list[str]:
    """What the expert does in the first task of a draw."""
    served = ServedEnvironment(resolve("smoke", env="sites", overrides=["env.driver=static"]))
    (task,) = served.tasks("", 1)
    expert, there = served.source.expert(task), served.environment()
    page, done = await there.reset(task, served.recipe.run.seed), list[str]()
    while not done or not done[-1].startswith("stop"):
        action = expert.act(page)
        done.append(format_action(action))
        page = page if action.kind == "stop" else (await there.step(action)).observation
    await there.close()
    await served.close()
    return done


def test_a_task_that_is_not_there_is_named(warm_cli: Cli) -> None:
    done = warm_cli("play", "shop/nothing", *SITES, typed="")
    assert done.returncode == 2 and "no task is called 'shop/nothing'" in done.stderr


def test_an_evaluation_has_a_table_by_site_and_labels(warm_cli: Cli, tmp_path: Path) -> None:
    done = warm_cli("eval", *SITES, "--policy", "random", "--episodes", "6", "--workers", "2", "--out", "out", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert [row["name"] for row in result["sites"]] == ["forum", "shop", "tracker", "all"]
    assert result["sites"][-1]["episodes"] == 6 and result["sites"][-1]["success"]["n"] == 6
    assert {failure["label"] for failure in result["failures"]} == {"agent"}
    saved = json.loads((tmp_path / "out" / "results.json").read_text())
    assert saved["failures"] == result["failures"] and saved["policy"] == "random"
    assert (tmp_path / "out" / "trajectories" / "eval-random.jsonl.gz").exists()
    expert = warm_cli("eval", *SITES, "--policy", "expert", "--episodes", "3", "--out", "expert")
    assert "100.0 % [" in expert.stdout and "site" in expert.stdout, expert.stderr


def test_an_unknown_policy_is_named(warm_cli: Cli, tmp_path: Path) -> None:
    done = warm_cli("eval", *SITES, "--policy", "exprt", "--out", "out")
    assert done.returncode == 2 and "sft, base, expert, random" in done.stderr
    assert not (tmp_path / "out").exists()


def test_an_evaluation_may_be_in_another_environment(cli: Cli) -> None:
    done = cli("config", "show", "--eval-env", "webarena", "--set", "eval.env_settings.urls.reddit=http://x", "--json")
    assert done.returncode == 0, done.stderr
    section = json.loads(done.stdout)["settings"]["eval"]
    assert section["env"] == "webarena" and section["env_settings"] == {"urls": {"reddit": "http://x"}}
    missing = cli("eval", "--policy", "random", "--set", "eval.env=webvoyager", "--out", "out")
    assert missing.returncode == 3 and "env.download = true" in missing.stderr


def test_a_killed_evaluation_plays_only_what_is_left(warm_cli: Cli, tmp_path: Path) -> None:
    environment = {**os.environ, "DYNAWEB_CACHE": str(tmp_path / "cache")}
    command = [sys.executable, "-m", "dynaweb", "eval", *SITES, "--policy", "random", "--episodes", "90"]
    command += ["--set", "eval.steps=12", "--workers", "2", "--json"]
    killed = subprocess.Popen([*command, "--out", "one"], cwd=tmp_path, env=environment, stderr=subprocess.DEVNULL)
    journal = _journal(tmp_path / "cache", killed)
    size = journal.stat().st_size
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    kept = _episodes(journal)
    assert size and 0 < len(kept) < 90
    again = warm_cli(*command[3:], "--out", "two", **environment)
    assert again.returncode == 0, again.stderr
    progress = re.search(r"^evaluation of random (\d+)/90 episodes", again.stderr, re.MULTILINE)
    assert progress is not None and int(progress[1]) > len(kept)
    finished = _episodes(tmp_path / "two" / "trajectories" / "eval-random.jsonl.gz")
    assert len(finished) == 90 and {name: finished[name] for name in kept} == kept


def _journal(cache: Path, running: subprocess.Popen[bytes]) -> Path:
    """The episodes that a running evaluation has kept, once there are some."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        assert running.poll() is None, "the evaluation was over before it could be killed"
        found = [path for path in cache.rglob("episodes.jsonl.gz") if path.stat().st_size > 4_000]
        if found:
            return found[0]
        time.sleep(0.02)
    raise AssertionError("no episode was kept within 60 s")


def _episodes(path: Path) -> dict[str, int]:
    from dynaweb.data.store import TrajectoryStore

    return {trajectory.id: len(trajectory.steps) for trajectory in TrajectoryStore(path)}
