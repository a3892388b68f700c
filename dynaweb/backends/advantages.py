"""Group statistics: how much better a trajectory was than the others of its task.

Pure Python with exact summation. Conventions: a reward of None (or nan: the judge could not grade) leaves the group's
mean and deviation and gets advantage 0; a group with one graded member is a singleton; a group whose rewards differ by
no more than a tolerance is *dead*: its advantages are exactly 0, whatever rounding would give.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from dynaweb.config.optim import GroupBaseline

Scale = Literal["group", "batch", "none"]
Baseline = Literal["mean", "loo"]
Singleton = Literal["zero", "raw"]


@dataclass(frozen=True, slots=True)
class GroupAdvantages:
    """One advantage per trajectory, and what the groups were like.

    `dead_groups` had two or more graded members with (nearly) equal rewards, `singletons` exactly one graded member,
    `ungraded` counts trajectories without a reward.
    """

    advantages: list[float]
    groups: int
    dead_groups: int
    singletons: int
    ungraded: int


def group_advantages(
    rewards: Sequence[float | None],
    groups: Sequence[str],
    *,
    scale: Scale = "group",
    eps: float = 1e-4,
    ddof: Literal[0, 1] = 1,
    baseline: Baseline = "mean",
    singleton: Singleton = "zero",
    zero_var_tol: float = 1e-6,
) -> GroupAdvantages:
    """Advantages of trajectories over their groups.

    `baseline` "mean": (reward - mean of the group), divided by (standard deviation + `eps`) of the group, of all graded
    rewards of the batch, or not at all (`scale`); `ddof` 1 is the unbiased deviation. `baseline` "loo": reward - mean
    of the other members (RLOO, arXiv 2402.14740), never divided. `singleton` "raw" gives a lone member its reward
    itself.
    """
    if len(rewards) != len(groups):
        raise ValueError(f"{len(rewards)} rewards but {len(groups)} group names; there must be one for each trajectory")
    graded = {i: float(r) for i, r in enumerate(rewards) if r is not None and not math.isnan(r)}
    members: dict[str, list[int]] = {group: [] for group in groups}
    for i in graded:
        members[groups[i]].append(i)
    batch_std = _deviation(list(graded.values()), ddof)
    out = [0.0] * len(rewards)
    dead = 0
    for indices in members.values():
        values = [graded[i] for i in indices]
        if len(values) == 1:
            out[indices[0]] = values[0] if singleton == "raw" else 0.0
        elif values and max(values) - min(values) <= zero_var_tol:
            dead += 1
        elif values:
            spread = batch_std if scale == "batch" else _deviation(values, ddof)
            unscaled = scale == "none" or baseline == "loo"
            factor = _loo_factor(values) if baseline == "loo" else 1.0
            mean = math.fsum(values) / len(values)
            for i, value in zip(indices, values, strict=True):
                out[i] = factor * (value - mean) / (1.0 if unscaled else spread + eps)
    return GroupAdvantages(
        advantages=out,
        groups=len(members),
        dead_groups=dead,
        singletons=sum(len(indices) == 1 for indices in members.values()),
        ungraded=len(rewards) - len(graded),
    )


def normalised(rewards: Sequence[float | None], groups: Sequence[str], how: GroupBaseline) -> list[float]:
    """(reward - group mean) / (standard deviation + eps), as the settings say: `group_advantages` with all of them."""
    return group_advantages(
        rewards,
        groups,
        scale=how.scale,
        eps=how.eps,
        ddof=how.ddof,
        singleton=how.singleton,
        zero_var_tol=how.zero_var_tol,
    ).advantages


def _loo_factor(values: Sequence[float]) -> float:
    """n / (n - 1): turns the distance to the mean of all into that to the mean of the others."""
    return len(values) / (len(values) - 1)


def _deviation(values: Sequence[float], ddof: int) -> float:
    if len(values) <= ddof:
        return 0.0
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - ddof))
