"""The trainer that a recipe asks for: of one process, of several, or DeepSpeed's."""

from __future__ import annotations

import os
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

    Raises `MissingError` for `deepspeed` without the package.
    """
    if team is None and backend.name == "torch":
        return TorchTrainer(model, critic=critic, **named)
    if backend.name == "deepspeed":
        from dynaweb.trainer.distributed.deepspeed import import_deepspeed

        import_deepspeed()
    from dynaweb.trainer.distributed.team_trainer import TeamTrainer

    if team is None:
        return _alone(model, backend, critic, named)
    share_adapters(team, model)
    zero = backend.model_dump() if backend.name == "deepspeed" else None
    remote = team.make("dynaweb.trainer.choice:trainer_of", model, zero, *(critic or (None, None)), **named)
    return cast("TorchTrainer", TeamTrainer(team, remote))


def _alone(
    model: nn.Module, backend: Backend, critic: tuple[nn.Module, CriticSpec] | None, named: dict[str, Any]
) -> TorchTrainer:
    """DeepSpeed in a single process, which is a group of one."""
    import torch.distributed as dist

    from dynaweb.trainer.distributed.deepspeed import DeepSpeedTrainer, zero_settings

    if not dist.is_initialized():
        os.environ.setdefault("LOCAL_RANK", "0")
        store = torch.distributed.HashStore()  # type: ignore[attr-defined]
        dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo", store=store, rank=0, world_size=1)
    return DeepSpeedTrainer(model, zero=zero_settings(backend.model_dump()), critic=critic, **named)


@wants_team
def trainer_of(
    team: Team,
    model: nn.Module,
    zero: dict[str, Any] | None,
    critic_model: nn.Module | None,
    critic_spec: CriticSpec | None,
    **named: Any,
) -> TorchTrainer:
    """A rank's part of the trainer; the head of its critic, where there is one, starts at 0 everywhere."""
    critic = None if critic_model is None or critic_spec is None else (critic_model, critic_spec)
    if zero is None:
        return TorchTrainer(model, critic=critic, ranks=team.ranks, **named)
    from dynaweb.trainer.distributed.deepspeed import DeepSpeedTrainer, zero_settings

    return DeepSpeedTrainer(model, zero=zero_settings(zero), critic=critic, ranks=team.ranks, **named)
