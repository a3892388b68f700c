"""Memory of one rank, in bytes, while a stage is at work.

What is exact: weights, float32 masters, gradients and AdamW's two moments, by backend, ZeRO stage and number of ranks
(arXiv 1910.02054, section 5, with the whole copy that every rank keeps for generation). What is an upper estimate:
activations of one micro-batch, what FSDP2 gathers and reduces at once, and the key-value cache of a full batch.
"""

from __future__ import annotations

from dataclasses import dataclass

from dynaweb.estimate.shapes import Shape

HEAD_BYTES = 4 * (1 << 25)
"""Logits are computed in parts of 2^25 float32 elements (`dynaweb.trainer.logprobs`); some live at once."""
HEAD_PARTS = 5


@dataclass(frozen=True, slots=True)
class Setup:
    """How one model is trained: bytes of a weight, rank of adapters (0 = all weights), stage (0 = torch)."""

    bytes_each: int
    lora_rank: int = 0
    stage: int = 0
    ranks: int = 1
    offload: bool = False
    micro_tokens: int = 4096
    checkpointing: bool = False
    vision: bool = False
    """The weights that see are trained too."""
    fsdp: bool = False
    """The stage is FSDP2's, not DeepSpeed's."""


def frozen(shape: Shape, setup: Setup) -> int:
    """A model that only answers."""
    return shape.parameters * setup.bytes_each


def training(shape: Shape, setup: Setup) -> dict[str, int]:
    """A model that is trained, by what takes the memory; `host` is taken from the host's memory instead."""
    whole = shape.parameters
    all_moved = whole if setup.vision else shape.language
    moved = shape.adapters(setup.lora_rank) if setup.lora_rank else all_moved
    half = setup.bytes_each < 4
    if setup.stage == 0:
        masters = 4 * moved if half else 0
        own = moved * setup.bytes_each if setup.lora_rank else 0
        return {
            "weights": whole * setup.bytes_each + own,
            "float32 masters": masters,
            "gradients": 4 * moved,
            "AdamW": 8 * moved,
        }
    share = max(1, setup.ranks)
    if setup.fsdp:
        return _fsdp(shape, setup, moved, share)
    # In bfloat16 stage 1 is run as stage 2 (`dynaweb.trainer.distributed.deepspeed`).
    gradients_spread = setup.stage >= 2 or half
    spread = (4 * moved if half else 0) + 8 * moved
    parts = {
        "weights, whole copy": whole * setup.bytes_each,
        "weights, trained": whole * setup.bytes_each // (share if setup.stage == 3 and not setup.offload else 1),
        "gradients": 4 * moved // (share if gradients_spread else 1),
        "masters and AdamW": spread // share,
    }
    if setup.offload:
        host = parts.pop("masters and AdamW")
        if setup.stage == 3:
            host += parts.pop("weights, trained") // share
        parts["host"] = host
    return parts


def _fsdp(shape: Shape, setup: Setup, moved: int, share: int) -> dict[str, int]:
    """Shards are the masters, and weights are gathered beside them: by layers, and what is in no layer at once."""
    whole = shape.parameters + (moved if setup.lora_rank else 0)
    layer, rest = shape.body // shape.layers, shape.parameters - shape.body
    gathered = whole if setup.stage < 3 else min(whole, rest + 2 * layer)
    reduced = min(moved, max(layer, rest)) * (setup.bytes_each + 4)
    return {
        "weights, whole copy": whole * setup.bytes_each,
        "weights, gathered": gathered * setup.bytes_each,
        "gradients": 4 * moved // (share if setup.stage > 1 else 1) + reduced,
        "shards and AdamW": (12 * moved + (whole - moved) * setup.bytes_each) // share,
    }


def activations(shape: Shape, setup: Setup) -> int:
    """What a backward pass keeps of one micro-batch."""
    block = 6 * shape.width + (2 * shape.heads + 2 * shape.kv_heads) * shape.head_width + 3 * shape.inner
    saved = (shape.layers * shape.width + block) if setup.checkpointing else shape.layers * block
    return setup.micro_tokens * saved * setup.bytes_each + HEAD_PARTS * HEAD_BYTES


def cache(shape: Shape, tokens: int, bytes_each: int) -> int:
    """Keys and values of so many tokens."""
    return 2 * shape.layers * shape.kv_heads * shape.head_width * bytes_each * tokens
