"""A judge that is fitted further on graded episodes of the policy that learns from it."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from stage_kit import SMALL, killed, rows, run
from warm_kit import exit_code

import dynaweb
from dynaweb.config import resolve
from dynaweb.data.store import TrajectoryStore
from dynaweb.errors import ConfigError
from dynaweb.judges.calibration import Platt
from dynaweb.judges.reward import success_of
from dynaweb.pipeline.context import RunContext
from dynaweb.plugin.registry import current
from dynaweb.rl.refresh_judge import NAME, JudgeRefresher, RenewedJudge
from dynaweb.runs import StageCache
from dynaweb_rm_orm.orm import OutcomeRewardModel

ORM = ("reward.name=orm", "judge_fit.episodes=40", "judge_fit.steps=4", "judge_fit.batch=8", "data.max_best_steps=3")
REFRESH = (
    *ORM,
    "judge_fit.refresh_every=2",
    "judge_fit.refresh_episodes=12",
    "judge_fit.refresh_steps=3",
    "rl.lr=1e-3",
)
MORE = (*REFRESH, "rl.updates=5", "eval.episodes=2", "controls.sft_steps=[]")


@pytest.fixture(scope="module")
def refreshed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The cache and the run folder of a run of five updates, whose judge is refreshed after two and after four."""
    cache = tmp_path_factory.mktemp("judge")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DYNAWEB_CACHE", str(cache / "cache"))
        return cache / "cache", run(cache / "run", *MORE).folder


def stage(cache: Path) -> Path:
    (folder,) = {path.parent for path in (cache / "rl").rglob(NAME)}
    return folder


@pytest.mark.timeout(300)
def test_the_policys_own_episodes_are_graded_and_learned_from(refreshed: tuple[Path, Path]) -> None:
    cache, folder = refreshed
    told = [row for row in rows(folder, "update") if row["stage"] == NAME]
    assert [row["index"] for row in told] == [1, 3]
    sizes = [row["metrics"]["episodes"] + row["metrics"]["calibration_episodes"] for row in told]
    assert sizes[0] < sizes[1] and all(row["metrics"]["loss"] > 0 for row in told)
    judged = [row["metrics"]["judge_failed_all"] + row["metrics"]["judge_solved_all"] for row in told]
    assert judged == [12, 12]
    played = list(TrajectoryStore(stage(cache) / NAME / "graded.jsonl.gz"))
    assert len(played) == 24 and all(success_of(one) is not None for one in played)
    assert {one.id.rsplit("/", 1)[0] for one in played} == {f"{NAME}/2", f"{NAME}/4"}


def test_later_rollouts_are_judged_by_other_weights(refreshed: tuple[Path, Path], tmp_path: Path) -> None:
    """What is left is a judge: its weights are not those that were fitted first, and `reward.weights` takes it."""
    cache, folder = refreshed
    left = stage(cache) / NAME
    first = folder / "checkpoints" / "judge" / "model.safetensors"
    assert (left / "model" / "model.safetensors").read_bytes() != first.read_bytes()
    document = json.loads((left / "judge.json").read_text(encoding="utf-8"))
    assert document["judge"] == "orm" and set(document["calibration"]) == {"slope", "intercept", "n", "prior"}
    store = folder / "trajectories" / "graded.jsonl.gz"
    audits = dynaweb.audit_judges(
        "dynaweb",
        judges=["orm"],
        data=store,
        overrides=["reward.name=orm", f"reward.weights={left}"],
        out=tmp_path / "audit",
    )
    assert audits.judges[0].quality is not None


@pytest.mark.timeout(300)
def test_a_run_that_was_killed_goes_on_to_the_same_bits(
    refreshed: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, folder = refreshed
    for entry in cache.iterdir():
        if entry.name not in ("rl", "eval", "judge-audit"):
            shutil.copytree(entry, tmp_path / "cache" / entry.name) if entry.is_dir() else None
    out = tmp_path / "killed"
    # Five updates of six rollouts each: in the fourth, after the first refresh.
    assert exit_code(killed, out, str(tmp_path / "cache"), "rl", 21, *MORE) == -signal.SIGKILL
    monkeypatch.setenv("DYNAWEB_CACHE", str(tmp_path / "cache"))
    run(out, *MORE, resume=True)

    def updates(of: Path) -> list[Any]:
        return [
            (row["stage"], row["index"], row["metrics"]) for row in rows(of, "update") if row["stage"] in ("rl", NAME)
        ]

    assert updates(out)[-4:] == updates(folder)[-4:]
    name = "checkpoints/dynaweb/model.safetensors"
    assert (out / name).read_bytes() == (folder / name).read_bytes()
    one, two = (stage(where) / NAME / "model" / "model.safetensors" for where in (cache, tmp_path / "cache"))
    assert one.read_bytes() == two.read_bytes()


@pytest.mark.parametrize(
    ("sets", "why"),
    [
        (["judge_fit.refresh_every=2"], "'self-assess' is not fitted in this run"),
        ([*REFRESH, "rl.updates=2"], "of 2 updates none comes after the first refresh"),
    ],
)
def test_a_refresh_that_cannot_be_is_refused(sets: list[str], why: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"refresh_every = 2 .* {why}; set it to 0"):
        dynaweb.run("dynaweb", overrides=[*SMALL, *sets], out=tmp_path / "out")


@pytest.mark.timeout(300)
def test_a_phase_goes_on_with_the_judge_of_the_phase_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DYNAWEB_CACHE", str(tmp_path / "cache"))
    sets = [*REFRESH, "env.driver=static", "phases.count=2", "rl.updates=3", "rl.tasks=2", "rl.n=2", "eval.episodes=2"]
    small = [one for one in SMALL if one.split("=")[0] not in ("env.task_settings.driver", "rl.checkpoint_every")]
    folder = dynaweb.run("webrl", overrides=[*small, *sets], out=tmp_path / "out", seed=0).folder
    told = [row["metrics"] for row in rows(folder, "update") if row["stage"] == NAME]
    sizes = [one["episodes"] + one["calibration_episodes"] for one in told]
    assert len(sizes) == 2 and sizes[0] < sizes[1]
    stores = [len(list(TrajectoryStore(path))) for path in (tmp_path / "cache" / "rl").rglob("graded.jsonl.gz")]
    assert sorted(stores) == [12, 24]


def test_a_calibration_that_knows_nothing_is_not_taken(refreshed: tuple[Path, Path], tmp_path: Path) -> None:
    """It would leave every rollout without a reward, and end a run whose judge is good."""
    cache, folder = refreshed
    told: list[Any] = []
    recipe = resolve(folder / "recipe.toml")
    ctx = RunContext(recipe, current(), StageCache(cache))
    ctx.tell = told.append  # type: ignore[method-assign]
    refresher = JudgeRefresher.__new__(JudgeRefresher)
    refresher.ctx, refresher._platt, refresher.model = ctx, Platt(2.0, 0.5, 20, 0.1), ctx.models.base
    refresher.judge = RenewedJudge(lambda: OutcomeRewardModel.__new__(OutcomeRewardModel))
    refresher._calibrate(2, Platt(0.0, 0.0, 5, 0.0))
    assert refresher._platt.slope == 2.0 and "no better than chance" in told[0].error
    refresher._calibrate(4, Platt(1.5, 0.0, 9, 0.0))
    assert refresher._platt.slope == 1.5 and len(told) == 1
