"""Every optimizer from the command line; what a run leaves behind when its updates are not finite; refilled groups."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from core_kit import Cli
from safetensors.torch import load_file
from stage_kit import plan_holds

import dynaweb
from dynaweb.data.store import TrajectoryStore
from dynaweb.errors import TrainingError
from dynaweb.observers import read_metrics
from dynaweb.protocols import LossInput, LossOutput
from dynaweb.runs import read_jsonl
from dynaweb.trainer import checkpoint
from dynaweb_opt_gspo.gspo import Gspo

SETTINGS = (
    "env.task_settings.driver=static",
    "data.demos=6",
    "sft.steps=12",
    "sft.batch=16",
    "explore.episodes=24",
    "explore.steps=4",
    "wm_fit.steps=15",
    "wm_fit.batch=16",
    "wm.retries=0",
    "dream.horizon=3",
    "reward.soft=true",
    "reward.evidence=false",
    "dream.lacking=zero",
    "dream.one_world=false",
    "rl.temperature=1.5",
    "rl.updates=3",
    "rl.tasks=2",
    "rl.n=4",
    "rl.minibatches=2",
    "data.max_best_steps=2",
    "rl.warmup=0",
    "rl.ref_kl_rows=32",
    # What moves the policy is the optimizer alone.
    "rl.bc_weight=0",
    "eval.episodes=1",
    "eval.steps=2",
    "controls.sft_steps=[]",
    "model.threads=1",
)
NAMES = ("awr", "cispo", "digirl", "gigpo", "grpo", "gspo", "ppo", "reinforce-pp", "rloo", "webrl")
LOGGED = {
    *("reward", "dead_groups", "clip_frac_low", "clip_frac_high", "approx_kl", "ref_kl", "entropy", "grad_norm"),
    *("tokens", "ratio_min", "ratio_p10", "ratio_p50", "ratio_p90", "ratio_max", "skipped"),
}


@pytest.fixture(autouse=True)
def _the_plan_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    plan_holds(monkeypatch)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stages before RL are the same for all optimizers: made once."""
    return tmp_path_factory.mktemp("stages")


@pytest.fixture(autouse=True)
def _shared_cache(cache: Path, monkeypatch: pytest.MonkeyPatch, clean_environment: None) -> None:
    monkeypatch.setenv("DYNAWEB_CACHE", str(cache))


def _sets() -> Iterator[str]:
    for setting in SETTINGS:
        yield from ("--set", setting)


def _updates(folder: Path) -> list[dict[str, float]]:
    rows = read_metrics(folder / "metrics.jsonl", times=False)
    return [row["metrics"] for row in rows if row["event"] == "update" and row["stage"] == "rl"]


@pytest.mark.parametrize("name", NAMES)
def test_three_updates_from_the_command_line(name: str, warm_cli: Cli, tmp_path: Path) -> None:
    done = warm_cli("run", "--opt", name, "--out", "run", *_sets(), timeout=280)
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "run"
    updates = _updates(folder)
    assert len(updates) == 3
    assert set().union(*updates) >= LOGGED
    # Where no step stands out, DigiRL learns from none, as it should.
    assert name == "digirl" or any(metrics["updated"] for metrics in updates)
    for metrics in updates:
        assert metrics.get("ref_kl", 0.0) >= 0.0 and metrics["skipped"] == 0.0
        assert 0.0 <= metrics["dead_groups"] <= 1.0
    start, end = (load_file(folder / "checkpoints" / arm / "model.safetensors") for arm in ("sft", "dynaweb"))
    assert start.keys() == end.keys()
    moved = any(metrics["updated"] for metrics in updates)
    assert [key for key, tensor in start.items() if torch.equal(tensor, end[key])] == ([] if moved else [*start])
    if name in ("awr", "digirl", "ppo", "webrl"):
        assert any(metrics["critic_grad_norm"] > 0 for metrics in updates)


def _run(out: Path, *sets: str) -> Any:
    return dynaweb.run("dynaweb", overrides=[*SETTINGS, *sets], out=out, seed=0)


def test_adapters_are_all_that_is_trained_and_are_merged(tmp_path: Path) -> None:
    """With activations computed again, and passes so small that every trajectory is split."""
    pytest.importorskip("peft")
    sets = ("rl.lora_rank=2", "rl.updates=2", "model.checkpointing=true", "model.micro_tokens=300")
    assert _run(tmp_path / "run", *sets) is not None
    assert any(metrics["updated"] for metrics in _updates(tmp_path / "run"))
    start, end = (load_file(tmp_path / "run" / "checkpoints" / arm / "model.safetensors") for arm in ("sft", "dynaweb"))
    assert start.keys() == end.keys()
    moved = {key for key, tensor in start.items() if not torch.equal(tensor, end[key])}
    assert moved == {key for key in start if key.endswith("_proj.weight")}


def test_updates_that_are_not_finite_leave_the_trajectory_and_sound_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second trajectory of each update has a bad token; two updates are skipped and counted, the third stops."""
    plain = Gspo.loss
    monkeypatch.setattr("dynaweb.trainer.probe.check_optimizer", lambda optimizer: None)  # it breaks later

    def broken(self: Gspo, batch: LossInput) -> LossOutput:
        out = plain(self, batch)
        bad = bool((batch.trajectory_R == 1).any()) and int((batch.tokens_N > 0).sum()) > 0
        return LossOutput(out.loss * math.nan, out.metrics) if bad else out

    monkeypatch.setattr(Gspo, "loss", broken)
    # A reference term, so that no trajectory is left out for having no advantage.
    with pytest.raises(TrainingError, match=r"3 updates in a row .*last sound weights are in .*offending-rl") as caught:
        _run(tmp_path / "run", "opt.beta=0.01", "rl.minibatches=1", "rl.checkpoint_every=100")
    (kept,) = TrajectoryStore(tmp_path / "run" / "trajectories" / "offending-rl.jsonl.gz")
    graded = [row for row in read_jsonl(tmp_path / "run" / "metrics.jsonl") if row["event"] == "rollout"]
    assert kept.steps and all(step.prompt for step in kept.steps)
    assert kept.id.startswith("0/") and graded
    assert [metrics["skipped"] for metrics in _updates(tmp_path / "run")] == [1.0, 2.0]
    scratch = Path(str(caught.value).split("last sound weights are in ")[1].split(",")[0])
    tensors, meta = checkpoint.load(scratch)
    assert meta["steps"] == 2
    assert all(bool(torch.isfinite(tensor).all()) for tensor in tensors.values())
    failures = [row for row in read_jsonl(tmp_path / "run" / "metrics.jsonl") if row["event"] == "error"]
    assert any(kept.id in json.dumps(row) for row in failures)


def test_dynamic_sampling_plays_other_groups_and_bounds_how_many(tmp_path: Path) -> None:
    """Groups without both successes and failures are replaced, for a few rounds at most, and leave the batch."""
    sets = ("opt.dynamic_sampling=true", "opt.refills=2", "rl.updates=2", "rl.minibatches=1")
    result = dynaweb.run("dynaweb", opt="grpo", overrides=[*SETTINGS, *sets], out=tmp_path / "run", seed=0)
    assert result is not None
    rollouts = list(TrajectoryStore(tmp_path / "run" / "trajectories" / "dreams.jsonl.gz"))
    updates = _updates(tmp_path / "run")
    for number, metrics in enumerate(updates):
        of_update = [t for t in rollouts if t.facts.update == number]
        groups = {t.group for t in of_update}
        mixed = {
            group
            for group in groups
            if len({(t.reward or 0) >= 0.5 for t in of_update if t.group == group and t.reward is not None}) == 2
        }
        graded = {t.group for t in of_update if t.reward is not None}
        assert 2 <= len(groups) <= 2 * 3
        assert len(mixed) == 2 or len(groups) > 2
        assert metrics["dropped_groups"] == len(graded - mixed)
        assert metrics["trajectories"] == sum(t.group in mixed and t.reward is not None for t in of_update)
    assert len({t.id for t in rollouts}) == len(rollouts)
