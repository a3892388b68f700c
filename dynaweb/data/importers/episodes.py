"""Episodes of other projects, and the two things that are made of them: transitions for world models, trajectories for
policies.

A transition needs its own step and the page after it, so an episode with a bad step still gives the others. A
trajectory is a demonstration as a whole: what a policy is shown of its earlier actions, and that the episode was a
success, are true only of all of it. So one with a step that cannot be said exactly is left out, with the reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from dynaweb.data.importers.report import ImportReport
from dynaweb.data.importers.steps import GAP, LAST, NO_GIVEN_ACTION, NO_PAGE, STOP, ForeignStep
from dynaweb.types import Action, EpisodeFacts, Judgement, Observation, Step, Task, Trajectory, Transition
from dynaweb.worldmodels.change import DONE, HISTORY

EARLY_STOP, EMPTY = "it stops before its end", "it has no step"
NO_START, NO_END = "its beginning is missing", "its end is missing"
NO_NUMBER = "its score or reward is no finite number"
UNREAD = "lines of its page could not be read"


@dataclass(frozen=True, slots=True)
class ForeignEpisode:
    """One episode as a reader found it: its steps in order, numbered from 0 where none is missing.

    `name` is that of its task, `source` that of the format. `done` says that the environment ended it, `score` how good
    it was in [0, 1] by the source's own verdict (None = unknown), `why` whose verdict. `lacks` is what is known to be
    missing of it, '' = nothing. `info` goes to transitions.
    """

    name: str
    source: str
    steps: Sequence[ForeignStep]
    goal: str = ""
    done: bool = False
    score: float | None = None
    why: str = ""
    site: str = ""
    start_url: str = ""
    lacks: str = ""
    info: dict[str, Any] = field(default_factory=dict)

    @property
    def task_id(self) -> str:
        """The id of its task."""
        return f"{self.source}/{self.name}"


def transitions(episode: ForeignEpisode, report: ImportReport) -> Iterator[Transition]:
    """The transitions of one episode, in order; `report` counts the steps that are none."""
    past: list[Action] = []
    steps = episode.steps
    for at, step in enumerate(steps):
        following = steps[at + 1] if at + 1 < len(steps) else None
        reason = _no_transition(step, following)
        if reason:
            report.drop(reason)
        else:
            assert step.page is not None and following is not None and following.page is not None
            assert isinstance(step.action, Action)
            if step.page.unread:
                report.note(UNREAD)
            more = {"goal": episode.goal, **episode.info, "step": step.order, HISTORY: tuple(past)}
            if episode.done and at == len(steps) - 2:
                more[DONE] = True
            page, after = step.page.page, following.page.page
            yield Transition(page, step.action, after, episode.task_id, episode.source, more)
        if isinstance(step.action, Action):
            past.append(step.action)


def _no_transition(step: ForeignStep, following: ForeignStep | None) -> str:
    if reason := _unreadable(step):
        return reason
    assert isinstance(step.action, Action)
    if step.action.kind == "stop":
        return STOP
    if following is None:
        return LAST
    if following.order != step.order + 1:
        return GAP
    return "" if following.page is not None else "the page after it cannot be read"


def _unreadable(step: ForeignStep) -> str:
    if isinstance(step.action, str):
        return step.action
    return NO_PAGE if step.page is None else ""


def trajectory(episode: ForeignEpisode, report: ImportReport, number: int) -> Trajectory | None:
    """The whole episode, or None: `report` then counts it, with its steps and the reason.

    `number` tells episodes of one task apart. A last page without an action is the final page. `end` is `stop` where
    the agent said so, `terminal` where the environment ended it, else `max-steps`.
    """
    steps, final = _acted(episode.steps)
    report.read -= len(episode.steps) - len(steps)  # a last page is no step
    if reason := _no_trajectory(steps) or episode.lacks:
        report.drop_episode(reason, len(steps))
        return None
    last = steps[-1]
    assert last.page is not None and isinstance(last.action, Action)
    stopped = last.action.kind == "stop"
    if stopped:
        final = last.page.page
    if unread := sum(step.page is not None and step.page.unread > 0 for step in steps):
        report.note(UNREAD, unread)
    verdict = None if episode.score is None else Judgement(min(1.0, max(0.0, episode.score)), why=episode.why)
    first = steps[0].page
    assert first is not None
    start = episode.start_url or first.page.url
    sites = (episode.site,) if episode.site else ()
    return Trajectory(
        id=f"{episode.task_id}#{number}",
        task=Task(episode.task_id, episode.goal, start, sites),
        steps=tuple(_step(step) for step in steps),
        final=final,
        source="real",
        end="stop" if stopped else "terminal" if episode.done else "max-steps",
        facts=EpisodeFacts(verdict=verdict),
    )


def _acted(steps: Sequence[ForeignStep]) -> tuple[Sequence[ForeignStep], Observation | None]:
    """The steps with an action, and the page that a last record without one shows."""
    if len(steps) < 2 or steps[-1].action != NO_GIVEN_ACTION:
        return steps, None
    page = steps[-1].page
    return steps[:-1], page.page if page is not None else None


def _no_trajectory(steps: Sequence[ForeignStep]) -> str:
    if not steps:
        return EMPTY
    if steps[0].order != 0:
        return NO_START
    for at, step in enumerate(steps):
        if reason := _unreadable(step):
            return f"a step of it: {reason}"
        if step.order != at:
            return f"a step of it: {GAP}"
        if isinstance(step.action, Action) and step.action.kind == "stop" and at + 1 < len(steps):
            return EARLY_STOP
    return ""


def _step(step: ForeignStep) -> Step:
    assert step.page is not None and isinstance(step.action, Action)
    return Step(step.page.page, step.action, reasoning=step.reasoning, reply=step.reply)
