"""Loading and saving models: clear errors for what is not there or broken."""

from __future__ import annotations

import os
from pathlib import Path

import engine_kit as kit
import pytest
import torch

from dynaweb.backends import models
from dynaweb.errors import CheckpointError, ConfigError, MissingError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    models.save_model(kit.llama(), tmp_path / "model")
    return tmp_path / "model"


def test_saved_weights_come_back(folder: Path) -> None:
    model = models.load_model(folder, "float32", "cpu")
    assert not model.training
    for name, value in kit.llama().named_parameters():
        assert torch.equal(value, model.get_parameter(name)), name
    assert models.load_model(str(folder), "bfloat16").dtype == torch.bfloat16


def test_saving_again_replaces_the_folder(folder: Path) -> None:
    models.save_model(kit.llama(seed=5), folder)
    assert torch.equal(models.load_model(folder).model.norm.weight, kit.llama(seed=5).model.norm.weight)
    assert [path.name for path in folder.parent.iterdir()] == ["model"]


def test_what_is_not_there_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MissingError, match="there is no model folder at"):
        models.load_model(tmp_path / "nothing")
    with pytest.raises(MissingError, match=r"without config\.json"):
        models.load_model(tmp_path)
    with pytest.raises(MissingError, match="there is no model folder at"):
        models.resolve("./nothing")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(MissingError, match="no model 'someone/nothing'"):
        models.load_model("someone/nothing")


def test_the_tiny_model_is_told_when_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models.resources, "files", lambda package: tmp_path)
    with pytest.raises(MissingError, match="reinstall dynaweb"):
        models.resolve("tiny")


@pytest.mark.parametrize("harm", ["truncated", "empty", "gone", "config", "foreign"])
def test_broken_folders_are_told(folder: Path, harm: str) -> None:
    weights = folder / "model.safetensors"
    if harm == "truncated":
        weights.write_bytes(weights.read_bytes()[:-64])
    elif harm == "empty":
        weights.write_bytes(b"")
    elif harm == "gone":
        weights.unlink()
    elif harm == "config":
        (folder / "config.json").write_text("{")
    else:
        models.save_model(kit.llama(layers=2), folder.parent / "other")
        weights.write_bytes((folder.parent / "other" / "model.safetensors").read_bytes())
    with pytest.raises(CheckpointError, match="model"):
        models.load_model(folder)


def test_devices_and_dtypes() -> None:
    assert models.pick_device("cpu").type == "cpu"
    assert models.pick_device("auto").type in ("cpu", "cuda")
    assert models.pick_dtype("float32") is torch.float32
    with pytest.raises(ConfigError, match="valid are bfloat16, float32, float64"):
        models.pick_dtype("int8")
    if not torch.cuda.is_available():
        with pytest.raises(ConfigError, match="sees no GPU"):
            models.pick_device("cuda")


@pytest.mark.skipif(os.name != "posix" or os.getuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_keeps_the_old_model(folder: Path) -> None:
    folder.parent.chmod(0o500)
    with pytest.raises(PermissionError):
        models.save_model(kit.llama(seed=5), folder)
    folder.parent.chmod(0o700)
    assert torch.equal(models.load_model(folder).model.norm.weight, kit.llama().model.norm.weight)
