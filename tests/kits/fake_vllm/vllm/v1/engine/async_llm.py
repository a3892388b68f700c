"""The engine: a model of transformers with random weights until others are loaded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from functools import cached_property
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from fake_pictures import Remembered, read

from vllm import SamplingParams
from vllm.engine.arg_utils import AsyncEngineArgs

if TYPE_CHECKING:
    import torch


class AsyncLLM:
    """The calls that dynaweb makes."""

    def __init__(self, args: AsyncEngineArgs) -> None:
        print("INFO of the stand-in on stdout", flush=True)
        os.write(1, b"INFO of a library in C on stdout\n")
        self._worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        # Who tests kills reads the numbers of the processes here.
        if log := os.environ.get("FAKE_VLLM_LOG"):
            with Path(log).open("a", encoding="utf-8") as file:
                file.write(f"{os.getpid()} {self._worker.pid}\n")
        start = os.environ.get("FAKE_VLLM_START", "0")
        if start == "fail":
            print("RuntimeError: the stand-in was told to fail", file=sys.stderr, flush=True)
            raise RuntimeError("Engine core initialization failed. See root cause above.")
        time.sleep(float(start))
        self._args, self._load_format = args, args.load_format
        self._adapters: dict[int, Any] = {}
        self._asleep: set[str] = set()
        self._remembered = Remembered()
        self._sees = "vision_config" in json.loads((Path(args.model) / "config.json").read_text() or "{}")
        self.vllm_config = SimpleNamespace(model_config=SimpleNamespace(is_multimodal_model=self._sees))

    @classmethod
    def from_engine_args(cls, args: AsyncEngineArgs) -> AsyncLLM:
        """An engine."""
        return cls(args)

    async def generate(
        self, prompt: dict[str, Any], params: SamplingParams, name: str, lora_request: Any = None
    ) -> AsyncIterator[Any]:
        """The last output of a request."""
        import torch

        assert not self._asleep, f"a request while {self._asleep} sleeps"
        images = prompt.get("multi_modal_data", {}).get("image", [])
        ids, tokens, steps = list(prompt["prompt_token_ids"]), list[int](), list[Any]()
        seen: dict[str, Any] = {}
        if images:
            assert not self._args.skip_tokenizer_init, "no processor without a tokenizer"
            ids, seen = read(self._processor, ids, images, other=bool(os.environ.get("FAKE_VLLM_OTHER")))
        scored = None
        if params.prompt_logprobs is not None:
            table = torch.log_softmax(self._logits(ids, lora_request, images, seen).float(), -1)
            scored = [None, *({token: _logprob(table[i, token])} for i, token in enumerate(ids[1:]))]
        random = torch.Generator().manual_seed(params.seed or 0)
        while len(tokens) < params.max_tokens:
            logits = self._logits([*ids, *tokens], lora_request, images, seen)[-1].float()
            for number, bias in (params.logit_bias or {}).items():
                logits[number] += bias
            logp = torch.log_softmax(logits / (params.temperature or 1.0), -1)
            token = int(torch.multinomial(logp.exp(), 1, generator=random) if params.temperature else logp.argmax())
            tokens.append(token)
            steps.append({token: _logprob(logp[token])})
            if token in params.stop_token_ids:
                break
        outputs = [SimpleNamespace(token_ids=tokens, logprobs=steps)]
        yield SimpleNamespace(prompt_token_ids=ids, prompt_logprobs=scored, outputs=outputs)

    @cached_property
    def _model(self) -> Any:
        import torch  # not at once: a test that ends a start has no model
        from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

        torch.manual_seed(0)
        config = AutoConfig.from_pretrained(self._args.model)
        kind: Any = AutoModelForImageTextToText if self._sees else AutoModelForCausalLM
        model = kind.from_config(config, dtype=getattr(torch, self._args.dtype)).eval()
        model.load_weights = self._load
        model.lm_head.quant_method = SimpleNamespace(process_weights_after_loading=lambda layer: None)
        return model

    @cached_property
    def _processor(self) -> Any:
        from transformers import AutoProcessor

        return AutoProcessor.from_pretrained(self._args.model)

    @cached_property
    def _extension(self) -> Any:
        module, _, name = self._args.worker_extension_cls.rpartition(".")
        extension = getattr(import_module(module), name)()
        extension.model_runner = SimpleNamespace(model=self._model)
        return extension

    async def start_weight_update(self) -> None:
        """The tests run without a GPU."""
        raise NotImplementedError

    async def collective_rpc(
        self, method: str, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> list[Any]:
        """Call the one worker."""
        worker = self if method in ("update_config", "reload_weights") else self._extension
        return [getattr(worker, method)(*args, **(kwargs or {}))]

    def update_config(self, overrides: dict[str, dict[str, str]]) -> None:
        """How weights are read from now on."""
        self._load_format = overrides["load_config"]["load_format"]

    def reload_weights(self, weights_path: str) -> None:
        """Read a checkpoint, if that is what was said."""
        from safetensors.torch import load_file

        assert self._load_format == "safetensors" and "weights" not in self._asleep
        self._model.load_weights(load_file(Path(weights_path) / "model.safetensors").items())

    async def reset_prefix_cache(self) -> None:
        """Nothing is cached."""

    async def reset_encoder_cache(self) -> None:
        """Look at pictures again."""
        self._remembered.forget()

    def shutdown(self) -> None:
        """End the process that works."""
        self._worker.terminate()
        self._worker.wait()

    async def sleep(self, level: int) -> None:
        """Forget the weights at level 2; a request that comes now is a mistake."""
        import torch

        assert not self._asleep, "it sleeps already"
        self._asleep = {"weights", "kv_cache"}
        if level == 2:
            with torch.no_grad():
                for parameter in self._model.parameters():
                    parameter.zero_()

    async def wake_up(self, tags: list[str]) -> None:
        """Take memory again."""
        self._asleep -= set(tags)

    async def add_lora(self, request: Any) -> None:
        """Read adapters as `peft` writes them."""
        from safetensors.torch import load_file

        folder = Path(request.lora_path)
        config = json.loads((folder / "adapter_config.json").read_text())
        adapters = load_file(folder / "adapter_model.safetensors")
        self._adapters[request.lora_int_id] = config["lora_alpha"] / config["r"], adapters

    async def remove_lora(self, number: int) -> None:
        """Forget them."""
        del self._adapters[number]

    def _logits(self, ids: list[int], adapter: Any, images: list[Any], seen: dict[str, Any]) -> torch.Tensor:
        import torch

        weights = dict(self._model.named_parameters())
        if images:
            weights = self._remembered.weights(images, weights)
        if adapter is not None:
            scaling, matrices = self._adapters[adapter.lora_int_id]
            for name in [name for name in matrices if ".lora_A." in name]:
                change = scaling * matrices[name.replace("lora_A", "lora_B")] @ matrices[name]
                own = name.removeprefix("base_model.model.").replace(".lora_A.", ".")
                weights[own] = weights[own] + change
        with torch.no_grad():
            out = torch.func.functional_call(
                self._model, weights, (), {"input_ids": torch.tensor([ids]), "use_cache": False, **seen}
            )
            return out.logits[0]

    def _load(self, weights: Any) -> None:
        import torch

        own = dict(self._model.named_parameters())
        with torch.no_grad():
            for name, value in weights:
                own[name].copy_(value)


if os.environ.get("FAKE_VLLM_OLD"):
    del AsyncLLM.start_weight_update


def _logprob(value: torch.Tensor) -> Any:
    return SimpleNamespace(logprob=float(value))
