"""Settings that fit the size of a model: rates, precision and lengths, where nobody sets them.

The defaults of a recipe are those of the shipped model of a million weights; its rates would ruin a real one. So
whoever names another model gets the values of its size, with that as their origin in `dynaweb config show`. What is set
together with the model, in the same recipe file or after it, stays.

Rates of full fine-tuning, sources: 1e-6 for the policy gradients of 8B (WebRL, arXiv 2411.02337, released code;
DynaWeb, arXiv 2601.22149) and 1e-5 for their SFT (WebRL); a judge of that size learns at 5e-6 (WebRL). Smaller models
take higher rates: 1e-4 and 1e-5 are what SmolLM2-135M was measured with here, and the sizes between lie between.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dynaweb.config.files import expanded

SMALLEST = 20e6
"""Below so many weights a model is like the shipped one, whose values are the defaults."""
_BIG: Mapping[str, Any] = {
    "model.dtype": "bfloat16",
    "model.checkpointing": True,
    "model.micro_tokens": 16384,
    "policy.max_new_tokens": 256,
    "wm.max_new_tokens": 512,
}
SIZES: tuple[tuple[float, Mapping[str, Any]], ...] = (
    (
        0.3e9,
        {
            "sft.lr": 1e-4,
            "wm_fit.lr": 2e-4,
            "judge_fit.lr": 1e-4,
            "rl.lr": 1e-5,
            "policy.max_new_tokens": 96,
            "wm.max_new_tokens": 512,
        },
    ),
    (0.9e9, {**_BIG, "sft.lr": 2e-5, "wm_fit.lr": 4e-5, "judge_fit.lr": 2e-5, "rl.lr": 2e-6}),
    (4e9, {**_BIG, "sft.lr": 1e-5, "wm_fit.lr": 2e-5, "judge_fit.lr": 1e-5, "rl.lr": 1e-6}),
    (float("inf"), {**_BIG, "sft.lr": 1e-5, "wm_fit.lr": 1e-5, "judge_fit.lr": 5e-6, "rl.lr": 1e-6}),
)
"""Settings for models of at most so many weights."""
PATHS = frozenset(path for _, values in SIZES for path in values)

_IN_NAME = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)\s?([bmBM])(?![a-zA-Z0-9])")
_KNOWN = {"tiny": 1e6, "smollm2": 135e6}
_WIDTHS = {"float32": 4, "float64": 8}


def settings_for(model: str, world_model: str) -> tuple[dict[str, Any], str]:
    """The settings of a model's size, and their origin; none for models like the shipped one.

    A model whose size nobody can tell without loading it gets those of the largest. `world_model` is the chosen plugin:
    only those of this package are known to have a longest answer.
    """
    size = parameters(model)
    if size is not None and size < SMALLEST:
        return {}, ""
    values = next(values for most, values in SIZES if (size or 1e12) <= most)
    told = "of unknown size" if size is None else f"of {size / 1e9:.2g}B" if size >= 1e9 else f"of {size / 1e6:.0f}M"
    known = world_model in ("delta", "full-state", "frozen-llm")
    chosen = {path: value for path, value in values.items() if known or not path.startswith("wm.")}
    return chosen, f"fits a model {told}"


def parameters(model: str) -> float | None:
    """About how many weights a model has: by its files, else by its name; None where neither says."""
    if model in _KNOWN:
        return _KNOWN[model]
    folder = expanded(model)
    if folder.is_dir():
        return _by_files(folder)
    found = _IN_NAME.search(model.rpartition("/")[2])
    return float(found[1]) * (1e9 if found[2] in "bB" else 1e6) if found else None


def _by_files(folder: Path) -> float | None:
    import json

    total = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    try:
        config = json.loads((folder / "config.json").read_text("utf-8"))
        dtype = str(config.get("dtype") or config.get("torch_dtype") or "bfloat16")
    except (OSError, ValueError, AttributeError):
        return None  # said later, and better, by what reads the model
    return total / _WIDTHS.get(dtype, 2) if total else None
