"""Load and save language models: the shipped tiny one, a folder, or a name of the Hugging Face hub."""

from __future__ import annotations

import logging
import re
import shutil
import tempfile
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dynaweb.backends import smollm2
from dynaweb.backends.folders import OWN, check_folder, local
from dynaweb.errors import CheckpointError, ConfigError, DivergedError, EngineError, MissingError
from dynaweb.files import read_json
from dynaweb.runs.atomic import rename_folder

log = logging.getLogger("dynaweb")

TINY = "tiny"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}


def resolve(path: str | Path) -> str:
    """The folder or hub name that `path` stands for.

    `"tiny"` is the model shipped with the package, `"smollm2"` one that another holds (`dynaweb.backends.smollm2`).
    Raises `MissingError` when a path (anything that is absolute, starts with a dot or exists) holds no model.
    """
    if str(path) == TINY:
        shipped = Path(str(resources.files("dynaweb") / "assets" / TINY))
        if not (shipped / "config.json").is_file():
            raise MissingError(f"the tiny model is not in this installation ({shipped}); reinstall dynaweb")
        return str(shipped)
    if str(path) == smollm2.NAME:
        return str(smollm2.model_folder())
    if (folder := local(path)) is None:
        return str(path)
    check_folder(folder)
    return str(folder)


def pick_device(device: str = "auto") -> torch.device:
    """`auto` is the first GPU where there is one, else the CPU."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise ConfigError("device 'cuda' was asked for but torch sees no GPU; use 'cpu' or 'auto'")
    return torch.device(device)


def pick_dtype(dtype: str | torch.dtype) -> torch.dtype:
    """A torch dtype from its name."""
    if isinstance(dtype, torch.dtype):
        return dtype
    if dtype not in DTYPES:
        raise ConfigError(f"unknown dtype {dtype!r}; valid are {', '.join(sorted(DTYPES))}")
    return DTYPES[dtype]


def load_model(path: str | Path, dtype: str | torch.dtype = "float32", device: str | torch.device = "cpu") -> Any:
    """A causal language model in evaluation mode, all parameters on `device` in `dtype`.

    Raises `MissingError` (not there), `CheckpointError` (weights truncated, broken, not finite or not of this model)
    and `EngineError` (anything else that keeps transformers from loading it).
    """
    from transformers import AutoModelForCausalLM

    source = resolve(path)
    local = Path(source).is_dir()
    if local:
        check_weights(Path(source))
    load: Any = AutoModelForCausalLM.from_pretrained
    try:
        with quiet():
            model, report = load(source, dtype=pick_dtype(dtype), local_files_only=local, output_loading_info=True)
    except OSError as error:
        raise not_found(source, local, error) from error
    except Exception as error:
        raise EngineError(f"transformers cannot load {source}: {type(error).__name__}: {error}") from error
    check_names(source, model.state_dict(), report["missing_keys"], report["unexpected_keys"])
    target = device if isinstance(device, torch.device) else pick_device(device)
    model = model.to(target).eval()
    if odd := not_finite(model):
        raise CheckpointError(
            f"the weights in {source} are damaged: tensor {odd!r} holds numbers that are not finite; the file was "
            "altered, or training diverged before it was written"
        )
    return model


def check_names(source: str, own: Iterable[str], missing: Collection[str], unexpected: Collection[str]) -> None:
    """Raise `CheckpointError` when a model lacks weights, or has more layers than its config.json says.

    `own` are the names of the model's weights: a surplus one that is like one of them, but for its numbers, is of such
    a layer. Others, such as a head for another purpose, are left out with a warning.
    """
    if missing:
        raise CheckpointError(f"{source} lacks {len(missing)} weights of its own model: {_some(missing)}")
    kinds = {_kind(name) for name in own}
    layers = [name for name in unexpected if _kind(name) in kinds]
    if layers:
        raise CheckpointError(
            f"{source} holds {len(layers)} weights of layers that its config.json does not know: {_some(layers)}; "
            "config.json belongs to another model (is num_hidden_layers right?)"
        )
    if unexpected:
        log.warning("%s holds %d weights that its model has no use for: %s", source, len(unexpected), _some(unexpected))


def _kind(name: str) -> str:
    return re.sub(r"\.\d+\.", ".#.", name)


def _some(names: Collection[str]) -> str:
    first = ", ".join(sorted(names)[:3])
    return f"{first} and others" if len(names) > 3 else first


def not_finite(model: nn.Module) -> str:
    """Name of the first parameter with an infinite or undefined number in it, '' where all are finite."""
    for name, parameter in model.named_parameters():
        value = parameter.detach()
        # A sum is several times cheaper than a look at each number, and seldom overflows.
        if not bool(torch.isfinite(value.sum())) and not bool(torch.isfinite(value).all()):
            return name
    return ""


@contextmanager
def quiet() -> Iterator[None]:
    """Without the progress bars of transformers: they would tear the run's own display apart."""
    from transformers.utils import logging as theirs

    logging: Any = theirs
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def not_found(source: str, local: bool, error: Exception) -> Exception:
    """What transformers' error about a model means: a folder that cannot be read, or no such model."""
    if local:
        return CheckpointError(f"the model in {source} cannot be read: {error}")
    return MissingError(
        f"no model {source!r}: it is no folder here and the Hugging Face hub did not give it"
        f" ({str(error).splitlines()[0]}). Give {OWN}, a folder, or an existing name"
    )


def check_weights(folder: Path) -> None:
    """Raise `CheckpointError` when a weight file of a model folder is missing, empty, truncated or broken."""
    files = sorted(folder.glob("*.safetensors"))
    if not files and not list(folder.glob("pytorch_model*.bin")):
        raise CheckpointError(f"{folder} has config.json but no weights (*.safetensors)")
    read_json(folder / "config.json", dict)
    for file in files:
        check_safetensors(file)


def check_safetensors(file: Path) -> None:
    """Raise `CheckpointError` unless the file's header can be read and its length is what the header says."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="pt"):
            return
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{file} is not a complete safetensors file ({error}); it may be truncated") from error


def save_model(model: nn.Module, folder: Path, tokenizer: Any = None) -> None:
    """Write weights, config and tokenizer as a Hugging Face folder. A folder that is there is replaced in one rename.

    A kill leaves the old folder or the new one; between the two renames the old one is `<folder>.old`. Raises
    `DivergedError`, and writes nothing, when the weights are not finite.
    """
    if odd := not_finite(model):
        raise DivergedError(
            f"the model diverged: {odd!r} holds numbers that are not finite, so {folder} is not written; lower the "
            "learning rate of the stage that trained it"
        )
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    old = folder.with_name(folder.name + ".old")
    try:
        with quiet():
            model.save_pretrained(temporary)  # type: ignore[operator]
        if tokenizer is not None:
            tokenizer.save_pretrained(temporary)
        temporary.chmod(0o755)
        if folder.exists():
            shutil.rmtree(old, ignore_errors=True)
            folder.rename(old)
        rename_folder(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    shutil.rmtree(old, ignore_errors=True)


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """Parameters that are trained, by name, tied ones once."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


@contextmanager
def frozen(model: nn.Module) -> Iterator[None]:
    """Evaluation mode (no dropout) for a while."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)
