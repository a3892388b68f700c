"""What runs inside vLLM's own processes: takes new weights from memory that the trainer shares with them.

vLLM mixes `WeightReceiver` into its worker class (`worker_extension_cls`) and calls it by name. The transport is the
same for every version of vLLM: names, shapes and places travel in the call, the numbers through shared memory, on CUDA
as handles of the trainer's own tensors. How a model takes them differs: newer workers have `reload_weights`, which also
redoes what loading does after the weights, older ones only the model's `load_weights`.
"""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing import shared_memory
from typing import Any

import torch

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

    def dynaweb_load_handles(self, handles: bytes, version: int) -> int:
        """Load weights from the trainer's tensors on the same GPU; returns the version that the worker has now."""
        self._dynaweb_load(_rebuilt(handles, torch.cuda.current_device()))
        torch.cuda.synchronize()
        self.dynaweb_version = version
        return version

    def _dynaweb_load(self, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
        runner = self.model_runner
        reload = getattr(runner, "reload_weights", None)
        if reload is not None and "weights_iterator" in inspect.signature(reload).parameters:
            reload(weights_iterator=weights)
        else:
            runner.model.load_weights(weights)
        _renew_tied_head(runner.model)


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


def _rebuilt(handles: bytes, device: int) -> Iterator[tuple[str, torch.Tensor]]:
    given: Mapping[str, tuple[Any, tuple[Any, ...]]] = pickle.loads(handles)
    for name, (build, arguments) in given.items():
        # The seventh argument is the device number as the trainer counts it; a worker may see another one.
        local = list(arguments)
        local[6] = device
        yield name, build(*local)
