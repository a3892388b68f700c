"""What became of evaluation episodes: a label for each, and a table by site."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from dynaweb.loop.evaluate import SUCCESS
from dynaweb.loop.verdicts import success_of, verdict_of
from dynaweb.report.stats import Estimate, proportion
from dynaweb.report.table import text_table
from dynaweb.types import Task, Trajectory

Label = Literal["success", "agent", "infrastructure", "ungraded"]
MULTI = "+"
"""Joins the sites of a task that needs several."""


def label_of(trajectory: Trajectory) -> Label:
    """Who is to blame: the agent, the infrastructure, or nobody because the episode could not be graded."""
    if trajectory.end == "infrastructure":
        return "infrastructure"
    score = success_of(trajectory)
    if score is None:
        return "ungraded"
    return "success" if score >= SUCCESS else "agent"


def reason_of(trajectory: Trajectory) -> str:
    """Why an episode has its label, in words."""
    failure = str(trajectory.info.get("failure", ""))
    verdict = verdict_of(trajectory)
    return failure or (verdict.why if verdict is not None else "") or f"it ended by {trajectory.end}"


def blocked(trajectory: Trajectory) -> str:
    """What kept the agent out on its last page (a captcha, a login), where the environment says so."""
    # A `stop` leads nowhere, so its page is the one that the action before it led to.
    told = trajectory.steps[:-1] if trajectory.end == "stop" else trajectory.steps
    return str(told[-1].info.get("blocked", "")) if told else ""


def site_name(task: Task) -> str:
    """The site of a task; several are joined."""
    return MULTI.join(task.sites) or "-"


def kind_name(task: Task) -> str:
    """What kind of task it is: what its environment says, else its template."""
    return str(task.meta.get("kind") or task.template or "-")


@dataclass(frozen=True, slots=True)
class Row:
    """The episodes of one site or kind: graded successes with their interval, and failures by label."""

    name: str
    success: Estimate
    episodes: int
    agent: int
    infrastructure: int
    ungraded: int


def rows_by(episodes: Sequence[Trajectory], key: Callable[[Task], str]) -> list[Row]:
    """One row per name that `key` gives, by name, and a last one `all` where there are several."""
    groups: dict[str, list[Trajectory]] = {}
    for trajectory in episodes:
        groups.setdefault(key(trajectory.task), []).append(trajectory)
    rows = [_row(name, group) for name, group in sorted(groups.items())]
    return rows if len(rows) < 2 else [*rows, _row("all", episodes)]


def _row(name: str, episodes: Sequence[Trajectory]) -> Row:
    counts = Counter(map(label_of, episodes))
    scores = [None if label_of(trajectory) == "infrastructure" else success_of(trajectory) for trajectory in episodes]
    return Row(name, proportion(scores), len(episodes), counts["agent"], counts["infrastructure"], counts["ungraded"])


def table(rows: Sequence[Row], head: str) -> str:
    """Rows as text: success with its 95 % interval and n, and failures by label."""
    cells = [
        (
            row.name,
            row.success.text(1, scale=100),
            str(row.agent),
            str(row.infrastructure),
            str(row.ungraded),
        )
        for row in rows
    ]
    return text_table((head, "success %  [95 %]", "agent", "infrastructure", "ungraded"), cells)


def failures(episodes: Sequence[Trajectory]) -> list[Mapping[str, Any]]:
    """Every episode that did not succeed, as plain data: task, site, kind, label, how it ended, and why."""
    return [
        {
            "episode": trajectory.id,
            "task": trajectory.task.id,
            "site": site_name(trajectory.task),
            "kind": kind_name(trajectory.task),
            "label": label_of(trajectory),
            "end": trajectory.end,
            "steps": len(trajectory.steps),
            "why": reason_of(trajectory),
            "blocked": blocked(trajectory),
        }
        for trajectory in episodes
        if label_of(trajectory) != "success"
    ]
