"""Which weights are the best, and which of them are kept."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import engine_kit as kit
import pytest
import torch

from dynaweb.pipeline.artifacts import Artifact, LoadedModel
from dynaweb.pipeline.fit import with_adapters
from dynaweb.rl.checkpoints import BestWeights, best_of, keep_best
from dynaweb.runs import RunFolder
from dynaweb.trainer.models import load_model

MARKS = [(2, 0.25), (4, 0.5), (6, 0.5), (8, 0.25), (10, 0.75)]


@pytest.mark.parametrize(("done", "update"), [(1, None), (2, 2), (3, 2), (4, 4), (9, 4), (10, 10), (99, 10)])
def test_the_best_is_the_earliest_of_the_highest(done: int, update: int | None) -> None:
    assert best_of(MARKS, done) == update


def _saved(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("best*"))


def test_weights_are_kept_for_every_checkpoint_that_a_run_could_go_on_from(tmp_path: Path) -> None:
    for number in range(1, len(MARKS) + 1):
        model = LoadedModel(kit.llama(number), None, None)  # type: ignore[arg-type]
        BestWeights(tmp_path, MARKS[:number]).keep_if_best(model)
    assert _saved(tmp_path) == ["best-00000002", "best-00000004", "best-00000010"]
    BestWeights(tmp_path, MARKS).prune(tmp_path, {8, 10})
    assert _saved(tmp_path) == ["best-00000004", "best-00000010"]
    BestWeights(tmp_path, MARKS[:-1]).finish(tmp_path / "cut", 8)
    BestWeights(tmp_path, MARKS).finish(tmp_path / "whole", 10)
    for name, seed, mark in (
        ("cut", 2, {"updates": 4, "success": 0.5}),
        ("whole", 5, {"updates": 10, "success": 0.75}),
    ):
        assert json.loads((tmp_path / name / "best.json").read_text()) == mark
        found = load_model(tmp_path / name / "best" / "model")
        assert torch.equal(found.model.norm.weight, kit.llama(seed).model.norm.weight)
    BestWeights(tmp_path, MARKS).prune(tmp_path, {10})
    assert _saved(tmp_path) == ["best-00000010"]


def test_what_is_no_number_is_never_the_best(tmp_path: Path) -> None:
    """A validation in which nothing could be graded."""
    marks = [(2, math.nan), (4, 0.5), (6, math.inf), (8, 0.25)]
    assert [best_of(marks, done) for done in (2, 4, 6, 8)] == [None, 4, 4, 4]
    BestWeights(tmp_path, marks[:1]).keep_if_best(LoadedModel(kit.llama(), None, None))  # type: ignore[arg-type]
    assert _saved(tmp_path) == []


@pytest.mark.parametrize("half", [".model.x1y2", "model.old"])
def test_what_a_kill_left_half_written_is_not_taken_for_weights(tmp_path: Path, half: str) -> None:
    torn = tmp_path / "best-00000002" / half / "model.safetensors"
    torn.parent.mkdir(parents=True)
    torn.write_bytes(b"torn")
    best = BestWeights(tmp_path, [(2, 0.5)])
    best.keep_if_best(LoadedModel(kit.llama(7), None, None))  # type: ignore[arg-type]
    torn.parent.mkdir(exist_ok=True)
    torn.write_bytes(b"torn by a kill that followed")
    best.finish(tmp_path / "stage", 2)
    run = cast("RunFolder", SimpleNamespace(checkpoints=tmp_path / "run"))
    keep_best(run, Artifact("k", tmp_path / "stage"), "policy")
    found = load_model(tmp_path / "run" / "policy-best")
    assert torch.equal(found.model.norm.weight, kit.llama(7).model.norm.weight)
    assert {path.name for path in (tmp_path / "stage").rglob("*") if path.is_dir()} == {"best", "model"}


def test_without_validations_there_is_no_best(tmp_path: Path) -> None:
    BestWeights(tmp_path, []).finish(tmp_path / "stage", 5)
    BestWeights(tmp_path, []).prune(tmp_path, {5})
    assert list(tmp_path.iterdir()) == []


def test_weights_with_adapters_are_merged_in_a_copy(tmp_path: Path) -> None:
    pytest.importorskip("peft")
    adapted = with_adapters(LoadedModel(kit.llama(), None, None), 2, seed=1)  # type: ignore[arg-type]
    with torch.no_grad():
        for name, parameter in adapted.model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0, 0.1)
    before = {name: parameter.clone() for name, parameter in adapted.model.named_parameters()}
    ids = torch.tensor([[3, 5, 7]])
    wanted = adapted.model(ids).logits
    BestWeights(tmp_path, [(1, 0.5)]).keep_if_best(adapted)
    assert torch.allclose(load_model(tmp_path / "best-00000001" / "model")(ids).logits, wanted, atol=1e-5)
    after = dict(adapted.model.named_parameters())
    assert after.keys() == before.keys() and all(torch.equal(after[name], before[name]) for name in before)
    assert not after["model.layers.0.self_attn.q_proj.base_layer.weight"].requires_grad
