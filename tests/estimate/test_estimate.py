"""Estimates against what really is in memory, on machines that are large enough and on some that are not."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import engine_kit as kit
import pytest
import torch
from core_kit import Cli
from trainer_kit import ADVANTAGES, WIDE, trainer_of

from dynaweb.config import resolve
from dynaweb.config.sections import Backend
from dynaweb.errors import ConfigError
from dynaweb.estimate import estimate, memory
from dynaweb.estimate.machine import GIB, Machine, look
from dynaweb.estimate.memory import Setup
from dynaweb.estimate.shapes import PUBLISHED, Shape, shape_of
from dynaweb.trainer.choice import make_trainer
from dynaweb.trainer.logprobs import HEAD_ELEMENTS
from dynaweb_opt_gspo.gspo import Gspo

CPU = Machine("CPU of 2 cores", 1, 16 * GIB, 16 * GIB, 1e11)
NODE = Machine("NVIDIA H100 80GB HBM3", 8, 80 * GIB, 1024 * GIB, 989e12)
SMALL = Machine("NVIDIA GeForce RTX 4080", 1, 16 * GIB, 64 * GIB, 49e12)


def _saved(model: Any, folder: Path) -> Shape:
    model.config.save_pretrained(folder)
    shape = shape_of(str(folder))
    assert shape is not None
    return shape


@pytest.mark.parametrize("changes", [{}, {"kv_heads": 2}, {"tied": False}, {"head_dim": 16}], ids=str)
def test_weights_are_counted_as_they_are(changes: dict[str, Any], tmp_path: Path) -> None:
    model = kit.llama(**changes)
    assert _saved(model, tmp_path).parameters == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("sets", "own"),
    [
        ((), True),
        (("reward.model=policy",), False),
        (("reward.name=orm",), True),
        (("reward.name=weighted", "reward.judges.orm.weight=1"), True),
        (("reward.name=weighted", 'reward.judges.self-assess.settings.model="policy"'), False),
    ],
)
def test_a_judge_takes_memory_where_it_or_one_that_it_is_made_of_has_a_model(sets: tuple[str, ...], own: bool) -> None:
    found = estimate(resolve("dynaweb", overrides=sets), look())
    assert found is not None and ("judge" in found.memory["rl"]) is own


def test_biases_count(tmp_path: Path) -> None:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    model = Qwen2ForCausalLM(Qwen2Config(vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
                                         num_attention_heads=4, num_key_value_heads=2))  # fmt: skip
    assert _saved(model, tmp_path).parameters == sum(p.numel() for p in model.parameters())


def test_the_shipped_model_and_those_of_recipes_are_known() -> None:
    from dynaweb.trainer.models import load_model

    tiny = shape_of("tiny")
    assert tiny is not None and tiny.parameters == sum(p.numel() for p in load_model("tiny").parameters())
    sizes = {name: shape.parameters for name in PUBLISHED if (shape := shape_of(name))}
    assert sizes["meta-llama/Llama-3.1-8B-Instruct"] == 8_030_261_248
    assert sizes["HuggingFaceTB/SmolLM2-135M-Instruct"] == 134_515_008
    assert shape_of("nobody/knows-this") is None


def test_a_model_in_the_cache_of_the_hub_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    kit.llama().config.save_pretrained(tmp_path / "models--a--b" / "snapshots" / "0123")
    assert shape_of("a/b") == _saved(kit.llama(), tmp_path / "here")


def _bytes(tensors: Any) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rank", [0, 4])
def test_what_training_keeps_is_what_was_estimated(dtype: torch.dtype, rank: int, tmp_path: Path) -> None:
    from dynaweb.pipeline.artifacts import LoadedModel
    from dynaweb.pipeline.fit import with_adapters

    model = kit.llama(kv_heads=2).to(dtype)
    shape = _saved(model, tmp_path)
    with_adapters(LoadedModel(model, None, None), rank, seed=0)  # type: ignore[arg-type]
    seen: list[int] = []

    trainer = trainer_of(model, lr=1e-2)
    leaves = trainer._stepper.masters.leaves.values()
    move = trainer._stepper.move

    def noted(step: int) -> None:
        seen.append(_bytes(leaf.grad for leaf in leaves if leaf.grad is not None))
        move(step)

    trainer._stepper.move = noted  # type: ignore[method-assign]
    trainer.policy_step(kit.rows_of(2), Gspo(WIDE), ADVANTAGES)
    found = memory.training(shape, Setup(2 if dtype == torch.bfloat16 else 4, rank))
    assert found["weights"] == _bytes(model.parameters())
    own = {id(p) for p in model.parameters()}
    assert found["float32 masters"] == _bytes(leaf for leaf in leaves if id(leaf) not in own)
    assert [found["gradients"]] == seen
    moments = [v for name, v in trainer.state_dict()["tensors"].items() if ".exp_avg" in name]
    assert found["AdamW"] == _bytes(moments)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rank", [0, 4])
def test_what_fsdp_keeps_is_what_was_estimated(dtype: torch.dtype, rank: int, tmp_path: Path) -> None:
    from dynaweb.pipeline.artifacts import LoadedModel
    from dynaweb.pipeline.fit import with_adapters

    model = kit.llama(kv_heads=2).to(dtype)
    shape = _saved(model, tmp_path)
    with_adapters(LoadedModel(model, None, None), rank, seed=0)  # type: ignore[arg-type]
    trainer: Any = make_trainer(model, Backend(name="fsdp"), None, lr=1e-2, total_steps=9)
    try:
        trainer.policy_step(kit.rows_of(2), Gspo(WIDE), ADVANTAGES)
        moments = [value for name, value in trainer.state_dict()["tensors"].items() if ".exp_avg" in name]
        shards = [parameter.to_local() for parameter in trainer.scored.parameters()]
    finally:
        torch.distributed.destroy_process_group()
    parts = memory.training(shape, Setup(2 if dtype == torch.bfloat16 else 4, rank, stage=2, fsdp=True))
    assert parts["weights, whole copy"] == _bytes(model.parameters())
    assert parts["shards and AdamW"] == _bytes([*shards, *moments])


def test_logits_are_bounded_by_what_the_head_computes_at_once() -> None:
    assert memory.HEAD_BYTES == 4 * HEAD_ELEMENTS


@pytest.mark.parametrize("kind", [{}, {"offload": True}, {"fsdp": True}], ids=["deepspeed", "offload", "fsdp"])
@pytest.mark.parametrize("bytes_each", [2, 4])
def test_higher_stages_and_more_ranks_take_no_more(kind: dict[str, bool], bytes_each: int) -> None:
    shape = shape_of("meta-llama/Llama-3.1-8B-Instruct")
    assert shape is not None

    def need(stage: int, ranks: int) -> int:
        setup = Setup(bytes_each, stage=stage, ranks=ranks, **kind)
        return sum(size for part, size in memory.training(shape, setup).items() if part != "host")

    for ranks in (1, 2, 8):
        needs = [need(stage, ranks) for stage in (1, 2, 3)]
        assert needs == sorted(needs, reverse=True)
    for stage in (1, 2, 3):
        needs = [need(stage, ranks) for ranks in (1, 2, 8, 64)]
        assert needs == sorted(needs, reverse=True)
        assert needs[-1] >= shape.parameters * bytes_each, "every rank keeps a whole copy to generate with"


def test_checkpointing_and_smaller_micro_batches_take_less() -> None:
    shape = shape_of("Qwen/Qwen2.5-1.5B-Instruct")
    assert shape is not None
    plain, again, small = Setup(2), Setup(2, checkpointing=True), Setup(2, micro_tokens=1024)
    assert memory.activations(shape, again) < memory.activations(shape, plain) / 3
    assert memory.activations(shape, small) < memory.activations(shape, plain) / 2


def test_the_recipes_of_the_page_fit_the_machines_they_are_for() -> None:
    one = replace(NODE, devices=1)
    wanted = (("tiny", CPU, 1), ("smollm2", SMALL, 1), ("one-gpu", one, 1), ("paper-8xh100", NODE, 4))
    for name, machine, ranks in wanted:
        found = estimate(resolve(name), machine, ranks=ranks)
        assert found is not None and found.problems() == [], name
        assert found.seconds and all(sum(parts.values()) > 0 for parts in found.memory.values())


@pytest.mark.parametrize(
    ("machine", "ranks", "words"),
    [
        (CPU, 1, r"stage rl needs \d+\.\d GiB a process \(weights, whole copy 15\.0 GiB, .*and 15\.2 GiB can be had"),
        (replace(NODE, devices=4), 8, "8 processes want a GPU each and replicas of vLLM 4 more, and there are 4"),
        (replace(NODE, memory=40 * GIB), 8, r"needs \d+\.\d GiB a process .* 38\.0 GiB can be had"),
        (NODE, 1, r"needs 1\d\d\.\d GiB a process"),
    ],
)
def test_what_cannot_fit_is_refused_with_the_numbers(machine: Machine, ranks: int, words: str) -> None:
    found = estimate(resolve("paper-8xh100"), machine, ranks=ranks)
    assert found is not None
    with pytest.raises(ConfigError, match=words) as refusal:
        found.check()
    assert machine.words in str(refusal.value) and "backend.offload" in str(refusal.value)


def test_what_is_kept_in_the_hosts_memory_has_to_fit_there() -> None:
    recipe = resolve("paper-8xh100", overrides={"backend.offload": True})
    found = estimate(recipe, NODE, ranks=8)
    plain = estimate(resolve("paper-8xh100"), NODE, ranks=8)
    assert found is not None and plain is not None
    assert found.peak[1] < plain.peak[1] and found.host > 12 * found.parameters
    small = estimate(recipe, replace(NODE, host_memory=64 * GIB), ranks=8)
    assert small is not None and any("host memory" in words for words in small.problems())


def _totals(*sets: str, recipe: str = "one-gpu") -> tuple[int, int, float]:
    found = estimate(resolve(recipe, overrides=sets), NODE)
    assert found is not None and found.seconds is not None
    return found.peak[1], sum(one.trained for one in found.work.values()), found.seconds


def test_parts_come_and_go_with_what_needs_them() -> None:
    base, recipe = _totals(), resolve("one-gpu")
    weights = 2 * 1_543_714_304
    assert _totals("rl.ref_kl_rows=8")[0] - base[0] == weights
    assert base[0] - _totals("reward.model=policy")[0] == weights
    assert _totals("rl.lora_rank=16", "sft.lora_rank=16")[0] < base[0] - 7 * weights
    assert _totals("opt.name=ppo")[0] - base[0] == 9 * weights
    half = estimate(recipe, NODE)
    assert half is not None and "critic" not in half.memory["rl"]
    beside = ("policy.engine.replicas=0", "policy.engine.memory=0.35", "reward.engine.replicas=0")
    served = estimate(resolve("paper-8xh100", overrides=beside), NODE, ranks=8)
    assert served is not None and served.memory["rl"]["vLLM"] == round(0.35 * NODE.memory)
    apart = estimate(resolve("paper-8xh100"), NODE, ranks=4)
    assert apart is not None and "vLLM" not in apart.memory["rl"], "replicas have GPUs of their own"
    assert "world model" not in served.memory["rl"] and "world-model" not in served.work


def test_work_grows_with_what_is_asked_for() -> None:
    base = _totals()
    for more in ("rl.updates=100", "rl.n=16", "rl.epochs=2", "dream.horizon=9", "sft.steps=900"):
        _, trained, seconds = _totals(more)
        assert trained > base[1] and seconds > base[2], more


def test_the_machine_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = look("cpu")
    assert here.is_cpu and here.memory > 2**28 and here.flops > 1e8
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!{sys.executable}\nprint('0, NVIDIA H200, 143771\\n1, NVIDIA H200, 143771')\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    found = look()
    assert (found.device, found.devices, found.memory) == ("NVIDIA H200", 2, 143771 * 2**20)
    assert found.flops == 989e12
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert look().devices == 1
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert look().is_cpu and look("cpu").is_cpu


def test_a_dry_run_says_what_it_takes_and_refuses_what_cannot_be(cli: Cli, tmp_path: Path) -> None:
    ahead = cli("run", "--dry-run", "--json", "--set", "rl.max_staleness=2")
    assert json.loads(ahead.stdout)["asynchronous"].startswith("Asynchronous: rollouts of at most 2 updates earlier")
    done = cli("run", "--dry-run")
    assert "Asynchronous" not in done.stdout
    assert done.returncode == 0
    assert "most memory of a process: " in done.stdout and "tokens: at most" in done.stdout
    done = cli("run", "paper-8xh100", "--nproc", "8", "--dry-run", "--json")
    assert done.returncode == 2
    assert "does not fit" in done.stderr and "GiB a process" in done.stderr
    plan = json.loads(done.stdout)["estimate"]
    assert plan["parameters"] == 8_030_261_248 and plan["ranks"] == 8
    assert plan["peak"]["bytes"] == sum(plan["memory"][plan["peak"]["stage"]].values())
    done = cli("run", "--model", "nobody/knows-this", "--dry-run")
    assert done.returncode == 0 and "No estimate: the size of nobody/knows-this" in done.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("files", "code", "words"),
    [
        (None, 3, "there is no model folder at"),
        ({}, 3, "is a folder without config.json"),
        ({"config.json": "{}"}, 1, 'no "model_type"'),
        ({"config.json": "[1]"}, 1, "config.json is damaged"),
        ({"config.json": '{"model_type": "llama"}', "tokenizer.json": "{"}, 1, "tokenizer.json is damaged"),
        ({"config.json": '{"model_type": "llama"}'}, 0, "No estimate"),
        ({"config.json": '{"model_type": "llama", "hidden_size": "wide", "vocab_size": 5}'}, 0, "No estimate"),
    ],
)
def test_a_dry_run_refuses_a_model_folder_that_a_run_would(
    files: dict[str, str] | None, code: int, words: str, cli: Cli, warm_cli: Cli, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    if files is not None:
        folder.mkdir()
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
    done = cli("run", "--model", str(folder), "--dry-run")
    assert done.returncode == code and words in done.stdout + done.stderr, (done.returncode, done.stderr)
    if code:
        assert warm_cli("run", "smoke", "--model", str(folder), "--out", str(tmp_path / "run")).returncode == code
        assert not (tmp_path / "run").exists()
