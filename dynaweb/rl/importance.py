"""Importance weights between an engine's probabilities and the trainer's, and how far the two are apart.

An engine in other kernels or another precision draws tokens from a distribution q that is not quite the policy p of the
trainer. Each token's gradient is multiplied by min(cap, p / q): importance sampling, truncated so that a rare token
cannot take the update over (Ionides 2008; for this use Yao et al., "Your efficient RL framework secretly brings you
off-policy RL training", 2025).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from dynaweb.errors import ConfigError, TrainingError
from dynaweb.protocols import Engine
from dynaweb.rl.replay import GROUP
from dynaweb.types import Trajectory


def checked_correction(engine: Engine, temperature: float, *, on_policy: bool = True) -> float:
    """The engine's cap of importance weights, 0 = none. Raises `ConfigError` where they would be of another policy.

    None for rollouts that an earlier policy drew: their probabilities say nothing of the engine.
    """
    cap = engine.correction if on_policy else 0.0
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


def refuse_stale(rollouts: Sequence[Trajectory], version: int | None) -> None:
    """Raise `TrainingError` for a rollout that another version of the policy played than the one in training.

    Experts and replayed episodes are off-policy and known to be; all others must be on-policy.
    """
    for trajectory in filter(_is_fresh, rollouts):
        for at, step in enumerate(trajectory.steps):
            if step.response_ids and step.policy_version != version:
                raise TrainingError(
                    f"rollout {trajectory.id} is not on-policy: step {at} was played by version {step.policy_version} "
                    f"of the policy, and the one in training is version {version}. Does the player ask another engine, "
                    "or did the weights change while it played?"
                )


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
