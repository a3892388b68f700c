"""What only a GPU has: variable-length attention, products of half-precision factors with float32 sums, and recorded
decoding steps."""

from __future__ import annotations

import random
import time
from typing import Any

import engine_kit as kit
import pytest
import torch
from trainer_kit import ADVANTAGES, WIDE, trainer_of

from dynaweb.engines.local.engine import TransformersEngine
from dynaweb.engines.scheduler import Lockstep
from dynaweb.protocols import GenerateRequest
from dynaweb.trainer.batching import Layout, attend, varlen
from dynaweb.trainer.logprobs import GenericScorer, PackedScorer, head_scores, micro_batches, scorer_for
from dynaweb.types import Prompt
from dynaweb_opt_gspo.gspo import Gspo

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize("key_heads", [1, 4])
def test_the_kernel_gives_what_the_padded_view_gives(window: int | None, key_heads: int) -> None:
    if varlen() is None:
        pytest.skip("this torch has no variable-length attention")
    torch.manual_seed(0)
    lengths = torch.tensor([3, 70, 1, 20], device="cuda")
    layout = Layout.of(torch.arange(70, device="cuda") < lengths[:, None])
    wide = [torch.randn(94, heads, 64, device="cuda") for heads in (4, key_heads, key_heads)]
    half = [x.bfloat16().requires_grad_() for x in wide]
    full = [x.detach().float().requires_grad_() for x in half]
    found, wanted = attend(*half, layout, 0.1, window), attend(*full, layout, 0.1, window)
    torch.testing.assert_close(found.float(), wanted, rtol=2e-2, atol=2e-2)
    slope = torch.randn_like(wanted)
    (found.float() * slope).sum().backward()
    (wanted * slope).sum().backward()
    for one, other in zip(half, full, strict=True):
        assert one.grad is not None and other.grad is not None
        assert float((one.grad.float() - other.grad).norm() / other.grad.norm()) < 2e-2


def test_the_head_sums_in_float32_without_a_wide_copy() -> None:
    torch.manual_seed(0)
    weight = torch.randn(32_000, 512, device="cuda", dtype=torch.bfloat16).requires_grad_()
    hidden = torch.randn(64, 512, device="cuda", dtype=torch.bfloat16).requires_grad_()
    target = torch.randint(32_000, (64,), device="cuda")
    head_scores(weight, None, hidden[:1], target[:1])  # the library's own workspace is there from now on
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    logp, _ = head_scores(weight, None, hidden, target)
    assert torch.cuda.max_memory_allocated() - before < 5 * 4 * 64 * 32_000, "some logits, and no wide head"
    exact = torch.log_softmax(hidden.double() @ weight.double().T, -1).gather(1, target[:, None])[:, 0]
    torch.testing.assert_close(logp.double(), exact, rtol=1e-5, atol=1e-3)
    exact.sum().backward()
    wanted = [weight.grad.clone(), hidden.grad.clone()]  # type: ignore[union-attr]
    weight.grad = hidden.grad = None
    logp.sum().backward()
    for one, other in zip((weight.grad, hidden.grad), wanted, strict=True):
        assert one is not None and float((one - other).float().norm() / other.float().norm()) < 1e-2


@pytest.mark.parametrize("kind", [kit.llama, kit.gpt2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_updates_on_a_gpu_are_those_of_the_cpu(kind: Any, dtype: torch.dtype, checkpointing: bool) -> None:
    rows = kit.rows_of(2)
    found = []
    for device in ("cpu", "cuda"):
        trainer = trainer_of(kind().to(device, dtype), checkpointing=checkpointing)
        found.append(trainer.policy_step(rows, Gspo(WIDE), ADVANTAGES))
    close = {"rel": 1e-3, "abs": 1e-4} if dtype == torch.float32 else {"rel": 0.1, "abs": 0.05}
    for name in ("grad_norm", "policy_loss", "entropy"):
        assert found[1][name] == pytest.approx(found[0][name], **close), name
    assert found[1]["updated"] == 1


def test_packed_rows_are_those_of_the_models_own_attention() -> None:
    model = kit.llama().to("cuda", torch.bfloat16)
    scorer, rows = GenericScorer(model), kit.rows_of(2)
    assert scorer.packs
    exact = kit.llama().to(torch.bfloat16).float()
    with torch.no_grad():
        for batch in micro_batches(scorer, rows, range(len(rows)), 10_000, torch.device("cuda")):
            logp = scorer.logprobs(batch)[0].cpu()
            wanted = torch.cat([kit.naive_logprobs(exact, rows[row]) for row in batch.rows])
            assert float((logp - wanted).abs().mean()) < 0.3


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("kv_heads", [2, 4])
def test_packed_rows_of_shared_prompts_are_those_of_wide_numbers(kv_heads: int, checkpointing: bool) -> None:
    """Log-probabilities and gradients of the fused bfloat16 forward, beside those of the same weights in float32."""
    rows, logps, gradients = kit.rows_of(2, trajectories=6), [], []
    for dtype in (torch.bfloat16, torch.float32):
        model = kit.llama(kv_heads=kv_heads, tied=False).to(torch.bfloat16).to("cuda", dtype)
        scorer = scorer_for(model, checkpointing=checkpointing)
        assert isinstance(scorer, PackedScorer) is (dtype == torch.bfloat16)
        values = torch.zeros(0, device="cuda")
        with scorer.step():
            for batch in micro_batches(scorer, rows, range(len(rows)), 200, torch.device("cuda")):
                logp = scorer.logprobs(batch)[0]
                weights = torch.linspace(-1, 2, len(rows), device="cuda")[list(batch.rows)]
                (logp * weights[batch.row_N]).sum().backward()
                order = (
                    torch.tensor([1000 * batch.rows[r] for r in batch.row_N.tolist()], device="cuda") + batch.column_N
                )
                values = torch.cat([values, torch.stack([order, logp.detach()], 1).flatten()])
        pairs = values.view(-1, 2)
        logps.append(pairs[pairs[:, 0].argsort(), 1])
        gradients.append({name: p.grad.float() for name, p in model.named_parameters() if p.grad is not None})
    assert float((logps[0] - logps[1]).abs().mean()) < 0.05
    assert gradients[0].keys() == gradients[1].keys()
    for name, exact in gradients[1].items():
        assert float((gradients[0][name] - exact).norm() / exact.norm()) < 0.05, name


@pytest.mark.parametrize("kind", [kit.llama, kit.gpt2])
def test_recorded_decoding_steps_give_what_launched_ones_give(kind: Any, caplog: pytest.LogCaptureFixture) -> None:
    model, rng = kind().to("cuda"), random.Random(0)
    recorded, launched = (TransformersEngine(model, Lockstep(), static=static) for static in (True, False))
    for count in (13, 1, 30, 13):
        requests = [GenerateRequest(kit.prompt(rng, 1, 40), rng.randint(1, 20), seed=seed) for seed in range(count)]
        for found, wanted in zip(recorded.generate_batch(requests), launched.generate_batch(requests), strict=True):
            assert found.token_ids == wanted.token_ids
            assert found.logprobs == pytest.approx(wanted.logprobs, abs=1e-3)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.02)
    assert not caplog.records, "every step could be recorded"


def test_recorded_decoding_steps_are_faster() -> None:
    model = kit.llama(layers=12).to("cuda", torch.bfloat16)
    requests = [GenerateRequest(Prompt((1, 2, 3)), 60, seed=seed) for seed in range(16)]
    seconds = []
    for static in (True, False):
        engine = TransformersEngine(model, Lockstep(), static=static)
        engine.generate_batch(requests)
        start = time.perf_counter()
        for _ in range(3):
            engine.generate_batch(requests)
        seconds.append(time.perf_counter() - start)
    assert seconds[0] < seconds[1]
