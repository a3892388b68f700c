"""Decoding at fixed shapes and addresses: the same tokens and log-probabilities as at shapes that grow and shrink.

A stand-in for the recording does on a CPU what a graph does on a GPU: it runs the step that it was given once, on the
tensors that it saw then, puts every later result where the first one was, and owns none of those tensors.
"""

from __future__ import annotations

import gc
import logging
import random
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import engine_kit as kit
import pytest
import torch
from torch import nn
from transformers import MistralConfig, MistralForCausalLM, Qwen2Config, Qwen2ForCausalLM

from dynaweb.engines.local import recording
from dynaweb.engines.local.engine import TransformersEngine
from dynaweb.engines.local.recording import (
    COLUMNS,
    CudaGraphs,
    FixedGeneric,
    FixedLlama,
    FixedSession,
    Step,
    fixable,
    recorder_for,
    rounded_columns,
    rounded_rows,
)
from dynaweb.engines.local.sessions import GenericRunner, LlamaRunner
from dynaweb.engines.scheduler import Lockstep
from dynaweb.errors import DivergedError
from dynaweb.protocols import Completion, GenerateRequest, TokenRow
from dynaweb.types import Prompt

pytestmark = pytest.mark.usefixtures("one_thread")


class Recorder:
    """Counts recordings and replays, and refuses a step that gives another shape than when it was recorded."""

    def __init__(self) -> None:
        self.recordings = self.replays = 0

    def __call__(self, step: Step) -> Step:
        """Record."""
        self.recordings += 1
        step()
        result = step().clone()
        # Like a graph, it does not keep alive what the step reads.
        known = weakref.ref(step)

        def replay() -> torch.Tensor:
            self.replays += 1
            alive = known()
            assert alive is not None, "the recording outlives what it reads"
            return result.copy_(alive())

        return replay


def _qwen2() -> Any:
    torch.manual_seed(0)
    return Qwen2ForCausalLM(Qwen2Config(**kit.SMALL)).eval()


def _mistral(window: int | None) -> Any:
    torch.manual_seed(0)
    return MistralForCausalLM(MistralConfig(**kit.SMALL, sliding_window=window)).eval()


MODELS: dict[str, Callable[[], Any]] = {
    "llama": kit.llama,
    "llama-gqa": lambda: kit.llama(kv_heads=2),
    "gpt2": kit.gpt2,
    "qwen2": _qwen2,
}


def _pair(model: Any, **given: Any) -> tuple[TransformersEngine, TransformersEngine, Recorder]:
    """An engine as it is on a GPU, one as on a CPU, and what the first one records."""
    recorder, engines = Recorder(), [TransformersEngine(model, Lockstep(), **given) for _ in range(2)]
    runner: Any = engines[0]._runner
    runner._recorders = lambda device: recorder
    return engines[0], engines[1], recorder


def _requests(count: int, seed: int = 0, *, longest: int = 40) -> list[GenerateRequest]:
    """Prompts of many lengths, some with a long common beginning, that end at many lengths."""
    rng = random.Random(seed)
    page = kit.tokens(rng, longest, longest)
    prompts = [kit.prompt(rng, 1, longest) if i % 2 else Prompt(page + kit.tokens(rng, 0, 9)) for i in range(count)]
    return [
        GenerateRequest(prompt, rng.randint(1, 12), rng.choice([0.0, 1.0]), rng.choice([1.0, 0.8]), i, (3, 5, 8))
        for i, prompt in enumerate(prompts)
    ]


def _same(found: list[Completion], wanted: list[Completion]) -> None:
    for one, other in zip(found, wanted, strict=True):
        assert (one.token_ids, one.finished) == (other.token_ids, other.finished)
        assert one.logprobs == pytest.approx(other.logprobs, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("kind", MODELS)
def test_tokens_and_logprobs_are_those_of_changing_shapes(kind: str) -> None:
    static, plain, recorder = _pair(MODELS[kind]())
    for seed, count in enumerate((13, 2, 30, 1, 13)):
        requests = _requests(count, seed)
        _same(static.generate_batch(requests), plain.generate_batch(requests))
    assert recorder.replays > 30
    rows = kit.rows_of(1)
    for one, other in zip(static.token_logprobs(rows), plain.token_logprobs(rows), strict=True):
        assert one == pytest.approx(other, abs=1e-4)


@pytest.mark.parametrize("kind", MODELS)
def test_a_shape_is_recorded_once(kind: str) -> None:
    static, _, recorder = _pair(MODELS[kind]())
    first = static.generate_batch(_requests(9))
    before = recorder.recordings
    assert static.generate_batch(_requests(9)) == first
    assert recorder.recordings == before
    assert recorder.replays > 2 * before


@pytest.mark.parametrize("kind", MODELS)
def test_new_weights_are_used_and_need_no_new_recording_where_they_stay_in_place(kind: str) -> None:
    model = MODELS[kind]()
    static, plain, recorder = _pair(model)
    requests = [replace(one, max_new_tokens=4, stop_ids=()) for one in _requests(6)]
    before = static.generate_batch(requests)
    for way in ("in place", "without a trace", "elsewhere"):
        recordings = recorder.recordings
        with torch.no_grad():
            for parameter in model.parameters():
                if way == "in place":
                    parameter.mul_(1.05)
                elif way == "without a trace":
                    parameter.data.mul_(1.05)
                else:
                    parameter.data = parameter.data * 1.05
        for engine in (static, plain):
            engine.weights_changed()
        after = static.generate_batch(requests)
        _same(after, plain.generate_batch(requests))
        assert [one.logprobs for one in after] != [one.logprobs for one in before]
        assert (recorder.recordings > recordings) == (way == "elsewhere")
        before = after


def test_weights_that_moved_are_not_written_to_where_they_were() -> None:
    """Somebody may keep the old ones, such as the best so far."""
    model = kit.llama()
    static, _, _ = _pair(model)
    static.generate_batch(_requests(4))
    kept = {name: parameter.data for name, parameter in model.named_parameters()}
    copies = {name: value.clone() for name, value in kept.items()}
    for parameter in model.parameters():
        parameter.data = parameter.data * 2
    static.generate_batch(_requests(4))
    kit.same(kept, copies, rtol=0, atol=0)


@pytest.mark.parametrize("refused", [True, False])
@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_weights_that_are_not_numbers_leave_nothing_behind(
    kind: str, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys and values are kept between batches; masked ones count 0 times, and 0 times nan is nan."""
    model = MODELS[kind]()
    static, plain, _ = _pair(model)
    requests = _requests(8)
    good = [parameter.detach().clone() for parameter in model.parameters()]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(float("nan"))
        with monkeypatch.context() as patch, pytest.raises(DivergedError) if refused else nullcontext():
            if not refused:  # all columns of the cache are written then, not those of the prompts alone
                patch.setattr("dynaweb.engines.local.engine.refuse_divergence", lambda logps: None)
            static.generate_batch([replace(one, max_new_tokens=12, temperature=0.0) for one in requests])
        for parameter, value in zip(model.parameters(), good, strict=True):
            parameter.copy_(value)
    _same(static.generate_batch(requests), plain.generate_batch(requests))


@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_batches_of_many_sizes_and_small_limits_give_the_same(kind: str) -> None:
    static, plain, _ = _pair(MODELS[kind](), max_batch_tokens=300)
    requests = _requests(40, longest=120)
    _same(static.generate_batch(requests), plain.generate_batch(requests))


def test_only_so_many_recordings_and_tokens_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dynaweb.engines.local.recording.MAX_RECORDINGS", 2)
    monkeypatch.setattr("dynaweb.engines.local.recording.MAX_TOKENS", 8 * COLUMNS)
    for kind in ("llama", "qwen2"):
        static, plain, _ = _pair(MODELS[kind]())
        for count in (1, 8, 3, 8, 1):
            requests = _requests(count, count)
            _same(static.generate_batch(requests), plain.generate_batch(requests))
        fixed: Any = static._runner
        fixed = fixed._fixed
        if isinstance(fixed, FixedLlama):
            assert len(fixed._steps) <= 2
        else:
            assert isinstance(fixed, FixedGeneric)
            assert sum(rows * columns for rows, columns in fixed._shapes) <= 8 * COLUMNS


def test_adapters_are_followed() -> None:
    from peft import LoraConfig, get_peft_model

    model = kit.llama()
    static, plain, _ = _pair(model)
    before = static.generate_batch(_requests(4))
    adapted = get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False))
    found = static.generate_batch(_requests(4))
    assert isinstance(static._runner, GenericRunner)
    _same(found, plain.generate_batch(_requests(4)))
    assert [one.logprobs for one in found] != [one.logprobs for one in before]
    adapted.unload()
    _same(static.generate_batch(_requests(4)), before)


def test_rounded_shapes_hold_what_they_serve_and_are_few() -> None:
    for rows in range(1, 300):
        assert rows <= rounded_rows(rows) <= 1.5 * rows
        assert rounded_rows(rounded_rows(rows)) == rounded_rows(rows)
        assert rows <= rounded_columns(rows) < rows + COLUMNS
    assert len({rounded_rows(rows) for rows in range(1, 257)}) <= 16


def test_models_that_hide_earlier_tokens_go_on_with_changing_shapes() -> None:
    assert fixable(_mistral(None)) and fixable(kit.gpt2())
    assert not fixable(_mistral(4))
    static, plain, recorder = _pair(_mistral(4))
    _same(static.generate_batch(_requests(4)), plain.generate_batch(_requests(4)))
    assert recorder.recordings == 0


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_it_is_off_on_a_cpu_and_where_it_is_switched_off(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert recorder_for(torch.device("cpu")) is None
    used: list[torch.device] = []
    monkeypatch.setattr("dynaweb.engines.local.sessions.recorder_for", lambda device: used.append(device))
    for static, asked in ((False, 0), (True, 1)):
        engine = TransformersEngine(MODELS[kind](), Lockstep(), static=static)
        assert isinstance(engine._runner, LlamaRunner if kind == "llama" else GenericRunner)
        engine.token_logprobs([TokenRow(Prompt((1, 2)), (3,))])
        assert len(used) == asked


def test_a_step_that_cannot_be_recorded_is_used_as_it_is(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    graphs, tried = CudaGraphs(torch.device("cpu")), []

    def refuse(step: Step) -> Step:
        tried.append(step)
        raise RuntimeError("not while recording\nmore")

    monkeypatch.setattr(graphs, "_recorded", refuse)
    steps = [lambda: torch.zeros(1), lambda: torch.ones(1)]
    with caplog.at_level(logging.WARNING):
        assert [graphs(step) for step in steps] == steps
    assert tried == steps[:1]
    assert [record.message for record in caplog.records] == [
        "decoding steps cannot be recorded and are launched one by one: not while recording"
    ]


def test_recordings_share_a_pool_until_the_last_of_them_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    handles = iter(range(10))
    monkeypatch.setattr(recording.torch.cuda, "graph_pool_handle", lambda: next(handles))
    graphs = CudaGraphs(torch.device("cpu"))
    kept = []
    for _ in range(3):
        assert graphs._shared_pool() == 0
        kept.append(nn.Identity())
        graphs._graphs.add(kept[-1])
    kept.clear()
    gc.collect()
    assert graphs._shared_pool() == 1, "the memory of the first pool was given back with its last recording"


def test_a_fixed_session_serves_the_rows_that_are_left() -> None:
    static, _, _ = _pair(_qwen2())
    with torch.inference_mode():
        session = static._runner.start([Prompt((1, 2)), Prompt((3, 4, 5)), Prompt((6,))], 4)
        assert isinstance(session, FixedSession)
        session.step(torch.tensor([7, 8, 9]))
        session.keep([2, 1])
        session.step(torch.tensor([10, 11]))
        for row, ids in enumerate(([6, 9, 10], [3, 4, 5, 8, 11])):
            wanted = static.model(torch.tensor([ids])).logits[0, -1]
            torch.testing.assert_close(session.logits[row], wanted, rtol=1e-4, atol=1e-5)
