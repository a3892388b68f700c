"""The batch of an update: rollouts as token rows, with advantages, old and reference log-probabilities.

Trajectories that could not be graded are left out of the batch; an optimizer that is given one all the same takes it
out of the baseline of its group, and counts its tokens in the denominators with an advantage of 0. Dead groups stay:
their tokens count in the denominators, so that the weight of the behaviour-cloning term does not depend on how many
there are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from dynaweb.judges.reward import SUCCESS
from dynaweb.plugin import contracts
from dynaweb.protocols import Credit, CreditInput, CreditRow, PolicyOptimizer, TokenRow, wants
from dynaweb.rl.importance import Correction, corrected, engine_logprobs, sampler_logprobs
from dynaweb.rl.replay import ReplayBuffer, keep_of
from dynaweb.rl.rows import logprobs, part_of, step_rows
from dynaweb.trainer.advantages import compute_advantages
from dynaweb.types import Observation, Step, Trajectory
from dynaweb.web.page.text import format_node

if TYPE_CHECKING:
    from dynaweb.config.sections import Rl
    from dynaweb.trainer.losses import Logps, OldLogps
    from dynaweb.trainer.torch_trainer import TorchTrainer


@dataclass(frozen=True, slots=True)
class Batch:
    """Trajectories, their rows and credit; `old` and `reference` as `TorchTrainer.policy_step` takes them.

    `advantages` are the optimizer's, before any scaling, one per rollout of the update, ungraded ones included.
    """

    trajectories: Sequence[Trajectory]
    rows: list[TokenRow]
    credit: Credit
    old: OldLogps | None = None
    reference: Logps | None = None
    advantages: Sequence[float] = ()
    weights: Logps | None = None
    """Importance weights of tokens that an engine drew with probabilities of its own."""
    mismatch: Mapping[str, float] = field(default_factory=dict)

    def part(self, trajectories: Sequence[int]) -> Batch:
        """The batch of some of the trajectories."""
        position = {trajectory: i for i, trajectory in enumerate(trajectories)}
        chosen = [i for i, row in enumerate(self.rows) if row.trajectory in position]
        return Batch(
            [self.trajectories[i] for i in trajectories],
            [replace(self.rows[i], trajectory=position[self.rows[i].trajectory]) for i in chosen],
            self.credit.part(trajectories, chosen),
            None if self.old is None else [self.old[i] for i in chosen],
            part_of(self.reference, chosen),
            weights=part_of(self.weights, chosen),
        )


@dataclass(frozen=True, slots=True)
class BatchMaker:
    """Makes batches with the policy as it is and, where the optimizer or the experts need it, its start."""

    rl: Rl
    optimizer: PolicyOptimizer
    trainer: TorchTrainer
    reference: TorchTrainer | None
    correction: Correction = field(default_factory=Correction)
    """What is done about tokens that another distribution drew than the policy in training."""

    def make(self, rollouts: Sequence[Trajectory], *, keep: Sequence[bool] | None = None) -> Batch:
        """The graded rollouts of an update as a batch; rows that the optimizer does not keep are left out.

        `keep` says for each row whether it may be learned from at all; the others still show what follows a row.
        """
        graded = [t for t in rollouts if t.reward is not None]
        rows, want = step_rows(graded), wants(self.optimizer)
        everything = [True] * len(rows)
        drawn: list[Sequence[float]] = [()] * len(rows)
        if self.correction.sampler_is_old:
            drawn = sampler_logprobs(graded)
        old = self._before(rows, drawn, everything) if want.old_in_credit else None
        reference = self._reference(rows, everything) if want.reference_in_credit else None
        values = self.trainer.critic.values(rows) if self.trainer.critic is not None else None
        credit = compute_advantages(self.optimizer, credit_input(graded, old=old, reference=reference, values=values))
        credit = replace(credit, values=values)
        advantages = iter(credit.advantages)
        reported = [0.0 if t.reward is None else next(advantages) for t in rollouts]
        chosen = [i for i in range(len(rows)) if credit.row_mask is None or credit.row_mask[i]]
        chosen = chosen if keep is None else [i for i in chosen if keep[i]]
        credit = credit.part(range(len(graded)), chosen).scaled(self.rl.negative_scale)
        rows, drawn, old = [rows[i] for i in chosen], [drawn[i] for i in chosen], part_of(old, chosen)
        moving = [want.reference_in_loss or credit.moves(i, row.trajectory) for i, row in enumerate(rows)]
        anchored = self._reference(rows, moving) if want.reference_in_loss else None
        if old is None and (self._several or self.correction.cap):
            old = self._before(rows, drawn, moving)
        batch = Batch(graded, rows, credit, self._old(graded, rows, moving, old, drawn), anchored, reported)
        if not self.correction.cap:
            return batch
        assert old is not None, "a correction computes them"
        logps = engine_logprobs(graded)
        engine = [logps[i] if moves else () for i, moves in zip(chosen, moving, strict=True)]
        weights, mismatch = corrected(engine, old, self.correction.cap, stale=self.rl.max_staleness > 0)
        return replace(batch, weights=weights, mismatch=mismatch)

    def ref_kl(self, batch: Batch) -> dict[str, float]:
        """KL(policy || its start) per token, estimated (k3) on at most `ref_kl_rows` rows spread over the update.

        Experts' rows are left out: the estimator is for tokens that the policy sampled. Nothing is measured where the
        loss has a reference, and so reports it from all rows.
        """
        from dynaweb.trainer.kl import penalties

        rows = [row for row in batch.rows if batch.trajectories[row.trajectory].source != "expert"]
        if self.reference is None or batch.reference is not None or self.rl.ref_kl_rows == 0 or not rows:
            return {}
        sample = rows[:: -(-len(rows) // self.rl.ref_kl_rows)]
        pairs = zip(self.trainer.logprobs(sample), self.reference.logprobs(sample), strict=True)
        values = [value for now, start in pairs for value in penalties(now.tolist(), start.tolist(), "k3")]
        return {"ref_kl": sum(values) / len(values)} if values else {}

    @property
    def _several(self) -> bool:
        """Whether an update has more than one optimizer step."""
        return self.rl.epochs * self.rl.minibatches > 1

    def _reference(self, rows: Sequence[TokenRow], wanted: Sequence[bool]) -> Logps:
        assert self.reference is not None, "an optimizer that wants a reference has one"
        return logprobs(self.reference, rows, wanted)

    def _before(self, rows: Sequence[TokenRow], drawn: Sequence[Sequence[float]], wanted: Sequence[bool]) -> Logps:
        """Log-probabilities of the policy that played: the sampler's where it says them, else the trainer's own before
        the update."""
        ask = [wants and not said for wants, said in zip(wanted, drawn, strict=True)]
        own = logprobs(self.trainer, rows, ask)
        return [said or values for said, values in zip(drawn, own, strict=True)]

    def _old(
        self,
        rollouts: Sequence[Trajectory],
        rows: Sequence[TokenRow],
        moving: Sequence[bool],
        known: Logps | None,
        drawn: Sequence[Sequence[float]],
    ) -> OldLogps | None:
        """Old log-probabilities of each row; None where the ratio is 1: in a first and only step, or by `expert_ratio`.

        `known` are those before the update, there where there are several steps; `drawn` those of the sampler, where
        ratios are taken against these, which no step has ratio 1 with.
        Experts' tokens were not sampled from the policy. What their ratio is taken against is a choice: the policy
        before the update (so it starts at 1), nothing (so it is always 1), or the policy that SFT made of such experts.
        """
        expert = [rollouts[row.trajectory].source == "expert" for row in rows]
        against_sft = self.rl.expert_ratio == "sft" and any(expert)
        if not (self._several or against_sft or any(drawn)):
            return None
        own: OldLogps = [said or None for said in drawn]
        if self._several:
            assert known is not None, "several steps need them"
            own = list(known)
        if self.rl.expert_ratio == "old-policy":
            return own
        sft: OldLogps = [None] * len(rows)
        if against_sft:
            sft = self._reference(rows, [e and m for e, m in zip(expert, moving, strict=True)])
        return [s if is_expert else o for s, o, is_expert in zip(sft, own, expert, strict=True)]


def replayed(batches: BatchMaker, buffer: ReplayBuffer, update: int, rollouts: Sequence[Trajectory]) -> Batch:
    """The batch of an update that also learns from remembered steps; the buffer then remembers the rollouts."""
    drawn = buffer.drawn(update, [t for t in rollouts if t.reward is not None])
    keep = keep_of(buffer, batches.trainer, rollouts, drawn)
    batch = batches.make([*rollouts, *drawn], keep=keep)
    fresh = len(keep) - sum(len([s for s in t.steps if s.response_ids]) for t in drawn)
    metrics = {
        "replay_buffer": float(buffer.steps),
        "replay_drawn": float(len(keep) - fresh),
        "replay_kept": float(sum(keep[fresh:])),
    }
    credit = replace(batch.credit, metrics={**batch.credit.metrics, **metrics})
    return replace(batch, credit=credit, advantages=batch.advantages[: len(rollouts)])


def imitated(optimizer: PolicyOptimizer, rollouts: Sequence[Trajectory]) -> Batch:
    """The batch of filtered behaviour cloning: successful rollouts, experts too, each token worth the same.

    Experts too: both ways of learning from the same rollouts see the same expert data.
    """
    successes = [t for t in rollouts if t.reward is not None and t.reward >= SUCCESS]
    values = optimizer.advantages([t.reward for t in rollouts], [t.group for t in rollouts])
    reported = contracts.advantages(optimizer, values, len(rollouts))
    return Batch(successes, step_rows(successes), Credit([1.0] * len(successes)), advantages=reported)


def credit_input(
    rollouts: Sequence[Trajectory],
    *,
    old: Logps | None = None,
    reference: Logps | None = None,
    values: Sequence[Sequence[Sequence[float]]] | None = None,
) -> CreditInput:
    """Rollouts as credit assignment sees them, in the order of `step_rows`.

    The verdict is the reward of the trajectory. A step's own reward is what its environment says in `StepFacts.reward`,
    0 where there is none; any other score of an environment would count the verdict twice.
    """
    steps = [(i, k, step) for i, t in enumerate(rollouts) for k, step in enumerate(t.steps) if step.response_ids]
    rows = [
        CreditRow(
            i,
            k,
            len(step.response_ids),
            anchor=_anchor(step),
            reward=float(step.facts.reward or 0.0),
            old_logps=() if old is None else old[n],
            ref_logps=() if reference is None else reference[n],
            values=() if values is None else values[n],
        )
        for n, (i, k, step) in enumerate(steps)
    ]
    return CreditInput(
        rewards=[t.reward for t in rollouts],
        groups=[t.group for t in rollouts],
        rows=rows,
        correct=[None if t.reward is None else t.reward >= SUCCESS for t in rollouts],
    )


def contributing_groups(optimizer: PolicyOptimizer, rollouts: Sequence[Trajectory]) -> set[str]:
    """Groups of which the optimizer would keep any row."""
    inputs = credit_input([t for t in rollouts if t.reward is not None])
    credit = compute_advantages(optimizer, inputs)
    return {
        inputs.groups[row.trajectory]
        for i, row in enumerate(inputs.rows)
        if credit.row_mask is None or credit.row_mask[i]
    }


def _anchor(step: Step) -> str:
    """The page as text, without the numbers of its elements: what makes two states the same."""
    page: Observation | None = step.observation
    if page is None:
        return ""
    return "\n".join([page.url, page.notice, *(format_node(node, with_id=False) for node in page.nodes)])
