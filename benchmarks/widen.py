"""A model with the costs of a large one and the replies of the shipped tiny model, for benchmarks of rollouts.

    python benchmarks/widen.py FOLDER [--size 135m|1.5b] [--dtype float32] [--layers 30] [--head-width 64]

Dreams of random weights end at their first action, so what they cost says nothing. Here the tiny model's weights stand
in a corner of larger matrices, whose other entries change nothing. `135m` has the body of SmolLM2-135M: hidden size 576
(30 layers, inner width 1536) with 18 query and 6 key heads of width 32 in the place of 9 and 3 of width 64; `1.5b` that
of Qwen2.5-1.5B: hidden size 1536 (28 layers, inner width 8960), 12 query heads of width 128, and 4 key heads in the
place of 2. Vocabulary and tokenizer stay the tiny model's, so embeddings are a few million weights. The script compares
both models' logits and prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch  # noqa: TID253  (a script, run on its own)
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM  # noqa: TID253

from dynaweb.trainer.models import load_model, pick_device, pick_dtype, resolve, save_model


@dataclass(frozen=True)
class Size:
    """Hidden and inner width, query and key heads, the width of a head (0: the tiny model's), layers."""

    width: int
    inner: int
    heads: int
    kv_heads: int
    head_width: int
    layers: int


SIZES = {"135m": Size(576, 1536, 18, 6, 0, 30), "1.5b": Size(1536, 8960, 12, 4, 128, 28)}


def widened(small: Any, size: Size) -> Any:
    """The larger model; weights outside the corner are random where their products reach nothing, else 0."""
    old = small.config
    group = size.heads // size.kv_heads
    if old.num_key_value_heads > size.kv_heads or old.num_attention_heads > old.num_key_value_heads * group:
        raise SystemExit(f"a model of {old.num_attention_heads} heads does not fit in")
    if (size.head_width or old.head_dim) % old.head_dim:
        raise SystemExit(f"a head's width must be a multiple of {old.head_dim}")
    torch.manual_seed(0)
    given = old.to_dict() | {
        "hidden_size": size.width,
        "intermediate_size": size.inner,
        "num_hidden_layers": max(size.layers, old.num_hidden_layers),
        "num_attention_heads": size.heads,
        "num_key_value_heads": size.kv_heads,
        "head_dim": size.head_width or old.head_dim,
        # A norm over more entries, most of them 0, divides by less.
        "rms_norm_eps": old.rms_norm_eps * old.hidden_size / size.width,
    }
    with next(small.parameters()).device:
        large = LlamaForCausalLM(LlamaConfig(**given)).eval()
    with torch.no_grad():
        _fill(large, small)
    return large


def _fill(large: Any, small: Any) -> None:
    shrink = math.sqrt(small.config.hidden_size / large.config.hidden_size)
    _corner(large.model.embed_tokens.weight, small.model.embed_tokens.weight)
    _corner(large.lm_head.weight, small.lm_head.weight)
    _corner(large.model.norm.weight, small.model.norm.weight * shrink)
    for index, block in enumerate(large.model.layers):
        block.self_attn.o_proj.weight.zero_()
        block.mlp.down_proj.weight.zero_()
        if index < len(small.model.layers):
            _fill_block(block, small.model.layers[index], small.config, large.config, shrink)


def _fill_block(block: Any, old: Any, config: Any, wide: Any, shrink: float) -> None:
    """One layer; query head h of key head k goes to the h-th place of that key head's group.

    In a wider head every so-many-th pair of entries turns as fast as the pairs of a narrow one do, and holds them.
    """
    group, width = config.num_attention_heads // config.num_key_value_heads, wide.head_dim
    stretch = width // config.head_dim
    half = torch.arange(config.head_dim // 2) * stretch
    inside = torch.cat([half, half + width // 2])
    wide_group = wide.num_attention_heads // wide.num_key_value_heads
    starts = [k * wide_group + h for k in range(config.num_key_value_heads) for h in range(group)]
    queries = torch.cat([inside + start * width for start in starts])
    keys = torch.cat([inside + k * width for k in range(config.num_key_value_heads)])
    if stretch > 1:
        block.self_attn.q_proj.weight.zero_()  # what lies between must not meet the keys
    inner, hidden = torch.arange(config.intermediate_size), torch.arange(config.hidden_size)
    attention, mlp = block.self_attn, block.mlp
    for new, part, rows, columns in (
        (attention.q_proj, old.self_attn.q_proj, queries, hidden),
        (attention.k_proj, old.self_attn.k_proj, keys, hidden),
        (attention.v_proj, old.self_attn.v_proj, keys, hidden),
        (attention.o_proj, old.self_attn.o_proj, hidden, queries),
        (mlp.gate_proj, old.mlp.gate_proj, inner, hidden),
        (mlp.up_proj, old.mlp.up_proj, inner, hidden),
        (mlp.down_proj, old.mlp.down_proj, hidden, inner),
    ):
        # Products of heads are divided by the root of their width.
        scale = math.sqrt(stretch) if new is attention.q_proj else 1.0
        new.weight[rows[:, None], columns] = part.weight * scale
    _corner(block.input_layernorm.weight, old.input_layernorm.weight * shrink)
    _corner(block.post_attention_layernorm.weight, old.post_attention_layernorm.weight * shrink)


def _corner(new: torch.Tensor, old: torch.Tensor) -> None:
    new.zero_()
    new[tuple(slice(0, size) for size in old.shape)] = old


def main() -> int:
    """Write the model; exit code 1 when it does not say what the small one says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--size", default="135m", choices=list(SIZES))
    parser.add_argument("--layers", type=int, help="default: those of the size")
    parser.add_argument("--head-width", type=int, help="default: that of the size")
    given = parser.parse_args()
    chosen = {name: value for name, value in (("layers", given.layers), ("head_width", given.head_width)) if value}
    size = replace(SIZES[given.size], **chosen)
    small = load_model("tiny").to(pick_device())
    large = widened(small, size)
    ids = torch.randint(0, small.config.vocab_size, (4, 60), generator=torch.Generator().manual_seed(1))
    ids = ids.to(small.device)
    with torch.no_grad():
        apart = float((large(ids).logits - small(ids).logits).abs().max())
    save_model(large.to(pick_dtype(given.dtype)), given.folder, AutoTokenizer.from_pretrained(resolve("tiny")))
    count = sum(p.numel() for p in large.parameters())
    sys.stdout.write(json.dumps({"parameters": count, "logits_apart": apart}) + "\n")
    return int(apart > 1e-3)


if __name__ == "__main__":
    sys.exit(main())
