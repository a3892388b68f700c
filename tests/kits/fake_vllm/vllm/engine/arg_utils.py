"""Arguments of an engine."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class AsyncEngineArgs:
    """The arguments that dynaweb gives."""

    model: str
    skip_tokenizer_init: bool = False
    load_format: str = "auto"
    dtype: str = "auto"
    max_model_len: int = 0
    tensor_parallel_size: int = 1
    enforce_eager: bool = False
    compilation_config: dict[str, object] = field(default_factory=dict)
    enable_prefix_caching: bool = True
    logprobs_mode: str = "raw_logprobs"
    worker_extension_cls: str = ""
    disable_log_stats: bool = False
    seed: int = 0
    enable_lora: bool = False
    max_lora_rank: int = 16
    max_loras: int = 1
    enable_tower_connector_lora: bool = False
    limit_mm_per_prompt: dict[str, int] = field(default_factory=dict)
