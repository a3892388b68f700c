"""What became of an episode, in the few words that filters, tables and failure counts share."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from dynaweb.judges.reward import SUCCESS, score_of, scored_by_model, success_of
from dynaweb.report.data import JudgeAudit
from dynaweb.stats import wilson
from dynaweb.types import Step, Trajectory

Outcome = Literal["success", "failure", "ungraded"]


def outcome(trajectory: Trajectory) -> Outcome:
    """By the environment's verdict where there is one, else by the reward; infrastructure failures are ungraded."""
    score = score_of(trajectory)
    if trajectory.end == "infrastructure":
        return "ungraded"
    if score is None:
        score = trajectory.reward
    if score is None:
        return "ungraded"
    return "success" if score >= SUCCESS else "failure"


UNGRADED = ("could not be graded", "infrastructure failed", "world model wrote no page")
"""Kinds that say nothing of the policy: such an episode is neither a success nor a failure."""


def failure_kind(trajectory: Trajectory) -> str | None:
    """Why an episode did not succeed, None if it did; one of `UNGRADED` where that is not known."""
    if trajectory.end == "infrastructure":
        return "infrastructure failed"
    if trajectory.steps and trajectory.steps[-1].facts.world_model_error:
        return "world model wrote no page"
    if outcome(trajectory) != "failure":
        return None if outcome(trajectory) == "success" else "could not be graded"
    if trajectory.end == "invalid":
        return invalid_kind(trajectory)
    if trajectory.end == "max-steps":
        return "did not stop in time"
    return _wrong_end(trajectory)


def invalid_kind(trajectory: Trajectory) -> str:
    """What ended an episode of end `invalid`: an action that could not be done, or a reply that held none."""
    last = trajectory.steps[-1] if trajectory.steps else None
    return "reply without an action" if last is not None and unreadable(last) else "invalid action"


_MISFIT = re.compile(
    r"there is no element \[\d+\] on this page; |element \[\d+\] is \S.*, not '"
    r"|[^'\n]+ '(?:[^'\\]|\\.)*' \[\d+\] (?:takes no text; |has no option)"
)
"""How `dynaweb.web.actions.rules` says that an action was read and does not fit its page."""


def unreadable(step: Step) -> bool:
    """Whether no action could be read from the reply. One that was refused has no `action` either: the error tells."""
    return step.action is None and _MISFIT.match(step.error) is None


def refused(step: Step) -> bool:
    """Whether the reply holds an action that was not done: it does not fit the page, or the environment refused it."""
    if step.action is None:
        return not unreadable(step)
    # With a dreamed page the error is the world model's.
    return bool(step.error) and not (step.facts.dreamed or step.facts.world_model_error)


def _wrong_end(trajectory: Trajectory) -> str:
    evaluated = trajectory.task.evaluation.get("eval_types", ())
    if trajectory.answer and "string_match" in evaluated:
        return "wrong answer"
    return "stopped without an answer" if "string_match" in evaluated else "stopped in the wrong state"


@dataclass(slots=True)
class AuditCounts:
    """The judge's calls beside the environment's verdicts, counted one episode at a time.

    `failed` and `solved` are all judged episodes by the environment's verdict, `asked_failed` and `asked_solved` those
    among them that the judge was really asked about.
    """

    failed: int = 0
    asked_failed: int = 0
    wrongly_accepted: int = 0
    solved: int = 0
    asked_solved: int = 0
    wrongly_rejected: int = 0

    def add(self, trajectory: Trajectory) -> None:
        """Count an episode that carries both; others are skipped."""
        real = success_of(trajectory)
        score = trajectory.judgement.score if trajectory.judgement is not None else None
        if real is None or score is None:
            return
        own = scored_by_model(trajectory)
        if real >= SUCCESS:
            self.solved += 1
            self.asked_solved += own
            self.wrongly_rejected += own and score < SUCCESS
        else:
            self.failed += 1
            self.asked_failed += own
            self.wrongly_accepted += own and score >= SUCCESS

    def result(self, label: str) -> JudgeAudit | None:
        """The shares with their counts, None when no episode was counted."""
        if not self.failed + self.solved:
            return None
        accepted = wilson(self.wrongly_accepted, self.asked_failed)
        rejected = wilson(self.wrongly_rejected, self.asked_solved)
        return JudgeAudit(label, accepted, rejected, self.failed, self.solved)
