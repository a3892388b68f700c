"""World models in whole runs and as stages alone, on the embedded sites without a browser."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import re
from pathlib import Path
from typing import Any

import pytest
from chat_server import chat_server
from core_kit import Cli
from stage_kit import plan_holds

import dynaweb
from dynaweb.data.store import TrajectoryStore, TransitionStore
from dynaweb.errors import CheckpointError, ConfigError, Interrupted, MissingError
from dynaweb.observers import read_metrics
from dynaweb.pipeline.context import RunContext
from dynaweb.pipeline.models import world_model_weights
from dynaweb.rl import refresh as refresh_module
from dynaweb.runs.cache import default_root
from dynaweb.runs.seeding import derive
from dynaweb.stages.world_model import sites_of, split

SMALL = (
    "env.task_settings.driver=static",
    "data.demos=4",
    "sft.steps=4",
    "sft.batch=8",
    "explore.episodes=24",
    "explore.steps=3",
    "wm_fit.steps=3",
    "wm_fit.batch=4",
    "wm_fit.holdout=0.4",
    "wm_fit.fidelity_steps=24",
    "dream.memory=none",
    "dream.horizon=3",
    "rl.updates=4",
    "rl.tasks=2",
    "rl.n=2",
    "rl.bc_batch=4",
    "rl.checkpoint_every=1",
    "eval.episodes=4",
    "eval.steps=3",
    "controls.sft_steps=[]",
    "model.threads=1",
    "wm.max_new_tokens=24",
    "wm.retries=0",
)


def rows(folder: Path, stage: str = "") -> list[dict[str, Any]]:
    found = read_metrics(folder / "metrics.jsonl", times=False)
    return [row for row in found if row["event"] == "update" and row["stage"] == stage] if stage else found


def stages(folder: Path) -> list[str]:
    """The stages that were made, in order."""
    return [row["name"] for row in rows(folder) if row["event"] == "stage"]


@pytest.fixture(autouse=True)
def _the_plan_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    plan_holds(monkeypatch)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Demonstrations, SFT and exploration are made once."""
    return tmp_path_factory.mktemp("wm") / "cache"


@pytest.fixture(autouse=True)
def shared(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DYNAWEB_CACHE", str(cache))


def run(out: Path, *sets: str, **more: Any) -> Any:
    return dynaweb.run("dynaweb", overrides=[*SMALL, *sets], out=out, seed=0, **more)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Path:
    """Real transitions of random actions."""
    path = tmp_path_factory.mktemp("store") / "real.jsonl.gz"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DYNAWEB_CACHE", str(cache))
        sets = [*SMALL, "explore.player=random", "explore.steps=6"]
        dynaweb.collect("dynaweb", overrides=sets, out=path.parent / "run", store=path)
    return path


def check_run(folder: Path, arms: list[dict[str, Any]], world_model: dict[str, Any], *, fitted: bool) -> None:
    assert [arm["name"] for arm in arms] == ["sft", "dynaweb"]
    assert (folder / "checkpoints" / "world-model").is_dir() == fitted
    assert len(rows(folder, "world-model")) == (3 if fitted else 0)
    assert {"Element recall", "Changed F1", "Tokens"} <= set(world_model)
    steps = json.loads((folder / "summary.json").read_text())["drift"]
    counts = [len(step) for step in steps]
    assert 1 < len(counts) <= 8 and counts == sorted(counts, reverse=True)
    assert (
        f"Open loop, by step of the dream (n = {', '.join(map(str, counts))})" in (folder / "report.html").read_text()
    )


def test_a_run_with_another_world_model_from_the_command_line(tmp_path: Path, warm_cli: Cli, cache: Path) -> None:
    sets = [word for one in SMALL for word in ("--set", one)]
    done = warm_cli("run", "--wm", "full-state", *sets, "--out", "out", "--json", DYNAWEB_CACHE=str(cache))
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)["results"]
    check_run(tmp_path / "out", result["arms"], result["world_model"], fitted=True)


@pytest.mark.parametrize(("name", "more"), [("frozen-llm", ()), ("delta", ('wm.apply="llm"', "wm.history=2"))])
def test_a_run_with_each_world_model(name: str, more: tuple[str, ...], tmp_path: Path) -> None:
    result = run(tmp_path / "out", *more, wm=name).results
    check_run(tmp_path / "out", result["arms"], result["world_model"], fitted=name == "delta")


def test_a_frozen_model_behind_a_server_dreams_and_its_cost_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """And its key is in no file of the run or the cache, nor in what anything logs."""
    pytest.importorskip("openai")
    key = "sk-9f3b7c41d2"
    monkeypatch.setenv("WM_KEY", key)
    caplog.set_level(logging.DEBUG)
    with chat_server("It opens a page.\nurl shop.localhost/x\n+ heading 'X'\n+ link 'Back'") as server:
        sets = [f"wm.server.base_url={server.url}", "wm.server.model=big", "wm.server.price_in=3", "wm.shots=1"]
        sets.append("wm.server.key_variable=WM_KEY")
        run(tmp_path / "out", *sets, "rl.updates=1", wm="frozen-llm")
    stages = {row["name"]: row["metrics"] for row in rows(tmp_path / "out") if row["event"] == "stage"}
    asked = sum(stages[name]["server_requests"] for name in ("world-model", "drift", "rl"))
    assert asked == len(server.requests) > 10
    assert stages["world-model"]["server_cost"] == pytest.approx(3e-4 * stages["world-model"]["server_requests"])
    assert "EXAMPLE 1" in server.requests[0]["messages"][1]["content"]
    assert rows(tmp_path / "out", "rl")[0]["metrics"]["world_model_tokens"] > 0
    assert set(server.keys) == {f"Bearer {key}"} and key not in caplog.text
    written = [path for place in (tmp_path / "out", default_root()) for path in place.rglob("*") if path.is_file()]
    said = [gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes() for path in written]
    assert len(said) > 20 and any(b"WM_KEY" in one for one in said) and not any(key.encode() in one for one in said)


def test_an_automatic_horizon_is_calibrated_and_ends_dreams(tmp_path: Path) -> None:
    sets = [
        "wm_fit.fidelity_steps=64",
        'dream.horizon="auto"',
        "dream.max_horizon=4",
        "wm_fit.steps=0",
        "rl.updates=1",
        "rl.tasks=8",
    ]
    sets += ["wm.max_new_tokens=120", "explore.episodes=72", 'dream.fidelity="content"', "dream.recall=false"]
    run(tmp_path / "strict", *sets, "dream.fidelity_floor=1.0")
    found = rows(tmp_path / "strict", "fidelity")[0]["metrics"]
    assert 0 <= found["calibration.brier"] <= 1 and 0 < found["calibration.brier_of_base_rate"] <= 0.25
    strict = rows(tmp_path / "strict", "rl")[0]["metrics"]
    # No page can be trusted wholly: every dream ends at its first dreamed page, if it comes to one.
    ended = strict["untrusted"] + strict["world_model_errors"]
    assert strict["untrusted"] > 0 and ended == strict["dreamed_steps"] / 16
    run(tmp_path / "lax", *sets, "dream.fidelity_floor=0")
    assert rows(tmp_path / "lax", "rl")[0]["metrics"]["untrusted"] == 0


def test_an_automatic_horizon_needs_pages_to_calibrate_on(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="at least 20 held-out pages"):
        run(tmp_path / "few", 'dream.horizon="auto"', "explore.episodes=4", "wm_fit.steps=0")


def test_collect_with_experts_and_random_actions(tmp_path: Path, store: Path) -> None:
    found = list(TransitionStore(store))
    assert len(found) > 24 and {item.source for item in found} == {"real"}
    assert all(re.match(r"train \d+", item.info["site"]) for item in found)
    experts = dynaweb.collect("dynaweb", overrides=[*SMALL, "explore.player=expert"], out=tmp_path / "x")
    shown = list(TransitionStore(Path(experts.metrics["store"])))
    assert experts.metrics["transitions"] == len(shown) > 24
    assert {item.source for item in shown} == {"expert"}


def test_collecting_into_what_is_no_store_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(CheckpointError, match="not a dynaweb store"):
        dynaweb.collect("dynaweb", overrides=SMALL, out=tmp_path / "x", store=tmp_path / "notes.txt")
    assert not (tmp_path / "x").exists() and (tmp_path / "notes.txt").read_text() == "mine"


def test_collecting_again_into_a_store_doubles_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither after a whole collection nor after one that was killed while it wrote: all of it is there, or nothing."""
    monkeypatch.setattr("dynaweb.data.store.BATCH_RECORDS", 8)
    store = tmp_path / "s.gz"

    def collect(name: str, *sets: str) -> Any:
        sets = (*SMALL, "explore.player=expert", *sets)
        return dynaweb.collect("dynaweb", overrides=sets, out=tmp_path / name, store=store).metrics

    first = collect("a")
    assert first["added"] == first["transitions"] == len(TransitionStore(store)) > 24
    assert sum(chunk.closes for chunk in TransitionStore(store)._file.chunks) == 1
    again = collect("b")
    assert (again["added"], again["transitions"]) == (0, first["transitions"])
    other = collect("c", "explore.episodes=4")
    assert other["added"] > 0 and collect("d")["added"] == 0
    assert len(TransitionStore(store)) == first["added"] + other["added"]


def test_fitting_on_a_store_alone_and_evaluating_on_another(
    tmp_path: Path, store: Path, warm_cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dynaweb.stages.world_model_eval.MAX_CHAINS", 8)
    fitted = dynaweb.fit_world_model("dynaweb", overrides=SMALL, data=store, out=tmp_path / "fit")
    assert fitted.weights is not None and fitted.metrics["n"] > 5
    assert not any(row.get("name") == "demos" for row in rows(tmp_path / "fit"))
    longer = [*SMALL, "wm.max_new_tokens=120", "wm_fit.fidelity_steps=40"]
    given: dict[str, Any] = {"overrides": longer, "data": store, "weights": fitted.weights}
    scores = dynaweb.evaluate_world_model("dynaweb", **given, horizon=4, out=tmp_path / "eval")
    assert {"all", "action click"} <= set(scores.one_step) and any("localhost" in name for name in scores.one_step)
    assert 1 < len(scores.steps) <= 4 and scores.seconds > 0
    counts = [step["alive"].n for step in scores.steps]
    assert counts == sorted(counts, reverse=True) and counts[0] == 8
    kinds = [found["exact"].n for name, found in scores.one_step.items() if name.startswith("action ")]
    assert sum(kinds) == scores.one_step["all"]["exact"].n == 40
    assert "Brier score" in str(scores)
    written = json.loads((tmp_path / "eval" / "world-model.json").read_text())
    assert written["one_step"]["all"]["exact"]["n"] == 40 and len(written["steps"]) == len(scores.steps)
    assert len(scores.probes) == 40 and all(re.match(r"train \d+", probe["site"]) for probe in scores.probes)
    page = (tmp_path / "eval" / "world-model.html").read_text()
    assert "Open loop, by step of the dream (n = 8" in page and "Reliability" in page and "<svg" in page
    sets = [word for one in longer for word in ("--set", one)]
    text = warm_cli("wm", "show", "--data", str(store), "--weights", str(fitted.weights), *sets, "--index", "1")
    assert text.returncode == 0 and text.stdout.startswith("page ")
    assert {line[:2] for line in text.stdout.splitlines()} & {"- ", "  "}
    with pytest.raises(ConfigError, match="there is no 9999"):
        dynaweb.show_prediction("dynaweb", **given, index=9999, out=tmp_path / "show")
    # What is not there is said before a run folder is made, so that the same command can be given again.
    refused: list[tuple[dict[str, Any], str]] = [
        ({**given, "data": "gone"}, "no transition or trajectory store"),
        ({**given, "weights": "some/folder"}, r"no weights in some/folder \(no such folder\)"),
        ({**given, "weights": tmp_path}, r"no config\.json in it"),
    ]
    for wrong, words in refused:
        for call in (dynaweb.evaluate_world_model, dynaweb.show_prediction):
            with pytest.raises(MissingError, match=words):
                call("dynaweb", **wrong, out=tmp_path / "g")
    assert not (tmp_path / "g").exists()
    assert world_model_weights(tmp_path / "fit") == fitted.weights


@pytest.mark.parametrize(("wm", "sets"), [("frozen-llm", ()), ("delta", ("wm_fit.steps=0",))])
def test_a_model_that_is_not_fitted_is_evaluated_without_making_anything_else(
    tmp_path: Path, store: Path, wm: str, sets: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dynaweb.stages.world_model_eval.MAX_CHAINS", 2)
    monkeypatch.setenv("DYNAWEB_CACHE", str(tmp_path / "fresh"))
    sets = (*sets, "wm_fit.fidelity_steps=6")
    given: dict[str, Any] = {"overrides": [*SMALL, *sets], "wm": wm, "horizon": 2}
    dynaweb.evaluate_world_model("dynaweb", **given, data=store, out=tmp_path / "store")
    assert stages(tmp_path / "store") == []
    more = [*SMALL, *sets, "explore.player=random", "explore.episodes=12"]
    dynaweb.evaluate_world_model("dynaweb", **{**given, "overrides": more}, out=tmp_path / "explored")
    assert stages(tmp_path / "explored") == ["demos", "explore"]
    with pytest.raises(MissingError, match="no transition or trajectory store"):
        dynaweb.evaluate_world_model("dynaweb", overrides=SMALL, data="gone", out=tmp_path / "gone")
    assert stages(tmp_path / "gone") == []


def test_evaluating_what_the_recipe_fits(tmp_path: Path) -> None:
    found = dynaweb.evaluate_world_model("dynaweb", overrides=SMALL, out=tmp_path / "eval", horizon=3)
    assert found.one_step["all"]["element_f1"].n > 10
    # Answers were cut short, so hardly any page is there to calibrate on: it says so instead of failing.
    assert "open loop" in str(found) and "no calibration: " in str(found) and found.calibration is None


def test_early_stopping_keeps_the_best_weights_and_goes_on_after_a_stop(
    tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What losses a model reaches is its own affair: here the best look is the one after four updates.
    monkeypatch.setattr("dynaweb.pipeline.fit.mean_loss", lambda trainer, rows: 1.0 + abs(trainer.steps - 4))

    def fit(out: str, steps: int = 12) -> Any:
        sets = [
            *SMALL,
            f"wm_fit.steps={steps}",
            "wm_fit.validate_every=2",
            "wm_fit.patience=2",
            "wm_fit.fidelity_steps=2",
        ]
        return dynaweb.fit_world_model("dynaweb", overrides=sets, data=store, out=tmp_path / out)

    def weights(result: Any) -> bytes:
        return (result.weights / "model.safetensors").read_bytes()

    def trained(out: str) -> float:
        (stage,) = [row for row in rows(tmp_path / out) if row["event"] == "stage"]
        return stage["metrics"]["tokens_trained"]

    monkeypatch.setenv("DYNAWEB_CACHE", str(tmp_path / "fresh"))
    whole = fit("whole")
    updates = rows(tmp_path / "whole", "world-model")
    looks = {row["index"] + 1: row["metrics"].get("validation_loss") for row in updates}
    assert looks == {1: None, 2: 3.0, 3: None, 4: 1.0, 5: None, 6: 3.0, 7: None, 8: 5.0}
    # The last weights are looked at too, or they could never be the best.
    fit("odd", 5)
    last = [row["metrics"].get("validation_loss") for row in rows(tmp_path / "odd", "world-model")]
    assert last == [None, 3.0, None, 1.0, 2.0]
    for name, error, how in (("other", asyncio.CancelledError, Interrupted), ("third", RuntimeError, RuntimeError)):
        breaths = 0

        async def stop_later(self: RunContext, error: type[BaseException] = error) -> None:
            nonlocal breaths
            breaths += 1
            if breaths == 7:
                raise error

        monkeypatch.setenv("DYNAWEB_CACHE", str(tmp_path / name))
        with monkeypatch.context() as patch:
            patch.setattr(RunContext, "breathe", stop_later)
            with pytest.raises(how):
                fit(f"{name}-stopped")
        again = fit(f"{name}-again")
        assert weights(again) == weights(whole)
        # Where only a look had kept the state, what had been spent until then was kept with it.
        assert trained(f"{name}-again") == trained("whole")
    assert rows(tmp_path / "other-again", "world-model") == updates


def test_adapters_are_trained_and_merged(tmp_path: Path, store: Path) -> None:
    pytest.importorskip("peft")
    from dynaweb.trainer.models import TINY, load_model

    sets = [*SMALL, "wm_fit.lora_rank=2"]
    fitted = dynaweb.fit_world_model("dynaweb", overrides=sets, data=store, out=tmp_path / "lora")
    base, tuned = load_model(TINY).state_dict(), load_model(fitted.weights).state_dict()
    assert base.keys() == tuned.keys()
    moved = [name for name in base if not base[name].equal(tuned[name])]
    assert moved and all("_proj" in name for name in moved)


def test_other_transitions_are_fitted_too(tmp_path: Path, store: Path) -> None:
    plain = dynaweb.fit_world_model("dynaweb", overrides=SMALL, out=tmp_path / "plain")
    more = dynaweb.fit_world_model("dynaweb", overrides=[*SMALL, f"wm_fit.data={store}"], out=tmp_path / "more")
    assert (plain.weights / "model.safetensors").read_bytes() != (more.weights / "model.safetensors").read_bytes()
    with pytest.raises(MissingError, match="no transition or trajectory store"):
        dynaweb.fit_world_model("dynaweb", overrides=[*SMALL, "wm_fit.data=gone"], out=tmp_path / "gone")
    assert not any(row["event"] == "stage" for row in rows(tmp_path / "gone"))


def test_the_world_model_is_refreshed_on_the_way_and_a_stopped_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sets = ["wm_fit.refresh_every=2", "wm_fit.refresh_episodes=3", "wm_fit.refresh_steps=2", "rl.updates=5"]
    planned, tokenised = [], 0

    def new_trainer(*given: Any, real: Any = refresh_module.new_trainer, **more: Any) -> Any:
        planned.append((real(*given, **more), more["total_steps"]))
        return planned[-1][0]

    def rows_for(maker: Any, transitions: Any, real: Any = refresh_module.rows_for) -> Any:
        nonlocal tokenised
        tokenised += len(transitions)
        return real(maker, transitions)

    with monkeypatch.context() as patch:
        patch.setattr(refresh_module, "new_trainer", new_trainer)
        patch.setattr(refresh_module, "rows_for", rows_for)
        run(tmp_path / "whole", *sets)
    found = rows(tmp_path / "whole", "refresh")
    assert [row["index"] for row in found] == [1, 3]
    # The learning rate ends where the last refresh does, and no transition is made into a row twice.
    ((trainer, total),) = planned
    assert trainer.steps == total == 4 and tokenised == found[-1]["metrics"]["transitions"]
    # What was held out of the fit stays held out.
    explored = list(TrajectoryStore(tmp_path / "whole" / "trajectories" / "explore.jsonl.gz"))
    away = sites_of(split(explored, 0.4, seed=derive(0, "holdout"))[1])
    played = [row for row in rows(tmp_path / "whole") if row["event"] == "rollout" and row["phase"] == "refresh"]
    seen = {"{} {}".format(*row["task"].split(":")[1:3]) for row in played}
    assert seen and away and not seen & away
    assert all(row["metrics"]["new_transitions"] > 0 for row in found)
    assert found[1]["metrics"]["transitions"] > found[0]["metrics"]["transitions"]
    stage = next(row for row in rows(tmp_path / "whole") if row["event"] == "stage" and row["name"] == "rl")
    assert stage["metrics"]["static_steps"] > 0 and len(played) == 6
    monkeypatch.setenv("DYNAWEB_CACHE", str(tmp_path / "fresh"))
    calls = 0

    async def stop_in_the_second(
        self: Any, done: int, player: Any, whole: Any = refresh_module.Refresher.after
    ) -> None:
        nonlocal calls
        await whole(self, done, player)
        calls += 1
        if calls == 2:
            raise asyncio.CancelledError

    with monkeypatch.context() as patch:
        patch.setattr(refresh_module.Refresher, "after", stop_in_the_second)
        with pytest.raises(Interrupted):
            run(tmp_path / "again", *sets)
    run(tmp_path / "again", *sets, resume=True)
    assert rows(tmp_path / "again") == rows(tmp_path / "whole")


def test_a_model_that_cannot_be_refreshed_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="frozen-llm' cannot be fitted"):
        run(tmp_path / "x", "wm_fit.refresh_every=1", wm="frozen-llm")
    with pytest.raises(ConfigError, match="trains all weights"):
        run(tmp_path / "y", "wm_fit.refresh_every=1", "wm_fit.lora_rank=2")
    assert not any(row["event"] == "stage" for name in "xy" for row in rows(tmp_path / name))
