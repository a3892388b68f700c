"""vLLM as an engine: continuous batching in processes of its own, with the weights that the trainer has now.

vLLM starts with random weights and gets a model's own by the way that every later update takes too, so a way that does
not work cannot pass unnoticed: after every push a probe (`dynaweb.engines.vllm.probe`) compares log-probabilities of
trainer and vLLM on fixed tokens, and the run stops when they differ. Cached prefixes are dropped with the weights that
made them.

A run starts vLLM once and keeps it from stage to stage (`dynaweb.engines.vllm.shared`): an engine here is one model's
right to it. A model changes between two moments only: `weights_changed` marks it, and the next request waits for the
push. `rest` frees GPU memory while the trainer works; a `detach`ed engine goes on meanwhile, from a copy of the model.
"""

from __future__ import annotations

import copy
import json
import os
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch

from dynaweb.engines.local.architecture import trains_vision
from dynaweb.engines.local.sampling import cut, need_decoder, unwritten
from dynaweb.engines.plugin import UNCOMPILED
from dynaweb.engines.vllm.pictures import carried
from dynaweb.engines.vllm.probe import REPLY, Probe, Rows
from dynaweb.engines.vllm.shared import ROOM, Layout, SharedVllm
from dynaweb.engines.vllm.weights import (
    adapter_rank,
    handles,
    nested_name,
    plain_weights,
    wrapped_name,
    write_adapter,
    write_weights,
)
from dynaweb.errors import ConfigError, EngineError, MissingError
from dynaweb.protocols import BaseEngine, Completion, EngineContext, GenerateRequest, text_ids
from dynaweb.types import Prompt

if TYPE_CHECKING:
    from dynaweb.engines.plugin import VllmConfig

WORKER = "dynaweb.engines.vllm.worker.WorkerExtension"
LIMITS = {"video": 0}
"""What no prompt has, so that vLLM keeps no room for it."""
MEMORY_BESIDE, MEMORY_APART = 0.4, 0.9
"""Share of a GPU's memory for vLLM beside the trainer, and on a GPU of its own."""
MANY, LARGE = {"max_num_seqs": 512, "max_num_batched_tokens": 16_384}, 40 << 30
"""Requests and tokens at once, on GPUs of at least so many bytes: with vLLM's own numbers (128, 2,048) dreams wait for
each other."""
TIMES, BESIDE = 3, 4 << 30
"""So many times its weights, and bytes for activations and graphs beside them, has a vLLM that keeps them for one role
alone."""
INCIDENTAL = frozenset({"_name_or_path", "transformers_version", "dtype", "torch_dtype", "use_cache"})
"""What a model's configuration says that its architecture does not depend on."""


class VllmEngine(BaseEngine):
    """An `Engine` that follows `context.weights`. vLLM starts with the first request of the run, or with `start`."""

    lasting = True

    def __init__(self, config: VllmConfig, context: EngineContext) -> None:
        self.config = config
        self.correction = config.correction
        self.mismatch: dict[str, float] = {}
        self.version = 1
        loaded = context.weights
        self.model: torch.nn.Module = loaded.model
        self._tokenizer = loaded.tokenizer
        self._vision = loaded.vision
        textless = unwritten(self._tokenizer, int(getattr(_text_config(self.model.config), "vocab_size", 0)))
        self._unwritten = [*textless, *(self._vision.unwritten if self._vision is not None else ())]
        self._rank = adapter_rank(self.model)
        self._role, self._roles = context.role, max(1, context.roles)
        self._most_rank = max(self._rank, context.adapter_rank)
        self._services = context.services
        self._shared: SharedVllm | None = None
        self._probe: Probe | None = None
        self._own: tuple[int, Rows] | None = None
        self._source: torch.nn.Module | None = None

    # The protocol

    async def generate(self, request: GenerateRequest) -> Completion:
        """Sample one completion. Raises `EngineError` for a prompt that the model cannot take."""
        self._refuse(request)
        need_decoder(request, getattr(self._tokenizer, "decode", None))
        greedy = request.temperature <= 0
        params = {
            "max_tokens": min(request.max_new_tokens, self._context - len(request.prompt)),
            "temperature": 0.0 if greedy else request.temperature,
            "top_p": 1.0 if greedy else request.top_p,
            "seed": None if greedy else request.seed % 2**63,
            "stop_token_ids": list(request.stop_ids),
            "ignore_eos": True,
        }
        reply, version = await self._answer("generate", request.prompt, params=params, unwritten=self._unwritten)
        tokens, logps = tuple(reply["tokens"]), tuple(reply["logprobs"])
        self.stats.new_tokens += len(tokens)
        done = Completion(tokens, logps, bool(tokens) and tokens[-1] in request.stop_ids, version)
        return cut(done, request.stop, self._tokenizer.decode) if request.stop else done

    async def choice_logprobs(self, prompt: Prompt, choices: tuple[int, ...]) -> tuple[float, ...]:
        """Natural-log probability of each token of `choices` as the next token after the prompt."""
        self._check_sight(prompt)
        return tuple(await self._ask("choices", prompt, tokens=list(choices)))

    async def prompt_logprobs(self, ids: tuple[int, ...]) -> list[float]:
        """Natural-log probability of every token but the first, given those before it."""
        return list(await self._ask("score", Prompt(ids)))

    async def start(self) -> None:
        """Start vLLM; the first request pushes the weights. Raises `EngineError`."""
        await self.vllm.start(self)

    async def ready(self) -> None:
        """Start, wake, and push the weights, as far as needed. Raises `EngineError` when the probe fails."""
        async with self.vllm.turn(self):
            pass

    # Weights

    def weights_changed(self) -> None:
        """The model has new weights: they are pushed before the next request is answered."""
        super().weights_changed()
        self.version += 1

    def detach(self) -> bool:
        """Push from a copy of the model from now on; not where vLLM sleeps while the trainer works.

        vLLM holds weights of its own. The copy is what they are pushed from and compared with, whenever that is:
        another role may have used vLLM while the trainer is in the middle of a step.
        """
        if self._sleep_level():
            return False
        if self._source is None:
            self._source, self.model = self.model, copy.deepcopy(self.model).requires_grad_(False)
        return True

    async def take_weights(self) -> None:
        """The copy becomes the model as it is. Requests that run end with the old weights, then the new ones are
        pushed."""
        source = self._source
        if source is None:
            self.weights_changed()
            return
        async with self.vllm.unread():
            with torch.no_grad():
                for mine, theirs in zip(self.model.parameters(), source.parameters(), strict=True):
                    mine.copy_(theirs)
            self.weights_changed()

    async def rest(self) -> None:
        """Give GPU memory back until the next request."""
        self._own = None
        if self._shared is not None:
            await self._shared.rest()

    async def close(self) -> None:
        """Leave vLLM to the other engines of the run, asleep; end it where nobody keeps it."""
        shared, self._shared = self._shared, None
        self._probe = self._own = None
        if shared is None:
            return
        if self._services is None:
            await shared.close()
            return
        shared.leave(self)
        with suppress(EngineError):  # of a vLLM that has ended, which its next user is told
            await shared.rest()

    @property
    def vllm(self) -> SharedVllm:
        """The vLLM of the run that fits this model and these settings. Raises `ConfigError` where none can."""
        if self._shared is None:
            layout = self._layout()
            if not layout.servers and find_spec("vllm") is None:
                raise MissingError("the engine vllm needs the package vllm; run: pip install 'dynaweb[vllm]'")
            config, arguments, level = self._architecture(), self._arguments(), self._sleep_level()
            processor = None if self._vision is None else self._vision.save_pretrained
            owner = "" if self._shares(layout) else self._role
            made = SharedVllm(config, arguments, level, layout, processor, owner or "shared")
            if self._services is None:
                self._shared = made
            else:
                key = json.dumps(["vllm", owner, config, arguments, level, str(layout)], sort_keys=True, default=str)
                service = self._services.setdefault(key, made)
                assert isinstance(service, SharedVllm)
                self._shared = service
        return self._shared

    # A tenant of vLLM

    async def push(self, vllm: SharedVllm, *, base: bool) -> None:
        """New weights into vLLM: all of them, or only adapters where there are some and the base is there."""
        started = time.monotonic()
        if base or not self._rank:
            await self._push_base(vllm)
        await self._swap_adapter(vllm)
        self.mismatch = {"engine.push_seconds": time.monotonic() - started, "engine.starts": float(vllm.starts)}

    async def check(self, vllm: SharedVllm) -> None:
        """Compare log-probabilities on the probe's tokens. Raises `EngineError` when they are not the trainer's."""
        if self._probe is None:
            vocabulary = self.model.get_input_embeddings().weight.shape[0]  # type: ignore[operator]
            self._probe = Probe.of(self.model, vocabulary, self._context, self._vision)
        if self._own is None or self._own[0] != self.version:
            self._own = self.version, self._probe.said(self.model)
        adapter = self._adapter(vllm)
        # One after the other: vLLM 0.32 with adapters on a CPU mixes up the rows of prompts that are scored at once.
        scores = [await vllm.each("score", ids=ids, adapter=adapter) for ids in self._probe.prompts]
        if (seeing := self._probe.seeing) is not None:
            given = {"ids": seeing.prompt.ids, "seen": carried(seeing.vision, seeing.prompt)}
            whole = await vllm.each("score", **given, adapter=adapter)
            scores.append({name: row[-REPLY:] for name, row in whole.items()})
        worst: dict[str, float] = {}
        for replica in scores[-1]:
            rows = [one[replica] for one in scores]
            try:
                gap = self._probe.compare(self.model, rows, self.config.probe_tolerance, vllm.pushes, own=self._own[1])
            except EngineError as error:
                raise EngineError(f"{replica}: {error}") if len(scores[-1]) > 1 else error from error
            worst = max(worst, gap, key=lambda one: one.get("engine.probe_mean", -1.0))
        self.mismatch |= worst

    async def recheck(self) -> None:
        """Compare trainer and vLLM now, whatever was compared before. Raises `EngineError` when they differ."""
        self._own = None
        self.vllm.doubt()
        await self.ready()

    # Inside

    @property
    def _context(self) -> int:
        own: int = getattr(_text_config(self.model.config), "max_position_embeddings", 1 << 30)
        return min(own, self.config.max_model_len or own)

    def _refuse(self, request: GenerateRequest) -> None:
        if request.max_new_tokens < 1:
            raise EngineError(f"max_new_tokens is {request.max_new_tokens}; it must be at least 1")
        if not request.prompt:
            raise EngineError("an empty prompt was sent to the engine; it needs at least one token")
        self._check_sight(request.prompt)
        if len(request.prompt) >= self._context:
            raise EngineError(
                f"a prompt of {len(request.prompt)} tokens does not fit into the context of {self._context} tokens"
                " with room for an answer; shorten the page or the history, or raise max_model_len"
            )

    def _check_sight(self, prompt: Prompt) -> None:
        if self._vision is None:
            text_ids(prompt, "the engine vllm")

    def _sleep_level(self) -> int:
        if not self.config.sleeps:
            return 0
        # The kernels of adapters have buffers that a wake without a copy would leave empty.
        return 1 if self._most_rank else 2

    def _layout(self) -> Layout:
        """Where vLLM is. Raises `ConfigError` where there are too few GPUs for its replicas."""
        if self.config.servers:
            return Layout((), self.config.servers, self.config.folder)
        if not self.config.replicas:
            return Layout(takes_handles=torch.cuda.is_available())
        return Layout(own_gpus(self.config.replicas, self.config.tensor_parallel))

    def _memory(self, layout: Layout) -> float:
        """Share of a GPU's memory for all vLLMs on it."""
        return self.config.memory or (MEMORY_APART if layout.apart else MEMORY_BESIDE)

    def _shares(self, layout: Layout) -> bool:
        """Whether the roles use one vLLM in turn."""
        if layout.servers or self._roles == 1:
            return True  # servers are there once, whoever asks
        if self.config.share != "auto":
            return self.config.share
        if not torch.cuda.is_available():
            return True
        each = torch.cuda.get_device_properties(0).total_memory * self._memory(layout) / self._roles
        return each < TIMES * self._bytes() + BESIDE

    def _bytes(self) -> float:
        """Of the weights that a GPU of one vLLM holds, in the model's precision."""
        weights = sum(value.numel() * value.element_size() for value in self.model.parameters())
        return weights / self.config.tensor_parallel

    def _architecture(self) -> dict[str, Any]:
        config: Any = self.model.config
        layout: dict[str, Any] = json.loads(config.to_json_string(use_diff=False))
        # Without its name vLLM takes the class of the kind, which has another output head.
        layout["architectures"] = config.architectures or [type(self.model).__name__]
        return {name: value for name, value in layout.items() if name not in INCIDENTAL}

    def _arguments(self) -> dict[str, Any]:
        own = next(p.dtype for p in self.model.parameters() if p.is_floating_point())
        dtype = str(own).removeprefix("torch.") if self.config.dtype == "model" else self.config.dtype
        if self._most_rank and torch.cuda.is_available() and dtype == "float32":
            raise ConfigError(
                "vLLM's kernels for low-rank adapters know half precision only on a GPU; set model.dtype or the "
                "engine's dtype to bfloat16, or lora_rank = 0"
            )
        if self.config.extra.get("trust_remote_code"):
            raise EngineError(
                "`extra.trust_remote_code` of the engine is refused: code that comes with a model is never run"
            )
        arguments: dict[str, Any] = {
            "skip_tokenizer_init": self._vision is None,
            "load_format": "dummy",
            "dtype": dtype,
            "max_model_len": self._context,
            "tensor_parallel_size": self.config.tensor_parallel,
            "enforce_eager": self.config.eager,
            **({} if self.config.compile or self.config.eager else {"compilation_config": UNCOMPILED}),
            "enable_prefix_caching": True,
            "logprobs_mode": "processed_logprobs",
            "worker_extension_cls": WORKER,
            "disable_log_stats": True,
            "seed": 0,
        }
        if torch.cuda.is_available():
            if torch.cuda.get_device_properties(0).total_memory >= LARGE:
                arguments |= MANY
            layout = self._layout()
            split = 1 if self._shares(layout) else self._roles
            part = self._memory(layout) / split
            arguments["gpu_memory_utilization"] = part
            cache = torch.cuda.get_device_properties(0).total_memory * part - self._bytes() - BESIDE
            measured = split == 1 or "gpu_memory_utilization" in self.config.extra
            if cache > self._bytes() and not measured:  # told, so that those of other roles may start at the same time
                arguments[ROOM] = int(cache)
            arguments["enable_sleep_mode"] = self.config.sleep and not layout.apart
            arguments["weight_transfer_config"] = {"backend": "nccl" if layout.apart else "ipc"}
        if self._most_rank:
            arguments |= {"enable_lora": True, "max_lora_rank": max(8, self._most_rank), "max_loras": 1}
        if self._vision is not None:
            arguments["limit_mm_per_prompt"] = LIMITS
            if self._most_rank and trains_vision(self.model):
                arguments["enable_tower_connector_lora"] = True
        return arguments | self.config.extra

    async def _push_base(self, vllm: SharedVllm) -> None:
        wrapped = await vllm.call("wrapped") if self._most_rank else []
        named = await self._names(vllm)
        weights = [
            (wrapped_name(named(name), wrapped), tensor.contiguous()) for name, tensor in plain_weights(self.model)
        ]
        on_gpu = all(tensor.is_cuda for _, tensor in weights)
        if on_gpu and vllm.layout.apart:
            vllm.transfer = "nccl"
            await self._send(vllm, weights)
            return
        # A worker on another GPU than the trainer's could not open its handles.
        if on_gpu and self.config.tensor_parallel == 1:
            vllm.transfer = "ipc"
            await vllm.call("transfer", update=handles(weights))  # valid as long as `weights` are here
            return
        vllm.transfer = "checkpoint"
        folder = vllm.folder / f"weights-{vllm.pushes}"
        try:
            write_weights(weights, folder)
            await vllm.call("load", folder=str(folder))
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    async def _names(self, vllm: SharedVllm) -> Callable[[str], str]:
        """What gives a weight of the trainer's model its name in vLLM."""
        return nested_name if self._vision is not None and await vllm.call("nested") else str

    async def _send(self, vllm: SharedVllm, weights: list[tuple[str, torch.Tensor]]) -> None:
        """Weights to the GPUs of all replicas, one replica after the other. One that dies meanwhile is left out."""
        from dynaweb.engines.vllm.nccl import NcclGroup

        for name in vllm.groups.keys() - {replica.name for replica in vllm.live}:
            await vllm.groups.pop(name).abort()  # it died in a request
        for replica in vllm.live:
            try:
                group = vllm.groups.pop(replica.name, None)  # one whose transfer fails is of no more use
                if group is None:
                    group = await NcclGroup.join(replica, weights[0][1].device)
                await group.send(weights)
                vllm.groups[replica.name] = group
            except EngineError as error:
                if not replica.dead:
                    raise
                vllm.leave_out(replica, error)

    async def _swap_adapter(self, vllm: SharedVllm) -> None:
        """Adapters under a new name and number, then the old ones away: a cached answer of theirs fits no new name."""
        old, vllm.adapter = vllm.adapter, None
        if old is not None:
            await vllm.call("remove_adapter", number=old[1])
        if self._rank:
            folder = vllm.folder / f"adapter-{vllm.pushes}"
            write_adapter(self.model, folder, await self._names(vllm))
            adapter = f"policy-{vllm.pushes}", vllm.pushes, str(folder)
            await vllm.call("add_adapter", adapter=adapter)
            vllm.adapter = adapter

    def _adapter(self, vllm: SharedVllm) -> tuple[str, int, str] | None:
        return vllm.adapter if self._rank else None

    async def _ask(self, call: str, prompt: Prompt, **arguments: Any) -> Any:
        return (await self._answer(call, prompt, **arguments))[0]

    async def _answer(self, call: str, prompt: Prompt, **arguments: Any) -> tuple[Any, int | None]:
        """A reply, and the `weights_version` that gave it; None where nobody counts."""
        vllm = self.vllm
        if prompt.images and self._vision is not None:
            arguments["seen"] = carried(self._vision, prompt)
            self.stats.image_tokens += prompt.ids.count(self._vision.image_id)
        async with vllm.turn(self):
            played = self.weights_version  # those of a later moment may be another's
            started = time.monotonic()
            self.stats.requests += 1
            self.stats.prompt_tokens += len(prompt)
            reply = await vllm.call(call, ids=prompt.ids, adapter=self._adapter(vllm), **arguments)
            # Requests overlap: this is waiting added up, not work.
            self.stats.seconds += time.monotonic() - started
        return reply, played


def _text_config(config: Any) -> Any:
    """What a configuration says of the language model."""
    return config.get_text_config() if hasattr(config, "get_text_config") else config


def own_gpus(replicas: int, each: int) -> tuple[str, ...]:
    """The last GPUs of this machine, `each` for a replica, as CUDA_VISIBLE_DEVICES has them; trainers have the first.

    Raises `ConfigError` where there are too few.
    """
    seen = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    names = seen.split(",") if seen else [str(number) for number in range(torch.cuda.device_count())]
    trainers, needed = int(os.environ.get("LOCAL_WORLD_SIZE") or 1), replicas * each
    if len(names) < needed + trainers:
        raise ConfigError(
            f"{replicas} replicas of vLLM with {each} GPUs each and {trainers} trainers need {needed + trainers} GPUs, "
            f"and this process sees {len(names)}; set replicas = {max(0, (len(names) - trainers) // each)}, start "
            "fewer processes, or name servers"
        )
    chosen = names[-needed:]
    return tuple(",".join(chosen[start : start + each]) for start in range(0, needed, each))
