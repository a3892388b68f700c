"""vLLM as an engine: continuous batching in processes of its own, with the weights that the trainer has now.

The engine starts with random weights and gets the model's own by the way that every later update takes too, so a way
that does not work cannot pass unnoticed: after every push a probe compares log-probabilities of trainer and vLLM on
fixed tokens, and the run stops when they differ. It stands against weights that never arrive, arrive half, or are not
used (an adapter under an old name, a stale cache): faults that look like slow learning for weeks. Cached prefixes are
dropped with the weights that made them.

A run's model changes between two moments only: `weights_changed` marks it, and the next request waits for the push.
`rest` frees GPU memory while the trainer works.
"""

from __future__ import annotations

import asyncio
import copy
import itertools
import logging
import os
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from dynaweb.engines.local.sampling import barring, cut, need_decoder, unwritten
from dynaweb.engines.vllm.weights import Parcel, adapter_rank, plain_weights, temporary_folder, write_adapter
from dynaweb.errors import ConfigError, EngineError, MissingError
from dynaweb.protocols import BaseEngine, Completion, EngineContext, GenerateRequest, text_ids
from dynaweb.types import Prompt

if TYPE_CHECKING:
    from dynaweb.engines.plugin import VllmConfig

_log = logging.getLogger("dynaweb")
WORKER = "dynaweb.engines.vllm.weights.WeightReceiver"


class VllmEngine(BaseEngine):
    """An `Engine` that follows `context.weights`. Its processes start with the first request."""

    def __init__(self, config: VllmConfig, context: EngineContext) -> None:
        self.config = config
        self.correction = config.correction
        self.mismatch: dict[str, float] = {}
        loaded = context.weights
        self.model: torch.nn.Module = loaded.model
        self._tokenizer = loaded.tokenizer
        rows = int(getattr(self.model.config, "vocab_size", 0))
        self._logit_bias = barring(unwritten(self._tokenizer, rows))
        self._rank = adapter_rank(self.model)
        self._probe: Probe | None = None
        self._engine: Any = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock: asyncio.Lock | None = None
        self._folder: Any = None
        self._adapter: Any = None
        self._stale, self._asleep = True, False
        self._version = 0
        self._numbers = itertools.count()

    @staticmethod
    def require() -> None:
        """Raise `MissingError` unless vLLM is installed; imports nothing."""
        if find_spec("vllm") is None:
            raise MissingError("the engine vllm needs the package vllm; run: pip install 'dynaweb[vllm]'")

    # The protocol

    async def generate(self, request: GenerateRequest) -> Completion:
        """Sample one completion. Raises `EngineError` for a prompt that the model cannot take."""
        self._check(request)
        need_decoder(request, getattr(self._tokenizer, "decode", None))
        from vllm import SamplingParams

        greedy = request.temperature <= 0
        params = SamplingParams(
            max_tokens=min(request.max_new_tokens, self._context - len(request.prompt)),
            temperature=0.0 if greedy else request.temperature,
            top_p=1.0 if greedy else request.top_p,
            seed=None if greedy else request.seed % 2**63,
            stop_token_ids=list(request.stop_ids),
            ignore_eos=True,
            logit_bias=self._logit_bias,
            logprobs=0,
            detokenize=False,
        )
        output = (await self._ask(request.prompt.ids, params)).outputs[0]
        tokens = tuple(output.token_ids)
        logps = tuple(step[token].logprob for step, token in zip(output.logprobs, tokens, strict=True))
        self.stats.new_tokens += len(tokens)
        done = Completion(tokens, logps, bool(tokens) and tokens[-1] in request.stop_ids)
        return cut(done, request.stop, self._tokenizer.decode) if request.stop else done

    async def choice_logprobs(self, prompt: Prompt, choices: tuple[int, ...]) -> tuple[float, ...]:
        """Natural-log probability of each token of `choices` as the next token after the prompt."""
        from vllm import SamplingParams

        ids = text_ids(prompt, "the engine vllm")
        asked: dict[str, Any] = {
            "max_tokens": 1,
            "temperature": 1.0,
            "ignore_eos": True,
            "detokenize": False,
            "seed": 0,
        }
        if hasattr(SamplingParams(), "logprob_token_ids"):
            params = SamplingParams(**asked, logprob_token_ids=list(choices))
            logprobs = (await self._ask(ids, params)).outputs[0].logprobs[0]
            return tuple(logprobs[token].logprob for token in choices)
        rows = [self.prompt_logprobs((*ids, token)) for token in choices]
        return tuple(row[-1] for row in await asyncio.gather(*rows))

    async def prompt_logprobs(self, ids: tuple[int, ...]) -> list[float]:
        """Natural-log probability of every token but the first, given those before it."""
        await self.ready()
        return await self._scored(ids)

    # Weights

    def weights_changed(self) -> None:
        """The model has new weights: they are pushed before the next request is answered."""
        super().weights_changed()
        self._stale = True

    async def ready(self) -> None:
        """Start, wake, and push the weights, as far as needed. Raises `EngineError` when the probe fails."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self.shutdown()
            self._loop, self._lock = loop, asyncio.Lock()
        assert self._lock is not None
        async with self._lock:
            if self._engine is None:
                self._start()
            if self._asleep:
                await self._engine.wake_up(tags=["weights"])
            if self._stale:
                await self._push()
            if self._asleep:
                await self._engine.wake_up(tags=["kv_cache"])
                self._asleep = False
            if self._probe is None or self._probe.version != self._version:
                await self._check_probe()

    async def rest(self) -> None:
        """Give GPU memory back until the next request; the weights are dropped, since new ones will come."""
        if self._engine is None or not self._can_sleep or self._asleep or self._loop is not asyncio.get_running_loop():
            return
        # With adapters the base weights do not come again, so they are kept in the host's memory.
        await self._engine.sleep(level=1 if self._rank else 2)
        self._asleep = True
        self._stale = True

    async def close(self) -> None:
        """End vLLM's processes. A later request starts new ones."""
        self.shutdown()

    def shutdown(self) -> None:
        """`close` without a running event loop."""
        engine, self._engine, self._loop = self._engine, None, None
        self._stale, self._asleep, self._probe = True, False, None
        self._adapter, self._version = None, 0
        if engine is not None:
            engine.shutdown()
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    # Inside

    @property
    def _can_sleep(self) -> bool:
        return self.config.sleep and torch.cuda.is_available()

    @property
    def _context(self) -> int:
        own: int = getattr(self.model.config, "max_position_embeddings", 1 << 30)
        return min(own, self.config.max_model_len or own)

    def _check(self, request: GenerateRequest) -> None:
        if request.max_new_tokens < 1:
            raise EngineError(f"max_new_tokens is {request.max_new_tokens}; it must be at least 1")
        if not request.prompt:
            raise EngineError("an empty prompt was sent to the engine; it needs at least one token")
        text_ids(request.prompt, "the engine vllm")
        if len(request.prompt) >= self._context:
            raise EngineError(
                f"a prompt of {len(request.prompt)} tokens does not fit into the context of {self._context} tokens"
                " with room for an answer; shorten the page or the history, or raise max_model_len"
            )

    def _start(self) -> None:
        args, make = _vllm()
        self._folder = temporary_folder("dynaweb-vllm-")
        config: Any = copy.copy(self.model.config)
        # Without its name vLLM takes the class of the kind, which has another output head.
        config.architectures = config.architectures or [type(self.model).__name__]
        config.save_pretrained(self._folder.name)
        arguments = self._arguments(args)
        started = time.monotonic()
        try:
            self._engine = make(args(**arguments))
        except Exception as error:
            self._folder.cleanup()
            self._folder = None
            raise EngineError(f"vLLM did not start: {type(error).__name__}: {str(error)[:500]}") from error
        _log.info("vLLM started in %.0f s", time.monotonic() - started)

    def _arguments(self, args: Any) -> dict[str, Any]:
        own = next(p.dtype for p in self.model.parameters() if p.is_floating_point())
        dtype = str(own).removeprefix("torch.") if self.config.dtype == "model" else self.config.dtype
        if self._rank and torch.cuda.is_available() and dtype == "float32":
            raise ConfigError(
                "vLLM's kernels for low-rank adapters know half precision only on a GPU; set model.dtype or the "
                "engine's dtype to bfloat16, or lora_rank = 0"
            )
        arguments: dict[str, Any] = {
            "model": self._folder.name,
            "skip_tokenizer_init": True,
            "load_format": "dummy",
            "dtype": dtype,
            "max_model_len": self._context,
            "tensor_parallel_size": self.config.tensor_parallel,
            "enforce_eager": self.config.eager,
            "enable_prefix_caching": True,
            "logprobs_mode": "processed_logprobs",
            "worker_extension_cls": WORKER,
            "disable_log_stats": True,
            "seed": 0,
        }
        if torch.cuda.is_available():
            arguments |= {"gpu_memory_utilization": self.config.memory, "enable_sleep_mode": self.config.sleep}
        if self._rank:
            arguments |= {"enable_lora": True, "max_lora_rank": max(8, self._rank), "max_loras": 1}
        if self.config.extra.get("trust_remote_code"):
            raise EngineError(
                "`extra.trust_remote_code` of the engine is refused: code that comes with a model is never run"
            )
        arguments |= self.config.extra
        known = getattr(args, "__dataclass_fields__", arguments)
        unknown = sorted(set(arguments) - set(known))
        if unknown:
            raise EngineError(f"this version of vLLM has no engine argument {unknown[0]!r}; see `extra` of the engine")
        return arguments

    async def _push(self) -> None:
        """New weights into vLLM: all of them, or only the adapters once the base is there."""
        started = time.monotonic()
        self._version += 1
        if not self._rank or self._adapter is None:
            with Parcel(dict(plain_weights(self.model)), self._version) as parcel:
                got = await self._engine.collective_rpc(parcel.method, args=parcel.args)
            if set(got) != {self._version}:
                raise EngineError(f"vLLM's workers report weights {got} after version {self._version} was pushed")
        if self._rank:
            await self._swap_adapter()
        await self._engine.reset_prefix_cache()
        self._stale = False
        self.mismatch = {"engine.push_seconds": time.monotonic() - started}

    async def _swap_adapter(self) -> None:
        """Adapters under a new name and number, then the old ones away: a cached answer of theirs fits no new name."""
        from vllm.lora.request import LoRARequest

        folder = Path(self._folder.name) / f"adapter-{self._version}"
        write_adapter(self.model, folder)
        request = LoRARequest(f"policy-{self._version}", self._version, str(folder))
        if self._adapter is not None:
            await self._engine.remove_lora(self._adapter.lora_int_id)
        await self._engine.add_lora(request)
        self._adapter = request

    async def _check_probe(self) -> None:
        if self._probe is None:
            vocabulary = self.model.get_input_embeddings().weight.shape[0]  # type: ignore[operator]
            self._probe = Probe.of(self.model, vocabulary, self._context)
        scores = [await self._scored(ids) for ids in self._probe.prompts]
        self.mismatch |= self._probe.compare(self.model, scores, self.config.probe_tolerance, self._version)

    async def _scored(self, ids: tuple[int, ...]) -> list[float]:
        from vllm import SamplingParams

        params = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0, detokenize=False)
        output = await self._run(ids, params)
        return [step[token].logprob for step, token in zip(output.prompt_logprobs[1:], ids[1:], strict=True)]

    async def _ask(self, ids: tuple[int, ...], params: Any) -> Any:
        await self.ready()
        started = time.monotonic()
        self.stats.requests += 1
        self.stats.prompt_tokens += len(ids)
        output = await self._run(ids, params)
        # Requests overlap: this is waiting added up, not work.
        self.stats.seconds += time.monotonic() - started
        return output

    async def _run(self, ids: tuple[int, ...], params: Any) -> Any:
        last = None
        name = f"dynaweb-{next(self._numbers)}"
        try:
            async for output in self._engine.generate(
                {"prompt_token_ids": list(ids)}, params, name, lora_request=self._adapter
            ):
                last = output
        except asyncio.CancelledError:
            raise
        except Exception as error:
            raise EngineError(f"vLLM failed: {type(error).__name__}: {str(error)[:500]}") from error
        assert last is not None
        return last


def _vllm() -> tuple[Any, Callable[[Any], Any]]:
    """`AsyncEngineArgs`, and what makes an engine of them. Raises `MissingError` without the package."""
    # vLLM forks or spawns; a process that already runs threads of torch must not be forked.
    os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
    # stdout is for data; vLLM would write its log there.
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    try:
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM
    except ImportError as error:
        raise MissingError(
            f"the engine vllm needs the package vllm ({error}); run: pip install 'dynaweb[vllm]'"
        ) from error
    return AsyncEngineArgs, AsyncLLM.from_engine_args


PROMPTS = 4
LENGTH = 48
"""Tokens of one prompt of the probe."""
TIMES = 8.0
"""So many times its own rounding may the engine's be: it orders the same sums otherwise, and rounds more of them."""
LEAST = {"cpu": 1e-3, "cuda": 0.02}
"""Nats that are always allowed: on CUDA, products of float32 numbers are rounded to fewer digits (TF32)."""
HALF = 0.05
"""Nats that are allowed in half precision to models too large for a copy in float32."""
LARGEST = 3_000_000_000
"""Weights of the largest model that is copied to see its own rounding."""


@dataclass(slots=True)
class Probe:
    """Token sequences that the model itself would write, the same for every version of the weights.

    Of tokens that it would never write half precision knows little, since their probabilities are tiny: a difference
    there tells of rounding, not of weights. `version` is the last one that passed; `rounding` the model's own (nats).
    """

    prompts: tuple[tuple[int, ...], ...]
    rounding: float | None = None
    version: int = 0

    @classmethod
    def of(cls, model: nn.Module, vocabulary: int, context: int) -> Probe:
        """Sequences that the model samples, each from another first token, as long as the context allows."""
        rng = random.Random(0)
        length = max(2, min(LENGTH, context - 1))
        prompts: list[tuple[int, ...]] = [(rng.randrange(vocabulary),) for _ in range(PROMPTS)]
        while len(prompts[0]) < length:
            marks = [rng.random() for _ in prompts]
            cumulative = _next_logprobs(model, prompts).double().exp().cumsum(-1)
            for i, mark in enumerate(marks):
                chosen = int(torch.searchsorted(cumulative[i], mark * float(cumulative[i, -1])))
                prompts[i] = (*prompts[i], min(chosen, vocabulary - 1))
        return cls(tuple(prompts), _own_rounding(model, prompts))

    def compare(
        self, model: nn.Module, engine: Sequence[Sequence[float]], tolerance: float, version: int
    ) -> dict[str, float]:
        """Differences per token of the engine's log-probabilities; raises `EngineError` when their mean is too large.

        `engine` has one list for each prompt, without its first token. `tolerance` 0 = by the model's own rounding.
        """
        mean, worst = _apart(model_logprobs(model, self.prompts), engine)
        allowed = tolerance or self._allowed(model)
        if not tolerance and not mean <= allowed:
            # Rounding grows with the weights, and was measured with the first ones.
            self.rounding = _own_rounding(model, self.prompts)
            allowed = self._allowed(model)
        if not mean <= allowed:
            raise EngineError(
                f"the engine does not have the trainer's weights: after push {version} log-probabilities on fixed"
                f" tokens differ by {mean:.4g} nats on average (at most {worst:.4g}; allowed {allowed:.4g}). Raise"
                " probe_tolerance only if the engine's precision explains it"
            )
        self.version = version
        return {"engine.probe_mean": mean, "engine.probe_max": worst, "engine.probe_allowed": allowed}

    def _allowed(self, model: nn.Module) -> float:
        least = LEAST[next(model.parameters()).device.type]
        return max(least, HALF if self.rounding is None else TIMES * self.rounding)


def _apart(left: Sequence[Sequence[float]], right: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Mean and largest difference of two tables of log-probabilities."""
    each = [abs(a - b) for one, two in zip(left, right, strict=True) for a, b in zip(one, two, strict=True)]
    return sum(each) / len(each), max(each)


def _own_rounding(model: nn.Module, prompts: Sequence[tuple[int, ...]]) -> float | None:
    """By how much the model's precision moves its own log-probabilities; None for one too large to be copied."""
    if next(p.dtype for p in model.parameters() if p.is_floating_point()) in (torch.float32, torch.float64):
        return 0.0
    if sum(parameter.numel() for parameter in model.parameters()) > LARGEST:
        return None
    wide = copy.deepcopy(model).float()
    return _apart(model_logprobs(model, prompts), model_logprobs(wide, prompts))[0]


def _next_logprobs(model: nn.Module, prompts: Sequence[tuple[int, ...]]) -> torch.Tensor:
    """Natural-log probabilities of the token after each of some sequences of one length, on the CPU."""
    return _logprobs(model, prompts)[:, -1].cpu()


def model_logprobs(model: nn.Module, prompts: Sequence[tuple[int, ...]]) -> list[list[float]]:
    """Natural-log probability of every token but the first, of sequences of one length, by the model's own forward."""
    logp = _logprobs(model, prompts)[:, :-1]
    ids = torch.tensor([list(prompt) for prompt in prompts], device=logp.device)
    picked: list[list[float]] = logp.gather(2, ids[:, 1:, None])[..., 0].tolist()
    return picked


def _logprobs(model: nn.Module, prompts: Sequence[tuple[int, ...]]) -> torch.Tensor:
    ids = torch.tensor([list(prompt) for prompt in prompts], device=next(model.parameters()).device)
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            return torch.log_softmax(model(input_ids=ids, use_cache=False).logits.float(), dim=-1)
    finally:
        model.train(training)
