"""Low-rank adapters through `peft`, in the trainer: they alone move, in any precision, packed and recomputed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import engine_kit as kit
import pytest
import torch
from trainer_kit import ADVANTAGES, WIDE, old_logps, spy_of, trainer_of, weights

from dynaweb.engines.local.engine import TransformersEngine
from dynaweb.engines.scheduler import Lockstep
from dynaweb.pipeline.artifacts import LoadedModel
from dynaweb.pipeline.fit import with_adapters
from dynaweb.trainer.logprobs import GenericScorer, scorer_for
from dynaweb.types import Prompt
from dynaweb_opt_gspo.gspo import Gspo

pytest.importorskip("peft")
pytestmark = pytest.mark.usefixtures("one_thread")
NOTHING: Any = SimpleNamespace(save_pretrained=lambda folder: None)


def adapted(dtype: torch.dtype = torch.float32) -> LoadedModel:
    """A small Llama with adapters, whose second factors are not 0."""
    return fill(with_adapters(LoadedModel(kit.llama().to(dtype), NOTHING, NOTHING), 2, seed=1))


def fill(model: LoadedModel) -> LoadedModel:
    """Adapters that say something."""
    with torch.no_grad():
        for name, parameter in model.model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.05)
    return model


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_adapters_alone_move(dtype: torch.dtype, checkpointing: bool) -> None:
    model, rows = adapted(dtype).model, kit.rows_of(2)
    before = weights(model)
    trainer = trainer_of(model, lr=1e-2, checkpointing=checkpointing)
    trainer.policy_step(rows, Gspo(WIDE), ADVANTAGES, old_logps(rows))
    moved = {name for name, value in weights(model).items() if not torch.equal(value, before[name])}
    assert moved == {name for name in before if "lora_" in name}
    assert {name.split(".")[0] for name in trainer.state_dict()["tensors"]} == {"model", "adam"}
    assert all("lora_" in name for name in trainer.state_dict()["tensors"])


def test_gradients_are_the_plain_ones_and_rows_are_packed() -> None:
    model, rows = adapted().model, kit.rows_of(2)
    scorer = scorer_for(model)
    assert isinstance(scorer, GenericScorer) and scorer.packs
    trainer = spy_of(model)
    trainer.supervised_step(rows)
    plain = adapted().model
    total = sum(len(row.response_ids) for row in rows)
    (-torch.cat([kit.naive_logprobs(plain, row) for row in rows]).sum() / total).backward()
    wanted = {name: p.grad for name, p in plain.named_parameters() if p.requires_grad}
    kit.same(trainer.seen, wanted, rtol=1e-3, atol=1e-4)  # type: ignore[arg-type]


def test_merged_adapters_say_what_the_adapters_said(tmp_path: Path) -> None:
    loaded, rows = adapted(), kit.rows_of(2)
    before = [values.tolist() for values in trainer_of(loaded.model).logprobs(rows)]
    loaded.save(tmp_path)
    assert not any("lora_" in name for name, _ in loaded.model.named_parameters())
    assert scorer_for(loaded.model).shares_prompts, "a plain model again, for the fast forward"
    after = [values.tolist() for values in trainer_of(loaded.model).logprobs(rows)]
    for one, other in zip(before, after, strict=True):
        assert other == pytest.approx(one, abs=1e-4)


@pytest.mark.parametrize("asked_between", [True, False])
def test_an_engine_follows_adapters_that_come_and_go(asked_between: bool, tmp_path: Path) -> None:
    model = LoadedModel(kit.llama(), NOTHING, NOTHING)
    early = TransformersEngine(model.model, Lockstep())
    asked = [(Prompt((1, 2, 3)), (4, 5)), (Prompt((7, 8)), (9,))]
    plain = early.choice_batch(asked)
    trained = fill(with_adapters(model, 2, seed=1))
    wanted = TransformersEngine(model.model, Lockstep()).choice_batch(asked)
    if asked_between:
        assert early.choice_batch(asked) == wanted != plain
    trained.save(tmp_path)
    for found, value in zip(early.choice_batch(asked), wanted, strict=True):
        assert found == pytest.approx(value, abs=1e-4)
