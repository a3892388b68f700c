"""A stand-in for vLLM with the calls that dynaweb makes: the models of transformers, one request after another.

It has what the tests are about: weights come from outside, a process that works for it, a blocking start that prints to
stdout. Put its folder on PYTHONPATH. `FAKE_VLLM_START` is `fail`, or the seconds that a start takes;
`FAKE_VLLM_OLD` makes it a version without transfer of weights, `FAKE_VLLM_OTHER` one whose processor writes other
tokens for a picture.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

__version__ = "0.0"


@dataclass
class SamplingParams:
    """The parameters that dynaweb uses."""

    max_tokens: int = 16
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int | None = None
    stop_token_ids: list[int] = field(default_factory=list)
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    detokenize: bool = True
    logit_bias: dict[int, float] | None = None
    output_kind: Any = None

    @staticmethod
    def for_sampler_warmup() -> SamplingParams:
        """What is tried at a start: more than anybody asks for."""
        return SamplingParams(temperature=0.9, top_p=0.9, logprobs=5, prompt_logprobs=1)
