"""docs/models.md: a row for each architecture of the script, none of them silently wrong, and some measured anew.

So another version of transformers, or of this package, cannot change what is right and what is refused unseen.
"""

from __future__ import annotations

import gc
import sys
import weakref
from importlib.util import module_from_spec, spec_from_file_location
from types import ModuleType
from typing import Any

import pytest
from folders import ROOT

from dynaweb.engines.local.architecture import read_attention
from dynaweb.engines.local.engine import TransformersEngine
from dynaweb.engines.scheduler import Lockstep
from dynaweb.errors import ConfigError
from dynaweb.trainer.logprobs import scorer_for

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    # peft tells of patterns that an architecture has no use for.
    pytest.mark.filterwarnings("ignore::RuntimeWarning:peft.*", "ignore::UserWarning:peft.*"),
]
PAGE = ROOT / "docs" / "models.md"


def _script() -> ModuleType:
    spec = spec_from_file_location("benchmark_architectures", ROOT / "benchmarks" / "architectures.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


script = _script()
TABLE = {verdict.name: verdict for verdict in script.documented(PAGE)}
MEASURED = (
    "llama",
    "mistral",
    "phimoe",  # its window lives in the mask alone
    "qwen2_moe (window)",
    "phi3 (longrope)",
    "llama (dynamic rope)",
    "gemma2",  # soft caps
    "granite",  # scaled logits
    "cohere",
    "llama4_text",  # chunks, and positions by index
    "gpt_oss",  # attention sinks
    "gpt2",
    "opt",
    "mpt",  # a bias for its positions
    "doge",  # masks that depend on the tokens
    "mamba",
    "jamba",
    "qwen3_next",
    "recurrent_gemma",
    "bert",
)


def test_the_page_has_every_architecture_and_none_is_silently_wrong() -> None:
    assert list(TABLE) == list(script.ARCHITECTURES)
    assert len({name.partition(" ")[0] for name in TABLE}) >= 60
    assert {name: verdict.wrong for name, verdict in TABLE.items() if verdict.wrong} == {}


@pytest.mark.parametrize("name", MEASURED)
def test_what_the_page_says_is_what_is_measured(name: str) -> None:
    assert script.measured(name) == TABLE[name]


@pytest.mark.parametrize("name", [name for name in MEASURED if "window" in name] + ["mistral", "phimoe", "gpt_oss"])
def test_windows_are_shorter_than_the_rows(name: str) -> None:
    attention = read_attention(script.tiny(name))
    assert attention is not None
    assert script.SMALL["sliding_window"] in attention.windows.values()
    assert script.SMALL["sliding_window"] < max(len(row.prompt) for row in script.token_rows())


@pytest.mark.parametrize("name", ["phimoe", "llama4_text", "jamba", "lfm2", "falcon_h1", "granite", "bert"])
def test_half_precision_hides_nothing(name: str) -> None:
    """What is read and tried on a model gives the same answers where rounding is coarse."""
    want, model = TABLE[name], script.tiny(name).bfloat16()
    if want.rows == "refused":
        with pytest.raises(ConfigError, match="not causal"):
            scorer_for(model)
        return
    scorer: Any = scorer_for(model)
    assert scorer.packs is (want.rows == "packed")
    assert (scorer._tail is not None) is (want.head == "apart")
    runner: Any = TransformersEngine(model, Lockstep())._runner
    assert runner._pads is (want.batches == "padded")


def test_what_was_read_is_not_kept() -> None:
    model = script.tiny("mistral")
    assert read_attention(model) is not None
    model_ref = weakref.ref(model)
    del model
    gc.collect()
    assert model_ref() is None


def test_a_cell_that_is_off_is_seen() -> None:
    """What the table calls wrong: a number beyond the tolerance, and an error of its own."""
    assert script.Verdict("llama", logp=script._within(4.0, "nats"), grad="ok").wrong == ["logp"]
    assert script.Verdict("llama", generate="fails: ValueError", rows="refused").wrong == ["generate"]
