"""One episode played by text: replies in, pages out, a verdict at the end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dynaweb.errors import InfrastructureError
from dynaweb.types import (
    Action,
    EndReason,
    Judgement,
    Observation,
    Source,
    Step,
    StepFacts,
    StepResult,
    Task,
    Trajectory,
)
from dynaweb.web.actions.grammar import parse_action
from dynaweb.web.page.text import render

if TYPE_CHECKING:
    from dynaweb.protocols import Environment
    from dynaweb.serve.environment import ServedEnvironment


@dataclass(frozen=True, slots=True)
class Turn:
    """What follows a reply: the page as nodes and as text, and why the reply was refused, if it was.

    `done` tells whether the episode is over, `truncated` whether only its length ended it. `reward` is the verdict's
    score: 0 before the end, None when the episode could not be graded.
    """

    task: Task
    page: Observation
    text: str
    error: str = ""
    done: bool = False
    truncated: bool = False
    reward: float | None = 0.0
    verdict: Judgement | None = None
    info: Mapping[str, Any] = field(default_factory=dict)
    facts: StepFacts = field(default_factory=StepFacts)


class TextEpisode:
    """Plays episodes one after another in one environment; replies are in the grammar `compact`."""

    def __init__(self, served: ServedEnvironment, *, max_steps: int) -> None:
        self._served = served
        self._max_steps = max_steps
        self._environment: Environment | None = None
        self._steps: list[Step] = []
        self._turn: Turn | None = None
        self._seed = 0

    @property
    def steps(self) -> int:
        """Replies so far."""
        return len(self._steps)

    async def start(self, task: Task, seed: int) -> Turn:
        """Reset to a task. Raises `InfrastructureError` when the environment fails."""
        if self._environment is None:
            self._environment = self._served.environment()
        page = await self._environment.reset(task, seed)
        # Some environments learn a task's goal when they open it.
        task = getattr(self._environment, "task", None) or task
        self._steps, self._seed = [], seed
        self._turn = Turn(task, page, render(page))
        return self._turn

    async def reply(self, text: str) -> Turn:
        """Act. A reply that is no action, and one that cannot be done, cost a step and come back with `error`.

        Raises `InfrastructureError` before `start` and after the end, and when the environment fails.
        """
        turn = self._turn
        if turn is None or turn.done or self._environment is None:
            raise InfrastructureError("the episode is not running: start one first")
        action = parse_action(text, turn.page)
        result = await self._act(turn, action)
        error = action if isinstance(action, str) else result.error
        taken = None if isinstance(action, str) else action
        self._steps.append(Step(turn.page, taken, reply=text, error=error))
        stopped = taken is not None and taken.kind == "stop"
        truncated = not result.done and not stopped and len(self._steps) >= self._max_steps
        end: EndReason | None = "stop" if stopped else "terminal" if result.done else None
        end = end or ("max-steps" if truncated else None)
        self._turn = await self._after(turn, result, error, end)
        return self._turn

    async def close(self) -> None:
        """Close the environment; calling it twice is allowed."""
        environment, self._environment, self._turn = self._environment, None, None
        if environment is not None:
            await environment.close()

    async def _act(self, turn: Turn, action: Action | str) -> StepResult:
        if isinstance(action, str) or action.kind == "stop":
            return StepResult(turn.page)
        assert self._environment is not None  # `reply` has looked
        return await self._environment.step(action)

    async def _after(self, turn: Turn, result: StepResult, error: str, end: EndReason | None) -> Turn:
        page, info, facts = result.observation, result.info, result.facts
        if end is None:
            return Turn(turn.task, page, render(page), error, info=info, facts=facts)
        assert self._environment is not None  # `reply` has looked
        source: Source = "dream" if self._served.dreams else "real"
        trajectory = Trajectory(
            f"{turn.task.id}#{self._seed}", turn.task, tuple(self._steps), page, source, end, seed=self._seed
        )
        verdict = await self._served.verdict(self._environment, trajectory)
        return Turn(turn.task, page, render(page), error, True, end == "max-steps", verdict.score, verdict, info, facts)
