"""Engines with probabilities of their own: how far they are from the trainer's, and what makes up for it.

An engine in other kernels or another precision draws tokens from a distribution q that is not quite the policy p of the
trainer. Each token's gradient is multiplied by min(cap, p / q): importance sampling, truncated so that a rare token
cannot take the update over (Ionides 2008; for this use Yao et al., "Your efficient RL framework secretly brings you
off-policy RL training", 2025).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from dynaweb.engines.asking import correction
from dynaweb.errors import ConfigError
from dynaweb.loop.replay import GROUP
from dynaweb.types import Trajectory


def checked_correction(engine: Any, temperature: float) -> float:
    """The engine's cap of importance weights, 0 = none. Raises `ConfigError` where they would be of another policy."""
    cap = correction(engine)
    if cap and temperature != 1.0:
        raise ConfigError(
            f"the engine's probabilities can be corrected at rl.temperature = 1 only, not {temperature}; "
            "set policy.engine.correction = 0 to go without"
        )
    return cap


def engine_logprobs(rollouts: Sequence[Trajectory]) -> list[Sequence[float]]:
    """What the engine said of each token it drew, one list for each row of `step_rows`.

    Empty for experts and for replayed episodes, which the policy of the moment did not play.
    """
    return [
        step.logprobs if len(step.logprobs) == len(step.response_ids) and _is_fresh(trajectory) else ()
        for trajectory in rollouts
        for step in trajectory.steps
        if step.response_ids
    ]


def _is_fresh(trajectory: Trajectory) -> bool:
    return trajectory.source != "expert" and not trajectory.group.startswith(GROUP)


def corrected(
    drawn: Sequence[Sequence[float]], own: Sequence[Sequence[float]], cap: float
) -> tuple[list[list[float]], dict[str, float]]:
    """Weights of all tokens, and measures of the mismatch.

    `drawn` are the engine's log-probabilities (a row may be empty: weights 1), `own` the trainer's. The measures:
    `engine.kl` (k3 estimate of KL(q || p) per token), `engine.logprob_gap` (mean absolute difference),
    `engine.logprob_gap_max`, `engine.capped` (share of tokens whose weight was cut).
    """
    weights, gaps = [], []
    for q, p in zip(drawn, own, strict=True):
        gap = [a - b for a, b in zip(p, q, strict=True)] if q else []
        gaps += gap
        weights.append([min(cap, math.exp(min(g, 50.0))) for g in gap] if q else [1.0] * len(p))
    if not gaps:
        return weights, {}
    n = len(gaps)
    return weights, {
        "engine.kl": sum(math.expm1(min(g, 50.0)) - g for g in gaps) / n,
        "engine.logprob_gap": sum(map(abs, gaps)) / n,
        "engine.logprob_gap_max": max(map(abs, gaps)),
        "engine.capped": sum(math.exp(min(g, 50.0)) > cap for g in gaps) / n,
    }
