"""Estimators of the divergence KL(policy || reference) from log-probabilities of sampled tokens.

With l the policy's and f the reference's log-probability of a token that the policy sampled:

    k1 = l - f                       unbiased; as a loss its gradient is 0 in expectation, so it belongs in the reward
    k2 = (l - f)^2 / 2               as a loss its expected gradient is that of the KL
    k3 = exp(f - l) - (f - l) - 1    unbiased, never negative; as a loss its gradient is that of another divergence
    k1+, k3+                         the value of k1 or k3 with the gradient of k2

(J. Schulman, "Approximating KL divergence", 2020; on gradients: arXiv 2510.01555.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import torch

Estimator = Literal["k1", "k2", "k3", "k1+", "k3+", "abs"]
LOG_RATIO_LIMIT = 20.0
"""Log-ratios are clamped to +- this before exp in every policy loss and in k3 (verl, OpenRLHF: the same): one token
that the policy has left behind must not outweigh all others."""
SERIES = 1e-2
"""Below this, exp(x) - 1 - x is taken from its series: in float32 the difference itself would be mostly rounding."""


def divergence(
    logp: torch.Tensor,
    ref: torch.Tensor,
    estimator: Estimator,
    *,
    log_diff_clip: float | None = None,
    value_clip: float | None = None,
) -> torch.Tensor:
    """The estimator, token by token, with its gradient towards `logp`; masked slots must have been replaced before.

    `log_diff_clip` bounds |f - l|, which `LOG_RATIO_LIMIT` does in any case, and `value_clip` the value from above, for
    k3 only; the gradient is 0 beyond either.
    """
    away = ref - logp
    squared = away.square() / 2
    if estimator == "k2":
        return squared
    if estimator in ("k1", "k1+"):
        value = -away
    elif estimator == "abs":
        value = away.abs()
    else:
        limit = LOG_RATIO_LIMIT if log_diff_clip is None else min(log_diff_clip, LOG_RATIO_LIMIT)
        value = exp_excess(away.clamp(-limit, limit))
        value = value if value_clip is None else value.clamp(max=value_clip)
    return value.detach() + (squared - squared.detach()) if estimator.endswith("+") else value


def exp_excess(x: torch.Tensor) -> torch.Tensor:
    """exp(x) - 1 - x, to full relative precision for every x."""
    import torch  # here: a dry run imports the advantages, which are plain numbers, and torch takes seconds

    small = x.abs() < SERIES
    near = torch.where(small, x, torch.zeros_like(x))
    far = torch.where(small, torch.ones_like(x), x)
    tail = torch.ones_like(near)
    for power in range(8, 2, -1):
        tail = 1 + near / power * tail
    return torch.where(small, near.square() / 2 * tail, torch.expm1(far) - far)


def penalties(old: Sequence[float], ref: Sequence[float], estimator: Estimator = "k1") -> list[float]:
    """The estimator's values for the agent tokens of one row, as plain numbers, for use in a reward."""
    kind = estimator.rstrip("+")
    out = []
    for logp, other in zip(old, ref, strict=True):
        away = other - logp
        if kind == "k1":
            out.append(-away)
        elif kind == "k2":
            out.append(away * away / 2)
        elif kind == "k3":
            limited = max(-LOG_RATIO_LIMIT, min(LOG_RATIO_LIMIT, away))
            out.append(math.expm1(limited) - limited)
        else:
            out.append(abs(away))
    return out
