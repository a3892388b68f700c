"""Whole runs on the embedded sites without a browser: same seed same numbers, cached stages, resuming after a kill."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from stage_kit import SMALL, interrupted, killed, plan_holds, rows, run, statuses
from warm_kit import exit_code

import dynaweb
from dynaweb import train
from dynaweb.commands import stages as commands
from dynaweb.errors import (
    ConfigError,
    InfrastructureError,
    Interrupted,
)
from dynaweb.pipeline import episodes
from dynaweb.pipeline.context import RunContext
from dynaweb.rl import audit
from dynaweb.rl.audit import RewardHacking
from dynaweb.rl.checkpoints import RolloutLog
from dynaweb.rollout.episode import play_all
from dynaweb.runs import read_jsonl
from dynaweb.stages import arms


@pytest.fixture(autouse=True)
def _the_plan_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    plan_holds(monkeypatch)


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Any]:
    """A finished run with a cache of its own: (cache, run folder, result)."""
    cache, folder = tmp_path_factory.mktemp("first") / "cache", tmp_path_factory.mktemp("runs") / "first"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DYNAWEB_CACHE", str(cache))
        plan_holds(patch)
        result = run(folder)
    return cache, folder, result


def test_a_run_leaves_everything_and_its_text_is_the_closing_table(first: tuple[Path, Path, Any]) -> None:
    _, folder, result = first
    assert [arm["name"] for arm in result.results["arms"]] == ["sft", "sft-long", "dynaweb"]
    assert all(arm["success"]["n"] == 6 for arm in result.results["arms"])
    text = str(result)
    assert "DynaWeb" in text and "SFT, 5 updates" in text and str(folder / "report.html") in text
    assert {path.name for path in (folder / "checkpoints").iterdir()} == {"sft", "sft-5", "world-model", "dynaweb"}
    assert {path.name.split(".")[0] for path in (folder / "trajectories").iterdir()} == {
        "demos",
        "explore",
        "world-model",
        "dreams",
        "eval-sft",
        "eval-sft-long",
        "eval-dynaweb",
    }
    assert (folder / "report.html").stat().st_size > 10_000


def test_every_stage_accounts_for_its_cost(first: tuple[Path, Path, Any]) -> None:
    _, folder, _ = first
    costs: dict[str, dict[str, float]] = {}
    for row in read_jsonl(folder / "metrics.jsonl"):
        if row["event"] == "stage" and row["time.status"] == "done":
            costs.setdefault(row["name"], {**row["metrics"], "seconds": row["time.seconds"]})
    # Nobody has opened a browser here.
    assert all(cost["browser_steps"] == 0 for cost in costs.values())
    assert costs["demos"]["static_steps"] >= 4
    assert costs["explore"]["static_steps"] > 0 and costs["explore"]["tokens_generated"] > 0
    assert costs["sft"]["tokens_trained"] > 0 and costs["rl"]["tokens_trained"] > 0
    assert "static_steps" not in costs["rl"] and costs["rl"]["tokens_generated"] > 0
    assert all(cost["seconds"] > 0 for cost in costs.values())
    asking = ("sft", "explore", "world-model", "rl", "eval")
    assert all(costs[name]["prompts"] >= costs[name]["prompts_cut"] for name in asking)
    assert costs["sft"]["prompts"] >= costs["demos"]["static_steps"]  # a row for each step
    assert "prompts" not in costs["demos"]


def test_updates_report_what_dreams_were_like(first: tuple[Path, Path, Any]) -> None:
    updates = [row for row in rows(first[1], "update") if row["stage"] == "rl"]
    assert [row["index"] for row in updates] == [0, 1, 2, 3]
    for metrics in (row["metrics"] for row in updates):
        assert 0 <= metrics["invalid_rate"] <= 1 and 0 <= metrics["stop_rate"] <= 1
        assert metrics["expert_share"] == 0 and metrics["infrastructure"] == 0
        assert metrics["dreamed_steps"] <= metrics["steps"]
        # Dead groups count in the mean over trajectories, although nothing is computed of them.
        assert metrics["trajectories"] == metrics["graded"]
        assert (metrics["dead_share"] == 1.0) == (metrics["dead_groups"] == 1.0) or metrics["graded"] == 0
        assert metrics["supervised_loss"] > 0 and metrics["grad_norm"] > 0


def test_the_same_seed_gives_the_same_metrics_from_a_cold_and_a_warm_cache(
    first: tuple[Path, Path, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, folder, result = first
    cold, warm = tmp_path / "cold", tmp_path / "warm"
    again = run(cold)
    assert rows(cold) == rows(folder)
    assert {status for found in statuses(cold).values() for status in found} == {"done"}
    monkeypatch.setenv("DYNAWEB_CACHE", str(cache))
    run(warm)
    assert rows(warm) == rows(folder)
    assert {status for found in statuses(warm).values() for status in found} == {"cached"}
    assert again.results["arms"] == result.results["arms"]


def test_another_seed_makes_everything_anew_and_another_optimizer_setting_only_what_depends_on_it(
    first: tuple[Path, Path, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, folder, _ = first
    monkeypatch.setenv("DYNAWEB_CACHE", str(cache))
    run(tmp_path / "seed", seed=1)
    assert all(found == {"done"} for found in statuses(tmp_path / "seed").values())
    assert rows(tmp_path / "seed", "update") != rows(folder, "update")
    run(tmp_path / "opt", "opt.clip_low=0.2")
    found = statuses(tmp_path / "opt")
    assert all(found[name] == {"cached"} for name in ("demos", "sft", "explore", "world-model"))
    assert found["rl"] == {"done"}
    assert found["eval"] == {"cached", "done"}


STAGES = {"demos": 3, "sft": 3, "explore": 5, "world-model": 2, "rl": 8, "eval": 4}
"""In which stage the run is killed, and at which of its rollouts or updates."""
ORDER = ["demos", "sft", "explore", "world-model", "drift", "rl", "longer-sft", "eval"]


def test_a_run_that_is_killed_in_every_stage_goes_on_to_the_same_result(
    first: tuple[Path, Path, Any], tmp_path: Path
) -> None:
    _, folder, result = first
    out = tmp_path / "killed"
    for stage, count in STAGES.items():
        assert exit_code(killed, out, os.environ["DYNAWEB_CACHE"], stage, count) == -signal.SIGKILL, stage
        assert list(statuses(out)) == ORDER[: ORDER.index(stage)], "the stages before it are finished"
    resumed = run(out, resume=True)
    assert rows(out) == rows(folder)
    assert resumed.results["arms"] == result.results["arms"]
    weights = [path / "checkpoints" / "dynaweb" / "model.safetensors" for path in (folder, out)]
    assert weights[0].read_bytes() == weights[1].read_bytes()


def test_a_damaged_checkpoint_leads_to_the_one_before_and_to_the_same_result(
    first: tuple[Path, Path, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Replay buffer, refreshed world model and the best weights so far go back with it."""
    for place in ("cache", "cache-alone"):
        for name in ORDER[: ORDER.index("rl")]:
            shutil.copytree(first[0] / name, tmp_path / place / name)
    monkeypatch.setenv("DYNAWEB_CACHE", str(tmp_path / "cache"))
    more = ["opt.name=webrl", "replay.capacity=8", "rl.validate_every=1", "controls.sft_validation=2"]
    more += [
        "wm_fit.refresh_every=1",
        "wm_fit.refresh_episodes=2",
        "wm_fit.refresh_steps=1",
        "rl.updates=3",
        "eval.episodes=2",
    ]
    out = tmp_path / "killed"
    assert exit_code(killed, out, str(tmp_path / "cache"), "rl", 16, *more) == -signal.SIGKILL
    (scratch,) = (tmp_path / "cache" / "rl").glob("*.partial/scratch")
    states = sorted(scratch.glob("state-*.safetensors"))
    assert len(states) == 2
    states[-1].write_bytes(states[-1].read_bytes()[:1000])
    run(out, *more, resume=True)
    assert f"{states[-1].name} has 1000 bytes" in caplog.text and "Going on from the checkpoint before" in caplog.text
    monkeypatch.setenv("DYNAWEB_CACHE", str(tmp_path / "cache-alone"))
    run(tmp_path / "alone", *more)
    wanted = [row for row in rows(tmp_path / "alone") if row["event"] != "stage"]
    assert [row for row in rows(out) if row["event"] != "stage"] == wanted, "all but the cost, which is more"
    for name in ("dynaweb", "dynaweb-best"):
        one, other = (path / "checkpoints" / name / "model.safetensors" for path in (out, tmp_path / "alone"))
        assert one.read_bytes() == other.read_bytes()


def test_supervised_stages_go_on_from_where_they_were_stopped(
    first: tuple[Path, Path, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    breaths = 0

    async def stop_at_the_third(self: RunContext) -> None:
        nonlocal breaths
        breaths += 1
        if breaths == 3:
            raise asyncio.CancelledError

    with monkeypatch.context() as patch:
        patch.setattr(RunContext, "breathe", stop_at_the_third)
        with pytest.raises(Interrupted, match="dynaweb sft"):
            dynaweb.sft("dynaweb", overrides=SMALL, out=tmp_path / "stopped")
    tuned = dynaweb.sft("dynaweb", overrides=SMALL, out=tmp_path / "again")
    assert [row["index"] for row in rows(tmp_path / "again", "update")] == [0, 1, 2, 3]
    expected = first[1] / "checkpoints" / "sft" / "model.safetensors"
    assert (tuned.weights / "model.safetensors").read_bytes() == expected.read_bytes()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_the_run_goes_on_to_the_same_end(
    first: tuple[Path, Path, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    cache, folder, _ = first
    for name in ORDER[: ORDER.index("rl")]:
        shutil.copytree(cache / name, tmp_path / "cache" / name)
    monkeypatch.setenv("DYNAWEB_CACHE", str(tmp_path / "cache"))
    out = tmp_path / "stopped"
    assert exit_code(interrupted, out, str(tmp_path / "cache"), number) == 130
    assert '"interrupted"' in (out / "status.json").read_text()
    run(out, "rl.checkpoint_every=1", resume=True)
    assert rows(out) == rows(folder)


def test_expert_mixing_and_filtered_behaviour_cloning(
    first: tuple[Path, Path, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DYNAWEB_CACHE", str(first[0]))
    run(tmp_path / "mixed", "rl.expert_share=0.6", "controls.filtered_bc=true", "rl.epochs=2", "rl.minibatches=2")
    updates = rows(tmp_path / "mixed", "update")
    shares = [row["metrics"]["expert_share"] for row in updates if row["stage"] == "rl"]
    assert 0 < sum(shares) / len(shares) < 0.6
    filtered = [row["metrics"] for row in updates if row["stage"] == "filtered-bc"]
    assert len(filtered) == 4 and all(metrics["loss"] > 0 for metrics in filtered)
    assert (tmp_path / "mixed" / "checkpoints" / "filtered-bc").is_dir()


def test_a_time_budget_ends_reinforcement_learning_early_and_a_later_run_goes_on(
    first: tuple[Path, Path, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def updates(name: str) -> list[int]:
        return [row["index"] for row in rows(tmp_path / name, "update") if row["stage"] == "rl"]

    def weights(name: str) -> bytes:
        return (tmp_path / name / "checkpoints" / "dynaweb" / "model.safetensors").read_bytes()

    monkeypatch.setenv("DYNAWEB_CACHE", str(first[0]))
    short = run(tmp_path / "short", "rl.lr=1e-3", "rl.warmup=0", time_budget=0.0001)
    assert updates("short") == [0]
    assert [arm["label"] for arm in short.results["arms"]][-1] == "DynaWeb (1 of 4 updates)"
    assert "DynaWeb (1 of 4 updates)" in str(short)
    assert "1 of 4 updates of 2 x 3 rollouts" in (tmp_path / "short" / "report.html").read_text(encoding="utf-8")
    played: list[int] = []

    def noted(self: RolloutLog, update: int, *rest: Any, save: Any = RolloutLog.save) -> None:
        played.append(update)
        save(self, update, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(RolloutLog, "save", noted)
        rest = run(tmp_path / "rest", "rl.lr=1e-3", "rl.warmup=0")
    assert (played, updates("rest")) == ([1, 2, 3], [0, 1, 2, 3])
    assert [arm["label"] for arm in rest.results["arms"]][-1] == "DynaWeb"
    monkeypatch.setenv("DYNAWEB_CACHE", str(tmp_path / "fresh"))
    run(tmp_path / "whole", "rl.lr=1e-3", "rl.warmup=0")
    assert weights("rest") == weights("whole") != weights("short")


def test_a_reference_term_keeps_the_policy_near_where_it_started(
    first: tuple[Path, Path, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DYNAWEB_CACHE", str(first[0]))
    run(tmp_path / "beta", "opt.beta=0.1", "rl.warmup=0", "rl.lr=1e-3", "rl.epochs=2", "rl.minibatches=2", "rl.n=4")
    away = [row["metrics"].get("ref_kl", 0.0) for row in rows(tmp_path / "beta", "update") if row["stage"] == "rl"]
    assert len(away) == 4 and max(away) > 0 and all(value >= 0 for value in away)


def test_batches_that_were_played_are_not_played_again(
    first: tuple[Path, Path, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    stop_at = 2

    async def played(episodes: Any, *args: Any, **settings: Any) -> Any:
        calls.append(episodes[0].id)
        if sum(name.startswith("explore/") for name in calls) == stop_at:
            raise asyncio.CancelledError
        return await play_all(episodes, *args, **settings)

    monkeypatch.setattr(episodes, "play_all", played)
    small = [*SMALL, "web.contexts=1"]
    with pytest.raises(Interrupted):
        dynaweb.collect("dynaweb", overrides=small, out=tmp_path / "stopped")
    assert [name for name in calls if name.startswith("explore/")] == ["explore/0", "explore/4"]
    stop_at = 0
    calls.clear()
    dynaweb.collect("dynaweb", overrides=small, out=tmp_path / "rest")
    assert calls == ["explore/4"]
    monkeypatch.setenv("DYNAWEB_CACHE", str(tmp_path / "fresh"))
    dynaweb.collect("dynaweb", overrides=small, out=tmp_path / "whole")
    rest, whole = (rows(tmp_path / name) for name in ("rest", "whole"))
    assert [row for row in rest if row["event"] == "stage"][-1] == [row for row in whole if row["event"] == "stage"][-1]
    assert [row for row in rest if row["event"] == "rollout"][-8:] == [
        row for row in whole if row["event"] == "rollout"
    ][-8:]


def test_a_stage_in_which_nothing_could_be_played_leaves_nothing_behind(
    first: tuple[Path, Path, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A browser that was broken once must not fail the next attempt."""

    async def broken(self: Any, task: Any, seed: int) -> Any:
        raise InfrastructureError("the browser is gone")

    monkeypatch.setenv("DYNAWEB_CACHE", str(tmp_path / "cache"))
    with monkeypatch.context() as patch:
        patch.setattr("dynaweb_env_sites.env.SitesEnvironment.reset", broken)
        with pytest.raises(InfrastructureError, match="all 4 episodes failed"):
            dynaweb.sft("dynaweb", overrides=SMALL, out=tmp_path / "broken")
    assert dynaweb.sft("dynaweb", overrides=SMALL, out=tmp_path / "mended").weights is not None


def test_stages_alone(first: tuple[Path, Path, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DYNAWEB_CACHE", str(first[0]))
    collected = dynaweb.collect("dynaweb", overrides=SMALL, out=tmp_path / "collect")
    assert collected.metrics["episodes"] == 8
    fitted = dynaweb.fit_world_model("dynaweb", overrides=SMALL, out=tmp_path / "wm")
    assert fitted.weights is not None and (fitted.weights / "config.json").is_file()
    assert 0 <= fitted.metrics["element_f1"] <= 1 and "element_f1" in str(fitted)
    tuned = dynaweb.sft("dynaweb", overrides=SMALL, out=tmp_path / "sft")
    of_sft = dynaweb.evaluate("dynaweb", overrides=SMALL, out=tmp_path / "eval")
    given = dynaweb.evaluate("dynaweb", overrides=SMALL, policy=tuned.weights, out=tmp_path / "given")
    assert of_sft.estimates == given.estimates and of_sft.metrics["graded"] == 6
    assert "] n=6" in str(of_sft) and "] n=" in str(fitted)


async def test_a_run_inside_a_running_event_loop(
    first: tuple[Path, Path, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DYNAWEB_CACHE", str(first[0]))
    assert dynaweb.collect("dynaweb", overrides=SMALL, out=tmp_path / "notebook").metrics["episodes"] == 8


def test_a_frozen_world_model_and_validation_on_the_way(
    first: tuple[Path, Path, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DYNAWEB_CACHE", str(first[0]))
    run(tmp_path / "frozen", "wm_fit.steps=0", "rl.validate_every=2", "controls.sft_validation=4", "rl.updates=2")
    assert not (tmp_path / "frozen" / "checkpoints" / "world-model").exists()
    assert [row["stage"] for row in rows(tmp_path / "frozen", "update")].count("world-model") == 0
    (validation,) = [row for row in rows(tmp_path / "frozen", "eval") if row["split"] == "validation"]
    assert validation["metrics"]["update"] == 1 and len(validation["successes"]) == 4
    assert "judge_false_positive" in validation["metrics"]
    weights = [tmp_path / "frozen" / "checkpoints" / name / "model.safetensors" for name in ("dynaweb", "dynaweb-best")]
    assert weights[0].read_bytes() == weights[1].read_bytes(), "there was one validation, after the last update"


def test_results_may_be_those_of_the_best_validation(
    first: tuple[Path, Path, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The policy that is evaluated is that of the first of two updates, after which validation fell."""
    for name in ORDER[: ORDER.index("rl")]:
        shutil.copytree(first[0] / name, tmp_path / "cache" / name)
    monkeypatch.setenv("DYNAWEB_CACHE", str(tmp_path / "cache"))
    marks = iter([0.5, 0.25] * 2)

    async def falling(*given: Any) -> float:
        return next(marks)

    monkeypatch.setattr(train, "validated", falling)
    sets = ("rl.validate_every=1", "rl.updates=2", "rl.lr=1e-3", "eval.episodes=2")
    run(tmp_path / "last", *sets)
    run(tmp_path / "best", *sets, "rl.results_of=best")

    def weights(run: str, name: str) -> bytes:
        return (tmp_path / run / "checkpoints" / name / "model.safetensors").read_bytes()

    assert weights("last", "dynaweb") != weights("last", "dynaweb-best")
    assert weights("best", "dynaweb") == weights("best", "dynaweb-best") == weights("last", "dynaweb-best")
    with pytest.raises(ConfigError, match=r"validate_every = 3 validates in none of 2 updates"):
        run(tmp_path / "never", *sets, "rl.results_of=best", "rl.validate_every=3")


def test_an_evaluation_fits_the_judge_that_it_is_audited_with(
    first: tuple[Path, Path, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DYNAWEB_CACHE", str(first[0]))
    sets = [*SMALL, "judge_fit.episodes=24", "judge_fit.steps=1", "judge_fit.batch=4", "eval.episodes=2"]
    dynaweb.evaluate("dynaweb", overrides=sets, out=tmp_path / "eval", reward="orm")
    assert {"graded", "judge-fit", "judge-audit"} <= set(statuses(tmp_path / "eval"))
    of_judge = [row for row in rows(tmp_path / "eval", "eval") if row["arm"] == "judge of sft"]
    assert len(of_judge) == 1 and len(of_judge[0]["successes"]) == 2


def test_an_evaluation_that_looks_ahead_shows_the_world_model_what_was_explored(
    first: tuple[Path, Path, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[int] = []

    def looks(ctx: Any, weights: Any, model: Any, explored: Any, real: Any = arms.lookahead) -> Any:
        shown.append(len(explored.episodes()))
        return real(ctx, weights, model, explored)

    monkeypatch.setenv("DYNAWEB_CACHE", str(first[0]))
    monkeypatch.setattr(commands, "lookahead", looks)
    sets = [*SMALL, "agent.candidates=2", "agent.depth=1", "eval.episodes=2", "eval.steps=2"]
    dynaweb.evaluate("dynaweb", overrides=sets, out=tmp_path / "eval", agent="lookahead")
    assert shown == [8]


def test_a_run_that_an_alarm_ended_does_not_go_on_by_itself(
    first: tuple[Path, Path, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DYNAWEB_CACHE", str(first[0]))
    monkeypatch.setattr(audit, "alarm", lambda marks, settings: "something is wrong")
    sets = ["audit.every=1", "audit.episodes=2", "audit.stop=true", "rl.lr=2e-4"]
    for resumed in (False, True):
        with pytest.raises(RewardHacking, match=r"something is wrong\. The run ends here"):
            run(tmp_path / "stopped", *sets, resume=resumed)
        assert [row["index"] for row in rows(tmp_path / "stopped", "update") if row["stage"] == "rl"] == [0]
    # What the error says to do.
    run(tmp_path / "on", *sets, "audit.stop=false")
    assert [row["index"] for row in rows(tmp_path / "on", "update") if row["stage"] == "rl"] == [0, 1, 2, 3]
