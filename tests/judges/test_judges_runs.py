"""Judges in whole runs on the embedded sites without a browser: fitted, audited, alarming, silent; WebRL killed."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from core_kit import Cli, PackageMaker
from stage_kit import plan_holds
from typer.testing import CliRunner
from warm_kit import exit_code

import dynaweb
from dynaweb.cli.app import tree as command_tree
from dynaweb.data.store import TrajectoryStore
from dynaweb.errors import DynawebError, TrainingError
from dynaweb.hookspecs import hookimpl
from dynaweb.observers import read_metrics
from dynaweb.plugin import registry as plugins
from dynaweb.rl.audit import RewardHacking
from dynaweb.runs import read_jsonl

SMALL = (
    "model.threads=1",
    "web.contexts=8",
    "data.demos=6",
    "data.max_best_steps=3",
    "sft.steps=6",
    "sft.batch=8",
    "explore.episodes=8",
    "explore.steps=3",
    "wm_fit.steps=2",
    "wm_fit.batch=8",
    "dream.horizon=3",
    "rl.updates=2",
    "rl.tasks=2",
    "rl.n=4",
    "rl.bc_batch=4",
    "rl.checkpoint_every=1",
    "judge_fit.episodes=32",
    "judge_fit.steps=3",
    "judge_fit.batch=8",
    "eval.episodes=4",
    "eval.steps=3",
    "controls.sft_steps=[]",
)
DREAM, REAL = "env.task_settings.driver=static", "env.driver=static"

JUDGES = """
import math
from pydantic import BaseModel
from dynaweb.hookspecs import PluginSpec, hookimpl
from dynaweb.types import Judgement

SCORES = {"yes": 1.0, "nan": math.nan, "more": 1.7, "silent": None}


class Config(BaseModel):
    pass


@hookimpl
def dynaweb_rewards():
    able = frozenset({"dream", "real"})
    return [PluginSpec(name, f"odd_judges:{name.title()}", Config, "odd", capabilities=able) for name in SCORES]


def _judge(said):
    class Odd:
        def __init__(self, config, context):
            pass

        async def score(self, trajectory):
            return Judgement(said, why="because")

    return Odd


Yes, Nan, More, Silent = map(_judge, SCORES.values())
"""


@pytest.fixture(autouse=True)
def _the_plan_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    plan_holds(monkeypatch)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stages that runs share are made once."""
    return tmp_path_factory.mktemp("stages")


@pytest.fixture(autouse=True)
def _shared_cache(cache: Path, monkeypatch: pytest.MonkeyPatch, clean_environment: None) -> None:
    monkeypatch.setenv("DYNAWEB_CACHE", str(cache))


@pytest.fixture
def odd_judges(package: PackageMaker) -> None:
    """A third party's judges: one that says YES to all, and three that give no score."""
    package("odd-judges", JUDGES)
    plugins._current = None


def run(out: Path, *sets: str, recipe: str = "dynaweb", **more: Any) -> Any:
    return dynaweb.run(recipe, overrides=[*SMALL, *sets], out=out, seed=0, **more)


def told(folder: Path, event: str) -> list[dict[str, Any]]:
    return [row for row in read_metrics(folder / "metrics.jsonl", times=False) if row["event"] == event]


def sets(*more: str) -> list[str]:
    return [part for setting in (*SMALL, *more) for part in ("--set", setting)]


# Fitting and auditing


def test_a_judge_is_fitted_from_the_command_line_and_three_are_audited_side_by_side(tmp_path: Path) -> None:
    fitted = CliRunner().invoke(command_tree(), ["orm", "fit", "--out", str(tmp_path / "orm"), "--json", *sets(DREAM)])
    assert fitted.exit_code == 0, fitted.output
    result = json.loads(fitted.stdout)
    assert {"accuracy", "accepts_failures", "auc", "brier"} == set(result["estimates"])
    sizes = [result["metrics"][f"episodes {part}"] for part in ("fitted", "calibration", "measured")]
    assert all(sizes) and result["estimates"]["brier"]["n"] == sizes[2]
    assert (tmp_path / "orm" / "checkpoints" / "judge" / "judge.json").is_file()

    overrides = [*SMALL, DREAM]
    names = ("self-assess", "orm", "checker")
    audit = dynaweb.audit_judges(judges=names, episodes=16, out=tmp_path / "audit", overrides=overrides)
    found = json.loads((tmp_path / "audit" / "judges.json").read_text())
    whole = {one["name"]: one["all"] for one in found["judges"]}
    assert tuple(whole) == names
    # The checker repeats the environment's verdicts: whatever else it says is a fault of the audit.
    assert whole["checker"]["false_positive"] == whole["checker"]["false_negative"] == 0
    decided = ("true_positive", "false_positive", "true_negative", "false_negative", "silent")
    counts = (*decided, "ruled_out", "ruled_out_wrongly")
    assert {sum(one[count] for count in counts) for one in whole.values()} == {found["episodes"] - found["unfinished"]}
    for one in found["judges"]:
        for part in ("sites", "lengths"):
            assert sum(group["true_positive"] for group in one[part]) == one["all"]["true_positive"]
    text = str(audit)
    assert "accepts failures %" in text and "self-assess by site" in text and "AUC" in text
    # Two of them give probabilities, the longest name is in the table, and a terminal of 100 columns holds it.
    assert max(map(len, text.splitlines()[:-1])) <= 100

    # The fitted weights serve another run without being fitted again, on episodes from a file.
    store = next((tmp_path / "audit" / "trajectories").glob("graded-validation*"))
    weights = f"reward.weights={tmp_path / 'orm'}"
    again = dynaweb.audit_judges(data=store, reward="orm", out=tmp_path / "again", overrides=[*overrides, weights])
    assert again.judges[0].whole.data()["true_positive"] == whole["orm"]["true_positive"]
    assert again.judges[0].whole.false_positive == whole["orm"]["false_positive"]


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("orm", "fit", "--data", "nowhere.jsonl.gz"), 3, "there is no trajectory store nowhere.jsonl.gz"),
        (("run", "--reward", "weighted"), 2, "set reward.judges.NAME.weight"),
    ],
)
def test_exit_codes_of_what_is_missing_or_wrong(arguments: tuple[str, ...], code: int, says: str, cli: Cli) -> None:
    done = cli(*arguments, *sets(DREAM))
    assert done.returncode == code, done.stderr
    assert says in done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("flags", "settings", "says"),
    [
        ({"reward": "orm"}, (DREAM, "reward.weights=nowhere"), "there is no folder nowhere"),
        ({"reward": "weighted"}, (DREAM, "reward.judges.orn.weight=1"), "orn"),
        ({}, (DREAM, "offline.episodes=4"), "offline.episodes records real"),
        ({"env": "sites", "reward": "checker", "agent": "lookahead"}, (REAL,), "use --env dream"),
        ({}, (DREAM, "replay.capacity=9"), "use --opt webrl, awr or digirl"),
        ({}, (DREAM, "phases.count=2", "phases.generator=server"), "set phases.server.model"),
    ],
)
def test_parts_that_clash_are_refused_before_anything_is_made(
    flags: dict[str, str], settings: tuple[str, ...], says: str, tmp_path: Path
) -> None:
    with pytest.raises(DynawebError, match=re.escape(says)):
        run(tmp_path / "run", *settings, **flags)
    assert not list((tmp_path / "run" / "trajectories").glob("*"))


# Alarms


def test_a_judge_that_says_yes_to_everything_sounds_the_alarm_ends_the_run_if_asked_to_and_the_report_says_why(
    tmp_path: Path, odd_judges: None
) -> None:
    settings = (DREAM, "audit.every=1", "audit.episodes=16", "audit.false_positive=0.2", "rl.tasks=4")
    with pytest.raises(RewardHacking, match=r"accepts 1\.000.* the same command with audit.stop=false goes on"):
        run(tmp_path / "stopped", *settings, "audit.stop=true", reward="yes")
    assert json.loads((tmp_path / "stopped" / "status.json").read_text())["status"] == "failed"

    result = run(tmp_path / "run", *settings, reward="yes")
    rows = told(tmp_path / "run", "update")
    assert [row["index"] for row in rows if row["stage"] == "rl"] == [0, 1]
    audits = [row["metrics"] for row in rows if row["stage"] == "audit"]
    assert all(one["judge_false_positive"] in (1.0, None) for one in audits) and len(audits) == 2
    alarms = [row["error"] for row in told(tmp_path / "run", "error") if row["where"].startswith("audit update ")]
    assert alarms and "accepts 1.000" in alarms[0]
    assert result.results["alarms"] == alarms and f"ALARM: {alarms[-1]}" in " ".join(result.text.split())
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "Reward against reality" in page and "accepts 1.000" in page
    # The replays are real episodes with the environment's verdict.
    replays = [row for row in told(tmp_path / "run", "rollout") if row["phase"] == "audit"]
    assert len(replays) == sum(one["graded"] for one in audits)
    assert {row["source"] for row in replays} == {"real"} and {row["success"] for row in replays} <= {0.0, 1.0}


def test_a_judge_without_scores_ends_the_run_with_its_reason_and_never_teaches_a_zero(
    tmp_path: Path, odd_judges: None
) -> None:
    with pytest.raises(TrainingError, match=r"update 0: the judge scored none of \d+ episodes.*nan, which is no score"):
        run(tmp_path / "run", DREAM, "rl.tasks=4", reward="nan")


# WebRL

WEBRL = (REAL, "rl.updates=2", "rl.tasks=4", "rl.n=2", "phases.count=2", "replay.capacity=40", "phases.proposals=2")


class _Killer:
    """Ends its process at the second update of reinforcement learning."""

    seen = 0

    @hookimpl
    def dynaweb_update(self, event: Any) -> None:
        """An update; the first phase is in the cache, so it is one of the second phase."""
        self.seen += event.stage == "rl"
        if self.seen == 2:
            os.kill(os.getpid(), signal.SIGKILL)


def _killed(folder: Path, cache: Path) -> None:
    os.environ["DYNAWEB_CACHE"] = str(cache)
    plugins.current().add_observer(_Killer())
    run(folder, *WEBRL, recipe="webrl")


def test_webrl_killed_inside_its_second_phase_goes_on_to_the_same_tasks_buffer_and_weights(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run(tmp_path / "whole", *WEBRL, recipe="webrl")
    other = tmp_path / "cache"
    shutil.copytree(cache, other)
    shutil.rmtree(other / "curriculum")
    shutil.rmtree(other / "rl" / _last_rl(tmp_path / "whole"))
    monkeypatch.setenv("DYNAWEB_CACHE", str(other))
    assert exit_code(_killed, tmp_path / "killed", other) == -signal.SIGKILL
    run(tmp_path / "killed", *WEBRL, recipe="webrl", resume=True)
    folders = {tmp_path / "whole": cache, tmp_path / "killed": other}
    assert len({_last_rl(folder) for folder in folders}) == 1
    results = [home / "rl" / _last_rl(folder) for folder, home in folders.items()]
    for name in ("model/model.safetensors", "audits.json", "updates.json"):
        if (results[0] / name).exists():
            assert (results[0] / name).read_bytes() == (results[1] / name).read_bytes(), name
    buffers = [[repr(t) for t in TrajectoryStore(result / "replay.jsonl.gz")] for result in results]
    assert buffers[0] == buffers[1] and buffers[0]
    (tasks,) = {path.read_bytes() for home in folders.values() for path in home.glob("curriculum/*/tasks.json")}
    assert json.loads(tasks)
    rows = [[row for row in told(folder, "update") if row["stage"] == "rl"] for folder in folders]
    assert rows[0] == rows[1] and len(rows[0]) == 4
    assert {"replay_buffer", "replay_drawn", "replay_kept", "critic_loss"} <= set(rows[0][-1]["metrics"])
    assert whole.results["arms"][-1]["success"]["n"] == 4

    one, two = json.loads((tmp_path / "whole" / "phases.json").read_text())
    assert one["policy starts from"].endswith("model") and one["replay buffer starts from"] == "nothing"
    assert two["policy starts from"] == two["reference"] != one["policy starts from"]
    assert two["critic starts from"] == str(Path(two["policy starts from"]).parent / "critic")
    assert Path(two["tasks"], "tasks.json").read_bytes() == tasks


@pytest.mark.parametrize("opt", ["gspo", "webrl"])
def test_new_tasks_of_a_phase_in_dreams_start_from_real_pages_that_were_opened_for_them(
    opt: str, tmp_path: Path, cache: Path
) -> None:
    run(tmp_path / "run", DREAM, "rl.updates=1", "rl.tasks=4", "rl.n=2", "phases.count=2", opt=opt)
    _, second = json.loads((tmp_path / "run" / "phases.json").read_text())
    made = Path(second["tasks"])
    tasks = {task["id"] for task in json.loads((made / "tasks.json").read_text())}
    counts = json.loads((made / "curriculum.json").read_text())["counts"]
    (cost,) = [row["metrics"] for row in told(tmp_path / "run", "stage") if row["name"] == "curriculum"]
    # Every page that was opened is a real step, and there were new ones to open.
    assert cost["static_steps"] == counts["pages opened"] > 0

    pages = {t.task.id: t.final for t in TrajectoryStore(made / "trajectories.jsonl.gz")}
    dreams = list(TrajectoryStore(tmp_path / "run" / "trajectories" / "phase-2.jsonl.gz"))
    first = {t.task.id for t in TrajectoryStore(tmp_path / "run" / "trajectories" / "phase-1.jsonl.gz")}
    assert {t.task.id for t in dreams} == tasks and not tasks & first
    assert {t.source for t in dreams} == {"dream"}
    started = [(t.steps[0].observation, pages[t.task.id]) for t in dreams if t.task.id in pages]
    assert started and all(one == other for one, other in started)


def _last_rl(folder: Path) -> str:
    """The cache key of a run's last phase."""
    found = [row["key"] for row in read_jsonl(folder / "metrics.jsonl") if row.get("name") == "rl"]
    return str(found[-1])
