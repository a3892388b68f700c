"""Runs that stop inside reinforcement learning: by an update that cannot be made, and by the time budget."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import dynaweb
from dynaweb.data.store import TrajectoryStore
from dynaweb.errors import TrainingError
from dynaweb.observers import read_metrics
from dynaweb.pipeline.artifacts import BUFFER
from dynaweb.pipeline.context import RunContext
from dynaweb.rl.checkpoints import RolloutLog
from dynaweb.trainer.torch_trainer import TorchTrainer

SMALL = (
    "env.driver=static",
    "model.threads=1",
    "data.demos=6",
    "data.max_best_steps=3",
    "sft.steps=30",
    "sft.batch=8",
    "dream.horizon=3",
    "rl.updates=3",
    "rl.tasks=4",
    "rl.n=2",
    "rl.bc_batch=4",
    "rl.checkpoint_every=2",
    "replay.capacity=40",
    "phases.count=1",
    "eval.episodes=2",
    "eval.steps=2",
    "controls.sft_steps=[]",
)
SEVERAL = ("rl.epochs=2", "rl.minibatches=2")
"""Four optimizer steps of each update."""


def run(out: Path, *sets: str, resume: bool = False, **flags: Any) -> Any:
    flags = {"env": "sites", "reward": "checker", "opt": "webrl", **flags}
    return dynaweb.run("webrl", overrides=[*SMALL, *sets], out=out, seed=0, resume=resume, **flags)


def updates(folder: Path) -> list[dict[str, Any]]:
    rows = read_metrics(folder / "metrics.jsonl", times=False)
    return [row for row in rows if row["event"] == "update" and row["stage"] == "rl"]


def left(folder: Path, cache: Path) -> tuple[bytes, bytes, list[str]]:
    """Weights, critic and replay buffer of a run."""
    (stage,) = (path for path in (cache / "rl").iterdir() if (path / BUFFER).is_file())
    critic = b"".join(path.read_bytes() for path in sorted((stage / "critic").glob("*.safetensors")))
    buffer = [repr(t) for t in TrajectoryStore(stage / BUFFER)]
    assert critic and buffer
    return (folder / "checkpoints" / "dynaweb" / "model.safetensors").read_bytes(), critic, buffer


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with all stages before reinforcement learning."""
    cache = tmp_path_factory.mktemp("prepared")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DYNAWEB_CACHE", str(cache))
        run(cache.parent / "prepared-run", "rl.updates=0")
    return cache


def copied(prepared: Path, cache: Path, patch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(prepared, cache)
    patch.setenv("DYNAWEB_CACHE", str(cache))
    return cache


def result(folder: Path, cache: Path) -> tuple[Any, ...]:
    return *left(folder, cache), {row["index"]: row["metrics"] for row in updates(folder)}


@pytest.fixture(scope="module")
def whole(prepared: Path) -> Iterator[Callable[[tuple[str, ...]], tuple[Any, ...]]]:
    """The results of runs that nothing stopped, by their settings."""
    results: dict[tuple[str, ...], tuple[Any, ...]] = {}
    with pytest.MonkeyPatch.context() as patch:

        def of(sets: tuple[str, ...]) -> tuple[Any, ...]:
            if sets not in results:
                name = f"whole-{len(results)}"
                cache = copied(prepared, prepared.parent / f"cache-{name}", patch)
                run(prepared.parent / name, *sets)
                results[sets] = result(prepared.parent / name, cache)
            return results[sets]

        yield of


def fails_once(patch: pytest.MonkeyPatch, owner: type, name: str, at: int) -> None:
    """The call number `at` (from 0) of a method raises what ends a training."""
    calls = count()
    real = getattr(owner, name)

    def failing(self: Any, *given: Any, **named: Any) -> Any:
        if next(calls) == at:
            raise TrainingError("lost")
        return real(self, *given, **named)

    patch.setattr(owner, name, failing)


@pytest.mark.parametrize(
    ("sets", "method", "at"),
    [
        ((), (TorchTrainer, "policy_step"), 1),
        (SEVERAL, (TorchTrainer, "policy_step"), 4),
        (SEVERAL, (TorchTrainer, "policy_step"), 6),
        (SEVERAL, (RolloutLog, "save"), 1),
        (("rl.max_staleness=1",), (TorchTrainer, "policy_step"), 1),
        (("rl.max_staleness=2",), (RolloutLog, "save"), 1),
    ],
    ids=["the only step", "the first of several", "a later one", "after all steps", "one ahead", "two ahead"],
)
def test_a_run_that_was_stopped_inside_an_update_and_goes_on_ends_like_one_that_was_not(
    prepared: Path,
    whole: Callable[[tuple[str, ...]], tuple[Any, ...]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    sets: tuple[str, ...],
    method: tuple[type, str],
    at: int,
) -> None:
    """Whatever is saved with the policy: weights, critic, replay buffer, history."""
    expected = whole(sets)
    cache, folder = copied(prepared, tmp_path / "cache", monkeypatch), tmp_path / "stopped"
    with monkeypatch.context() as patch, pytest.raises(TrainingError, match="lost"):
        fails_once(patch, *method, at)
        run(folder, *sets)
    run(folder, *sets, resume=True)
    assert result(folder, cache) == expected
    assert any(metrics["replay_buffer"] for metrics in expected[-1].values()), "something is remembered"


def test_rollouts_that_ran_ahead_of_the_end_of_a_time_budget_are_learned_from_later(
    prepared: Path,
    whole: Callable[[tuple[str, ...]], tuple[Any, ...]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sets = ("rl.max_staleness=2",)
    expected = whole(sets)
    copied(prepared, tmp_path / "cache", monkeypatch)
    run(tmp_path / "cut", *sets, time_budget=0.0001)
    assert [row["index"] for row in updates(tmp_path / "cut")] == [0]
    run(tmp_path / "later", *sets)
    assert (tmp_path / "later" / "checkpoints" / "dynaweb" / "model.safetensors").read_bytes() == expected[0]
    assert {row["index"]: row["metrics"] for row in updates(tmp_path / "later")}[2] == expected[-1][2]


def test_a_time_budget_that_is_used_up_begins_no_further_phase(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = copied(prepared, tmp_path / "cache", monkeypatch)
    sets = ("phases.count=2", "rl.updates=2")
    cut = run(tmp_path / "cut", *sets, time_budget=0.0001)
    assert [row["index"] for row in updates(tmp_path / "cut")] == [0]
    assert not (cache / "curriculum").exists()
    (arm,) = (arm for arm in cut.results["arms"] if arm["name"] == "dynaweb")
    assert arm["label"].endswith("(1 of 2 updates) (1 of 2 phases)")
    # The budget may also end with the last update of a phase, which is then whole.
    with monkeypatch.context() as patch:
        late = property(lambda ctx: (tmp_path / "late").is_dir() and len(updates(tmp_path / "late")) >= 2)
        patch.setattr(RunContext, "out_of_time", late)
        run(tmp_path / "late", *sets)
    assert [row["index"] for row in updates(tmp_path / "late")] == [0, 1]
    whole = run(tmp_path / "whole", *sets)
    assert [row["index"] for row in updates(tmp_path / "whole")] == [0, 1, 0, 1]
    assert whole.results["arms"][-1]["label"].count("(") == 0
