"""The engine: equal to plain decoding, independent of batch mates, up to date with the trainer's weights."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import engine_kit as kit
import pytest
import torch
import transformers

from dynaweb.engines.local.engine import TransformersEngine
from dynaweb.engines.local.sampling import cut
from dynaweb.engines.local.sessions import GenericRunner, LlamaRunner, survivors
from dynaweb.engines.scheduler import Lockstep
from dynaweb.errors import ConfigError, DivergedError, EngineError
from dynaweb.protocols import Completion, GenerateRequest, TokenRow
from dynaweb.types import Prompt

MODELS: dict[str, Callable[[], Any]] = {
    "llama": kit.llama,
    "llama-gqa": lambda: kit.llama(kv_heads=2),
    "gpt2": kit.gpt2,
    "mamba": kit.mamba,
    "longrope": kit.longrope,
}


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(params=list(MODELS))
def engine(request: pytest.FixtureRequest) -> TransformersEngine:
    return TransformersEngine(MODELS[request.param](), Lockstep())


def _requests(count: int = 24, seed: int = 0) -> list[GenerateRequest]:
    """Prompts of many lengths, some equal, some with a long common beginning, with all kinds of settings."""
    rng = random.Random(seed)
    pages = [kit.tokens(rng, 60, 60) for _ in range(2)]
    prompts = [kit.prompt(rng, 1, 40) for _ in range(count // 3)]
    prompts += [Prompt(rng.choice(pages) + kit.tokens(rng, 0, 9)) for _ in range(count // 3)]
    prompts += [rng.choice(prompts) for _ in range(count - len(prompts))]
    return [
        GenerateRequest(prompt, rng.randint(1, 12), rng.choice([0.0, 0.7, 1.0]), rng.choice([1.0, 0.8]), i, (3, 5, 8))
        for i, prompt in enumerate(prompts)
    ]


def _close(a: Completion, b: Completion) -> None:
    assert a.token_ids == b.token_ids
    assert a.finished == b.finished
    assert a.logprobs == pytest.approx(b.logprobs, rel=1e-4, abs=1e-5)


def test_greedy_equals_the_models_own_decoding(engine: TransformersEngine) -> None:
    rng = random.Random(1)
    requests = [GenerateRequest(kit.prompt(rng, 3, 20), 6, 0.0) for _ in range(4)]
    for request, found in zip(requests, engine.generate_batch(requests), strict=True):
        ids = list(request.prompt.ids)
        for token, logp in zip(found.token_ids, found.logprobs, strict=True):
            with torch.no_grad():
                want = torch.log_softmax(engine.model(torch.tensor([ids])).logits[0, -1], -1)
            assert token == int(want.argmax())
            assert logp == pytest.approx(float(want[token]), abs=1e-4)
            ids.append(token)


def test_a_request_gets_the_same_alone_and_in_any_company(engine: TransformersEngine) -> None:
    requests = _requests()
    together = engine.generate_batch(requests)
    for request, found in zip(requests, together, strict=True):
        _close(engine.generate_batch([request])[0], found)
    assert {len(c.token_ids) for c in together} != {1}


def test_the_same_batch_gives_the_same_bits_in_any_order(engine: TransformersEngine) -> None:
    requests = _requests()
    first = engine.generate_batch(requests)
    assert engine.generate_batch(requests) == first
    assert engine.generate_batch(requests[::-1]) == first[::-1]


def test_small_batches_give_the_same_tokens(engine: TransformersEngine) -> None:
    requests = _requests()
    small = TransformersEngine(engine.model, Lockstep(), max_batch_tokens=100)
    for a, b in zip(small.generate_batch(requests), engine.generate_batch(requests), strict=True):
        _close(a, b)


def test_both_runners_agree_on_a_llama() -> None:
    fast, plain = TransformersEngine(kit.llama(), Lockstep()), TransformersEngine(kit.llama(), Lockstep())
    assert isinstance(fast._runner, LlamaRunner)
    plain._runner = GenericRunner(plain.model, 0)
    for a, b in zip(fast.generate_batch(_requests()), plain.generate_batch(_requests()), strict=True):
        _close(a, b)
    assert fast.stats.computed_prompt_tokens < plain.stats.computed_prompt_tokens < plain.stats.prompt_tokens


def test_stop_token_is_kept_and_ends_the_completion(engine: TransformersEngine) -> None:
    everything = tuple(range(kit.VOCABULARY))
    (stopped,) = engine.generate_batch([GenerateRequest(Prompt((1, 2)), 9, seed=4, stop_ids=everything)])
    assert stopped.finished
    assert len(stopped.token_ids) == len(stopped.logprobs) == 1
    (cut,) = engine.generate_batch([GenerateRequest(Prompt((1, 2)), 9, seed=4)])
    assert not cut.finished
    assert len(cut.token_ids) == 9
    assert cut.token_ids[0] == stopped.token_ids[0]


def test_sampled_logprobs_are_those_of_the_tempered_distribution(engine: TransformersEngine) -> None:
    request = GenerateRequest(Prompt((4, 9, 2)), 5, temperature=0.6, seed=3)
    (found,) = engine.generate_batch([request])
    ids = torch.tensor([[*request.prompt.ids, *found.token_ids]])
    with torch.no_grad():
        logp = torch.log_softmax(engine.model(ids).logits[0] / 0.6, -1)
    want = [float(logp[2 + i, token]) for i, token in enumerate(found.token_ids)]
    assert found.logprobs == pytest.approx(want, abs=1e-4)


def test_choices_and_token_logprobs_equal_the_plain_computation(engine: TransformersEngine) -> None:
    rng = random.Random(2)
    prompts = [kit.prompt(rng, 1, 30) for _ in range(6)]
    prompts.append(prompts[0])
    found = engine.choice_batch([(prompt, (7, 3)) for prompt in prompts])
    for prompt, values in zip(prompts, found, strict=True):
        with torch.no_grad():
            want = torch.log_softmax(engine.model(torch.tensor([prompt.ids])).logits[0, -1], -1)
        assert values == pytest.approx([float(want[7]), float(want[3])], abs=1e-4)
    row = TokenRow(prompts[1], (5, 6, 7))
    with torch.no_grad():
        assert engine.token_logprobs([row])[0] == pytest.approx(kit.naive_logprobs(engine.model, row).numpy(), abs=1e-4)


def test_weights_changed_in_place_are_used_at_once(engine: TransformersEngine) -> None:
    request = (Prompt((1, 2, 3)), (4,))
    before = engine.choice_batch([request])
    with torch.no_grad():
        for parameter in engine.model.parameters():
            parameter.mul_(1.1)
    after = engine.choice_batch([request])
    assert after != before
    assert TransformersEngine(engine.model, Lockstep()).choice_batch([request]) == after


def test_weights_replaced_without_a_trace_need_the_call() -> None:
    engine = TransformersEngine(kit.llama(), Lockstep())
    before = engine.choice_batch([(Prompt((1, 2, 3)), (4,))])
    for parameter in engine.model.parameters():
        parameter.data.mul_(1.1)
    engine.weights_changed()
    assert engine.choice_batch([(Prompt((1, 2, 3)), (4,))]) != before


def test_training_mode_is_left_for_the_batch_and_put_back() -> None:
    engine = TransformersEngine(kit.gpt2().train(), Lockstep())
    request = GenerateRequest(Prompt((1, 2, 3)), 5, 0.0)
    assert engine.generate_batch([request]) == engine.generate_batch([request])
    assert engine.model.training


def test_models_that_cannot_generate_right_are_refused_at_the_start() -> None:
    """One sees later tokens, one has a cache of another kind, one a cache that forgets where it is."""
    sizes: Any = {name: size for name, size in kit.SMALL.items() if name != "head_dim"} | kit.IDS
    with pytest.raises(ConfigError, match="BertLMHeadModel is not causal"):
        TransformersEngine(kit.louder(transformers.BertLMHeadModel(transformers.BertConfig(**sizes))), Lockstep())
    rwkv: Any = transformers.RwkvConfig(vocab_size=kit.VOCABULARY, hidden_size=32, num_hidden_layers=2, **kit.IDS)
    with pytest.raises(EngineError, match=r"RwkvForCausalLM cannot generate .* no cache that the engine knows"):
        TransformersEngine(transformers.RwkvForCausalLM(rwkv), Lockstep())
    decoder: Any = transformers.RobertaConfig(**sizes | {"is_decoder": True, "pad_token_id": 0})
    with pytest.raises(EngineError, match=r"RobertaForCausalLM cannot generate .* with its cache it predicts other"):
        TransformersEngine(kit.louder(transformers.RobertaForCausalLM(decoder)), Lockstep())


async def test_concurrent_episodes_share_batches() -> None:
    lockstep = Lockstep()
    engine = TransformersEngine(kit.llama(), lockstep)

    async def play(seed: int) -> tuple[int, ...]:
        ids: tuple[int, ...] = (1, 2, 3)
        async with lockstep.episode():
            for step in range(3):
                await asyncio.sleep(0.001 * (seed % 2))
                ids += (await engine.generate(GenerateRequest(Prompt(ids), 4, seed=10 * seed + step))).token_ids
            await engine.choice_logprobs(Prompt(ids), (1, 2))
        return ids

    first = await asyncio.gather(*(play(seed) for seed in range(5)))
    assert engine.stats.batches == 4
    assert engine.stats.new_tokens == 5 * 3 * 4
    assert await asyncio.gather(*(play(seed) for seed in range(5))) == first


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (GenerateRequest(Prompt(()), 4), "empty prompt"),
        (GenerateRequest(Prompt((1, kit.VOCABULARY)), 4), "valid are 0 to 95"),
        (GenerateRequest(Prompt((-1,)), 4), "valid are 0 to 95"),
        (GenerateRequest(Prompt((1,) * 256), 10), "context of 256 tokens"),
        (GenerateRequest(Prompt((1,)), 0), "at least 1"),
    ],
)
async def test_a_bad_request_fails_alone(request_: GenerateRequest, words: str) -> None:
    engine = TransformersEngine(kit.llama(), Lockstep())
    good, bad = await asyncio.gather(
        engine.generate(GenerateRequest(Prompt((1,)), 2)), engine.generate(request_), return_exceptions=True
    )
    assert isinstance(good, Completion)
    assert isinstance(bad, EngineError)
    assert words in str(bad)


async def test_a_completion_ends_with_the_context() -> None:
    engine = TransformersEngine(kit.llama(), Lockstep())
    found = await engine.generate(GenerateRequest(Prompt((1,) * 250), 40))
    assert len(found.token_ids) == 6
    assert not found.finished


@pytest.mark.parametrize("package", ["dynaweb.engines", "dynaweb.trainer"])
def test_threads_wait_politely_and_the_package_is_light(package: str) -> None:
    code = f"import os, sys, {package}; print(os.environ['OMP_WAIT_POLICY'], 'torch' in sys.modules)"
    given = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    for preset, want in ({}, "PASSIVE False"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "ACTIVE False"):
        out = subprocess.run(
            [sys.executable, "-c", code], env=given | preset, capture_output=True, text=True, check=True
        )
        assert out.stdout.strip() == want


def test_survivors_fill_gaps_from_the_end() -> None:
    assert survivors([False, True, False, True, False]) == [0, 4, 2]
    assert survivors([True, True]) == []
    assert survivors([False, False]) == [0, 1]
    assert survivors([False, True, True]) == [0]


def test_equal_requests_are_computed_once(engine: TransformersEngine) -> None:
    request = _requests()[0]
    other = replace(request, seed=request.seed + 1, temperature=1.0)
    before = engine.stats.new_tokens
    found = engine.generate_batch([request, other, request, request])
    assert found[0] == found[2] == found[3]
    _close(found[0], engine.generate_batch([request])[0])
    assert engine.stats.new_tokens - before == 2 * len(found[0].token_ids) + len(found[1].token_ids)


@pytest.mark.parametrize("place", [0, 3, 22, None])
def test_generation_ends_with_the_token_that_completes_a_stop_text(place: int | None) -> None:
    model = kit.llama(4)

    def decode(ids: list[int]) -> str:
        return ",".join(str(one % 10) for one in ids)

    engine = TransformersEngine(model, Lockstep(), decode=decode)
    plain = [GenerateRequest(Prompt((5, 6, 7)), 24, seed=seed) for seed in range(12)]
    whole = engine.generate_batch(plain)
    said = decode(list(whole[0].token_ids[place : place + 2])) if place is not None else "never"
    texts = ("also never", said)
    stopped = engine.generate_batch([replace(one, stop=texts) for one in plain])
    for full, short in zip(whole, stopped, strict=True):
        ends = [k for k in range(1, 25) if any(text in decode(list(full.token_ids[:k])) for text in texts)]
        assert short.token_ids == full.token_ids[: min(ends, default=24)]
        assert short.finished == bool(ends)
        assert cut(full, texts, decode).token_ids == short.token_ids
    assert stopped[0].finished == (place is not None)
    with pytest.raises(EngineError, match="knows the tokenizer"):
        TransformersEngine(model, Lockstep()).fitted(replace(plain[0], stop=texts))


@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")
@pytest.mark.parametrize("weight", [float("nan"), float("inf"), 1e30])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("engine", ["llama", "llama-gqa", "gpt2", "mamba"], indirect=True)
def test_a_model_that_diverged_is_an_error_of_its_own(
    engine: TransformersEngine, temperature: float, weight: float
) -> None:
    for parameter in engine.model.parameters():
        torch.nn.init.constant_(parameter, weight)
    engine.weights_changed()
    requests = [replace(one, temperature=temperature) for one in _requests(6)]
    with pytest.raises(DivergedError, match=r"the model diverged: .* lower the learning rate"):
        engine.generate_batch(requests)
    with pytest.raises(DivergedError, match="the model diverged"):
        engine.choice_batch([(Prompt((1, 2, 3)), (4, 5))])
