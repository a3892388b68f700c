"""The trainer that a recipe asks for: of one process, of several, or DeepSpeed's."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, cast

from torch import nn

from dynaweb.backends.critic import Critic
from dynaweb.backends.team import Team, wants_team
from dynaweb.backends.torch_backend import TorchTrainer
from dynaweb.credit import CriticSpec

if TYPE_CHECKING:
    from dynaweb.config.sections import Backend


def make_trainer(
    model: nn.Module, backend: Backend, team: Team | None, *, critic: Critic | None = None, **named: Any
) -> TorchTrainer:
    """A trainer of `model`; `named` are arguments of `TorchTrainer`. With a team, `model` must be known to it.

    Raises `MissingError` for `deepspeed` without the package.
    """
    if team is None and backend.name == "torch":
        return TorchTrainer(model, critic=critic, **named)
    if backend.name == "deepspeed":
        from dynaweb.backends.deepspeed_backend import import_deepspeed

        import_deepspeed()
    from dynaweb.backends.team_trainer import TeamTrainer

    if team is None:
        return _alone(model, backend, critic, named)
    beside = None
    if critic is not None:
        schedule = critic.stepper.schedule
        beside = team.make(
            "dynaweb.backends.choice:critic_of", critic.model, critic.spec, schedule.total, schedule.warmup
        )
    zero = backend.model_dump() if backend.name == "deepspeed" else None
    made = team.make("dynaweb.backends.choice:trainer_of", model, zero, beside, **named)
    return cast("TorchTrainer", TeamTrainer(team, made))


def _alone(model: nn.Module, backend: Backend, critic: Critic | None, named: dict[str, Any]) -> TorchTrainer:
    """DeepSpeed in a single process, which is a group of one."""
    import torch.distributed as dist

    from dynaweb.backends.deepspeed_backend import DeepSpeedTrainer, zero_settings

    if not dist.is_initialized():
        import torch

        os.environ.setdefault("LOCAL_RANK", "0")
        store = torch.distributed.HashStore()  # type: ignore[attr-defined]
        dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo", store=store, rank=0, world_size=1)
    return DeepSpeedTrainer(model, zero=zero_settings(backend.model_dump()), critic=critic, **named)


@wants_team
def critic_of(team: Team, model: nn.Module, spec: CriticSpec, total: int, warmup: int) -> Critic:
    """A rank's part of the critic; its head starts at 0 everywhere."""
    return Critic(model, spec, total_steps=total, warmup=warmup, ranks=team.ranks)


@wants_team
def trainer_of(
    team: Team, model: nn.Module, zero: dict[str, Any] | None, critic: Critic | None, **named: Any
) -> TorchTrainer:
    """A rank's part of the trainer."""
    if zero is None:
        return TorchTrainer(model, critic=critic, ranks=team.ranks, **named)
    from dynaweb.backends.deepspeed_backend import DeepSpeedTrainer, zero_settings

    return DeepSpeedTrainer(model, zero=zero_settings(zero), critic=critic, ranks=team.ranks, **named)
