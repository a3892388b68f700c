"""First pages of tasks that nobody has played yet, opened in the real environment: one reset for each.

Dreams start from real pages, and a critic values a task by its first page. Tasks that start on the same page of the
same generated site share it (`start_key`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dynaweb import events
from dynaweb.loop.players import RandomPolicy
from dynaweb.loop.rollout import Episode, Rules, failures, refuse_total_failure
from dynaweb.loop.tasks import StartPages, start_key
from dynaweb.loop.waves import play_in_waves
from dynaweb.types import Task, Trajectory

if TYPE_CHECKING:
    from dynaweb.loop.ingredients import Ingredients
    from dynaweb.loop.workspace import Workspace

PHASE = "first pages"


def recorded_starts(given: Ingredients) -> StartPages:
    """Real first pages that the stages before RL recorded, and those that were opened for the tasks of this phase."""
    made = [given.explored, given.demos, given.phase.tasks]
    return StartPages(episode for one in made if one is not None for episode in one.episodes())


async def open_first_pages(ws: Workspace, tasks: Sequence[Task], known: StartPages) -> list[Trajectory]:
    """Open the first page of every task whose page is not `known`, and add it there; the opened ones.

    An opened page is an episode without a step whose final page it is. Each counts as one real step in the cost of the
    stage. Tasks whose page could not be opened are still unknown afterwards. Raises `InfrastructureError` when not one
    could be.
    """
    missing = list({start_key(task): task for task in tasks if known(task) is None}.values())
    episodes = [Episode(f"open/{task.id}", task, 0, world=ws.seed("curriculum", task.id)) for task in missing]
    nobody = RandomPolicy()
    played = await play_in_waves(
        ws, None, episodes, ws.source.environment, lambda task: nobody, rules=Rules(max_steps=0), phase=PHASE
    )
    refuse_total_failure(played, PHASE)
    opened = [one for one in played if one.final is not None]
    ws.meter.count(len(opened), browser=ws.in_browser(*ws.task_settings), evaluation=False)
    for failure in failures(played):
        ws.tell(events.Failure(where=PHASE, error=failure))
    known.add(opened)
    return opened


def as_opened(tasks: Sequence[Task], known: StartPages) -> list[Trajectory]:
    """The known first pages of tasks as episodes without a step, each page once."""
    return [
        Trajectory(f"open/{task.id}", task, (), page, "real", "max-steps")
        for task in {start_key(task): task for task in tasks}.values()
        if (page := known(task)) is not None
    ]
