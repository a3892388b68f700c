"""Whether weights, a tokenizer and the base model belong together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dynaweb.backends.folders import PLACES
from dynaweb.errors import CheckpointError, MissingError

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json")


def world_model_weights(folder: Path | None) -> Path | None:
    """The weights in a folder, or in that of a run which fitted a world model. Raises `MissingError` where none are."""
    if folder is None:
        return None
    for place in PLACES:
        if (folder / place / "config.json").is_file():
            return folder / place
    why = "no config.json in it" if folder.is_dir() else "no such folder"
    raise MissingError(
        f"there are no weights in {folder} ({why}); dynaweb wm fit puts them into checkpoints/world-model of its folder"
    )


def read_tokenizer(source: str) -> Any:
    """The tokenizer of a folder or of a Hugging Face name.

    Raises `CheckpointError` (a folder whose tokenizer cannot be read) and `MissingError` (no such model).
    """
    from transformers import AutoTokenizer

    from dynaweb.backends.models import not_found

    try:
        return AutoTokenizer.from_pretrained(source)
    except (OSError, ValueError) as error:
        raise not_found(source, Path(source).is_dir(), error) from error


def tokenizer_of(folder: Path, base: Any, *, base_judges: bool) -> Any:
    """The tokenizer in a folder of weights; `base`, that of the base model, where there is none or it is the same.

    Raises `CheckpointError` when it is another one and the base model judges: one of the two would read tokens that it
    does not know.
    """
    if not any((folder / name).is_file() for name in TOKENIZER_FILES):
        return base
    own = read_tokenizer(str(folder))
    if own.get_vocab() == base.get_vocab():
        return base
    if base_judges:
        raise CheckpointError(
            f"the weights in {folder} have another tokenizer ({len(own)} tokens) than the base model that judges them "
            f"({len(base)} tokens); set model.path to the model that they were trained from, or use --reward checker"
        )
    return own


def check_size(folder: Path, model: Any, tokenizer: Any) -> None:
    """Raise `CheckpointError` when a tokenizer has tokens that the weights of `folder` do not know."""
    known = model.get_input_embeddings().num_embeddings
    if len(tokenizer) > known:
        raise CheckpointError(
            f"the weights in {folder} know {known} tokens, but the tokenizer has {len(tokenizer)}: they belong to "
            "another model; set model.path to the model that they were trained from"
        )
