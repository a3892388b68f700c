"""Checkpoints of a trainer: tensors as safetensors, everything else as JSON, both written atomically.

A folder holds `state-<step>.safetensors` and `trainer.json`, which names the file, its size and its step. The JSON file
is replaced last, so a kill at any point leaves the previous checkpoint or the new one, complete.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from dynaweb.backends.models import check_safetensors
from dynaweb.errors import CheckpointError
from dynaweb.runs.atomic import write_json, write_with

FORMAT = 1
INDEX = "trainer.json"


def save(folder: Path, tensors: Mapping[str, torch.Tensor], meta: Mapping[str, Any], step: int) -> None:
    """Write a checkpoint; an older one in the folder is removed once the new one is in place."""
    from safetensors.torch import save_file

    name = f"state-{step:08d}.safetensors"
    plain = {key: tensor.detach().cpu().contiguous() for key, tensor in tensors.items()}
    write_with(folder / name, lambda temporary: save_file(plain, temporary))
    index = {"format": FORMAT, "file": name, "size": (folder / name).stat().st_size, "step": step, "meta": dict(meta)}
    write_json(folder / INDEX, index)
    for old in folder.glob("state-*.safetensors"):
        if old.name != name:
            old.unlink()


def load(folder: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Tensors and meta data of a checkpoint. Raises `CheckpointError` when it is missing, truncated or foreign."""
    from safetensors.torch import load_file

    index = _read_index(folder)
    file = folder / str(index["file"])
    if not file.is_file():
        raise CheckpointError(f"{folder / INDEX} names {file.name}, which is not there")
    if file.stat().st_size != index["size"]:
        raise CheckpointError(f"{file} has {file.stat().st_size} bytes instead of {index['size']}: it is truncated")
    check_safetensors(file)
    return load_file(file), index["meta"]


def _read_index(folder: Path) -> dict[str, Any]:
    path = folder / INDEX
    try:
        index = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CheckpointError(f"there is no checkpoint in {folder} ({INDEX} is missing)") from error
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    if not isinstance(index, dict) or index.get("format") != FORMAT or not {"file", "size", "meta"} <= index.keys():
        raise CheckpointError(f"{path} is not a checkpoint index of format {FORMAT}")
    return index
