"""A model with the costs of SmolLM2-135M's body and the replies of the shipped tiny model, for benchmarks of rollouts.

    python benchmarks/widen.py FOLDER [--dtype float32] [--layers 30]

Dreams of random weights end at their first action, so what they cost says nothing. Here the tiny model's weights stand
in a corner of larger matrices, whose other entries change nothing: hidden size 576 (30 layers, inner width 1536) with
18 query and 6 key heads of width 32 in the place of 9 and 3 of width 64. Vocabulary and tokenizer stay the tiny
model's, so embeddings are 1.2 million weights, not 28 million. The script compares both models' logits and prints one
JSON object.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from typing import Any

import torch  # noqa: TID253  (a script, run on its own)
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM  # noqa: TID253

from dynaweb.trainer.models import load_model, pick_dtype, resolve, save_model

WIDTH, INNER, HEADS, KV_HEADS = 576, 1536, 18, 6


def widened(small: Any, layers: int) -> Any:
    """The larger model; weights outside the corner are random where their products reach nothing, else 0."""
    old = small.config
    if old.num_key_value_heads > KV_HEADS or old.num_attention_heads > old.num_key_value_heads * (HEADS // KV_HEADS):
        raise SystemExit(f"a model of {old.num_attention_heads} heads does not fit in")
    torch.manual_seed(0)
    given = old.to_dict() | {
        "hidden_size": WIDTH,
        "intermediate_size": INNER,
        "num_hidden_layers": max(layers, old.num_hidden_layers),
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": old.head_dim,
        # A norm over more entries, most of them 0, divides by less.
        "rms_norm_eps": old.rms_norm_eps * old.hidden_size / WIDTH,
    }
    large = LlamaForCausalLM(LlamaConfig(**given)).eval()
    with torch.no_grad():
        _fill(large, small)
    return large


def _fill(large: Any, small: Any) -> None:
    shrink = math.sqrt(small.config.hidden_size / WIDTH)
    _corner(large.model.embed_tokens.weight, small.model.embed_tokens.weight)
    _corner(large.lm_head.weight, small.lm_head.weight)
    _corner(large.model.norm.weight, small.model.norm.weight * shrink)
    for index, block in enumerate(large.model.layers):
        block.self_attn.o_proj.weight.zero_()
        block.mlp.down_proj.weight.zero_()
        if index < len(small.model.layers):
            _fill_block(block, small.model.layers[index], small.config, shrink)


def _fill_block(block: Any, old: Any, config: Any, shrink: float) -> None:
    """One layer; query head h of key head k goes to the h-th place of that key head's group."""
    group, width = config.num_attention_heads // config.num_key_value_heads, config.head_dim
    places = [k * (HEADS // KV_HEADS) + h for k in range(config.num_key_value_heads) for h in range(group)]
    queries = torch.cat([torch.arange(width) + place * width for place in places])
    keys = torch.arange(config.num_key_value_heads * width)
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
        new.weight[rows[:, None], columns] = part.weight
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
    parser.add_argument("--layers", type=int, default=30)
    given = parser.parse_args()
    small = load_model("tiny")
    large = widened(small, given.layers)
    ids = torch.randint(0, small.config.vocab_size, (4, 60), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        apart = float((large(ids).logits - small(ids).logits).abs().max())
    save_model(large.to(pick_dtype(given.dtype)), given.folder, AutoTokenizer.from_pretrained(resolve("tiny")))
    count = sum(p.numel() for p in large.parameters())
    sys.stdout.write(json.dumps({"parameters": count, "logits_apart": apart}) + "\n")
    return int(apart > 1e-3)


if __name__ == "__main__":
    sys.exit(main())
