"""A scripted solver of all tasks of examples/roundup, those included whose templates only the test has.

    python tests/kits/roundup_solver.py http://localhost:8917     # plays every task: the route must score 1, idling 0

It is no part of the example: nothing there knows how test tasks are solved.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

EXAMPLE = Path(__file__).parents[2] / "examples" / "roundup"
sys.path.append(str(EXAMPLE))

from content import content  # noqa: E402
from record import ACCOUNT, ROUTES, Plan, Route, RoutePlayer, account, changing, find, row, source_of  # noqa: E402

from dynaweb.judges.reward import grading, success_of  # noqa: E402
from dynaweb.rollout.agents import Decision  # noqa: E402
from dynaweb.rollout.episode import Episode, Rules, play_all  # noqa: E402
from dynaweb.types import Action, Observation, Task, Trajectory  # noqa: E402

LONGEST = 8


def _phone(page: Observation, words: re.Match[str]) -> Route:
    page = yield "", Action("click", find(page, "link", "User List"))
    cells = [node.name for node in page.nodes if node.role == "cell"]
    behind = cells[cells.index(words["title"]) :]
    yield "", Action("stop", text=next(text for text in behind if text.startswith("555-")))


def _column(head: str) -> Plan:
    def plan(page: Observation, words: re.Match[str]) -> Route:
        yield "", Action("stop", text=row(page, words["title"])[head])

    return plan


_TITLE = r".*? '(?P<title>.*)'"
ALL_ROUTES: dict[str, tuple[str, Plan]] = {
    **ROUTES,
    "phone": (r"What is the phone number of (?P<title>.*)\?", _phone),
    "number": (rf"{_TITLE}\?", _column("ID")),
    "creator": (rf"{_TITLE}\?.*", _column("Creator")),
    "rename": (r".*? '(?P<title>.*)' to '(?P<value>.*)'\.", changing("Title", "type")),
}


class Idler:
    """Ends every episode at once with the same answer."""

    deterministic = True

    def __init__(self, answer: str) -> None:
        self._answer = answer

    async def act(self, task: Task, observation: Observation, history: Sequence[Action], *, seed: int) -> Decision:
        """The answer."""
        return Decision(Action("stop", text=self._answer))


async def scores(source: Any, tasks: Sequence[Task], answer: str | None = None, slots: int = 4) -> list[Trajectory]:
    """An episode of each task with the verdict of its check: by its route, or with `answer` and nothing else."""
    return await play_all(
        [Episode(task.id, task, 0) for task in tasks],
        source.environment,
        lambda task: RoutePlayer(task, ALL_ROUTES) if answer is None else Idler(answer),
        rules=Rules(LONGEST, invalid_ends=True),
        slots=slots,
        finish=grading(source),
    )


def log_in() -> None:
    """Set the variable that the recipe reads, to the first user."""
    os.environ[ACCOUNT] = account(content().users[0].name)


async def _check(address: str) -> int:
    source = source_of(address, EXAMPLE / "tasks")
    wrong = 0
    try:
        for split in ("train", "test"):
            tasks = source.catalogue(split)
            for answer, wanted in ((None, 1.0), ("", 0.0), ("done", 0.0)):
                played = await scores(source, tasks, answer)
                bad = [one for one in played if success_of(one) != wanted]
                print(f"{split}, {'its route' if answer is None else repr(answer)}: {len(played)}, {len(bad)} wrong")
                for one in bad:
                    print(" ", one.task.id, one.task.intent, one.facts.verdict, [s.error for s in one.steps if s.error])
                wrong += len(bad)
    finally:
        await source.close()
    return wrong


if __name__ == "__main__":
    log_in()
    sys.exit(1 if asyncio.run(_check(sys.argv[1])) else 0)
