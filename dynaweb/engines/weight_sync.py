"""Weights on their way from the trainer to another process: no disk in between.

`Parcel` puts tensors where `dynaweb.engines.vllm_worker` finds them: handles for tensors on CUDA, one block of shared
memory for all others. Low-rank adapters travel as the small files that vLLM reads them from, in memory where the
system has a file system there.
"""

from __future__ import annotations

import json
import os
import pickle
import tempfile
from collections.abc import Iterator, Mapping
from multiprocessing import shared_memory
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import nn

ALIGN = 64
"""Bytes: where a tensor may begin in shared memory."""
_ADAPTER = ".default"


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


class Parcel:
    """Weights in transit; a context, on whose end the shared memory is freed. `method` and `args` are the call."""

    def __init__(self, weights: Mapping[str, torch.Tensor], version: int) -> None:
        self._block: shared_memory.SharedMemory | None = None
        self.method: str
        self.args: tuple[Any, ...]
        if all(tensor.is_cuda for tensor in weights.values()):
            self._weights = weights  # the handles are valid as long as the tensors are
            self.method, self.args = "dynaweb_load_handles", (_handles(weights), version)
        else:
            self.method, self.args = "dynaweb_load_shared", (*self._share(weights), version)

    def _share(self, weights: Mapping[str, torch.Tensor]) -> tuple[str, list[tuple[str, str, list[int], int]]]:
        layout, end = [], 0
        for name, tensor in weights.items():
            layout.append((name, str(tensor.dtype).removeprefix("torch."), list(tensor.shape), end))
            end += -(-tensor.numel() * tensor.element_size() // ALIGN) * ALIGN
        self._block = shared_memory.SharedMemory(create=True, size=max(1, end))
        for (_, _, _, start), tensor in zip(layout, weights.values(), strict=True):
            there = torch.frombuffer(self._block.buf, dtype=tensor.dtype, count=tensor.numel(), offset=start)
            there.copy_(tensor.reshape(-1))
        return self._block.name, layout

    def __enter__(self) -> Parcel:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._block is not None:
            self._block.close()
            self._block.unlink()


def _handles(weights: Mapping[str, torch.Tensor]) -> bytes:
    from torch.multiprocessing.reductions import reduce_tensor

    return pickle.dumps({name: reduce_tensor(tensor) for name, tensor in weights.items()})  # type: ignore[no-untyped-call]


def adapter_rank(model: nn.Module) -> int:
    """The largest rank of the adapters in a model; 0 without any."""
    return max((value.shape[0] for name, value in model.named_parameters() if ".lora_A." in name), default=0)


def write_adapter(model: nn.Module, folder: Path) -> None:
    """The adapters of a model as `peft` writes them: `adapter_config.json` and `adapter_model.safetensors`."""
    from safetensors.torch import save_file

    found = {
        f"base_model.model.{name.replace(_ADAPTER, '')}": value.detach().cpu().contiguous()
        for name, value in model.named_parameters()
        if ".lora_A." in name or ".lora_B." in name
    }
    layers = [module for module in model.modules() if hasattr(module, "lora_A") and hasattr(module, "scaling")]
    rank = adapter_rank(model)
    scaling = float(next(iter(layers[0].scaling.values())))  # type: ignore[operator]
    modules = sorted({name.split(".lora_")[0].rpartition(".")[2] for name in found})
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
    save_file(found, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")


def memory_folder() -> str | None:
    """A folder that lies in memory; None (the usual temporary place) where the system has none."""
    shared = "/dev/shm"
    return shared if os.path.isdir(shared) and os.access(shared, os.W_OK) else None


def temporary_folder(prefix: str) -> tempfile.TemporaryDirectory[str]:
    """A folder that is removed with its object, in memory where possible."""
    return tempfile.TemporaryDirectory(prefix=prefix, dir=memory_folder())
