"""Weights on their way from the trainer to vLLM, by vLLM's own ways.

Weights on a GPU go as handles of the trainer's tensors, through vLLM's transfer for RL (backend `ipc`); the pickle is
the one that vLLM's interface asks for. All others go as a checkpoint of safetensors in memory, which vLLM reads with
`reload_weights`. Low-rank adapters are small files, as `peft` writes them.
"""

from __future__ import annotations

import base64
import json
import pickle
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

_ADAPTER = ".default"
BASE = "base_layer"
TOWER, LEVEL = "vision_tower", "vision_model"


def plain_weights(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Name and value of every weight as a Hugging Face checkpoint has them: tied ones once, adapters left out."""
    seen: set[int] = set()
    tied = getattr(model, "_tied_weights_keys", None) or {}
    for name, parameter in model.named_parameters(remove_duplicate=True):
        if ".lora_" in name or id(parameter) in seen or (name in tied and _ties(model)):
            continue
        seen.add(id(parameter))
        yield name.replace(".base_layer.", "."), parameter.detach()


def _ties(model: nn.Module) -> bool:
    return bool(getattr(getattr(model, "config", None), "tie_word_embeddings", False))


def wrapped_name(name: str, wrapped: Collection[str]) -> str:
    """The name of a weight where its layer is wrapped: `...q_proj.weight` is `...q_proj.base_layer.weight` there."""
    layer, _, own = name.rpartition(".")
    return f"{layer}.{BASE}.{own}" if layer.rpartition(".")[2] in wrapped else name


def nested_name(name: str) -> str:
    """The name of a weight where the tower that sees has a level more: transformers 5 dropped Siglip's `vision_model`,
    so that `...vision_tower.encoder...` is `...vision_tower.vision_model.encoder...` in vLLM."""
    before, tower, own = name.partition(f"{TOWER}.")
    return f"{before}{tower}{LEVEL}.{own}" if tower and not own.startswith(f"{LEVEL}.") else name


def write_weights(weights: Iterable[tuple[str, torch.Tensor]], folder: Path) -> None:
    """A checkpoint of one file."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True)
    save_file({name: tensor.cpu().contiguous() for name, tensor in weights}, folder / "model.safetensors")


def handles(weights: Iterable[tuple[str, torch.Tensor]]) -> dict[str, Any]:
    """An update of vLLM's transfer backend `ipc`, valid as long as the tensors, all on one GPU, keep their memory.

    Source: `IPCWeightTransferUpdateInfo` of `vllm.distributed.weight_transfer.ipc_engine`.
    """
    from torch.multiprocessing.reductions import reduce_tensor

    listed = list(weights)
    uuid = str(torch.cuda.get_device_properties(listed[0][1].device).uuid)
    handed = [{uuid: reduce_tensor(tensor)[1]} for _, tensor in listed]  # type: ignore[no-untyped-call]
    return {
        "names": [name for name, _ in listed],
        "dtype_names": [str(tensor.dtype).removeprefix("torch.") for _, tensor in listed],
        "shapes": [list(tensor.shape) for _, tensor in listed],
        "ipc_handles_pickled": base64.b64encode(pickle.dumps(handed)).decode(),
    }


def adapter_rank(model: nn.Module) -> int:
    """The largest rank of the adapters in a model; 0 without any."""
    return max((value.shape[0] for name, value in model.named_parameters() if ".lora_A." in name), default=0)


def write_adapter(model: nn.Module, folder: Path, named: Callable[[str], str] = str) -> None:
    """The adapters of a model as `peft` writes them: `adapter_config.json` and `adapter_model.safetensors`.

    `named` gives the name that a weight has for the reader.
    """
    from safetensors.torch import save_file

    adapters = {
        f"base_model.model.{named(name.replace(_ADAPTER, ''))}": value.detach().cpu().contiguous()
        for name, value in model.named_parameters()
        if ".lora_A." in name or ".lora_B." in name
    }
    layers = [module for module in model.modules() if hasattr(module, "lora_A") and hasattr(module, "scaling")]
    rank = adapter_rank(model)
    scaling = float(next(iter(layers[0].scaling.values())))  # type: ignore[operator]
    modules = sorted({name.split(".lora_")[0].rpartition(".")[2] for name in adapters})
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": rank,
        "lora_alpha": scaling * rank,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": modules,
    }
    folder.mkdir(parents=True, exist_ok=True)
    save_file(adapters, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
