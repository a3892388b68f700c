"""Weights on their way from the trainer to vLLM's processes, both ends: no disk in between.

`Parcel` puts tensors where `WeightReceiver` takes them: handles for tensors on CUDA, one block of shared memory for all
others. Names, shapes and addresses travel in the call, the same for every version of vLLM. Low-rank adapters travel as
the small files that vLLM reads them from, in memory where the system has a file system there.

The receiver runs inside vLLM, which mixes it into its worker class (`worker_extension_cls`) and calls it by name. How a
model takes weights differs: newer workers have `reload_weights`, which also redoes what loading does after the weights,
older ones only the model's `load_weights`.
"""

from __future__ import annotations

import base64
import inspect
import json
import pickle
from collections.abc import Iterator, Mapping, Sequence
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


def _handles(weights: Mapping[str, torch.Tensor]) -> str:
    from torch.multiprocessing.reductions import reduce_tensor

    handles = {name: reduce_tensor(tensor) for name, tensor in weights.items()}  # type: ignore[no-untyped-call]
    return base64.b64encode(pickle.dumps(handles)).decode()


def adapter_rank(model: nn.Module) -> int:
    """The largest rank of the adapters in a model; 0 without any."""
    return max((value.shape[0] for name, value in model.named_parameters() if ".lora_A." in name), default=0)


def write_adapter(model: nn.Module, folder: Path) -> None:
    """The adapters of a model as `peft` writes them: `adapter_config.json` and `adapter_model.safetensors`."""
    from safetensors.torch import save_file

    adapters = {
        f"base_model.model.{name.replace(_ADAPTER, '')}": value.detach().cpu().contiguous()
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


Layout = Sequence[tuple[str, str, Sequence[int], int]]
"""Of each tensor in shared memory: name, dtype, shape, and where its bytes begin."""


class WeightReceiver:
    """Methods that vLLM's worker gets; all of them are called through `collective_rpc`."""

    model_runner: Any
    dynaweb_version = 0

    def dynaweb_load_shared(self, memory: str, layout: Layout, version: int) -> int:
        """Load weights from a block of shared memory; returns the version that the worker has now."""
        # The trainer owns the block. Python before 3.13 would have this process remove it too, and warn.
        block = _attach(memory)
        try:
            self._dynaweb_load(_views(block, layout))
        finally:
            block.close()
        self.dynaweb_version = version
        return version

    def dynaweb_load_handles(self, handles: str, version: int) -> int:
        """Load weights from the trainer's tensors on the same GPU; returns the version that the worker has now."""
        self._dynaweb_load(_rebuilt(handles, torch.cuda.current_device()))
        torch.cuda.synchronize()
        self.dynaweb_version = version
        return version

    def _dynaweb_load(self, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
        runner = self.model_runner
        reload = getattr(runner, "reload_weights", None)
        whole = list(weights)

        def load(named: Iterator[tuple[str, torch.Tensor]]) -> None:
            if reload is not None and "weights_iterator" in inspect.signature(reload).parameters:
                reload(weights_iterator=named)
            else:
                runner.model.load_weights(named)

        try:
            load(iter(whole))
        except KeyError:
            # Around layers that take adapters some versions look for the names that these layers have now.
            wrapped = wrapped_layers(runner.model)
            if not wrapped:
                raise
            load((wrapped_name(name, wrapped), tensor) for name, tensor in whole)
        _renew_tied_head(runner.model)


_BASE = "base_layer"


def wrapped_layers(model: Any) -> frozenset[str]:
    """The last names of layers that vLLM has wrapped for adapters, and of those that it has packed into one of them."""
    wrapped = {
        parts[parts.index(_BASE) - 1] for name, _ in model.named_parameters() if _BASE in (parts := name.split("."))
    }
    packed: Mapping[str, Sequence[str]] = getattr(model, "packed_modules_mapping", None) or {}
    return frozenset((*wrapped, *(part for whole, parts in packed.items() if whole in wrapped for part in parts)))


def wrapped_name(name: str, wrapped: frozenset[str]) -> str:
    """The name of a weight where its layer is wrapped: `...q_proj.weight` is `...q_proj.base_layer.weight` there."""
    layer, _, own = name.rpartition(".")
    return f"{layer}.{_BASE}.{own}" if layer.rpartition(".")[2] in wrapped else name


def _renew_tied_head(model: Any) -> None:
    """An output head tied to the word embeddings: the reload passes it over, and on CPU it keeps a packed copy."""
    head, body = getattr(model, "lm_head", None), getattr(model, "model", None)
    words = getattr(body, "embed_tokens", None)
    if head is None or words is None or not getattr(model.config, "tie_word_embeddings", False):
        return
    with torch.no_grad():
        head.weight.copy_(getattr(words, "base_layer", words).weight)
    head.quant_method.process_weights_after_loading(head)


def _attach(name: str) -> shared_memory.SharedMemory:
    from multiprocessing import resource_tracker

    register = resource_tracker.register
    resource_tracker.register = lambda *args: None
    try:
        return shared_memory.SharedMemory(name=name)
    finally:
        resource_tracker.register = register


def _views(block: shared_memory.SharedMemory, layout: Layout) -> Iterator[tuple[str, torch.Tensor]]:
    for name, dtype, shape, start in layout:
        kind = getattr(torch, dtype)
        count = 1
        for size in shape:
            count *= size
        view = torch.frombuffer(block.buf, dtype=kind, count=count, offset=start)
        # A copy: what vLLM keeps must outlive the block.
        yield name, view.view(tuple(shape)).clone()


def _rebuilt(handles: str, device: int) -> Iterator[tuple[str, torch.Tensor]]:
    tensors: Mapping[str, tuple[Any, tuple[Any, ...]]] = pickle.loads(base64.b64decode(handles))
    for name, (build, arguments) in tensors.items():
        # The seventh argument is the device number as the trainer counts it; a worker may see another one.
        local = list(arguments)
        local[6] = device
        yield name, build(*local)
