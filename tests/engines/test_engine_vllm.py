"""What surrounds vLLM: weights in transit, the probe, adapters as files, importance weights, and clear refusals.

vLLM itself needs an environment of its own; scripts/check_vllm.py checks it there.
"""

from __future__ import annotations

import asyncio
import json
import math
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import engine_kit as kit
import pytest
import torch
from core_kit import Cli
from hypothesis import given
from hypothesis import strategies as st
from rank_kit import optimizers, trainer_of
from safetensors.torch import load_file

from dynaweb.config import resolve
from dynaweb.engines.plugin import VllmConfig
from dynaweb.engines.scheduler import Lockstep
from dynaweb.engines.vllm.engine import VllmEngine
from dynaweb.engines.vllm.probe import Probe, model_logprobs
from dynaweb.engines.vllm.weights import adapter_rank, plain_weights, wrapped_name, write_adapter, write_weights
from dynaweb.engines.vllm.worker import WorkerExtension, wrapped_layers
from dynaweb.errors import ConfigError, EngineError, MissingError
from dynaweb.pipeline.artifacts import LoadedModel
from dynaweb.pipeline.fit import with_adapters
from dynaweb.pipeline.models import Models, answered_elsewhere
from dynaweb.plugin.registry import current
from dynaweb.protocols import EngineContext, GenerateRequest, TokenRow
from dynaweb.rl.importance import corrected
from dynaweb.trainer.distributed.deepspeed import ZeroSettings, deepspeed_config
from dynaweb.trainer.losses import weighted
from dynaweb.types import Prompt


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_arrive_whole_as_a_checkpoint_in_memory(tied: bool, dtype: torch.dtype, tmp_path: Path) -> None:
    model, other = kit.llama(1, tied=tied).to(dtype), kit.llama(2, tied=tied).to(dtype)
    write_weights(plain_weights(model), tmp_path / "weights")
    arrived = load_file(tmp_path / "weights" / "model.safetensors")
    assert ("lm_head.weight" in arrived) is not tied
    missing, unexpected = other.load_state_dict(arrived, strict=False)
    assert (missing, unexpected) == ([], []) if not tied else (set(missing) <= {"lm_head.weight"} and not unexpected)
    for (name, mine), (_, theirs) in zip(model.named_parameters(), other.named_parameters(), strict=True):
        assert torch.equal(mine, theirs), name


def test_a_tied_head_is_renewed_after_a_load() -> None:
    model, packed = kit.llama(1), list[Any]()
    model.lm_head = torch.nn.Linear(32, kit.VOCABULARY, bias=False)  # as on a CPU, where vLLM keeps a copy
    model.lm_head.quant_method = SimpleNamespace(process_weights_after_loading=packed.append)
    worker = WorkerExtension()
    worker.model_runner = SimpleNamespace(model=model)
    worker.dynaweb_renew_head()
    assert torch.equal(model.lm_head.weight, model.model.embed_tokens.weight) and packed == [model.lm_head]
    model.config.tie_word_embeddings = False
    worker.dynaweb_renew_head()
    assert len(packed) == 1


def test_the_probe_passes_the_same_weights_and_refuses_others() -> None:
    model, probe = kit.llama(1), Probe.of(kit.llama(1), kit.VOCABULARY, 256)
    said = model_logprobs(model, probe.prompts)
    assert probe.compare(model, said, 0.0, 3)["engine.probe_max"] == 0.0
    assert probe.version == 3
    naive = kit.naive_logprobs(model, TokenRow(Prompt(probe.prompts[0][:1]), probe.prompts[0][1:])).tolist()
    assert said[0] == pytest.approx(naive, abs=1e-4)
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight.mul_(1.05)
    with pytest.raises(EngineError, match="does not have the trainer's weights: after push 4"):
        probe.compare(model, said, 0.0, 4)
    with pytest.raises(EngineError, match="nan"):
        probe.compare(model, [[math.nan] * len(row) for row in said], 0.0, 4)
    assert probe.version == 3


def test_the_probe_judges_by_the_models_own_rounding() -> None:
    """In half precision too it refuses other weights, and passes those that only rounding tells apart."""
    wide = kit.llama(1)
    model = kit.llama(1).bfloat16()
    probe = Probe.of(model, kit.VOCABULARY, 256)
    assert probe.rounding is not None and probe.rounding > 0
    rounded = kit.llama(1)
    rounded.load_state_dict(model.state_dict())
    passed = probe.compare(model, model_logprobs(rounded, probe.prompts), 0.0, 1)
    assert 0 < passed["engine.probe_mean"] <= passed["engine.probe_allowed"]
    with torch.no_grad():
        for parameter in wide.parameters():
            parameter.mul_(1.3)
    with pytest.raises(EngineError, match="after push 2"):
        probe.compare(model, model_logprobs(wide, probe.prompts), 0.0, 2)
    assert max(map(max, model_logprobs(model, probe.prompts))) < 0


def test_names_fit_layers_that_are_wrapped_for_adapters() -> None:
    class Wrapped(torch.nn.Module):
        packed_modules_mapping: ClassVar[dict[str, list[str]]] = {"qkv_proj": ["q_proj", "k_proj", "v_proj"]}

        def __init__(self) -> None:
            super().__init__()
            for name in ("qkv_proj", "embed_tokens"):
                layer = torch.nn.Module()
                layer.base_layer = torch.nn.Linear(2, 2, bias=False)
                self.add_module(name, layer)
            self.norm = torch.nn.LayerNorm(2)

    wrapped = wrapped_layers(Wrapped())
    assert wrapped == {"qkv_proj", "q_proj", "k_proj", "v_proj", "embed_tokens"}
    names = ("model.embed_tokens.weight", "layers.0.self_attn.q_proj.weight", "model.norm.weight", "lm_head.weight")
    assert [wrapped_name(name, wrapped) for name in names] == [
        "model.embed_tokens.base_layer.weight",
        "layers.0.self_attn.q_proj.base_layer.weight",
        "model.norm.weight",
        "lm_head.weight",
    ]


def test_adapters_are_written_as_peft_reads_them(tmp_path: Path) -> None:
    plain = kit.llama(1)
    names = [name for name, _ in plain_weights(plain)]
    model = with_adapters(LoadedModel(kit.llama(1), None, None), 4, seed=1).model  # type: ignore[arg-type]
    assert adapter_rank(model) == 4
    assert adapter_rank(plain) == 0
    assert [name for name, _ in plain_weights(model)] == names
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".lora_B." in name:
                parameter.normal_()
    write_adapter(model, tmp_path / "adapter")
    from peft import PeftModel

    loaded = PeftModel.from_pretrained(kit.llama(1), str(tmp_path / "adapter"))
    ids = torch.tensor([[5, 6, 7, 8]])
    torch.testing.assert_close(loaded(ids).logits, model(ids).logits)
    assert not torch.allclose(model(ids).logits, plain(ids).logits)
    assert len(load_file(tmp_path / "adapter" / "adapter_model.safetensors")) == 2 * 7 * 3


def test_without_the_packages_the_error_names_the_extra() -> None:
    weights = cast("Any", SimpleNamespace(model=kit.llama(), tokenizer=None, vision=None))
    engine = VllmEngine(VllmConfig(), EngineContext(weights=weights, batching=Lockstep()))
    with pytest.raises(EngineError, match="empty prompt"):
        engine._refuse(GenerateRequest(Prompt(()), 4))
    with pytest.raises(EngineError, match="does not fit into the context of 256"):
        engine._refuse(GenerateRequest(Prompt((1,) * 256), 4))
    assert engine.correction == 2.0
    for module, action in (("vllm", _start_vllm), ("deepspeed", _import_deepspeed)):
        hidden = {name: sys.modules.pop(name) for name in list(sys.modules) if name.split(".")[0] == module}
        sys.modules[module] = None  # type: ignore[assignment]
        try:
            with pytest.raises(MissingError, match=rf"pip install 'dynaweb\[{module}\]'"):
                action()
        finally:
            del sys.modules[module]
            sys.modules.update(hidden)


@pytest.mark.skipif(find_spec("vllm") is not None, reason="vLLM is installed")
def test_a_run_that_lacks_its_engine_says_so_at_once(cli: Cli) -> None:
    done = cli("run", "smoke", "--set", "policy.engine.name=vllm", "--out", "here")
    assert done.returncode == 3
    assert "pip install 'dynaweb[vllm]'" in done.stderr
    assert "stage" not in done.stderr


def _start_vllm() -> None:
    weights = cast("Any", SimpleNamespace(model=kit.llama(), tokenizer=None, vision=None))
    asyncio.run(VllmEngine(VllmConfig(), EngineContext(weights=weights, batching=Lockstep())).ready())


def _import_deepspeed() -> None:
    from dynaweb.trainer.distributed.deepspeed import import_deepspeed

    import_deepspeed()


@given(
    gaps=st.lists(st.floats(-30, 30), min_size=1, max_size=8),
    cap=st.floats(0.5, 5.0),
)
def test_importance_weights_are_the_ratio_up_to_the_cap(gaps: list[float], cap: float) -> None:
    drawn = [[-1.0] * len(gaps), []]
    own = [[-1.0 + gap for gap in gaps], [-3.0]]
    weights, seen = corrected(drawn, own, cap)
    assert weights[0] == pytest.approx([min(cap, math.exp(gap)) for gap in gaps], rel=1e-6)
    assert weights[1] == [1.0]
    assert seen["engine.kl"] >= -1e-12
    assert seen["engine.capped"] == pytest.approx(sum(math.exp(a + 1) > cap for a in own[0]) / len(gaps))
    assert corrected([()], [[-1.0]], cap)[1] == {}


def test_weights_scale_gradients_and_nothing_else() -> None:
    logp = torch.tensor([-1.1, -0.2, -7.7], requires_grad=True)
    weight = torch.tensor([0.0, 0.5, 2.0])
    out = weighted(logp, weight)
    assert torch.equal(out, logp)
    (out.exp() * torch.tensor([1.0, 2.0, 3.0])).sum().backward()
    expected = logp.detach().exp() * torch.tensor([1.0, 2.0, 3.0]) * weight
    torch.testing.assert_close(logp.grad, expected)


def test_a_weighted_update_is_the_mean_of_weighted_tokens() -> None:
    rows = kit.rows_of(1, trajectories=2)
    gspo = optimizers()["gspo"]
    half = [[0.5] * len(row.response_ids) for row in rows]
    norms = []
    for weights in (None, half):
        trainer = trainer_of(gspo, max_grad_norm=1e9)
        metrics = trainer.policy_step(rows, gspo, [1.0, -1.0], token_weights=weights)
        norms.append((metrics["grad_norm"], metrics["policy_loss"]))
    assert norms[1][0] == pytest.approx(0.5 * norms[0][0], rel=1e-5)
    assert norms[1][1] == norms[0][1]


def test_engines_and_backend_are_settings_of_the_recipe() -> None:
    recipe = resolve("dynaweb", overrides=["wm.engine.name=vllm", "wm.engine.memory=0.2", "backend.stage=3"])
    assert recipe.engine_of("policy").name == "transformers"
    assert recipe.engine_of("wm").settings == {"memory": 0.2}
    assert recipe.tree()["wm"]["engine"] == {"name": "vllm", "memory": 0.2}
    assert resolve(recipe).engine_of("wm") == recipe.engine_of("wm")
    plain = resolve("dynaweb")
    assert "engine" not in plain.tree()["wm"]
    for wrong, words in (
        ("policy.engine.name=vlm", "vllm"),
        ("reward.engine.nmae=1", "nmae"),
        ("wm.engine.memory=2", "policy.engine.memory|less than"),
        ("backend.name=deepsped", "deepspeed"),
    ):
        base = ["wm.engine.name=vllm"] if wrong.startswith("wm") else []
        with pytest.raises((ConfigError, MissingError), match=words):
            resolve("dynaweb", overrides=[*base, wrong])


@pytest.mark.parametrize(
    ("choices", "overrides", "elsewhere"),
    [
        ({}, [], False),
        ({"wm": "frozen-llm"}, [], False),
        ({}, ["reward.engine.name=vllm"], True),
        ({"wm": "frozen-llm"}, ["wm.server.model=x", "wm.server.base_url=http://localhost:1/v1"], True),
        ({"reward": "llm-judge"}, ["reward.server.model=x", "reward.server.base_url=http://localhost:1/v1"], True),
        ({"reward": "weighted"}, ["reward.judges.self-assess.weight=1"], False),
        (
            {"reward": "weighted"},
            ["reward.judges.self-assess.weight=1", "reward.judges.llm-judge.settings={server = {model = 'x'}}"],
            True,
        ),
    ],
)
def test_only_what_this_process_answers_is_in_step(
    choices: dict[str, Any], overrides: list[str], elsewhere: bool
) -> None:
    recipe = resolve("smoke", overrides=overrides, **choices)
    assert answered_elsewhere(recipe, current()) is elsewhere
    assert Models(recipe, current(), lambda *names: 0, lambda counted: None).lockstep.free is elsewhere


def test_a_deepspeed_file_of_ones_own_goes_over_ours(tmp_path: Path) -> None:
    path = tmp_path / "ds.json"
    mine = {
        "zero_optimization": {"stage": 3, "overlap_comm": True},
        "train_batch_size": 64,
        "gradient_clipping": 9.0,
        "communication_data_type": "fp32",
        "bf16": {"enabled": "auto"},
    }
    path.write_text(json.dumps(mine))
    found = deepspeed_config(ZeroSettings(2, True, str(path)), dtype=torch.bfloat16, max_grad_norm=0.5)
    zero = found["zero_optimization"]
    assert (zero["stage"], zero["overlap_comm"], zero["offload_optimizer"]["device"]) == (3, True, "cpu")
    assert found["gradient_clipping"] == 0.5
    assert found["bf16"]["enabled"] is True
    assert found["communication_data_type"] == "fp32"
    assert "train_batch_size" not in found
    half = '{"fp16": {"enabled": true}}'
    for text, words in (("[1]", "where a table belongs"), ("{", "is damaged"), (half, "bfloat16")):
        path.write_text(text)
        with pytest.raises(ConfigError, match=words):
            deepspeed_config(ZeroSettings(2, False, str(path)), dtype=torch.float32, max_grad_norm=1.0)
    with pytest.raises(ConfigError, match="cannot be read"):
        deepspeed_config(ZeroSettings(2, False, str(tmp_path / "no.json")), dtype=torch.float32, max_grad_norm=1.0)
