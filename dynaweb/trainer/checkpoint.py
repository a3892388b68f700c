"""Checkpoints of a trainer: tensors as safetensors, everything else as JSON, both written atomically.

Each is two files, `state-<step>.safetensors` and then `state-<step>.json`, which names the file, its size and its step:
a checkpoint without its JSON file does not count. So a kill at any point leaves the checkpoints before it and perhaps
the new one, all complete. The last of them is read; where it is damaged, the one before it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from dynaweb.config.files import read_json
from dynaweb.errors import CheckpointError
from dynaweb.runs.atomic import write_json, write_with
from dynaweb.trainer.models import check_safetensors

log = logging.getLogger("dynaweb")

FORMAT = 2
TENSORS = ".safetensors"


def save(
    folder: Path, tensors: Mapping[str, torch.Tensor], meta: Mapping[str, Any], step: int, *, keep: int = 1
) -> None:
    """Write the checkpoint of a step and remove, once it is in place, all but the last `keep`.

    Those of later steps go too: training was taken back to before them.
    """
    from safetensors.torch import save_file

    path = _index(folder, step).with_suffix(TENSORS)
    plain = {key: tensor.detach().cpu().contiguous() for key, tensor in tensors.items()}
    write_with(path, lambda temporary: save_file(plain, temporary))
    index = {"format": FORMAT, "file": path.name, "size": path.stat().st_size, "step": step, "meta": dict(meta)}
    write_json(_index(folder, step), index)
    _tidy(folder, [one for one in steps(folder) if one <= step][-keep:])


def steps(folder: Path) -> list[int]:
    """The steps of the checkpoints in a folder, damaged ones too, the last one at the end."""
    return sorted(int(path.stem.partition("-")[2]) for path in folder.glob("state-*.json"))


def load(folder: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Tensors and meta data of the last checkpoint that is whole, with a warning where it is not the last one.

    Raises `CheckpointError` when there is none, or when each is truncated or foreign.
    """
    candidates = [_index(folder, step) for step in reversed(steps(folder))]
    if not candidates:
        raise CheckpointError(f"there is no checkpoint in {folder}")
    problems: list[str] = []
    for path in candidates:
        try:
            loaded = _load(path)
        except CheckpointError as error:
            problems.append(str(error))
            continue
        if problems:
            log.warning("%s. Going on from the checkpoint before it, %s", ". ".join(problems), path.stem)
        return loaded
    raise CheckpointError(". ".join(problems))


def _load(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    from safetensors.torch import load_file

    index = _read_index(path)
    file = path.with_name(str(index["file"]))
    if not file.is_file():
        raise CheckpointError(f"{path} names {file.name}, which is not there")
    if file.stat().st_size != index["size"]:
        raise CheckpointError(f"{file} has {file.stat().st_size} bytes instead of {index['size']}: it is truncated")
    check_safetensors(file)
    return load_file(file), index["meta"]


def _read_index(path: Path) -> dict[str, Any]:
    index = read_json(path, dict)
    if index.get("format") != FORMAT or not {"file", "size", "meta"} <= index.keys():
        raise CheckpointError(f"{path} is not a checkpoint index of format {FORMAT}")
    return index


def _index(folder: Path, step: int) -> Path:
    return folder / f"state-{step:08d}.json"


def _tidy(folder: Path, kept: list[int]) -> None:
    """Remove all other checkpoints, and tensors that a kill left without their JSON file."""
    names = {_index(folder, step).stem for step in kept}
    # The JSON file first: without its tensors it would be a damaged checkpoint.
    for old in sorted(folder.glob("state-*"), key=lambda path: path.suffix == TENSORS):
        if old.suffix in (".json", TENSORS) and old.stem not in names:
            old.unlink()
