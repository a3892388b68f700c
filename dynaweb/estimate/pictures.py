"""Tokens of one picture of a page, by the settings of a model's processor, without the processor itself.

What a picture costs depends on its size and on the family: Qwen's grows with its area, SmolVLM and Idefics3 cut it into
tiles and add the whole, Gemma 3 takes the same for all. Of other families nobody here knows.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dynaweb.estimate.shapes import model_folders

if TYPE_CHECKING:
    from dynaweb.config import Recipe

DOCUMENTS = ("config.json", "processor_config.json", "preprocessor_config.json")
TILED, GRIDDED = ("smolvlm", "idefics3"), ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe")
"""Model types whose processors cut pictures into tiles, and those that lay a grid over them."""


def image_tokens(recipe: Recipe) -> int | None:
    """Tokens of a picture that the recipe's policy is shown; 0 where it is shown none, None where nothing says."""
    seen = recipe.observation
    if not seen.pictures:
        return 0
    width, height = (round(side * seen.picture_scale) for side in (seen.width, seen.height))
    return next(
        (n for n in map(lambda one: tokens_of(one, width, height), model_folders(recipe.model.path)) if n), None
    )


def tokens_of(folder: Path, width: int, height: int) -> int | None:
    """Tokens of a picture of that size by the documents in a model folder; None where they do not say."""
    config, whole, own = (_read(folder / name) for name in DOCUMENTS)
    images = {**own, **whole.get("image_processor", {})}
    kind = config.get("model_type")
    try:
        if kind in TILED:
            return _tiled(images, int(whole["image_seq_len"]), width, height)
        if kind in GRIDDED:
            return _gridded(images, width, height)
        if kind == "gemma3" and not images.get("do_pan_and_scan"):
            return int(whole.get("image_seq_length") or config["mm_tokens_per_image"])
    except (KeyError, TypeError, ValueError, ZeroDivisionError):
        pass
    return None


def _tiled(images: dict[str, Any], each: int, width: int, height: int) -> int:
    """Tiles of one size and the whole picture, `each` tokens for one."""
    tile, longest = int(images["max_image_size"]["longest_edge"]), int(images["size"]["longest_edge"])
    long, ratio = longest, max(width, height) / min(width, height)
    short = int(long / ratio)
    short += short % 2
    if not images.get("do_image_splitting", True) or long <= tile:
        return each
    columns = math.ceil(long / tile)
    rows = math.ceil(int(columns * tile / (long / short)) / tile)
    return (columns * rows + 1) * each


def _gridded(images: dict[str, Any], width: int, height: int) -> int:
    """One token for each square of merged patches, after the picture was fitted into the processor's bounds."""
    square = int(images["patch_size"]) * int(images["merge_size"])
    size = images.get("size") or {}
    least = int(images.get("min_pixels") or size["shortest_edge"])
    most = int(images.get("max_pixels") or size["longest_edge"])
    columns, rows = (max(1, round(side / square)) for side in (width, height))
    area = columns * rows * square * square
    if area > most:
        factor = math.sqrt(width * height / most)
        columns, rows = (max(1, math.floor(side / factor / square)) for side in (width, height))
    elif area < least:
        factor = math.sqrt(least / (width * height))
        columns, rows = (math.ceil(side * factor / square) for side in (width, height))
    return columns * rows


def _read(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}
