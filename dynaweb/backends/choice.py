"""The trainer that a recipe asks for: of one process, of several, or DeepSpeed's."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn

from dynaweb.backends.team import Team, wants_team
from dynaweb.backends.torch_backend import TorchTrainer
from dynaweb.credit import CriticSpec

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
        from dynaweb.backends.zero_config import import_deepspeed

        import_deepspeed()
    from dynaweb.backends.team_trainer import TeamTrainer

    if team is None:
        return _alone(model, backend, critic, named)
    _share_adapters(team, model)
    zero = backend.model_dump() if backend.name == "deepspeed" else None
    made = team.make("dynaweb.backends.choice:trainer_of", model, zero, *(critic or (None, None)), **named)
    return cast("TorchTrainer", TeamTrainer(team, made))


def _alone(
    model: nn.Module, backend: Backend, critic: tuple[nn.Module, CriticSpec] | None, named: dict[str, Any]
) -> TorchTrainer:
    """DeepSpeed in a single process, which is a group of one."""
    import torch.distributed as dist

    from dynaweb.backends.deepspeed_backend import DeepSpeedTrainer
    from dynaweb.backends.zero_config import zero_settings

    if not dist.is_initialized():
        os.environ.setdefault("LOCAL_RANK", "0")
        store = torch.distributed.HashStore()  # type: ignore[attr-defined]
        dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo", store=store, rank=0, world_size=1)
    return DeepSpeedTrainer(model, zero=zero_settings(backend.model_dump()), critic=critic, **named)


def _share_adapters(team: Team, model: nn.Module) -> None:
    """Low-rank adapters that rank 0 has put into its model, into the models of the others."""
    layers: dict[str, Any] = {name: m for name, m in model.named_modules() if hasattr(m, "lora_A")}
    if not layers:
        return
    one = next(iter(layers.values()))
    rank, alpha = next(iter(one.r.values())), int(next(iter(one.lora_alpha.values())))
    tensors = {name: p.detach().cpu() for name, p in model.named_parameters() if ".lora_" in name}
    learns = [name for name, p in model.named_parameters() if p.requires_grad]
    team.apply("dynaweb.backends.choice:adopt_adapters", model, rank, alpha, list(layers), tensors, learns)


@wants_team
def adopt_adapters(
    team: Team,
    model: nn.Module,
    rank: int,
    alpha: int,
    layers: list[str],
    tensors: dict[str, torch.Tensor],
    learns: list[str],
) -> None:
    """Give a rank's model the adapters that rank 0 has, and the same trained parameters."""
    from peft import LoraConfig, inject_adapter_in_model

    if not any(hasattr(module, "lora_A") for module in model.modules()):
        inject_adapter_in_model(LoraConfig(r=rank, lora_alpha=alpha, target_modules=layers, lora_dropout=0.0), model)
    chosen = set(learns)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name in chosen)
            if name in tensors:
                parameter.copy_(tensors[name])


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
    from dynaweb.backends.deepspeed_backend import DeepSpeedTrainer
    from dynaweb.backends.zero_config import zero_settings

    return DeepSpeedTrainer(model, zero=zero_settings(zero), critic=critic, ranks=team.ranks, **named)
