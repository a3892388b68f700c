"""GSPO by hand: values and gradients on paper, clipping, both levels, and the watch over the clip window.

The golden cases are in test_opt_golden, the properties that all optimizers share in test_opt_properties.
"""

from __future__ import annotations

import logging
import math
from typing import Any

import pytest
import torch

from dynaweb.protocols import LossInput, LossOutput, PolicyOptimizer
from dynaweb.trainer.advantages import group_advantages
from dynaweb_opt_gspo import GspoConfig, dynaweb_optimizers
from dynaweb_opt_gspo.gspo import WINDOW_SAMPLE, Gspo


def _tiny(dtype: torch.dtype = torch.float64, **changes: Any) -> LossInput:
    """Two trajectories; the first has two rows (1 and 2 agent tokens), the second one row with 1 agent token."""
    logp = torch.tensor([[-1.0, -0.5], [-0.2, -0.7], [-2.0, 9.0]], dtype=dtype, requires_grad=True)
    old = torch.tensor([[-1.3, 7.0], [-0.3, -0.5], [-1.5, 9.0]], dtype=dtype)
    given: dict[str, Any] = {
        "logp_RT": logp,
        "old_logp_RT": old,
        "mask_RT": torch.tensor([[True, False], [True, True], [True, False]]),
        "trajectory_R": torch.tensor([0, 0, 1]),
        "advantage_N": torch.tensor([2.0, -1.0], dtype=dtype),
        "tokens_N": torch.tensor([3, 1]),
    }
    return LossInput(**(given | changes))


def test_hand_computed() -> None:
    # Trajectory 0: mean log-ratio (0.3 + 0.1 - 0.2) / 3 = 0.2/3, A = 2. Trajectory 1: log-ratio -0.5, A = -1.
    batch = _tiny()
    out = Gspo(GspoConfig(clip_low=0.9, clip_high=0.5)).loss(batch)
    first, second = math.exp(0.2 / 3), math.exp(-0.5)
    assert out.loss.item() == pytest.approx(-(2 * first - second) / 2, rel=1e-12)
    out.loss.backward()
    each = -2 * first / (2 * 3)
    want = torch.tensor([[each, 0.0], [each, each], [second / 2, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(batch.logp_RT.grad, want, rtol=1e-12, atol=0)


def test_hand_computed_clipping() -> None:
    # Windows of 0.01: trajectory 0 is clipped from above (A > 0), trajectory 1 from below (A < 0): no gradient at all.
    batch = _tiny()
    out = Gspo(GspoConfig(clip_low=0.01, clip_high=0.01)).loss(batch)
    assert out.loss.item() == pytest.approx(-(2 * 1.01 - 0.99) / 2, rel=1e-12)
    out.loss.backward()
    assert not batch.logp_RT.grad.any()
    assert out.metrics == {"clip_frac_low_sum": 0.5, "clip_frac_high_sum": 0.5}


@pytest.mark.parametrize("level", ["trajectory", "token"])
@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf, 1e4, 1e30])
def test_masked_slots_change_nothing(level: Any, poison: float) -> None:
    def run(value: float) -> tuple[LossOutput, torch.Tensor]:
        batch = _tiny(torch.float32)
        hidden = ~batch.mask_RT
        logp = batch.logp_RT.detach().masked_fill(hidden, value).requires_grad_()
        poisoned = _tiny(
            torch.float32,
            logp_RT=logp,
            old_logp_RT=batch.old_logp_RT.masked_fill(hidden, value),
            ref_logp_RT=torch.zeros_like(logp).masked_fill(hidden, value),
        )
        out = Gspo(GspoConfig(level=level, beta=0.1)).loss(poisoned)
        out.loss.backward()
        return out, logp.grad

    clean, poisoned = run(0.0), run(poison)
    assert clean[0].loss.item() == poisoned[0].loss.item()
    assert clean[0].metrics == poisoned[0].metrics
    assert torch.equal(clean[1], poisoned[1])


@pytest.mark.parametrize("level", ["trajectory", "token"])
def test_a_batch_without_agent_tokens_is_zero(level: Any) -> None:
    batch = _tiny(mask_RT=torch.zeros(3, 2, dtype=torch.bool), tokens_N=torch.tensor([0, 0]))
    out = Gspo(GspoConfig(level=level)).loss(batch)
    out.loss.backward()
    assert out.loss.item() == 0.0
    assert not batch.logp_RT.grad.any()


def test_both_levels_agree_for_constant_advantages() -> None:
    found = []
    for level in ("trajectory", "token"):
        batch = _tiny()
        out = Gspo(GspoConfig(clip_low=0.2, clip_high=0.27, level=level)).loss(batch)
        out.loss.backward()
        found.append((out.loss.detach(), batch.logp_RT.grad))
    torch.testing.assert_close(found[0], found[1], rtol=1e-12, atol=1e-15)


def test_token_advantages_need_the_token_level() -> None:
    batch = _tiny(advantage_RT=torch.ones(3, 2, dtype=torch.float64))
    with pytest.raises(ValueError, match='level = "token"'):
        Gspo(GspoConfig()).loss(batch)


def test_a_kl_term_needs_a_reference() -> None:
    with pytest.raises(ValueError, match="reference"):
        Gspo(GspoConfig(beta=0.1)).loss(_tiny())


def _many(shift: float) -> LossInput:
    count = WINDOW_SAMPLE
    return LossInput(
        logp_RT=torch.full((count, 1), -1.0 + shift, dtype=torch.float64),
        old_logp_RT=torch.full((count, 1), -1.0, dtype=torch.float64),
        mask_RT=torch.ones(count, 1, dtype=torch.bool),
        trajectory_R=torch.arange(count),
        advantage_N=torch.ones(count, dtype=torch.float64),
        tokens_N=torch.ones(count, dtype=torch.long),
    )


@pytest.mark.parametrize(
    ("shift", "clip", "words"),
    [(0.0, 3e-4, "exactly 1"), (1e-5, 0.2, "never clips"), (0.5, 3e-4, "nearly always clips"), (0.1, 0.2, "")],
)
def test_a_window_without_effect_is_told_once(
    shift: float, clip: float, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    optimizer = Gspo(GspoConfig(clip_low=clip, clip_high=clip))
    with caplog.at_level(logging.INFO):
        optimizer.loss(_many(shift))
        optimizer.loss(_many(shift))
    assert len(caplog.messages) == bool(words)
    assert all(words in message for message in caplog.messages)
    # One step for each batch is a choice, so that it is no warning.
    assert [record.levelno for record in caplog.records] == [logging.WARNING if shift else logging.INFO] * bool(words)


def test_a_lower_bound_below_zero_is_told(caplog: pytest.LogCaptureFixture) -> None:
    Gspo(GspoConfig(clip_low=1.0))
    assert "can never clip" in caplog.text


def test_dead_groups_singletons_and_ungraded_are_counted() -> None:
    found = group_advantages([1, 1, 0.5, None, 0, 1, None], ["a", "a", "b", "b", "c", "c", "d"])
    assert found.advantages[:4] == [0.0] * 4
    assert found.advantages[4] == -found.advantages[5] < 0
    assert (found.groups, found.dead_groups, found.singletons, found.ungraded) == (4, 1, 1, 2)
    with pytest.raises(ValueError, match="2 rewards but 1 group"):
        group_advantages([1, 0], ["a"])


def test_the_plugin_offers_it() -> None:
    (spec,) = dynaweb_optimizers()
    assert spec.target == "dynaweb_opt_gspo.gspo:Gspo"
    assert isinstance(Gspo(spec.config()), PolicyOptimizer)
