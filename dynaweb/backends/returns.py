"""Rewards, returns and token advantages as plain numbers: over agent tokens only, across rows and observation gaps.

A trajectory's agent tokens are one chain: the last of one row is followed by the first of the next row that has any.
Nothing here sees observation tokens, so none can be discounted over, bootstrapped from or whitened with.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from dynaweb.backends.kl import Estimator, penalties
from dynaweb.credit import CreditInput


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
