"""FSDP2 and DeepSpeed as the torch backend's equals, alone in their group: results, unsound updates, checkpoints."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import engine_kit as kit
import pytest
import rank_kit
import torch

from dynaweb.config.sections import Backend
from dynaweb.errors import TrainingError
from dynaweb.protocols import LossInput, LossOutput
from dynaweb.trainer.choice import make_trainer
from dynaweb_opt_gspo import GspoConfig
from dynaweb_opt_gspo.gspo import Gspo
from dynaweb_opt_ppo import PpoConfig
from dynaweb_opt_ppo.ppo import Ppo

pytestmark = pytest.mark.usefixtures("one_thread", "group")
NEEDS_DEEPSPEED = pytest.mark.skipif(
    importlib.util.find_spec("deepspeed") is None, reason="needs deepspeed (scripts/nightly_engines.sh)"
)
TORCH = Backend()
FSDP = [Backend(name="fsdp", stage=stage) for stage in (1, 3)]
"""Stage 2 reduces gradients as 3 and keeps weights as 1; `test_backend_fsdp` has it too."""
OFFLOADED = [Backend(name="deepspeed", stage=stage, offload=True) for stage in (2, 3)]
ZERO = [Backend(name="deepspeed", stage=stage) for stage in (1, 2, 3)]


def pairs(*backends: tuple[Backend, ...]) -> list[Any]:
    """Parameters of a test with several backends."""
    return [
        pytest.param(
            *several,
            id=" ".join(f"{one.name}-{one.stage}{'-offload' * one.offload}" for one in several),
            marks=[NEEDS_DEEPSPEED] if any(one.name == "deepspeed" for one in several) else [],
        )
        for several in backends
    ]


def each(*backends: Backend) -> list[Any]:
    """Parameters of a test with one backend."""
    return pairs(*((one,) for one in backends))


SHARDED = pytest.mark.parametrize("backend", each(*FSDP, *ZERO))


@pytest.fixture(scope="module", autouse=True)
def group() -> Iterator[None]:
    """What DeepSpeed and FSDP2 make of this process is taken back."""
    yield
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def trainer_of(backend: Backend, optimizer: Any, *, dtype: torch.dtype = torch.float32, **changes: Any) -> Any:
    """A trainer like `rank_kit.trainer_of`, of any backend."""
    spec = optimizer.wants.critic
    critic = None if spec is None else (kit.llama(3), spec)
    given: dict[str, Any] = {"lr": 2e-3, "total_steps": 10, "micro_tokens": 40, "critic": critic}
    return make_trainer(kit.llama().to(dtype), backend, None, **(given | changes))


def weights(trainer: Any) -> dict[str, torch.Tensor]:
    """A copy of everything that a checkpoint holds."""
    return {name: value.float().clone() for name, value in trainer.state_dict()["tensors"].items()}


@SHARDED
@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("optimizer", [Gspo(GspoConfig(clip_low=0.05, clip_high=0.08)), Ppo(PpoConfig())])
def test_updates_are_those_of_the_torch_backend(backend: Backend, checkpointing: bool, optimizer: Any) -> None:
    wanted, found = trainer_of(TORCH, optimizer), trainer_of(backend, optimizer, checkpointing=checkpointing)
    for mine, theirs in zip(rank_kit.train(found, optimizer), rank_kit.train(wanted, optimizer), strict=True):
        for key in theirs.keys() - {"seconds", "padded_tokens"}:
            assert mine[key] == pytest.approx(theirs[key], rel=1e-3, abs=1e-5), key
    kit.same(weights(found), weights(wanted), rtol=1e-3, atol=2e-5)


@SHARDED
def test_rows_are_packed_where_the_torch_backend_packs_them(backend: Backend) -> None:
    counts = []
    for one in (TORCH, backend):
        trainer = make_trainer(kit.gpt2(), one, None, lr=2e-3, total_steps=10, micro_tokens=60)
        counts.append(trainer.supervised_step(kit.rows_of(2))["padded_tokens"])
    assert counts[1] == counts[0]


@pytest.mark.parametrize("backend", each(*FSDP, *ZERO, *OFFLOADED))
def test_half_precision_moves_float32_masters(backend: Backend) -> None:
    optimizer = Gspo(GspoConfig(clip_low=0.05, clip_high=0.08))
    wanted = trainer_of(TORCH, optimizer, dtype=torch.bfloat16)
    found = trainer_of(backend, optimizer, dtype=torch.bfloat16)
    before = weights(found)
    mine, theirs = rank_kit.train(found, optimizer), rank_kit.train(wanted, optimizer)
    assert [one["updated"] for one in mine] == [1.0, 1.0]
    assert mine[0]["grad_norm"] == pytest.approx(theirs[0]["grad_norm"], rel=0.1)
    after = weights(found)
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert len(moved) == len(before)
    assert any(not torch.equal(after[name], after[name].bfloat16().float()) for name in before)


class Unsound(Ppo):
    """A loss or a gradient of the policy that is not finite, or a loss of the critic, from when it is told."""

    broken = ""

    def loss(self, batch: LossInput) -> LossOutput:
        out = super().loss(batch)
        return LossOutput(out.loss * math.nan if self.broken == "policy" else out.loss, out.metrics)

    def critic_loss(self, batch: Any) -> LossOutput:
        out = super().critic_loss(batch)
        return LossOutput(out.loss * math.nan if self.broken == "critic" else out.loss, out.metrics)


@SHARDED
@pytest.mark.parametrize("broken", ["policy", "critic"])
def test_an_update_that_stops_the_training_moves_nothing(backend: Backend, broken: str) -> None:
    optimizer = Unsound(PpoConfig())
    trainer = trainer_of(backend, optimizer)
    rank_kit.train(trainer, optimizer, updates=1)
    optimizer.broken = broken
    for metrics in rank_kit.train(trainer, optimizer, updates=2):
        assert metrics["updated"] == (broken != "policy")
    before = weights(trainer)
    with pytest.raises(TrainingError, match="3 updates in a row"):
        rank_kit.train(trainer, optimizer, updates=1)
    after = weights(trainer)
    assert [name for name, value in before.items() if not torch.equal(after[name], value)] == []


@SHARDED
def test_an_unsound_update_leaves_no_trace_in_the_next(backend: Backend) -> None:
    optimizer = Unsound(PpoConfig())
    trainer, torches = trainer_of(backend, optimizer), trainer_of(TORCH, optimizer)
    for broken in ("", "policy", ""):
        optimizer.broken = broken
        for one in (trainer, torches):
            rank_kit.train(one, optimizer, updates=1)
    assert trainer.skipped == torches.skipped == 1
    kit.same(weights(trainer), weights(torches), rtol=1e-3, atol=2e-5)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        *pairs((TORCH, FSDP[0]), (FSDP[0], FSDP[1]), (FSDP[1], TORCH)),
        *pairs((TORCH, ZERO[1]), (ZERO[1], ZERO[2]), (ZERO[2], TORCH), (ZERO[0], FSDP[1]), (FSDP[1], ZERO[0])),
    ],
)
def test_each_backend_goes_on_from_the_checkpoint_of_any_other(first: Backend, second: Backend, tmp_path: Path) -> None:
    optimizer = Ppo(PpoConfig())
    whole, start, rest = (trainer_of(one, optimizer) for one in (TORCH, first, second))
    rank_kit.train(whole, optimizer, updates=2)
    rank_kit.train(start, optimizer, updates=2)
    start.save(tmp_path)
    rest.load(tmp_path)
    assert rest.steps == 2
    # What is learned from depends on the weights of the moment: the same call for both.
    rank_kit.train(whole, optimizer, updates=1)
    rank_kit.train(rest, optimizer, updates=1)
    kit.same(weights(rest), weights(whole), rtol=1e-3, atol=2e-5)


@pytest.mark.parametrize("backend", each(TORCH, *FSDP, *ZERO))
def test_a_checkpoint_from_before_the_first_update_leaves_nothing_of_what_came_after(
    backend: Backend, tmp_path: Path
) -> None:
    optimizer = Unsound(PpoConfig())
    fresh, used = trainer_of(TORCH, optimizer), trainer_of(backend, optimizer)
    fresh.save(tmp_path)
    rank_kit.train(used, optimizer, updates=2)
    optimizer.broken = "policy"
    rank_kit.train(used, optimizer, updates=2)
    used.load(tmp_path)
    for one in (fresh, used):  # a third unsound one in a row would be an error
        optimizer.broken = "policy"
        rank_kit.train(one, optimizer, updates=1)
        optimizer.broken = ""
        rank_kit.train(one, optimizer, updates=2)
    assert used.skipped == fresh.skipped == 1
    kit.same(weights(used), weights(fresh), rtol=1e-3, atol=2e-5)
