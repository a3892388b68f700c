"""Rewards: the environment's own verdict on real episodes, and the judge's score of any trajectory.

A verdict can only be had while the environment stands as the episode left it, so it is taken at once and travels in
`EpisodeFacts.verdict`, where the checker and the reports read it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from dynaweb.judges.scores import checked, refuse_silence
from dynaweb.plugin import contracts
from dynaweb.types import Judgement, Trajectory
from dynaweb.web.quoting import quoted

if TYPE_CHECKING:
    from dynaweb.protocols import Environment, Judge, TaskSource


SUCCESS = 0.5
"""A score from here on counts as success."""


def with_verdict(trajectory: Trajectory, verdict: Judgement) -> Trajectory:
    """A copy that carries the environment's verdict."""
    own = Judgement(verdict.score, verdict.probability, verdict.why)
    return replace(trajectory, facts=replace(trajectory.facts, verdict=own))


def score_of(trajectory: Trajectory) -> float | None:
    """The score of the environment's verdict, whatever ended the episode; None when there is none."""
    verdict = trajectory.facts.verdict
    return None if verdict is None or verdict.score is None else float(verdict.score)


def success_of(trajectory: Trajectory) -> float | None:
    """1.0 or 0.0 by the environment's verdict; None when the episode could not be graded (None is not 0)."""
    return score_of(trajectory) if trajectory.end != "infrastructure" else None


def grading(source: TaskSource) -> Callable[[Environment, Trajectory], Awaitable[Trajectory]]:
    """What takes the verdict of `source` when an episode ends; for `play_all(finish=...)`."""

    async def finish(environment: Environment, trajectory: Trajectory) -> Trajectory:
        return with_verdict(trajectory, contracts.verdict(source, await source.evaluate(environment, trajectory)))

    return finish


async def judge_all(judge: Judge, trajectories: Sequence[Trajectory], *, spare: bool = False) -> list[Trajectory]:
    """Score every trajectory: copies that carry judgement and reward.

    A failure of the infrastructure, and a dream that ended because its world model wrote no page or could no longer be
    trusted, get no reward: the policy is not to blame. An episode that reached its last step, or that an invalid action
    ended, gets 0 without asking the judge; with `spare`, no reward where the dream lacked what the goal names (see
    `lacking`). Everything else gets the judge's score, or none where that is no number in [0, 1].
    """
    return list(await asyncio.gather(*(judge_one(judge, trajectory, spare=spare) for trajectory in trajectories)))


async def judge_one(judge: Judge, trajectory: Trajectory, *, spare: bool = False) -> Trajectory:
    """See `judge_all`."""
    lack = lacking(trajectory) if spare else ""
    verdict = Judgement(None, why=lack) if lack else ungraded(trajectory) or unfinished(trajectory)
    if verdict is None:
        verdict = checked(contracts.judgement(judge, await judge.score(trajectory)))
    return trajectory.scored(verdict, verdict.score)


def ungraded(trajectory: Trajectory) -> Judgement | None:
    """The verdict None on an episode that says nothing about the policy."""
    if trajectory.end == "infrastructure":
        return Judgement(None, why=f"infrastructure: {trajectory.facts.failure or 'unknown failure'}")
    error = world_model_error(trajectory)
    if error:
        return Judgement(None, why=f"the world model wrote no page: {error}")
    why = untrusted(trajectory)
    return Judgement(None, why=why) if why else None


def unfinished(trajectory: Trajectory) -> Judgement | None:
    """The verdict 0 on an episode that the policy did not bring to an end.

    An episode that its environment ended (`terminal`) is finished: the task may be done without a `stop`.
    """
    if trajectory.end == "invalid":
        return Judgement(0.0, why=f"an invalid action ended the episode: {trajectory.steps[-1].error}")
    return Judgement(0.0, why="the policy did not stop by itself") if trajectory.end == "max-steps" else None


def scored_by_model(trajectory: Trajectory) -> bool:
    """Whether a judged trajectory's score is that of the judge's model, not one that code gave without asking it."""
    return trajectory.judgement is not None and trajectory.judgement.score is not None and reached_model(trajectory)


def needs_judge(trajectory: Trajectory) -> bool:
    """Whether only the judge can say what an episode is worth."""
    return ungraded(trajectory) is None and unfinished(trajectory) is None


def reached_model(trajectory: Trajectory) -> bool:
    """Whether a judged trajectory needed the judge, and no rule of the judge decided before its model."""
    return needs_judge(trajectory) and not (trajectory.judgement is not None and trajectory.judgement.ruled)


def refuse_silent_judge(judged: Sequence[Trajectory], what: str) -> None:
    """Raise `TrainingError` when the judge gave no score to any of the episodes that it was asked about."""
    refuse_silence([t.judgement for t in judged if t.judgement is not None and reached_model(t)], what)


def world_model_error(trajectory: Trajectory) -> str:
    """Why the world model ended this dream, or ''."""
    return trajectory.steps[-1].facts.world_model_error if trajectory.steps else ""


def lacking(trajectory: Trajectory) -> str:
    """Why an invalid action at the end of a dream may be the world model's fault, or ''.

    It names something that the goal names, and the dreamed page has nothing of that name: what a page of an unknown
    site lists cannot be predicted. On a real page, where a dream starts or which was recalled, the policy is to blame:
    the step before says whether it led to an imagined one.
    """
    if trajectory.end != "invalid" or trajectory.source != "dream" or not trajectory.steps:
        return ""
    if not any(step.facts.imagined for step in trajectory.steps[-2:-1]):
        return ""
    page = trajectory.steps[-1].observation
    names = {node.name for node in page.nodes}
    quotes = set(quoted(trajectory.steps[-1].reply))
    lost = [name for name in quoted(trajectory.task.intent) if name in quotes and name not in names]
    return f"the dreamed page has nothing called {lost[0]!r}, which the goal names" if lost else ""


def untrusted(trajectory: Trajectory) -> str:
    """Why an automatic horizon ended this dream, or ''."""
    return trajectory.steps[-1].facts.untrusted if trajectory.steps else ""
