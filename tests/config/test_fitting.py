"""Settings that fit the size of a model: no rate of the shipped model reaches another by accident."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dynaweb.config.fitting import parameters, settings_for
from dynaweb.config.layers import shipped_recipes
from dynaweb.config.recipe import Recipe
from dynaweb.config.resolving import resolve

RATES = ("sft.lr", "wm_fit.lr", "judge_fit.lr", "rl.lr")


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("tiny", 1e6),
        ("smollm2", 135e6),
        ("Qwen/Qwen2.5-0.5B-Instruct", 0.5e9),
        ("meta-llama/Llama-3.1-8B", 8e9),
        ("HuggingFaceTB/SmolLM2-360M", 360e6),
        ("Qwen/Qwen3-30B-A3B", 30e9),
        ("openai/gpt-oss-20b", 20e9),
        ("microsoft/phi-4", None),
        ("org/model-v2", None),
    ],
)
def test_sizes_are_read_from_names(name: str, size: float | None) -> None:
    assert parameters(name) == size


@pytest.mark.parametrize(("dtype", "size"), [("float32", 250.0), ("bfloat16", 500.0), (None, 500.0)])
def test_sizes_are_read_from_files(tmp_path: Path, dtype: str | None, size: float) -> None:
    (tmp_path / "model.safetensors").write_bytes(bytes(1000))
    (tmp_path / "config.json").write_text(json.dumps({"torch_dtype": dtype} if dtype else {}))
    assert parameters(str(tmp_path)) == size


def rates(recipe: Recipe) -> list[float]:
    flat = recipe.flat()
    return [flat[path] for path in RATES]


@pytest.mark.parametrize("name", sorted(shipped_recipes()))
@pytest.mark.parametrize("model", ["org/Some-7B", "org/some-model", "Qwen/Qwen2.5-0.5B-Instruct"])
def test_no_recipe_gives_a_big_model_the_rates_of_another(name: str, model: str) -> None:
    recipe = resolve(name, model=model)
    wanted, origin = settings_for(model, recipe.wm.name)
    assert rates(recipe) == [wanted[path] for path in RATES]
    assert all(recipe.origins[path] == origin for path in RATES)
    assert max(rates(recipe)) <= 4e-5


def test_what_is_set_with_the_model_or_after_it_stays() -> None:
    recipe = resolve(model="org/Some-7B", overrides=["rl.lr=3e-6"])
    assert (recipe.rl.lr, recipe.origins["rl.lr"]) == (3e-6, "--set")
    assert recipe.sft.lr == 1e-5 and recipe.origins["sft.lr"] == "fits a model of 7B"
    assert recipe.model.dtype == "bfloat16" and recipe.policy.max_new_tokens == 256
    smol = resolve("smollm2")
    assert smol.origins["rl.lr"] == "smollm2.toml:rl.lr" and "fits" in smol.origins["judge_fit.lr"]


def test_the_shipped_model_has_the_defaults() -> None:
    assert resolve("dynaweb").flat() == resolve("dynaweb", model="tiny").flat()
    back = resolve(resolve("dynaweb", model="org/Some-7B"), model="tiny")
    assert rates(back) == rates(resolve("dynaweb"))
