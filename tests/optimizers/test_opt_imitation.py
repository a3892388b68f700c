"""`awr` and `digirl`: weights by hand, the loss in closed form, and what masked slots and splits may not change."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dynaweb.protocols import CreditInput, CreditRow, LossInput
from dynaweb_opt_awr import AwrConfig, DigirlConfig
from dynaweb_opt_awr.imitation import Awr, Digirl


def logits(chance: float) -> list[list[float]]:
    """Critic outputs for one row that mean this chance of success."""
    return [[0.0, math.log(chance / (1 - chance))]]


def batch(rewards: list[float | None], values: list[list[float]], groups: list[str] | None = None) -> CreditInput:
    rows = [
        CreditRow(t, step, 2, values=logits(chance)) for t, of in enumerate(values) for step, chance in enumerate(of)
    ]
    return CreditInput(rewards, groups or ["g"] * len(rewards), rows)


def test_awr_weighs_by_the_exponential_of_the_advantage_up_to_a_limit() -> None:
    awr = Awr(AwrConfig(beta=0.5, max_weight=3.0))
    credit = awr.credit(batch([1.0, 0.0, None], [[0.5, 0.9], [0.5], [0.5]]))
    assert credit.rows == pytest.approx([math.exp(1.0), math.exp(0.2), math.exp(-1.0), 0.0])
    assert Awr(AwrConfig(beta=0.1, max_weight=3.0)).weight(0.5) == pytest.approx(3.0)
    assert credit.row_mask == [True, True, True, False]
    assert credit.targets == [[1.0], [1.0], [0.0], [None]]


def test_digirl_chooses_steps_by_the_doubly_robust_advantage() -> None:
    digirl = Digirl(DigirlConfig(lam=0.5, threshold=0.4))
    # lam^2 r + (1 - lam^2)(V2 - V1); lam r + (1 - lam)(V3 - V2); r
    assert digirl.step_advantages(1.0, [0.2, 0.6, 0.3]) == pytest.approx([0.25 + 0.75 * 0.4, 0.5 + 0.5 * -0.3, 1.0])
    credit = digirl.credit(batch([1.0, 0.0], [[0.2, 0.6, 0.3], [0.5]]))
    assert credit.rows == [1.0, 0.0, 1.0, 0.0]


def test_digirl_learns_nothing_where_all_of_a_task_succeed_unless_told_to() -> None:
    values = [[0.5], [0.5]]
    assert Digirl(DigirlConfig()).credit(batch([1.0, 1.0], values)).rows == [0.0, 0.0]
    assert Digirl(DigirlConfig(instructions=False, threshold=0.5)).credit(batch([1.0, 1.0], values)).rows == [1.0, 1.0]


def loss_input(logp: torch.Tensor, mask: torch.Tensor, weights: list[float]) -> LossInput:
    count = len(weights)
    return LossInput(
        logp_RT=logp,
        old_logp_RT=logp.detach(),
        mask_RT=mask,
        trajectory_R=torch.arange(count),
        advantage_N=torch.tensor(weights),
        tokens_N=mask.sum(1),
        row_R=torch.arange(count),
        advantage_S=torch.tensor(weights, dtype=logp.dtype),
        tokens_S=mask.sum(1),
    )


@given(st.floats(0, 5), st.floats(0, 5), st.sampled_from([math.nan, math.inf, -1e30]))
def test_the_loss_is_the_weighted_negative_log_likelihood_per_agent_token(a: float, b: float, poison: float) -> None:
    mask = torch.tensor([[True, True, False], [False, True, False]])
    logp = torch.tensor([[-1.0, -2.0, poison], [poison, -4.0, poison]], dtype=torch.float64, requires_grad=True)
    out = Awr(AwrConfig()).loss(loss_input(logp, mask, [a, b]))
    assert float(out.loss.detach()) == pytest.approx((3 * a + 4 * b) / 3)
    out.loss.backward()  # type: ignore[no-untyped-call]
    expected = torch.tensor([[-a / 3, -a / 3, 0.0], [0.0, -b / 3, 0.0]], dtype=torch.float64)
    assert logp.grad is not None and torch.allclose(logp.grad, expected)


def test_a_loss_without_row_weights_is_an_error() -> None:
    mask = torch.ones(1, 1, dtype=torch.bool)
    logp = torch.zeros(1, 1)
    given: dict[str, Any] = {"old_logp_RT": logp, "mask_RT": mask, "trajectory_R": torch.zeros(1, dtype=torch.long)}
    bare = LossInput(logp_RT=logp, advantage_N=torch.ones(1), tokens_N=torch.ones(1), **given)
    with pytest.raises(ValueError, match="one weight for each row"):
        Digirl(DigirlConfig()).loss(bare)
