"""Optimizer probe: credit and loss of a small batch with successes and failures, before a run spends anything.

In a short run every group of rollouts may be dead, so that the optimizer's loss is never called, and a term of
behaviour cloning moves the weights whatever the policy loss does. Here each group has both outcomes by construction.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dynaweb.errors import PluginError
from dynaweb.plugin import contracts
from dynaweb.protocols import Credit, CreditInput, CreditRow, HasCritic, LossInput, PolicyOptimizer, ValueInput, wants
from dynaweb.trainer.advantages import compute_advantages

GROUPS = ("a", "a", "a", "a", "b", "b", "b", "b")
REWARDS = (1.0, 0.0, 0.0, 1.0, 0.0, 1.0, 0.0, 0.0)
STEPS, TOKENS = 2, 3
"""Rows of each trajectory, and agent tokens of each row."""


def check_optimizer(optimizer: PolicyOptimizer) -> None:
    """Raise `PluginError` for an optimizer that no run could learn with.

    Its loss must be finite with a gradient that is finite and not 0 everywhere, and must depend on its own advantages
    where these depend on rewards. The critic's loss, where there is one, must be finite with such a gradient too.
    """
    title = contracts.title("opt", optimizer)
    gradients, credits = [], []
    for rewards in (REWARDS, [1.0 - reward for reward in REWARDS]):
        batch = _batch(optimizer, rewards)
        credit = compute_advantages(optimizer, batch)
        credits.append(credit)
        gradients.append(_policy_gradient(optimizer, credit, title))
        if wants(optimizer).critic is not None:
            _critic_gradient(optimizer, credit, title)
    if not any(map(_moves, gradients)):
        raise PluginError(
            f"{title}: loss() has a gradient of 0 for a batch whose groups hold successes and failures, with "
            f"advantages {_few(credits[0].advantages)}: a policy could not learn from it. It must depend on "
            "LossInput.logp_RT"
        )
    if _differ(*credits) and torch.equal(*gradients):
        raise PluginError(
            f"{title}: loss() has the same gradient for advantages {_few(credits[0].advantages)} and "
            f"{_few(credits[1].advantages)}: it must depend on LossInput.advantage_N, or on the finer credit that the "
            "optimizer gives"
        )


def _batch(optimizer: PolicyOptimizer, rewards: Sequence[float]) -> CreditInput:
    critic = wants(optimizer).critic
    states = 0 if critic is None else 1 if critic.at == "rows" else TOKENS
    rows = [
        CreditRow(
            trajectory,
            step,
            TOKENS,
            anchor=f"{GROUPS[trajectory]} {step}",
            old_logps=tuple(_logps()[trajectory * STEPS + step].tolist()),
            ref_logps=tuple((_logps()[trajectory * STEPS + step] - 0.05).tolist()),
            values=[[0.25] * (critic.outputs if critic is not None else 0)] * states,
        )
        for trajectory in range(len(GROUPS))
        for step in range(STEPS)
    ]
    return CreditInput(rewards, GROUPS, rows, correct=[reward > 0 for reward in rewards])


def _logps() -> torch.Tensor:
    """Natural-log probabilities [R, T] of tokens, no two of them alike."""
    count = len(GROUPS) * STEPS * TOKENS
    return -torch.linspace(0.1, 2.0, count, dtype=torch.float32).reshape(-1, TOKENS)


def _policy_gradient(optimizer: PolicyOptimizer, credit: Credit, title: str) -> torch.Tensor:
    """The gradient [R, T] of the loss in all log-probabilities, 0 in rows that the optimizer leaves out."""
    everything = _logps()
    chosen = [row for row in range(len(everything)) if credit.row_mask is None or credit.row_mask[row]]
    whole = torch.zeros_like(everything)
    if not chosen:
        return whole
    part = credit.part(range(len(GROUPS)), chosen)
    logp_RT = everything[chosen].clone().requires_grad_()
    old_RT = logp_RT.detach().clone()
    trajectory_R = torch.tensor([row // STEPS for row in chosen])
    tokens_N = torch.bincount(trajectory_R, minlength=len(GROUPS)) * TOKENS
    rows = None if part.rows is None else torch.tensor(list(part.rows), dtype=torch.float32)
    inputs = LossInput(
        logp_RT=logp_RT,
        old_logp_RT=old_RT,
        mask_RT=torch.ones_like(logp_RT, dtype=torch.bool),
        trajectory_R=trajectory_R,
        advantage_N=torch.tensor(list(part.advantages), dtype=torch.float32),
        tokens_N=tokens_N,
        log_ratio_sum_N=torch.zeros(len(GROUPS)),
        advantage_RT=None if part.tokens is None else torch.tensor([list(row) for row in part.tokens]),
        ref_logp_RT=old_RT - 0.05 if wants(optimizer).reference_in_loss else None,
        row_R=None if rows is None else torch.arange(len(chosen)),
        advantage_S=rows,
        tokens_S=None if rows is None else torch.full((len(chosen),), TOKENS),
    )
    output = contracts.loss_output(optimizer, optimizer.loss(inputs))
    whole[chosen] = _gradient(output.loss, logp_RT, f"{title}: loss()")
    return whole


def _critic_gradient(optimizer: PolicyOptimizer, credit: Credit, title: str) -> None:
    critic = wants(optimizer).critic
    assert critic is not None, "asked for only where there is one"
    if not isinstance(optimizer, HasCritic):
        raise PluginError(f"{title}: it wants a critic, and has no critic_loss(batch) to train it with")
    if credit.targets is None:
        raise PluginError(f"{title}: it wants a critic, and its credit() gives no targets to train it with")
    targets = [[float("nan") if one is None else one for one in row] for row in credit.targets]
    target_RT = torch.tensor(targets, dtype=torch.float32)
    shape = (*target_RT.shape, critic.outputs)
    output_RTO = torch.full(shape, 0.1, requires_grad=True)
    mask_RT = ~target_RT.isnan()
    states = int(mask_RT.sum())
    if not states:
        return
    inputs = ValueInput(output_RTO, torch.full(shape, 0.25), torch.nan_to_num(target_RT), mask_RT, states)
    output = contracts.loss_output(optimizer, optimizer.critic_loss(inputs), "critic_loss")
    if not _moves(_gradient(output.loss, output_RTO, f"{title}: critic_loss()")):
        raise PluginError(f"{title}: critic_loss() has a gradient of 0; it must depend on ValueInput.output_RTO")


def _gradient(loss: torch.Tensor, leaf: torch.Tensor, what: str) -> torch.Tensor:
    if not torch.isfinite(loss).all():
        raise PluginError(f"{what} is {loss.item()} for a batch of finite numbers; expected a finite number")
    (unchecked,) = torch.autograd.grad(loss, leaf, allow_unused=True)
    gradient = unchecked if unchecked is not None else torch.zeros_like(leaf)
    if not torch.isfinite(gradient).all():
        raise PluginError(f"{what} has a gradient that is not finite for a batch of finite numbers")
    return gradient


def _moves(gradient: torch.Tensor) -> bool:
    return bool((gradient != 0).any())


def _differ(first: Credit, second: Credit) -> bool:
    def parts(credit: Credit) -> tuple[object, ...]:
        tokens = None if credit.tokens is None else [list(row) for row in credit.tokens]
        return list(credit.advantages), None if credit.rows is None else list(credit.rows), tokens

    return parts(first) != parts(second)


def _few(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.2g}" for value in values)


__all__ = ["check_optimizer"]
