"""Which layers low-rank adapters go to (LoRA, Hu et al., arXiv 2106.09685): every linear layer of a model's body.

Example: of a GPT-2 these are `c_attn`, `c_proj` and `c_fc` of each block, of a Llama `q_proj` to `down_proj`; never the
output head, which would be a second copy of the vocabulary.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from dynaweb.engines.local.architecture import language_part
from dynaweb.errors import ConfigError

MAMBA = ("mamba", "falconh1mixer")
"""What the classes of Mamba's layers are called."""
READ_PAST = ("dt_proj", "out_proj")
"""Layers of Mamba whose weights its kernels read without calling the layer, so that an adapter would do nothing."""
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def freeze_vision(model: Any) -> None:
    """Leave everything of a model that sees as it is, but its language model and its output head."""
    language = language_part(model)
    if language is model:
        return
    head = model.get_output_embeddings()
    parts = [language, *([head] if head is not None else [])]
    trained = {id(parameter) for part in parts for parameter in part.parameters()}
    for parameter in model.parameters():
        parameter.requires_grad_(id(parameter) in trained)


def adapter_layers(model: Any, *, vision: bool = True) -> list[str]:
    """The names of all linear layers of a causal language model but its head, in the model's order.

    Without `vision` those of a model that sees, outside of its language model, are left out.

    Raises `ConfigError` for a model whose experts are one tensor, which adapters do not reach, so that most of its
    weights would stay as they are unnoticed; and for one without any linear layer.
    """
    from transformers.pytorch_utils import Conv1D

    head = model.get_output_embeddings()
    within = {id(module) for module in (model if vision else language_part(model)).modules()}
    fused = [
        f"{name}.{own}"
        for name, module in model.named_modules()
        if id(module) in within and not isinstance(module, _CONVOLUTIONS)
        for own, parameter in module.named_parameters(recurse=False)
        if parameter.dim() > 2 and parameter.numel() > 4 * max(parameter.shape)
    ]
    if fused:
        raise ConfigError(
            f"low-rank adapters do not reach the experts of this model, which are one tensor each ({fused[0]} and "
            f"{len(fused) - 1} more); set lora_rank = 0 and train all weights, or choose a model with linear layers"
        )
    past = {
        f"{name}.{own}"
        for name, module in model.named_modules()
        if any(kind in type(module).__name__.lower() for kind in MAMBA)
        for own in READ_PAST
    }
    layers = [
        name
        for name, module in model.named_modules()
        if id(module) in within and isinstance(module, nn.Linear | Conv1D) and module is not head and name not in past
    ]
    if not layers:
        raise ConfigError("this model has no linear layer that adapters could go to; set lora_rank = 0")
    return layers


def check_adapters(source: str, *, sees: bool = False, vision: bool = False) -> None:
    """Raise what `adapter_layers` raises for the model of a folder or a name, without reading its weights.

    `sees`: it is loaded with its vision.
    """
    import torch
    from transformers import AutoConfig

    from dynaweb.trainer.models import NATIVE, kind_of, without_code

    build: Any = kind_of(source, vision=sees).from_config
    with torch.device("meta"), without_code(source):
        adapter_layers(build(AutoConfig.from_pretrained(source, **NATIVE), **NATIVE), vision=vision)
