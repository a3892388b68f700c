"""Low-rank adapters reach every linear layer of the body, in every family, or are refused before training."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from torch import nn
from transformers.pytorch_utils import Conv1D

from dynaweb.errors import ConfigError
from dynaweb.pipeline.artifacts import LoadedModel
from dynaweb.pipeline.fit import with_adapters
from dynaweb.trainer.adapters import adapter_layers

SMALL = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
DENSE: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2Config", {"vocab_size": 64, "n_embd": 32, "n_layer": 2, "n_head": 4}),
    "gpt_neox": ("GPTNeoXConfig", SMALL),
    "opt": ("OPTConfig", {**SMALL, "ffn_dim": 48, "word_embed_proj_dim": 32}),
    "phi": ("PhiConfig", SMALL),
    "phi3": ("Phi3Config", {**SMALL, "pad_token_id": 0}),
    "llama": ("LlamaConfig", {**SMALL, "num_key_value_heads": 2}),
    "qwen2": ("Qwen2Config", {**SMALL, "num_key_value_heads": 2}),
    "qwen3": ("Qwen3Config", {**SMALL, "num_key_value_heads": 2, "head_dim": 8}),
    "gemma2": ("Gemma2Config", {**SMALL, "num_key_value_heads": 2, "head_dim": 8}),
    "glm4": ("Glm4Config", {**SMALL, "num_key_value_heads": 2, "head_dim": 8, "pad_token_id": 0}),
    "bloom": ("BloomConfig", {"vocab_size": 64, "hidden_size": 32, "n_layer": 2, "n_head": 4}),
    "falcon": ("FalconConfig", {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}),
    "mamba": ("MambaConfig", {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 8}),
}
FUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "mixtral": ("MixtralConfig", {**SMALL, "num_key_value_heads": 2, "num_local_experts": 4}),
    "qwen3_moe": (
        "Qwen3MoeConfig",
        {**SMALL, "num_key_value_heads": 2, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
    ),
    "gpt_oss": ("GptOssConfig", {**SMALL, "num_key_value_heads": 2, "num_local_experts": 4, "head_dim": 8}),
}


def tiny(kind: str, settings: dict[str, Any]) -> Any:
    torch.manual_seed(0)
    config = getattr(transformers, kind)(**settings)
    return transformers.AutoModelForCausalLM.from_config(config).eval()


@pytest.mark.parametrize("family", DENSE)
def test_every_linear_layer_of_the_body_is_adapted(family: str, tmp_path: Any) -> None:
    """And trains, and is merged into a plain model that answers as the adapted one did."""
    model = tiny(*DENSE[family])
    linear = [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear | Conv1D) and module is not model.get_output_embeddings()
        # The weights of these are read without calling the layer.
        if not (family == "mamba" and name.endswith(("dt_proj", "out_proj")))
    ]
    assert adapter_layers(model) == linear and len(linear) >= 4
    adapted = with_adapters(LoadedModel(model, None, None), 2, seed=1)  # type: ignore[arg-type]
    learns = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    assert len(learns) == 2 * len(linear) and all(".lora_" in name for name in learns)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".lora_B" in name:
                parameter.normal_(std=0.1)
    ids = torch.arange(12)[None]
    before = model(input_ids=ids).logits
    model(input_ids=ids).logits.square().mean().backward()
    reached = [name for name, parameter in model.named_parameters() if parameter.grad is not None]
    assert reached == learns
    adapted.save(tmp_path / "stage")
    assert not any(".lora_" in name for name, _ in model.named_parameters())
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "stage" / "model").eval()
    assert torch.allclose(again(input_ids=ids).logits, before, atol=1e-4)


@pytest.mark.parametrize("family", FUSED)
def test_experts_in_one_tensor_are_refused(family: str) -> None:
    with pytest.raises(ConfigError, match="do not reach the experts"):
        adapter_layers(tiny(*FUSED[family]))
