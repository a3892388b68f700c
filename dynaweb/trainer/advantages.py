"""Advantages: the optimizer's own of an update, and the arithmetic that optimizers share.

`compute_advantages` is what the batch of an update calls. It asks the optimizer plugin, which comes back here for group
statistics, returns, and generalised advantage estimation over agent tokens.

Pure Python with exact summation. Conventions: a reward of None (or nan: the judge could not grade) leaves the group's
mean and deviation and gets advantage 0; a group with one graded member is a singleton; a group whose rewards differ by
no more than a tolerance is *dead*: its advantages are exactly 0, whatever rounding would give.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

from dynaweb.plugin import contracts
from dynaweb.protocols import AssignsCredit, Credit, CreditInput, PolicyOptimizer
from dynaweb.trainer.kl import Estimator, penalties

if TYPE_CHECKING:
    from dynaweb.config.optim import GroupBaseline

Scale = Literal["group", "batch", "none"]
Baseline = Literal["mean", "loo"]
Singleton = Literal["zero", "raw"]


def compute_advantages(optimizer: PolicyOptimizer, batch: CreditInput) -> Credit:
    """Advantages of an update: one per trajectory, and finer ones (per row, per agent token) from an optimizer that
    assigns credit itself.

    An optimizer without `credit` is asked for `advantages` alone, from rewards and groups. Raises `PluginError` that
    names the optimizer when numbers are missing or not finite.
    """
    if isinstance(optimizer, AssignsCredit):
        return contracts.credit(optimizer, optimizer.credit(batch), batch)
    per_trajectory = optimizer.advantages(batch.graded, batch.groups)
    return Credit(contracts.advantages(optimizer, per_trajectory, len(batch.rewards)))


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


# Rewards, returns and token advantages as plain numbers: over agent tokens only, across rows and observation gaps. A
# trajectory's agent tokens are one chain: the last of one row is followed by the first of the next row that has any.
# Nothing here sees observation tokens, so none can be discounted over, bootstrapped from or whitened with.


def gae(
    rewards: Sequence[float], values: Sequence[float], *, gamma: float, lam: float, bootstrap: float = 0.0
) -> list[float]:
    """Generalised advantage estimates of a chain of tokens (arXiv 1506.02438, eq. 16).

    A_t = d_t + gamma lam A_{t+1}, d_t = r_t + gamma V_{t+1} - V_t. `bootstrap` is the value behind the last token:
    0 at a real end, the critic's estimate where the episode was only cut off. Returns are A_t + V_t.
    """
    following = [*values, bootstrap]
    errors = [r + gamma * after - v for r, (v, after) in zip(rewards, pairwise(following), strict=True)]
    return discounted(errors, gamma * lam)


def discounted(rewards: Sequence[float], gamma: float) -> list[float]:
    """Returns R_t = r_t + gamma R_{t+1} of a chain."""
    out, running = [], 0.0
    for reward in reversed(rewards):
        running = reward + gamma * running
        out.append(running)
    return out[::-1]


def whiten(chains: Sequence[Sequence[float]], *, ddof: int = 1, eps: float = 1e-8) -> list[list[float]]:
    """(x - mean) / sqrt(variance + eps) over all numbers of all chains; zeros when there are fewer than two.

    `ddof` 1 is the unbiased variance.
    """
    values = [value for chain in chains for value in chain]
    if len(values) < 2:
        return [[0.0] * len(chain) for chain in chains]
    mean = math.fsum(values) / len(values)
    variance = math.fsum((value - mean) ** 2 for value in values) / (len(values) - ddof)
    scale = math.sqrt(variance + eps)
    return [[(value - mean) / scale for value in chain] for chain in chains]


def token_rewards(
    batch: CreditInput,
    terminal: Sequence[float],
    *,
    kl_coef: float = 0.0,
    kl: Estimator = "k1",
    step_rewards: bool = False,
) -> list[list[float]]:
    """Rewards of the agent tokens of each row.

    `terminal` (one per trajectory) falls on the last agent token of the trajectory, a step's own reward (with
    `step_rewards`) on the last agent token of its row; each token pays `kl_coef` x KL(old || reference).
    """
    out = [[0.0] * row.tokens for row in batch.rows]
    for own, row in zip(out, batch.rows, strict=True):
        if kl_coef:
            own[:] = [-kl_coef * value for value in penalties(row.old_logps, row.ref_logps, kl)]
        if step_rewards and own:
            own[-1] += row.reward
    for reward, indices in zip(terminal, batch.steps(), strict=True):
        last = next((i for i in reversed(indices) if out[i]), None)
        if last is not None:
            out[last][-1] += reward
    return out


def penalised(batch: CreditInput, coef: float, kl: Estimator = "k1") -> list[float | None]:
    """The graded rewards, each minus `coef` x the sum over its agent tokens of KL(old || reference)."""
    sums = [0.0] * len(batch.rewards)
    for row in batch.rows:
        sums[row.trajectory] += math.fsum(penalties(row.old_logps, row.ref_logps, kl)) if coef else 0.0
    return [None if r is None else r - coef * total for r, total in zip(batch.graded, sums, strict=True)]


def chains(batch: CreditInput, rows: Sequence[Sequence[float]]) -> list[list[float]]:
    """Numbers per agent token of each row, joined into one chain per trajectory."""
    return [[value for i in indices for value in rows[i]] for indices in batch.steps()]


def unchain(batch: CreditInput, joined: Sequence[Sequence[float]]) -> list[list[float]]:
    """The opposite of `chains`: back to the rows."""
    out: list[list[float]] = [[] for _ in batch.rows]
    for chain, indices in zip(joined, batch.steps(), strict=True):
        start = 0
        for i in indices:
            out[i] = list(chain[start : start + batch.rows[i].tokens])
            start += batch.rows[i].tokens
    return out


def peaks(joined: Sequence[Sequence[float]]) -> list[float]:
    """The number of largest size of each chain, 0 for an empty one: 0 means that nothing in it moves."""
    return [max(chain, key=abs, default=0.0) for chain in joined]
