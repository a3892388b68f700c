"""Prompts with pictures in vLLM: it reads the ids that were written, and its weights see as the trainer's.

vLLM is played by `tests/kits/fake_vllm` in a process and by `vllm_server_kit` as a server; both put the tokens of
pictures in by transformers' own processor. scripts/check_vllm.py does the same with the real one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import engine_kit as kit
import pytest
import torch

pytest.importorskip("PIL")
from vision_families import FAMILIES, Album
from vllm_server_kit import serving

from dynaweb.engines.plugin import VllmConfig
from dynaweb.engines.scheduler import Lockstep
from dynaweb.engines.vllm.engine import VllmEngine
from dynaweb.engines.vllm.pictures import refuse_other_ids
from dynaweb.engines.vllm.probe import REPLY, Probe
from dynaweb.engines.vllm.serve import command
from dynaweb.engines.vllm.weights import nested_name
from dynaweb.engines.vllm.worker import WorkerExtension
from dynaweb.errors import EngineError
from dynaweb.pipeline.artifacts import LoadedModel
from dynaweb.pipeline.fit import with_adapters
from dynaweb.policy.prompt_formats import ChatFormat
from dynaweb.policy.settings import PromptSettings
from dynaweb.protocols import EngineContext, GenerateRequest
from dynaweb.trainer.adapters import freeze_vision
from dynaweb.trainer.vision import ModelVision
from dynaweb.types import Node, Observation, Prompt, Screenshot, Task

FAKE = Path(__file__).parents[1] / "kits" / "fake_vllm"
TASK = Task("t", "Open the cart <image> and say what it costs", "http://a.localhost")


class Seeing:
    """A tiny Idefics3 with its processor, and prompts over pages: three with pictures, two with the same ids."""

    def __init__(self, folder: Path) -> None:
        family = FAMILIES["idefics3"]
        self.folder = family.write(folder)
        self.model, self.processor = family.build()
        self.album = Album()
        self.vision = ModelVision(str(folder), self.album.read)
        ends = family.end_ids(self.processor.tokenizer)
        settings = PromptSettings(ends=ends, modality="both", vision=self.vision, context=4096, policy_reply=8)
        self.format = ChatFormat(self.processor.tokenizer, settings)
        self.prompts = []
        for seed, size in enumerate([(64, 48), (40, 80), (64, 48)]):
            image = self.album.add(*size, seed=seed)
            shot = Screenshot(image, size)
            page = Observation("http://a.localhost/", (Node(1, "link", "cart <image>"),), screenshot=shot)
            self.prompts.append(self.format.policy_prompt(TASK, page, ()))
        assert self.prompts[0].ids == self.prompts[2].ids and self.prompts[0] != self.prompts[2]

    def fresh(self) -> LoadedModel:
        """A model of its own, all of whose weights are trained."""
        return LoadedModel(FAMILIES["idefics3"].build()[0], self.processor.tokenizer, self.format, self.vision)

    def said(self, model: Any, prompt: Prompt, reply: tuple[int, ...], never: list[int]) -> list[float]:
        """Log-probabilities of a reply by the model's own forward pass on what its processor makes of the pictures."""
        pictures = [self.album.pillow(image) for image in prompt.images]
        own = self.processor(text=["<image>" * len(pictures)], images=[pictures], return_tensors="pt")
        inputs = {name: own[name] for name in ("pixel_values", "pixel_attention_mask")}
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([[*prompt.ids, *reply]]), **inputs, use_cache=False).logits[0]
        logits = logits[len(prompt) - 1 : -1].float()
        logits[:, never] = float("-inf")
        return torch.log_softmax(logits, -1).gather(1, torch.tensor(reply)[:, None])[:, 0].tolist()


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> Seeing:
    return Seeing(tmp_path_factory.mktemp("seeing") / "model")


@pytest.fixture(params=["process", "servers"])
def settings(request: pytest.FixtureRequest, seeing: Seeing, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """An engine's settings for a vLLM in a process, or for two servers with weights of their own."""
    monkeypatch.setenv("PYTHONPATH", str(FAKE))
    monkeypatch.syspath_prepend(str(FAKE))
    with ExitStack() as stack:
        if request.param == "process":
            yield {}
            return
        models = [FAMILIES["idefics3"].build(seed)[0] for seed in (1, 2)]
        servers = stack.enter_context(serving(*models, processor=seeing.processor))
        yield {"servers": tuple(one.address for one in servers)}


def engine(loaded: Any, rank: int = 0, **settings: Any) -> VllmEngine:
    """An engine on a model."""
    context = EngineContext(weights=loaded, batching=Lockstep(), adapter_rank=rank)
    return VllmEngine(VllmConfig(**settings), context)


async def apart(one: VllmEngine, seeing: Seeing) -> float:
    """The largest difference between log-probabilities that came with sampled tokens, and the model's own."""
    requests = [GenerateRequest(prompt, 6, 1.0, 1.0, seed) for seed, prompt in enumerate(seeing.prompts)]
    done = await asyncio.gather(*map(one.generate, requests))
    own = [
        seeing.said(one.model, request.prompt, reply.token_ids, one._unwritten)
        for request, reply in zip(requests, done, strict=True)
    ]
    pairs = [pair for row, reply in zip(own, done, strict=True) for pair in zip(row, reply.logprobs, strict=True)]
    assert len(pairs) == 6 * len(requests)
    return max(abs(left - right) for left, right in pairs)


def stir(model: Any, part: str) -> None:
    """Other weights of a part of a model."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if part in name:
                parameter.add_(torch.randn_like(parameter), alpha=0.1)


async def test_replies_to_pictures_have_the_probabilities_of_the_trainer(seeing: Seeing, settings: Any) -> None:
    policy = engine(seeing.fresh(), **settings)
    assert await apart(policy, seeing) < 1e-4
    assert policy.mismatch["engine.probe_picture"] < 1e-4
    image_id = seeing.vision.image_id
    assert policy.stats.image_tokens == sum(prompt.ids.count(image_id) for prompt in seeing.prompts)
    same_ids = (seeing.prompts[0], seeing.prompts[2])
    chances = [await policy.choice_logprobs(prompt, (40, 41, 42)) for prompt in same_ids]
    for prompt, given in zip(same_ids, chances, strict=True):
        own = [seeing.said(policy.model, prompt, (token,), [])[0] for token in (40, 41, 42)]
        assert given == pytest.approx(own, abs=1e-4)
    assert chances[0] != pytest.approx(chances[1], abs=1e-4), "the same ids with another picture are another prompt"
    text = await policy.generate(GenerateRequest(Prompt((40, 41, 42)), 6, 3.0))
    assert not {*text.token_ids} & {*seeing.vision.unwritten}
    await policy.close()


@pytest.mark.parametrize(
    ("settings", "part"),
    [("process", "vision_model"), ("servers", "vision_model"), ("servers", "connector"), ("servers", "text_model")],
    indirect=["settings"],
)
async def test_weights_that_see_are_pushed_and_stale_ones_are_noticed(seeing: Seeing, part: str, settings: Any) -> None:
    policy = engine(seeing.fresh(), **settings)
    assert await apart(policy, seeing) < 1e-4
    stir(policy.model, part)
    with pytest.raises(EngineError, match="does not have the trainer's weights: ") as error:
        await policy.recheck()
    assert ("reply to a picture" in str(error.value)) is (part != "text_model") and "\n" not in str(error.value)
    policy.weights_changed()
    # What pictures look like was remembered with the weights before.
    assert await apart(policy, seeing) < 1e-4
    await policy.close()


@pytest.mark.parametrize("settings", ["servers"], indirect=True)
async def test_adapters_of_a_model_that_sees_go_over(seeing: Seeing, settings: Any) -> None:
    for trained in (False, True):
        loaded = seeing.fresh()
        if not trained:
            freeze_vision(loaded.model)
        policy = engine(with_adapters(loaded, 4, seed=1), rank=4, **settings)
        assert policy._arguments().get("enable_tower_connector_lora", False) is trained
        stir(policy.model, ".lora_")
        assert await apart(policy, seeing) < 1e-4
        await policy.vllm.close()


async def test_other_ids_than_those_of_the_prompt_are_refused_in_one_line(
    seeing: Seeing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(FAKE))
    monkeypatch.syspath_prepend(str(FAKE))
    monkeypatch.setenv("FAKE_VLLM_OTHER", "1")
    policy = engine(seeing.fresh())
    with pytest.raises(EngineError, match="its processor of this model's family is not the trainer's") as error:
        await policy.generate(GenerateRequest(seeing.prompts[0], 4))
    assert "\n" not in str(error.value) and str(error.value).startswith("vLLM reads a prompt with pictures as ")
    await policy.close()


async def test_a_server_that_does_not_say_what_it_reads_is_refused_in_one_line(seeing: Seeing) -> None:
    with serving(FAMILIES["idefics3"].build(1)[0], processor=seeing.processor) as (server,):
        server.silent = True
        policy = engine(seeing.fresh(), servers=(server.address,))
        with pytest.raises(EngineError, match="does not say which ids it reads") as error:
            await policy.generate(GenerateRequest(seeing.prompts[0], 4))
        assert "\n" not in str(error.value)
        await policy.close()


@pytest.mark.parametrize(
    ("read", "words"),
    [
        ((5, 6, 9, 8), r"4 tokens .* the first at place 2 \(\[6, 7, 8\] is \[6, 9, 8\] there\)"),
        (
            (5, 6, 7),
            r"3 tokens that differ from the 4 of the trainer, the first at place 3 \(\[7, 8\] is \[7\] there\)",
        ),
        ((), r"0 tokens .* place 0 \(\[5, 6\] is \[\] there\)"),
        ((5, 6, 7, 8, 8), r"5 tokens .* place 4"),
        ((5, 6, 7, 8), ""),
    ],
)
def test_the_place_where_ids_differ_is_named(read: tuple[int, ...], words: str) -> None:
    written = (5, 6, 7, 8)
    if not words:
        return refuse_other_ids(written, read)
    with pytest.raises(EngineError, match=words):
        refuse_other_ids(written, list(read))
    return None


async def test_a_model_that_reads_text_alone_or_has_no_room_refuses_pictures_in_one_line(seeing: Seeing) -> None:
    blind = engine(LoadedModel(kit.llama(1), cast("Any", None), cast("Any", None)))
    for asked in (
        blind.generate(GenerateRequest(seeing.prompts[0], 4)),
        blind.choice_logprobs(seeing.prompts[0], (1, 2)),
    ):
        with pytest.raises(EngineError, match="the engine vllm cannot see") as error:
            await asked
        assert "\n" not in str(error.value)
    with pytest.raises(EngineError, match=r"raise max_model_len, or set observation\.modality = text"):
        Probe.of(seeing.model, 100, 50, seeing.vision)


def test_the_probe_of_a_model_that_sees_writes_no_token_of_an_image(seeing: Seeing) -> None:
    size = seeing.model.get_input_embeddings().weight.shape[0]
    probe = Probe.of(seeing.model, size, 4096, seeing.vision)
    assert probe.seeing is not None and len(probe.seeing.prompt.images) == 1
    drawn = [*(token for ids in probe.prompts for token in ids), *probe.seeing.prompt.ids[-REPLY:]]
    assert not {*drawn} & {*seeing.vision.unwritten}
    again = Probe.of(seeing.model, size, 4096, seeing.vision)
    assert (again.prompts, again.seeing.prompt) == (probe.prompts, probe.seeing.prompt)  # type: ignore[union-attr]
    said = probe.said(seeing.model)
    assert [len(row) for row in said] == [*(len(ids) - 1 for ids in probe.prompts), REPLY]
    assert probe.compare(seeing.model, said, 0.0, 1)["engine.probe_picture"] == 0.0
    with pytest.raises(EngineError, match="after push 2 log-probabilities of a fixed reply to a picture differ"):
        probe.compare(seeing.model, [*said[:-1], [value - 0.1 for value in said[-1]]], 0.0, 2)


def test_the_head_of_a_language_model_within_another_is_renewed() -> None:
    inner, packed = kit.llama(1), list[Any]()
    inner.lm_head = torch.nn.Linear(32, kit.VOCABULARY, bias=False)  # as on a CPU, where vLLM keeps a copy
    inner.lm_head.quant_method = SimpleNamespace(process_weights_after_loading=packed.append)
    outer = torch.nn.Module()
    outer.language_model, outer.config = inner, inner.config
    worker = WorkerExtension()
    worker.model_runner = SimpleNamespace(model=outer)
    worker.dynaweb_renew_head()
    assert torch.equal(inner.lm_head.weight, inner.model.embed_tokens.weight) and packed == [inner.lm_head]


@pytest.mark.parametrize(
    ("name", "nested"),
    [
        (
            "model.vision_tower.encoder.layers.0.mlp.fc1.weight",
            "model.vision_tower.vision_model.encoder.layers.0.mlp.fc1.weight",
        ),
        ("model.vision_tower.vision_model.embeddings.a", "model.vision_tower.vision_model.embeddings.a"),
        ("model.vision_model.encoder.a", "model.vision_model.encoder.a"),
        ("lm_head.weight", "lm_head.weight"),
    ],
)
def test_a_level_that_the_tower_has_in_vllm_alone_is_named(name: str, nested: str) -> None:
    assert nested_name(name) == nested
    worker = WorkerExtension()
    for has in (False, True):
        tower = torch.nn.Module()
        tower.add_module("vision_model" if has else "encoder", torch.nn.Linear(2, 2))
        model = torch.nn.Module()
        model.vision_tower = tower
        worker.model_runner = SimpleNamespace(model=model)
        assert worker.dynaweb_nested() is has


def test_a_server_of_a_model_that_sees_has_its_tokenizer() -> None:
    seeing, blind = (command("model", [], gpu=False, scale_out=True, sees=sees) for sees in (True, False))
    assert ("--skip-tokenizer-init" in blind, "--skip-tokenizer-init" in seeing) == (True, False)
    assert seeing[seeing.index("--limit-mm-per-prompt") + 1] == '{"video": 0}'
