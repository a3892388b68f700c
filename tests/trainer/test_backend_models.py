"""Loading and saving models: clear errors for what is not there or broken."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import engine_kit as kit
import pytest
import torch
from folders import ROOT

from dynaweb.errors import CheckpointError, ConfigError, DivergedError, EngineError, MissingError
from dynaweb.pipeline.models import read_tokenizer
from dynaweb.trainer import models


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


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize(
    "name", ["model.embed_tokens.weight", "model.layers.0.mlp.up_proj.weight", "model.norm.weight"]
)
def test_weights_that_are_not_finite_are_told_by_name(folder: Path, name: str, value: float) -> None:
    from safetensors.torch import load_file, save_file

    file = folder / "model.safetensors"
    tensors = load_file(file)
    tensors[name].view(-1)[-1] = value
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=rf"tensor '{name}' holds numbers that are not finite"):
        models.load_model(folder)


def test_large_weights_are_no_damage(folder: Path) -> None:
    model = kit.llama()
    torch.nn.init.constant_(model.model.norm.weight, 3e38)  # their sum is infinite
    models.save_model(model, folder)
    assert models.load_model(folder).model.norm.weight.detach().min().item() == pytest.approx(3e38)


def test_a_model_that_diverged_is_not_written(folder: Path) -> None:
    model = kit.llama(seed=5)
    torch.nn.init.constant_(model.model.norm.weight, float("nan"))
    with pytest.raises(DivergedError, match=r"diverged: 'model.norm.weight'.*learning rate"):
        models.save_model(model, folder)
    assert torch.equal(models.load_model(folder).model.norm.weight, kit.llama().model.norm.weight)


def changed_config(folder: Path, **values: object) -> None:
    config = folder / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), **values}), encoding="utf-8")


def test_layers_that_the_config_does_not_know_are_told(folder: Path) -> None:
    layers = kit.llama().config.num_hidden_layers
    changed_config(folder, num_hidden_layers=layers - 1)
    with pytest.raises(CheckpointError, match=rf"does not know: model\.layers\.{layers - 1}\..*num_hidden_layers"):
        models.load_model(folder)
    changed_config(folder, num_hidden_layers=layers + 1)
    with pytest.raises(CheckpointError, match=rf"lacks \d+ weights of its own model: model\.layers\.{layers}\."):
        models.load_model(folder)


def test_a_surplus_head_is_told_and_left_out(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    from safetensors.torch import load_file, save_file

    file = folder / "model.safetensors"
    surplus = {name: torch.zeros(3) for name in ("value_head.weight", "value_head.0.bias", "model.layers.0.mask")}
    save_file({**load_file(file), **surplus}, file, metadata={"format": "pt"})
    models.load_model(folder)
    told = "3 weights that its model has no use for: model.layers.0.mask, value_head.0.bias, value_head.weight"
    assert told in caplog.text


def with_code(folder: Path, *, kind: str = "homemade") -> Path:
    """A model folder whose config and tokenizer name code in the folder; the code leaves a file where it is run."""
    mark = folder.parent / "code-was-run"
    (folder / "own.py").write_text(f"open({str(mark)!r}, 'w').close()\nclass Own: pass\n", encoding="utf-8")
    names = ("AutoConfig", "AutoModelForCausalLM", "AutoTokenizer")
    changed_config(folder, model_type=kind, auto_map=dict.fromkeys(names, "own.Own"))
    tokens = {"auto_map": {"AutoTokenizer": ["own.Own", None]}, "tokenizer_class": "Own"}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokens), encoding="utf-8")
    return mark


def test_code_that_comes_with_a_model_is_never_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not after a question either: nobody is asked."""
    mark = with_code(folder)
    questions: list[str] = []
    monkeypatch.setattr("builtins.input", lambda text="": questions.append(text) or "y")
    reads = (models.load_model, models.check_folder, lambda path: models.context_of(str(path)), read_tokenizer)
    for read in reads:
        with pytest.raises(EngineError, match="needs program code that comes with it, which is never run") as error:
            read(folder)  # type: ignore[operator]
        assert "\n" not in str(error.value)
    assert not questions and not mark.exists()


def test_a_model_that_transformers_knows_is_read_without_its_code(folder: Path) -> None:
    mark = with_code(folder, kind="llama")
    assert models.load_model(folder).config.model_type == "llama"
    assert not mark.exists()


def test_pickled_weights_are_refused_and_the_advice_converts_them(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from safetensors.torch import load_file

    file = folder / "model.safetensors"
    torch.save(load_file(file), folder / "pytorch_model.bin")
    shutil.copytree(models.resolve("tiny"), folder, dirs_exist_ok=True, ignore=lambda *_: ["config.json", file.name])
    file.unlink()
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin is a pickle.*never loaded") as error:
        models.load_model(folder)
    command = re.search(r'python -c "(.*)"` and give \./(.*)', str(error.value))
    assert command and "\n" not in str(error.value)
    monkeypatch.chdir(folder.parent)
    exec(command[1])
    assert torch.equal(models.load_model(command[2]).model.norm.weight, kit.llama().model.norm.weight)
    # Where both are there, the pickle is left alone.
    (folder.parent / command[2] / "pytorch_model.bin").write_bytes(b"no pickle")
    models.load_model(command[2])


@pytest.mark.parametrize("index", ["model.safetensors.index.json", "own.safetensors.index.json"])
@pytest.mark.parametrize("part", ["weights.bin", "../weights.safetensors", "x.safetensors/../weights.pt", 7, None])
def test_a_list_of_weight_files_names_no_pickle_and_no_file_elsewhere(folder: Path, index: str, part: object) -> None:
    """Transformers reads whatever stands there, by the end of its name."""
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(weights)
    save_file({name: weights[name] for name in names[1:]}, folder / "a.safetensors", metadata={"format": "pt"})
    save_file({names[0]: weights[names[0]]}, folder / "b.safetensors", metadata={"format": "pt"})
    torch.save({names[0]: weights[names[0]]}, folder / "weights.bin")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"transformers_weights": index}))

    def write(first: object) -> None:
        table = dict.fromkeys(names[1:], "a.safetensors") | {names[0]: first}
        (folder / index).write_text(json.dumps({"metadata": {}, "weight_map": table}))

    write(part)
    with pytest.raises(CheckpointError, match=r"no safetensors file beside it.*never loaded"):
        models.load_model(folder)
    write("b.safetensors")
    assert torch.equal(models.load_model(folder).model.norm.weight, weights["model.norm.weight"])


def test_neither_does_one_of_the_hub(folder: Path, tmp_path: Path) -> None:
    """As the cache of the hub's client has it, in a process of its own: that reads its variables once."""
    commit = "0" * 40
    cached = tmp_path / "hub" / "models--evil--model"
    (cached / "refs").mkdir(parents=True)
    (cached / "refs" / "main").write_text(commit)
    shutil.copytree(folder, cached / "snapshots" / commit)
    index = cached / "snapshots" / commit / "model.safetensors.index.json"
    index.with_name("model.safetensors").unlink()
    index.write_text(json.dumps({"metadata": {}, "weight_map": {"lm_head.weight": "weights.bin"}}))
    code = "from dynaweb.trainer.models import load_model; load_model('evil/model')"
    hub = {"HF_HOME": str(tmp_path), "HF_HUB_CACHE": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=os.environ | hub, capture_output=True, text=True)
    assert "CheckpointError" in done.stderr and "names 'weights.bin' among the files" in done.stderr, done.stderr


def test_no_call_of_transformers_may_run_code_of_a_model() -> None:
    """One that does not say so asks on stdin."""
    calls = [
        (path.name, line.strip())
        for path in (ROOT / "dynaweb").rglob("*.py")
        for line in path.read_text(encoding="utf-8").splitlines()
        # Lines of a model card stand in quotes.
        if re.search(r"^[^'\"]*(Auto\w+\.from_pretrained\(|\.from_config\()", line)
    ]
    assert len(calls) >= 5
    assert [call for call in calls if not re.search(r"\*\*(NATIVE|where)", call[1])] == []
