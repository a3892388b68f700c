"""Folders of models that people name: whether their documents are what they should be, before a library reads them."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from dynaweb.errors import CheckpointError, EngineError, MissingError
from dynaweb.files import expanded, read_json

CONFIG, TOKENIZER = "config.json", "tokenizer.json"
NAMED = ("tiny", "smollm2")
"""Models that no folder holds for whoever names them: the shipped one, and one that another package has."""
OWN = ", ".join(map(repr, NAMED))
DOCUMENTS = (CONFIG, TOKENIZER, "tokenizer_config.json", "generation_config.json")
PLACES = ("", "model", "checkpoints/world-model")
"""Where a folder that is given holds the weights of a world model: itself, a stage's or a run's."""
INSIDE = (*PLACES, "checkpoints/judge")
"""The same for any weights."""


def check_given(folder: Path) -> None:
    """Check the model in a folder, or in those that a command leaves inside it; nothing where there is none."""
    for place in INSIDE:
        if (folder / place / CONFIG).is_file():
            check_folder(folder / place)


def local(path: str | Path) -> Path | None:
    """The folder of a model that `path` names; None where it is no path, but a name of the Hugging Face hub.

    Raises `MissingError` when a path (anything that is absolute, starts with a dot or exists) holds no model.
    """
    place = expanded(path)
    if place.is_dir():
        if not (place / CONFIG).is_file():
            raise MissingError(f"{place} is a folder without {CONFIG}; a model folder has one beside its weights")
        return place
    if place.is_absolute() or str(path).startswith((".", "~")) or place.exists():
        raise MissingError(f"there is no model folder at {place}; give {OWN}, a folder, or a Hugging Face name")
    return None


def check_documents(path: str | Path) -> None:
    """Check that the model folder that `path` names is there and its documents can be read: what needs no library.

    Nothing for other names. Raises `MissingError` or `CheckpointError`.
    """
    if path in NAMED or (folder := local(path)) is None:
        return
    for name in DOCUMENTS:
        if not (folder / name).exists():
            continue
        if "model_type" not in read_json(folder / name, dict) and name == CONFIG:
            what = 'it has no "model_type", so that nobody knows what model it is'
            raise CheckpointError(f"{folder / name} is damaged ({what}); restore it from a copy")


def check_folder(folder: Path) -> None:
    """Raise `CheckpointError` for a damaged document of a model folder, `EngineError` for an impossible model."""
    there = [folder / name for name in DOCUMENTS if (folder / name).exists()]
    _checked(folder, tuple((path, path.stat().st_mtime_ns, path.stat().st_size) for path in there))


@cache  # every stage asks for the same folders
def _checked(folder: Path, documents: tuple[tuple[Path, int, int], ...]) -> None:
    for path, _, _ in documents:
        read_json(path, dict)
    if (folder / TOKENIZER).exists():
        _check_tokenizer(folder / TOKENIZER)
    from transformers import AutoConfig

    try:
        AutoConfig.from_pretrained(folder)
    except Exception as error:
        raise EngineError(f"transformers cannot load {folder}: {_why(error)}") from error


def _check_tokenizer(path: Path) -> None:
    from tokenizers import Tokenizer

    # What is wrong comes as a plain `Exception`: the library is written in Rust.
    load: Any = Tokenizer.from_file
    try:
        load(str(path))
    except Exception as error:
        raise CheckpointError(f"{path} is damaged (it is no tokenizer: {error}); restore it from a copy") from error


def _why(error: BaseException) -> str:
    """The first cause, which says it shortest."""
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {error}"
