"""A small Llama as a GGUF file, laid out as llama.cpp's converter lays it out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import engine_kit as kit
import numpy as np

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
MERGES = ("Ġ 1", "Ġ a", "a b", "1 2", "Ġ Ġ")
"""Merges that join digits with what is before them, which SmolLM's rule forbids."""


def vocabulary() -> list[str]:
    """Marks, bytes and merged pieces."""
    from tokenizers import pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    return ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *letters, *(pair.replace(" ", "") for pair in MERGES)]


def model(seed: int = 0) -> Any:
    """A random Llama for that vocabulary, with fewer heads of keys than of queries."""
    found = kit.llama(seed, kv_heads=2)
    found.resize_token_embeddings(len(vocabulary()))
    return found


def write(path: Path, llama: Any) -> Path:
    """Write a model with float32 weights and that tokenizer."""
    from gguf import GGUFWriter

    config = llama.config
    writer = GGUFWriter(path, "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    tokens = vocabulary()
    writer.add_token_list(tokens)
    writer.add_token_types([3] * 3 + [1] * (len(tokens) - 3))
    writer.add_token_merges(list(MERGES))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template(TEMPLATE)
    for name, values in tensors(llama).items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def tensors(llama: Any) -> dict[str, np.ndarray[Any, Any]]:
    """Weights under their GGUF names, queries and keys in llama.cpp's order."""
    config = llama.config
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    found = {
        "token_embd.weight": llama.model.embed_tokens.weight.detach().numpy(),
        "output_norm.weight": llama.model.norm.weight.detach().numpy(),
    }
    for number, layer in enumerate(llama.model.layers):
        for theirs, short in NAMES.items():
            values = layer.get_parameter(f"{theirs}.weight").detach().numpy()
            found[f"blk.{number}.{short}.weight"] = _permuted(values, heads[short]) if short in heads else values
    return found


def _permuted(values: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """Rotary pairs side by side instead of in two halves."""
    parts = values.reshape(heads, 2, values.shape[0] // heads // 2, values.shape[1])
    return np.ascontiguousarray(parts.swapaxes(1, 2).reshape(values.shape))
