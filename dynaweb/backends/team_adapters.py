"""Low-rank adapters on all ranks.

Rank 0 alone puts them into its model. What ranks then make of theirs (a share of the engine, a trainer) is chosen by
the layers that it has at that moment, so the adapters are shared before anything is made.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from dynaweb.backends.team import Team, wants_team


def share_adapters(team: Team, model: nn.Module) -> None:
    """Low-rank adapters that rank 0 has put into its model, into the models of the others; again, where they were."""
    layers: dict[str, Any] = {name: m for name, m in model.named_modules() if hasattr(m, "lora_A")}
    if not layers:
        return
    one = next(iter(layers.values()))
    rank, alpha = next(iter(one.r.values())), int(next(iter(one.lora_alpha.values())))
    tensors = {name: p.detach().cpu() for name, p in model.named_parameters() if ".lora_" in name}
    learns = [name for name, p in model.named_parameters() if p.requires_grad]
    team.apply("dynaweb.backends.team_adapters:adopt_adapters", model, rank, alpha, list(layers), tensors, learns)


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
