"""Adapters of what training has changed (`examples/replication/differences.py`), as PEFT reads them."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import warnings
from pathlib import Path
from types import ModuleType

import pytest
import torch
from safetensors import safe_open
from transformers import AutoTokenizer

from dynaweb.errors import ConfigError
from dynaweb.trainer.models import load_model, resolve, save_model

pytest.importorskip("peft")
SCRIPT = Path(__file__).parents[2] / "examples" / "replication" / "differences.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("differences", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["differences"] = module
    spec.loader.exec_module(module)
    return module


def trained(scale: float = 0.01) -> torch.nn.Module:
    """The tiny model with every weight changed: matrices, tied embeddings and the vectors of norms."""
    torch.manual_seed(0)
    model: torch.nn.Module = load_model("tiny")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * scale)
    return model


def test_with_the_whole_rank_nothing_is_lost(script: ModuleType, tmp_path: Path) -> None:
    model = trained()
    made = script.difference(load_model("tiny"), model, rank=10_000)
    assert made.kept == pytest.approx(made.changed, rel=1e-4)
    again = script.merged(load_model("tiny"), made)
    for ours, theirs in zip(model.parameters(), again.parameters(), strict=True):
        # The adapter is in bfloat16: 8 bits of each change, or of each vector that is held whole.
        torch.testing.assert_close(theirs, ours, rtol=8e-3, atol=2e-3)


def test_peft_reads_the_adapter_as_it_is_merged(script: ModuleType, tmp_path: Path) -> None:
    from peft import PeftModel

    made = script.difference(load_model("tiny"), trained(), rank=4)
    made.save(tmp_path / "adapter", "tiny")
    ids = torch.tensor([[5, 17, 300, 41, 9]])
    with warnings.catch_warnings():
        # Of weights that embedding and head share, which are both in the adapter.
        warnings.filterwarnings("ignore", message="Model with `tie_word_embeddings=True`")
        theirs = PeftModel.from_pretrained(load_model("tiny"), str(tmp_path / "adapter"))(ids).logits
    ours = script.merged(load_model("tiny"), made)(ids).logits
    torch.testing.assert_close(theirs, ours, rtol=0, atol=2e-4)
    assert (ours - load_model("tiny")(ids).logits).abs().max() > 0.01


def test_a_low_rank_says_what_it_keeps(script: ModuleType) -> None:
    base, model = load_model("tiny"), trained()
    shares = []
    for rank in (1, 8, 64):
        made = script.difference(base, model, rank)
        shares.append(made.kept / made.changed)
        assert all(min(one.shape) <= rank for name, one in made.tensors.items() if "lora_" in name)
    assert 0 < shares[0] < shares[1] < shares[2] <= 1.0001


def test_a_change_of_one_direction_is_kept_whole(script: ModuleType, tmp_path: Path) -> None:
    model = load_model("tiny")
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.add_(torch.outer(torch.ones(len(parameter)), torch.linspace(-0.1, 0.1, parameter.shape[1])))
    save_model(model, tmp_path / "policy", AutoTokenizer.from_pretrained(resolve("tiny")))
    out, whole = tmp_path / "adapter", tmp_path / "whole"
    words = [str(SCRIPT), str(tmp_path / "policy"), str(out), "--base", "tiny", "--rank", "1", "--merge", str(whole)]
    told = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=True).stdout
    assert "100.0% of the squared change" in told and "rank 1" in told
    with safe_open(out / "adapter_model.safetensors", "pt") as file:
        assert all("lora_" in name for name in file.keys())  # noqa: SIM118
    for ours, theirs in zip(model.parameters(), load_model(whole).parameters(), strict=True):
        torch.testing.assert_close(theirs, ours, rtol=0, atol=2e-3)
    again = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
    assert again.returncode == 2 and "exists" in again.stderr


def test_models_of_other_shapes_are_refused(script: ModuleType, tmp_path: Path) -> None:
    model = trained()
    del model.model.layers[-1]  # type: ignore[union-attr,operator]
    with pytest.raises(ConfigError, match="not of the base's shape"):
        script.difference(load_model("tiny"), model, 4)


def test_what_an_adapter_cannot_hold_is_refused(script: ModuleType) -> None:
    base, model = load_model("tiny"), load_model("tiny")
    for one, bias in ((base, 0.0), (model, 1.0)):
        layer = one.model.layers[0].self_attn.q_proj
        layer.bias = torch.nn.Parameter(torch.full((layer.out_features,), bias))
    with pytest.raises(ConfigError, match=r"layers\.0\.self_attn\.q_proj\.bias was trained"):
        script.difference(base, model, 4)
