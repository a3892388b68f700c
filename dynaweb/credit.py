"""Credit: what a policy optimizer sees of the rollouts of one update, and how much each token gets of it.

The least that an optimizer does is `PolicyOptimizer.advantages`: one number per trajectory, from rewards and groups.
One that needs more (values of a critic, a reference policy, pages, step rewards) has `wants`, `credit` or both too, and
may answer with a number per row or per token. Nothing here imports torch; sequences hold one number per agent token.

Words: a *row* is one step of a trajectory, its *agent tokens* are what the policy said in it. Observation tokens are
not part of any sequence here, so that discounts, values and means cannot run over them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    import torch

    from dynaweb.protocols import LossOutput, PolicyOptimizer


STEP_REWARD = "step_reward"
"""What a step's `info` calls a reward that comes beside the verdict on the trajectory, in the judge's units.

An environment's own score of the whole task goes elsewhere: the judge's verdict would count twice."""


@dataclass(frozen=True, slots=True)
class CriticSpec:
    """A critic that the backend hosts: a copy of the policy's body with a head of its own, trained beside the policy.

    `outputs` numbers per state; the states are those before each agent token (`at` "tokens") or before each row
    ("rows"). `lr` is its own peak learning rate, with the policy's warm-up and decay; `max_grad_norm` its own clipping.
    """

    lr: float
    outputs: int = 1
    at: Literal["tokens", "rows"] = "tokens"
    max_grad_norm: float = 1.0


@dataclass(frozen=True, slots=True)
class Wants:
    """What an optimizer needs beside rewards and groups. The default needs nothing."""

    old_in_credit: bool = False
    """`credit` reads `CreditRow.old_logps`."""
    reference_in_credit: bool = False
    """`credit` reads `CreditRow.ref_logps`."""
    reference_in_loss: bool = False
    """The loss reads `LossInput.ref_logp_RT`."""
    critic: CriticSpec | None = None
    """`credit` reads `CreditRow.values`, and `critic_loss` trains what gives them."""
    refills: int = 0
    """Rounds of further groups played for those that `credit` leaves out, at most."""


@dataclass(frozen=True, slots=True)
class CreditRow:
    """One row: `step` is its place in the trajectory, `anchor` the page as text, `reward` what the step itself earned.

    `reward` comes beside the verdict on the trajectory, never instead of it: an environment names it `STEP_REWARD`.
    `values` holds the critic's outputs for each agent token, or one entry for the row when the critic looks at rows.
    """

    trajectory: int
    step: int
    tokens: int
    anchor: str = ""
    reward: float = 0.0
    old_logps: Sequence[float] = ()
    ref_logps: Sequence[float] = ()
    values: Sequence[Sequence[float]] = ()


@dataclass(frozen=True, slots=True)
class CreditInput:
    """All trajectories and rows of one update.

    `rewards` are verdicts in the judge's units (None = could not be graded), `groups` the task that a trajectory is
    compared within. `correct` is the plain success behind the reward and `lengths` the length in tokens; where they are
    not given, success is a reward above 0 and the length the number of agent tokens.
    """

    rewards: Sequence[float | None]
    groups: Sequence[str]
    rows: Sequence[CreditRow] = ()
    correct: Sequence[bool | None] | None = None
    lengths: Sequence[int] | None = None

    @property
    def graded(self) -> list[float | None]:
        """The rewards, None where there is none or it is nan."""
        return [None if r is None or math.isnan(r) else float(r) for r in self.rewards]

    def steps(self) -> list[list[int]]:
        """For each trajectory its rows, as indices, in the order of steps."""
        out: list[list[int]] = [[] for _ in self.rewards]
        for index in sorted(range(len(self.rows)), key=lambda i: self.rows[i].step):
            out[self.rows[index].trajectory].append(index)
        return out

    def tokens(self) -> list[int]:
        """Agent tokens of each trajectory."""
        out = [0] * len(self.rewards)
        for row in self.rows:
            out[row.trajectory] += row.tokens
        return out


@dataclass(frozen=True, slots=True)
class Credit:
    """Who gets how much. The finest of `tokens`, `rows` and `advantages` that is there is what the loss sees.

    `advantages` has one number per trajectory (beside finer credit: the largest in size, so that 0 means that nothing
    of it moves the policy), `rows` one per row, `tokens` one per agent token of each row. `kept` tells which rows stay
    in the batch: the others leave loss and denominators. `targets` are what the critic should have said, one per agent
    token or one per row as it looks, with None for what it cannot learn from; `values` what it said (outputs per
    state), which the loop adds. `scalable` is False when advantages are targets of a regression, which no factor may
    change.
    """

    advantages: Sequence[float]
    rows: Sequence[float] | None = None
    tokens: Sequence[Sequence[float]] | None = None
    kept: Sequence[bool] | None = None
    targets: Sequence[Sequence[float | None]] | None = None
    values: Sequence[Sequence[Sequence[float]]] | None = None
    scalable: bool = True
    metrics: Mapping[str, float] = field(default_factory=dict)

    def scaled(self, negative: float) -> Credit:
        """A copy whose negative advantages are multiplied by `negative`.

        Made smaller where successes are few: most tokens then have a negative one, and `stop` would die out.
        """
        if not self.scalable or negative == 1.0:
            return self

        def scale(values: Sequence[float]) -> list[float]:
            return [a * negative if a < 0 else a for a in values]

        return replace(
            self,
            advantages=scale(self.advantages),
            rows=None if self.rows is None else scale(self.rows),
            tokens=None if self.tokens is None else [scale(row) for row in self.tokens],
        )

    def part(self, trajectories: Sequence[int], rows: Sequence[int]) -> Credit:
        """The credit of some trajectories and some of their rows, in the order given."""
        return replace(
            self,
            advantages=[self.advantages[i] for i in trajectories],
            rows=None if self.rows is None else [self.rows[i] for i in rows],
            tokens=None if self.tokens is None else [self.tokens[i] for i in rows],
            kept=None if self.kept is None else [self.kept[i] for i in rows],
            targets=None if self.targets is None else [self.targets[i] for i in rows],
            values=None if self.values is None else [self.values[i] for i in rows],
        )

    def moves(self, row: int, trajectory: int) -> bool:
        """Whether the policy gradient of a row can differ from 0."""
        if self.tokens is not None:
            return any(self.tokens[row])
        return (self.advantages[trajectory] if self.rows is None else self.rows[row]) != 0.0


@dataclass(frozen=True, slots=True)
class ValueInput:
    """What a critic's loss sees of one micro-batch. R rows, T states (1 for a critic that looks at rows), O outputs.

    `output_RTO` carries the gradient; `mask_RT` is True where there is a target, and what stands elsewhere is ignored.
    `old_RTO` is what the critic said before the update; `states` counts targets in the whole batch.
    """

    output_RTO: torch.Tensor
    old_RTO: torch.Tensor
    target_RT: torch.Tensor
    mask_RT: torch.Tensor
    states: int


@runtime_checkable
class AssignsCredit(Protocol):
    """A policy optimizer that gives credit itself."""

    def credit(self, batch: CreditInput) -> Credit:
        """Advantages of the whole update, and targets for the critic if there is one."""
        ...


@runtime_checkable
class HasCritic(Protocol):
    """A policy optimizer with a critic."""

    def critic_loss(self, batch: ValueInput) -> LossOutput:
        """The micro-batch's share of the critic's loss."""
        ...


def wants(optimizer: PolicyOptimizer) -> Wants:
    """What an optimizer needs; nothing for one that does not say. Needs no `credit`: a loss can want a reference."""
    found: Wants = getattr(optimizer, "wants", Wants())
    return found


def credit_of(optimizer: PolicyOptimizer, batch: CreditInput) -> Credit:
    """The optimizer's own credit, or its advantages as credit. Raises `PluginError` for what is neither."""
    from dynaweb import returned  # it knows the words of this module

    if isinstance(optimizer, AssignsCredit):
        return returned.credit(optimizer, optimizer.credit(batch), batch)
    given = optimizer.advantages(batch.graded, batch.groups)
    return Credit(returned.advantages(optimizer, given, len(batch.rewards)))
