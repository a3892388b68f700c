"""The trainer that a recipe asks for: of one process, of several, or one whose weights are sharded over ranks."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn

from dynaweb.protocols import CriticSpec
from dynaweb.trainer.distributed.team import Team, share_adapters, wants_team
from dynaweb.trainer.torch_trainer import TorchTrainer

if TYPE_CHECKING:
    from dynaweb.config.sections import Backend


def make_trainer(
    model: nn.Module,
    backend: Backend,
    team: Team | None,
    *,
    critic: tuple[nn.Module, CriticSpec] | None = None,
    **named: Any,
) -> TorchTrainer:
    """A trainer of `model`; `critic` and `named` as `TorchTrainer` takes them. A team must know the models.

    Raises `MissingError` for a backend whose package is not there.
    """
    require(backend.name)
    if team is None:
        if backend.name != "torch":
            _group_of_one()
        return _kind(backend.model_dump())(model, critic=critic, **named)
    from dynaweb.trainer.distributed.team_trainer import TeamTrainer

    share_adapters(team, model)
    section = backend.model_dump()
    remote = team.make("dynaweb.trainer.choice:trainer_of", model, section, *(critic or (None, None)), **named)
    return cast("TorchTrainer", TeamTrainer(team, remote))


def require(name: str) -> None:
    """Raise `MissingError` where what a backend needs is not installed."""
    if name == "deepspeed":
        from dynaweb.trainer.distributed.deepspeed import import_deepspeed

        import_deepspeed()
    if name == "fsdp":
        from dynaweb.trainer.distributed.fsdp import check_fsdp

        check_fsdp()


def _kind(section: Mapping[str, Any]) -> Callable[..., TorchTrainer]:
    """What makes the trainer that the section `backend` asks for."""
    if section["name"] == "deepspeed":
        from dynaweb.trainer.distributed.deepspeed import DeepSpeedTrainer, zero_settings

        return partial(DeepSpeedTrainer, zero=zero_settings(section))
    if section["name"] == "fsdp":
        from dynaweb.trainer.distributed.fsdp import FsdpTrainer

        return partial(FsdpTrainer, stage=section["stage"])
    return TorchTrainer


def _group_of_one() -> None:
    """The process group that sharded weights need, of a single process."""
    import torch.distributed as dist

    if not dist.is_initialized():
        os.environ.setdefault("LOCAL_RANK", "0")
        store = torch.distributed.HashStore()  # type: ignore[attr-defined]
        dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo", store=store, rank=0, world_size=1)


@wants_team
def trainer_of(
    team: Team,
    model: nn.Module,
    section: dict[str, Any],
    critic_model: nn.Module | None,
    critic_spec: CriticSpec | None,
    **named: Any,
) -> TorchTrainer:
    """A rank's part of the trainer; the head of its critic, where there is one, starts at 0 everywhere."""
    critic = None if critic_model is None or critic_spec is None else (critic_model, critic_spec)
    return _kind(section)(model, critic=critic, ranks=team.ranks, **named)
