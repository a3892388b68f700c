"""Low-rank adapters (LoRA, Hu et al., arXiv 2106.09685) for models that are too big to train whole, by way of `peft`.

The adapters are merged into the weights when training ends: what a stage leaves is a plain model, which every engine
and every later stage reads.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dynaweb.loop.workspace import LoadedModel
from dynaweb.optional import library

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True, slots=True)
class AdaptedModel(LoadedModel):
    """A model with adapters in it, until `save` merges them."""

    def save(self, folder: Path) -> None:
        """Merge, and write the weights as those of any model; the model itself is a plain one from then on."""
        _merge(self.model)
        for parameter in self.model.parameters():
            parameter.requires_grad_(True)
        LoadedModel.save(self, folder)

    def write(self, folder: Path) -> None:
        """Write the weights of a merged copy in main memory; the model keeps its adapters, and a GPU holds it once."""
        replace(self, model=_copy_on_cpu(self.model)).save(folder)


def with_adapters(model: LoadedModel, rank: int, *, seed: int) -> LoadedModel:
    """The model itself for rank 0, else with adapters of that rank on every linear layer, as the only trained weights.

    The adapters are put into the given model, so it trains with them. Raises `MissingError` without the package `peft`.
    """
    if rank == 0:
        return model
    peft = library("peft", "lora", what="lora_rank")
    import torch

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        config = peft.LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=r".*_proj", lora_dropout=0.0)
        peft.inject_adapter_in_model(config, model.model)
    return AdaptedModel(model.model, model.tokenizer, model.format)


def _copy_on_cpu(model: nn.Module) -> nn.Module:
    from torch import nn

    copies: dict[int, Any] = {id(b): b.detach().cpu().clone() for b in model.buffers()}
    copies |= {id(p): nn.Parameter(p.detach().cpu().clone(), p.requires_grad) for p in model.parameters()}
    return copy.deepcopy(model, copies)


def _merge(model: Any) -> None:
    """Add each adapter to its layer, and put the layer back where it was."""
    from peft.tuners.lora import LoraLayer
    from torch.autograd.graph import increment_version

    for name, layer in [(name, module) for name, module in model.named_modules() if isinstance(module, LoraLayer)]:
        adapted: Any = layer
        adapted.merge()
        # peft writes past autograd, by whose count engines notice that weights are new.
        increment_version(adapted.get_base_layer().weight)
        parent, _, attribute = name.rpartition(".")
        setattr(model.get_submodule(parent), attribute, adapted.get_base_layer())
