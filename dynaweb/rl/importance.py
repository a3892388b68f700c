"""Importance sampling: the policy in training is not quite, or not at all, the one that drew the tokens.

On-policy, an engine in other kernels or another precision draws tokens from a distribution q that is not quite the
policy p of the trainer. Each token's gradient is multiplied by min(cap, p / q): importance sampling, truncated so that
a rare token cannot take the update over (Ionides 2008; for this use Yao et al., "Your efficient RL framework secretly
brings you off-policy RL training", 2025).

With `rl.max_staleness`, q is that of an earlier policy too. It is recorded when a token is drawn and never computed
again. With p the policy before the update and r the policy that moves, an optimizer with a ratio has two ways
(`rl.stale_ratio`):

    sampler     the ratio is r / q, clipped. One ratio makes up for both, staleness and the engine, so that no weight
                comes on top. TRL's asynchronous GRPO and verl's `bypass_mode` do this. What the policy has moved since
                a token was drawn uses up the clip window.
    decoupled   the ratio is r / p, clipped, and the token's gradient is weighed with min(cap, p / q): behaviour policy
                and proximal policy are two (Hilton et al., arXiv 2110.00641, section 3; AReaL, arXiv 2505.24298,
                section 5.2; verl's decoupled mode). One forward pass more. The window bounds what this update moves.

A plain policy gradient without a ratio (`Wants.off_policy` "weights") is weighed with min(cap, p / q) in either case,
and a loss that is right for any data ("any") is left alone. Experts and replayed episodes keep their own treatment.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dynaweb.errors import ConfigError, TrainingError
from dynaweb.protocols import Engine, Wants
from dynaweb.rl.replay import GROUP
from dynaweb.types import Trajectory

if TYPE_CHECKING:
    from dynaweb.config.sections import Rl

LIMIT = 50.0
"""Log-ratios are cut here before exp, which keeps sums of weights finite."""


@dataclass(frozen=True, slots=True)
class Correction:
    """What an update does about tokens that another distribution drew than the policy in training."""

    cap: float = 0.0
    """Of the importance weights p / q of tokens; 0 = none."""
    sampler_is_old: bool = False
    """Old log-probabilities are those of the sampler, not those of the policy before the update."""


def correction_of(rl: Rl, engine: Engine, wants: Wants, *, on_policy: bool = True) -> Correction:
    """The correction that a recipe and its optimizer ask for; `on_policy` as in `checked_correction`."""
    if not (rl.max_staleness and on_policy):
        return Correction(checked_correction(engine, rl.temperature, on_policy=on_policy))
    if wants.off_policy == "any":
        return Correction()
    if wants.off_policy == "ratio" and rl.stale_ratio == "sampler":
        return Correction(sampler_is_old=True)
    return Correction(rl.stale_cap)


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


def sampler_logprobs(rollouts: Sequence[Trajectory]) -> list[Sequence[float]]:
    """`engine_logprobs`, of which none may be missing. Raises `TrainingError` for an engine that did not say them."""
    logps = engine_logprobs(rollouts)
    fresh = (trajectory for trajectory in rollouts for step in trajectory.steps if step.response_ids)
    for trajectory, said in zip(fresh, logps, strict=True):
        if not said and _is_fresh(trajectory):
            raise TrainingError(
                f"rollout {trajectory.id} has tokens without the log-probabilities that they were drawn with, which "
                "rl.max_staleness needs; does the engine give them? Set rl.max_staleness = 0 to go without"
            )
    return logps


def _is_fresh(trajectory: Trajectory) -> bool:
    return trajectory.source != "expert" and not trajectory.group.startswith(GROUP)


def refuse_stale(rollouts: Sequence[Trajectory], version: int | None, most: int = 0) -> None:
    """Raise `TrainingError` for a rollout that another version of the policy played than the one in training, or one of
    more than `most` updates earlier.

    Experts and replayed episodes are off-policy and known to be; all others must be as fresh as that.
    """
    for trajectory in filter(_is_fresh, rollouts):
        for at, step in enumerate(trajectory.steps):
            played = step.policy_version
            near = version is not None and played is not None and version - most <= played <= version
            if step.response_ids and played != version and not near:
                bound = f" with rl.max_staleness = {most}" if most else ""
                raise TrainingError(
                    f"rollout {trajectory.id} is not on-policy{bound}: step {at} was played by version {played} "
                    f"of the policy, and the one in training is version {version}. Does the player ask another engine, "
                    "or did the weights change while it played?"
                )


def staleness(rollouts: Sequence[Trajectory], version: int | None) -> dict[str, float]:
    """By how many updates the policy has moved on since fresh rollouts were played: `staleness.mean` over their tokens,
    `staleness.max`, and `staleness.share`, that of tokens which an earlier version drew; {} where nobody counts."""
    ages = [
        (version - step.policy_version, len(step.response_ids))
        for trajectory in filter(_is_fresh, rollouts)
        for step in trajectory.steps
        if version is not None and step.policy_version is not None and step.response_ids
    ]
    tokens = sum(count for _, count in ages)
    if not tokens:
        return {}
    return {
        "staleness.mean": sum(age * count for age, count in ages) / tokens,
        "staleness.max": float(max(age for age, _ in ages)),
        "staleness.share": sum(count for age, count in ages if age) / tokens,
    }


def effective_share(log_ratios: Sequence[float]) -> float:
    """Effective sample size of importance weights w = exp(log-ratio) as a share of their number, in (0, 1]:
    (sum w)^2 / (n sum w^2) (Kish 1965; Owen, Monte Carlo, eq. 9.13). nan without any."""
    if not log_ratios:
        return math.nan
    top = max(log_ratios)  # a common factor changes nothing
    weights = [math.exp(ratio - top) for ratio in log_ratios]
    return math.fsum(weights) ** 2 / (len(weights) * math.fsum(weight * weight for weight in weights))


def corrected(
    drawn: Sequence[Sequence[float]], own: Sequence[Sequence[float]], cap: float, *, stale: bool = False
) -> tuple[list[list[float]], dict[str, float]]:
    """Weights of all tokens, and measures of the mismatch.

    `drawn` are the engine's log-probabilities (a row may be empty: weights 1), `own` the trainer's. The measures:
    `engine.kl` (k3 estimate of KL(q || p) per token), `engine.logprob_gap` (mean absolute difference),
    `engine.logprob_gap_max`, `engine.capped` (share of tokens whose weight was cut). Of `stale` rollouts their names
    begin with `staleness`, since most of the gap is not the engine's, and there is `staleness.ess`, the effective
    sample size of the weights before the cut, as a share.
    """
    weights, gaps = [], []
    for q, p in zip(drawn, own, strict=True):
        gap = [a - b for a, b in zip(p, q, strict=True)] if q else []
        gaps += gap
        weights.append([min(cap, math.exp(min(g, LIMIT))) for g in gap] if q else [1.0] * len(p))
    if not gaps:
        return weights, {}
    n, name = len(gaps), "staleness" if stale else "engine"
    return weights, {
        f"{name}.kl": sum(math.expm1(min(g, LIMIT)) - g for g in gaps) / n,
        f"{name}.logprob_gap": sum(map(abs, gaps)) / n,
        f"{name}.logprob_gap_max": max(map(abs, gaps)),
        f"{name}.capped": sum(math.exp(min(g, LIMIT)) > cap for g in gaps) / n,
        **({"staleness.ess": effective_share(gaps)} if stale else {}),
    }
