"""The shape of a language model: from its config.json where that is here, else as published."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

from dynaweb.config.files import expanded


@dataclass(frozen=True, slots=True)
class Shape:
    """A decoder with gated feed-forward layers; widths in elements."""

    width: int
    inner: int
    layers: int
    heads: int
    kv_heads: int
    head_width: int
    vocabulary: int
    tied: bool
    biased: bool = False
    """Queries, keys and values have biases."""
    vision: int = 0
    """Weights that see: its vision tower, without what joins it to the language model; 0 = it reads text alone."""

    @property
    def attention(self) -> int:
        """Weights of one attention block."""
        biases = self.head_width * (self.heads + 2 * self.kv_heads) if self.biased else 0
        return self.width * self.head_width * (2 * self.heads + 2 * self.kv_heads) + biases

    @property
    def body(self) -> int:
        """Weights without embeddings and output head."""
        return self.layers * (self.attention + 3 * self.width * self.inner + 2 * self.width) + self.width

    @property
    def parameters(self) -> int:
        """All weights."""
        return self.language + self.vision

    @property
    def language(self) -> int:
        """Those of its language model."""
        return self.body + self.vocabulary * self.width * (1 if self.tied else 2)

    def adapters(self, rank: int) -> int:
        """Weights of low-rank adapters beside every matrix of the blocks."""
        queries, keys = self.heads * self.head_width, self.kv_heads * self.head_width
        ends = 2 * self.width + 2 * queries + 2 * (self.width + keys) + 3 * (self.width + self.inner)
        return self.layers * rank * ends


PUBLISHED: dict[str, dict[str, Any]] = {
    "meta-llama/Llama-3.1-8B-Instruct": {
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
    },
    "meta-llama/Llama-3.2-1B-Instruct": {
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "tie_word_embeddings": True,
    },
    "meta-llama/Llama-3.2-3B-Instruct": {
        "hidden_size": 3072,
        "intermediate_size": 8192,
        "num_hidden_layers": 28,
        "num_attention_heads": 24,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "tie_word_embeddings": True,
    },
    "Qwen/Qwen2.5-0.5B-Instruct": {
        "model_type": "qwen2",
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "vocab_size": 151936,
        "tie_word_embeddings": True,
    },
    "Qwen/Qwen2.5-1.5B-Instruct": {
        "model_type": "qwen2",
        "hidden_size": 1536,
        "intermediate_size": 8960,
        "num_hidden_layers": 28,
        "num_attention_heads": 12,
        "num_key_value_heads": 2,
        "vocab_size": 151936,
        "tie_word_embeddings": True,
    },
    "Qwen/Qwen2.5-3B-Instruct": {
        "model_type": "qwen2",
        "hidden_size": 2048,
        "intermediate_size": 11008,
        "num_hidden_layers": 36,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "vocab_size": 151936,
        "tie_word_embeddings": True,
    },
    "Qwen/Qwen2.5-7B-Instruct": {
        "model_type": "qwen2",
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "vocab_size": 152064,
        "tie_word_embeddings": False,
    },
    "HuggingFaceTB/SmolLM2-135M-Instruct": {
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "vocab_size": 49152,
        "tie_word_embeddings": True,
    },
}
"""config.json of models that recipes and pages name, for machines that do not have them yet."""

ALIASES = {"smollm2": "HuggingFaceTB/SmolLM2-135M-Instruct"}
"""Names of `model.path` that are not the published ones."""


def shape_of(path: str) -> Shape | None:
    """The shape of a model by the recipe's `model.path`; None where nothing here says it."""
    config = _config(path)
    try:
        if config is None:
            return None
        text, vision = config.get("text_config"), config.get("vision_config")
        if not isinstance(text, dict) or not isinstance(vision, dict):
            return _shape(config)
        tied = bool(config.get("tie_word_embeddings", text.get("tie_word_embeddings", False)))
        return replace(_shape(text), vision=_vision(vision), tied=tied)
    except (KeyError, TypeError, ValueError, ZeroDivisionError):
        return None


def _shape(config: dict[str, Any]) -> Shape:
    heads = int(config["num_attention_heads"])
    width = int(config["hidden_size"])
    return Shape(
        width=width,
        inner=int(config["intermediate_size"]),
        layers=int(config["num_hidden_layers"]),
        heads=heads,
        kv_heads=int(config.get("num_key_value_heads") or heads),
        head_width=int(config.get("head_dim") or width // heads),
        vocabulary=int(config["vocab_size"]),
        tied=bool(config.get("tie_word_embeddings", False)),
        biased=config.get("model_type") == "qwen2",
    )


def _vision(config: dict[str, Any]) -> int:
    """Weights of a vision tower, whose blocks have a feed-forward layer without a gate."""
    width, inner = int(config["hidden_size"]), int(config["intermediate_size"])
    layers = int(config.get("num_hidden_layers") or config["depth"])
    return layers * (4 * width * width + 2 * width * inner)


def _config(path: str) -> dict[str, Any] | None:
    for folder in model_folders(path):
        try:
            config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if isinstance(config, dict):
            return config
    return PUBLISHED.get(ALIASES.get(path, path))


def model_folders(path: str) -> list[Path]:
    """Where the model's files may be: shipped, a folder, or the Hugging Face cache."""
    if path == "tiny":
        return [Path(str(resources.files("dynaweb") / "assets" / "tiny"))]
    if path in ALIASES:
        return []
    home = Path(os.environ.get("HF_HOME", Path.home() / ".cache" / "huggingface"))
    hub = Path(os.environ.get("HF_HUB_CACHE", home / "hub")) / f"models--{path.replace('/', '--')}" / "snapshots"
    return [expanded(path), *sorted(hub.glob("*"))]
