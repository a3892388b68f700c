"""The look-ahead agent: propose actions, imagine where each leads, let the judge value that, and do the best one.

Candidates are sampled from the policy; equal actions count once. Each is tried in the world model, as it would be in a
dream; the policy then goes on, greedily, for the steps that are left of `depth` or until it stops. The value of a
candidate is the judge's probability for what was imagined, mean over `samples`: WebDreamer (arXiv 2411.06559) with a
language model as it is, WMA (arXiv 2410.13232) with a fitted world model and a value function. Equal values are decided
by how often a candidate was proposed, then by the order of the proposals. Where nothing could be imagined or valued,
that is all there is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import TYPE_CHECKING

from dynaweb.errors import EngineError
from dynaweb.judges.scores import checked
from dynaweb.plugin import contracts
from dynaweb.rollout.agents import Decision, ModelPolicy
from dynaweb.runs.seeding import derive
from dynaweb.types import Action, Observation, Step, Task, Trajectory
from dynaweb.worldmodels.dynamics import refusal

if TYPE_CHECKING:
    from dynaweb.config.sections import Agent
    from dynaweb.protocols import Environment, Judge

Dreams = Callable[[Observation], "Environment"]
"""Makes a dream that starts on a page."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A proposed decision, how often it was proposed, and the mean value of what it leads to (None: unknown)."""

    decision: Decision
    votes: int
    value: float | None = None


class LookaheadPolicy:
    """A player that looks ahead. `proposer` samples, `goes_on` plays greedily in imagination."""

    deterministic = False

    def __init__(self, proposer: ModelPolicy, goes_on: ModelPolicy, dreams: Dreams, judge: Judge, agent: Agent) -> None:
        self.proposer, self.goes_on = proposer, goes_on
        self.dreams, self.judge, self.agent = dreams, judge, agent

    async def act(self, task: Task, observation: Observation, history: Sequence[Action], *, seed: int) -> Decision:
        """The decision with the best imagined outcome; with one candidate left nothing is imagined."""
        candidates = await self._candidates(task, observation, history, seed)
        if len(candidates) > 1:
            values = await asyncio.gather(*(self._value(task, observation, history, c, seed) for c in candidates))
            candidates = [replace(c, value=value) for c, value in zip(candidates, values, strict=True)]
        best = max(candidates, key=lambda c: (-1.0 if c.value is None else c.value, c.votes))
        info = {"candidates": len(candidates), "value": best.value, "votes": best.votes}
        return replace(best.decision, info={**best.decision.info, **info})

    async def _candidates(self, task: Task, page: Observation, history: Sequence[Action], seed: int) -> list[Candidate]:
        """Distinct decisions that can be done on the page, in the order of their first proposal; else the first one."""
        drawn = range(self.agent.candidates)
        decisions = await asyncio.gather(
            *(self.proposer.act(task, page, history, seed=derive(seed, "candidate", k)) for k in drawn)
        )
        candidates: dict[Action, Candidate] = {}
        for decision in decisions:
            action = decision.action
            if action is not None and not refusal(page, action):
                known = candidates.get(action)
                candidates[action] = replace(known, votes=known.votes + 1) if known else Candidate(decision, 1)
        return list(candidates.values()) or [Candidate(decisions[0], 1)]

    async def _value(
        self, task: Task, page: Observation, history: Sequence[Action], candidate: Candidate, seed: int
    ) -> float | None:
        seeds = [derive(seed, "imagine", k) for k in range(self.agent.samples)]
        values = await asyncio.gather(*(self._imagined(task, page, history, candidate.decision, one) for one in seeds))
        known = [value for value in values if value is not None]
        return fmean(known) if known else None

    async def _imagined(
        self, task: Task, page: Observation, history: Sequence[Action], first: Decision, seed: int
    ) -> float | None:
        """The judge's value of one imagined future; None when the world model wrote no page, or the judge was
        silent."""
        assert first.action is not None  # candidates that cannot be done are never imagined
        dream = self.dreams(page)
        now = await dream.reset(task, seed)
        done = [Step(now, action) for action in history]
        action = first.action
        for depth in range(self.agent.depth):
            done.append(Step(now, action))
            if action.kind == "stop":
                break
            result = await dream.step(action)
            if result.facts.world_model_error:
                return None
            now = result.observation
            if result.done or depth + 1 == self.agent.depth:
                break
            decision = await self.goes_on.act(task, now, [s.action for s in done if s.action], seed=derive(seed, depth))
            if decision.action is None or refusal(now, decision.action):
                break
            action = decision.action
        return await self._judged(task, done, now, seed)

    async def _judged(self, task: Task, steps: Sequence[Step], page: Observation, seed: int) -> float | None:
        # What was imagined need not have come to its end; a judge that only grades finished episodes would say 0.
        imagined = Trajectory(f"imagined/{task.id}/{seed}", task, tuple(steps), page, "dream", "stop")
        try:
            judgement = checked(contracts.judgement(self.judge, await self.judge.score(imagined)))
        except EngineError:
            return None
        return judgement.probability if judgement.probability is not None else judgement.score
