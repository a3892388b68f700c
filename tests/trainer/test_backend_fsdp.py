"""FSDP2 on two real processes against the torch backend in one, and what it refuses."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any

import engine_kit as kit
import pytest
import team_kit
import torch
from test_backend_team import same_completions
from torch import nn
from warm_kit import exit_codes, start

from dynaweb.config import resolve
from dynaweb.config.agreement import check_agreement
from dynaweb.errors import ConfigError, MissingError
from dynaweb.plugin.registry import current
from dynaweb.trainer.choice import make_trainer
from dynaweb.trainer.distributed.fsdp import decoder_layers

pytestmark = pytest.mark.usefixtures("one_thread")
SIZE = 2
WAYS = {
    "trained": team_kit.trained,
    "criticised": partial(team_kit.trained, optimizer="ppo", updates=2),
    "adapted": team_kit.adapted,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a checkpoint of the torch backend in one process."""
    path: Path = tmp_path_factory.mktemp("fsdp")
    trainer = make_trainer(kit.gpt2(), team_kit.TORCH, None, lr=2e-3, total_steps=10)
    trainer.supervised_step(kit.rows_of(1))
    trainer.save(path / "before")
    return path


@pytest.fixture(scope="module")
def ranks(folder: Path) -> dict[str, Any]:
    """What rank 0 of two has."""
    port = team_kit.free_port()
    processes = [start(team_kit.rank, i, SIZE, str(folder), port, "fsdp_zero") for i in range(SIZE)]
    assert exit_codes(processes) == [0] * SIZE
    result: dict[str, Any] = torch.load(folder / "found.pt", weights_only=False)
    return result


@pytest.mark.parametrize("way", WAYS)
def test_updates_of_two_ranks_are_those_of_one_process(ranks: dict[str, Any], way: str) -> None:
    wanted = WAYS[way](None)
    for mine, theirs in zip(ranks[way]["metrics"], wanted["metrics"], strict=True):
        for key in theirs.keys() - {"seconds", "padded_tokens"}:  # prompts are not shared
            assert mine[key] == pytest.approx(theirs[key], rel=1e-3, abs=1e-5), key
    kit.same(ranks[way]["tensors"], wanted["tensors"], rtol=1e-3, atol=2e-5)
    for mine, theirs in zip(ranks[way].get("said", []), wanted.get("said", []), strict=True):
        same_completions(mine, theirs, within=2e-3)


@pytest.mark.parametrize("stage", [1, 3])
def test_half_precision_on_two_ranks_moves_float32_masters(ranks: dict[str, Any], stage: int) -> None:
    (mine,) = ranks[f"half-{stage}"]["metrics"]
    (theirs,) = team_kit.trained(None, dtype=torch.bfloat16, updates=1)["metrics"]
    for key in ("loss", "grad_norm", "entropy"):
        assert mine[key] == pytest.approx(theirs[key], rel=1e-2), key
    # It grows with the square of log-ratios, which are what is rounded as the others are.
    assert math.sqrt(mine["approx_kl"]) == pytest.approx(math.sqrt(theirs["approx_kl"]), rel=1e-2)
    tensors = ranks[f"half-{stage}"]["tensors"]
    assert {tensor.dtype for tensor in tensors.values()} == {torch.float32}
    kept = [name for name, tensor in tensors.items() if torch.equal(tensor, tensor.bfloat16().float())]
    assert not [name for name in kept if not name.startswith("adam.step.")]


def test_ranks_and_one_process_go_on_from_each_other(ranks: dict[str, Any], folder: Path, tmp_path: Path) -> None:
    (tmp_path / "before").symlink_to(folder / "before")
    wanted = team_kit.resumed(None, team_kit.TORCH, tmp_path)
    _same(ranks["resumed"]["tensors"], wanted["tensors"])
    same_completions(ranks["resumed"]["said"][0], wanted["said"][0], within=2e-3)
    for mine, theirs in zip(ranks["resumed"]["logps"], wanted["logps"], strict=True):
        assert mine == pytest.approx(theirs, abs=1e-3)
    trainers = [make_trainer(kit.gpt2(), team_kit.TORCH, None, lr=2e-3, total_steps=10) for _ in range(2)]
    for trainer, path in zip(trainers, (folder, tmp_path), strict=True):
        trainer.load(path / "after")
        assert trainer.steps == 3
        trainer.supervised_step(kit.rows_of(1))
    _same(*(trainer.state_dict()["tensors"] for trainer in trainers))


def _same(tensors: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> None:
    """Biases that started at 0 have nothing to be relative to."""
    assert tensors.keys() == wanted.keys()
    for name, tensor in wanted.items():
        torch.testing.assert_close(tensors[name], tensor, rtol=1e-3, atol=2e-5, msg=name)


class Bare(nn.Module):
    """A model with one layer and no list of any."""

    def __init__(self) -> None:
        super().__init__()
        self.config = kit.llama().config
        self.body = nn.Linear(2, 2)


def listed(shared: bool) -> nn.Module:
    """One that says nothing of its layers, with a longer list of small parts in each."""
    model = Bare()
    layers = [nn.ModuleDict({"parts": nn.ModuleList([nn.Linear(2, 2) for _ in range(3)])}) for _ in range(2)]
    model.layers = nn.ModuleList([layers[0]] * 2 if shared else layers)
    return model


def test_layers_are_those_that_must_not_be_split_or_the_longest_list() -> None:
    for model in (kit.llama(), kit.gpt2(), kit.mamba(), kit.longrope()):
        names = {type(layer).__name__ for layer in decoder_layers(model)}
        assert len(decoder_layers(model)) == model.config.num_hidden_layers and len(names) == 1, names
    model = listed(shared=False)
    assert decoder_layers(model) == list(model.layers)


@pytest.mark.parametrize(
    ("model", "words"),
    [(Bare(), "it has no list of decoder layers"), (listed(shared=True), "some of its layers share")],
)
def test_a_model_without_layers_of_its_own_is_refused(model: nn.Module, words: str) -> None:
    with pytest.raises(ConfigError, match=f"cannot spread Bare over ranks: {words}.*set backend.name = torch or deep"):
        decoder_layers(model)


class Borrower(nn.Module):
    """Reads the weights of another layer, which may not be whole then."""

    def __init__(self, lenders: list[nn.Linear]) -> None:
        super().__init__()
        self.lenders = lenders

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x, self.lenders[0].weight)


def _mixed(model: Any) -> Any:
    model.model.norm.to(torch.bfloat16)
    return model


def _read_past(model: Any) -> Any:
    first, second = model.model.layers[0].mlp, model.model.layers[1].mlp
    second.up_proj = Borrower([first.up_proj])
    return model


@pytest.mark.parametrize(("change", "words"), [(_mixed, "several precisions"), (_read_past, "mixed torch.Tensor")])
def test_a_model_that_shards_would_compute_otherwise_is_refused(change: Any, words: str) -> None:
    try:
        with pytest.raises(ConfigError, match=f"cannot spread LlamaForCausalLM over ranks: .*{words}"):
            make_trainer(change(kit.llama()), team_kit.fsdp(3), None, lr=1e-3, total_steps=1)
    finally:
        torch.distributed.destroy_process_group()


def test_what_only_deepspeed_does_is_refused_before_anything_starts() -> None:
    for sets in ("backend.offload=true", "backend.config=a.json", "observation.train_vision=true"):
        path, _, _ = sets.partition("=")
        with pytest.raises(ConfigError, match=f"backend.name = fsdp does not take {path}; "):
            check_agreement(resolve("dynaweb", overrides=["backend.name=fsdp", sets]), current())
        check_agreement(resolve("dynaweb", overrides=["backend.name=deepspeed", sets]), current())
    check_agreement(resolve("dynaweb", overrides=["backend.name=fsdp", "backend.stage=3"]), current())


def test_an_older_torch_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.7.1+cpu")
    with pytest.raises(MissingError, match=r"needs torch 2\.8 or newer, and this is 2\.7\.1\+cpu; run: pip install"):
        make_trainer(kit.llama(), team_kit.fsdp(2), None, lr=1e-3, total_steps=1)
