"""Low-rank adapters (LoRA, Hu et al., arXiv 2106.09685) for models that are too big to train whole, by way of `peft`.

The adapters are merged into the weights when training ends: what a stage leaves is a plain model, which every engine
and every later stage reads.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from dynaweb.errors import MissingError
from dynaweb.loop.workspace import LoadedModel


@dataclass(frozen=True, slots=True)
class AdaptedModel(LoadedModel):
    """A model with adapters in it; `save` merges them, and `plain` is the merged model from then on."""

    plain: LoadedModel | None = None

    def save(self, folder: Path) -> None:
        """Merge, and write the weights as those of any model."""
        merged: Any = cast("Any", self.model).merge_and_unload()
        for parameter in merged.parameters():
            parameter.requires_grad_(True)
        assert self.plain is not None
        self.plain.save(folder)


def with_adapters(model: LoadedModel, rank: int, *, seed: int) -> LoadedModel:
    """The model itself for rank 0, else with adapters of that rank on every linear layer, as the only trained weights.

    Raises `MissingError` without the package `peft`.
    """
    if rank == 0:
        return model
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError as error:
        raise MissingError(
            "wm_fit.lora_rank needs the package peft, which is not installed; run: pip install 'dynaweb[lora]'"
        ) from error
    import torch

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        config = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear", lora_dropout=0.0)
        adapted: Any = get_peft_model(cast("Any", model.model), config)
    return AdaptedModel(adapted, model.tokenizer, model.format, model)
