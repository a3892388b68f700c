"""What vLLM's workers are asked besides vLLM's own calls, where its versions differ: mixed into its worker class."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

import torch

from dynaweb.engines.vllm.weights import BASE, LEVEL, TOWER


def _import_transfer() -> None:
    """vLLM 0.24 imports Ray for its transfer between tensors of one GPU, whose requirement it is not."""
    try:
        import vllm.distributed.weight_transfer.ipc_engine
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        sys.modules["ray"] = ModuleType("ray")
        try:
            import vllm.distributed.weight_transfer.ipc_engine  # noqa: F401
        finally:
            del sys.modules["ray"]


def _warm_what_is_asked() -> None:
    """Compile the sampler's kernels for requests of a run, not for all that vLLM can sample.

    A start of vLLM runs the sampler with every setting there is, and Triton compiles a kernel for each, where no folder
    of kernels is kept. vLLM's pull request 55146 measured a start of 126 s with that and of 36 s without. What is asked
    for later all the same is compiled then.
    """
    from vllm import SamplingParams

    if hasattr(SamplingParams, "for_sampler_warmup"):
        asked = {"temperature": 0.9, "seed": 0, "logprobs": 0, "prompt_logprobs": 0, "logit_bias": {0: float("-inf")}}
        SamplingParams.for_sampler_warmup = staticmethod(lambda: SamplingParams(**asked))


if torch.cuda.is_available():
    _import_transfer()
    _warm_what_is_asked()


class WorkerExtension:
    """Methods that vLLM's worker gets (`worker_extension_cls`); all of them are called by name."""

    model_runner: Any
    update_config: Callable[..., None]
    reload_weights: Callable[..., None]

    def dynaweb_wrapped(self) -> list[str]:
        """The layers whose weights this version of vLLM takes under the names that adapters have changed."""
        try:
            from vllm.lora.layers import BaseLayerWithLoRA
        except ImportError:
            return []
        # Since it wraps their loading too, the names of the checkpoint are the right ones.
        return [] if "load_weights" in vars(BaseLayerWithLoRA) else sorted(wrapped_layers(self.model_runner.model))

    def dynaweb_nested(self) -> bool:
        """Whether the tower that sees has a level that transformers dropped; see `weights.nested_name`."""
        return any(name.endswith(f"{TOWER}.{LEVEL}") for name, _ in self.model_runner.model.named_modules())

    def dynaweb_load(self, folder: str) -> None:
        """Load the checkpoint in a folder, whatever vLLM was started with."""
        self.update_config({"load_config": {"load_format": "safetensors"}})
        self.reload_weights(weights_path=folder)

    def dynaweb_renew_head(self) -> None:
        """An output head tied to the word embeddings: loading passes it over, and on a CPU it keeps a packed copy."""
        model = self.model_runner.model
        # Where a model sees, they lie within its language model, or one of them does.
        parts = {
            name.rpartition(".")[2]: part for name, part in reversed([*model.named_modules(remove_duplicate=False)])
        }
        head, words = parts.get("lm_head"), parts.get("embed_tokens")
        if head is None or words is None or not getattr(model.config, "tie_word_embeddings", False):
            return
        with torch.no_grad():
            head.weight.copy_(getattr(words, BASE, words).weight)
        head.quant_method.process_weights_after_loading(head)


def wrapped_layers(model: Any) -> frozenset[str]:
    """The last names of layers that vLLM has wrapped for adapters, and of those that it has packed into one of them."""
    wrapped = {
        parts[parts.index(BASE) - 1] for name, _ in model.named_parameters() if BASE in (parts := name.split("."))
    }
    packed: Mapping[str, Sequence[str]] = getattr(model, "packed_modules_mapping", None) or {}
    return frozenset((*wrapped, *(part for whole, parts in packed.items() if whole in wrapped for part in parts)))
