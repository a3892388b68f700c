"""Scripted experts: a plan for each task that can be read and acted on through the accessibility tree."""

from __future__ import annotations

from dynaweb.errors import DynawebError, MissingError
from dynaweb.types import Action, Observation, Task
from dynaweb_env_miniwob import choosing, clicking, mail, reading, typing_in
from dynaweb_env_miniwob.plan import Page, Plan, PlanError

PLANS = {**clicking.PLANS, **choosing.PLANS, **typing_in.PLANS, **reading.PLANS, **mail.PLANS}
SCRIPTED = frozenset(PLANS)
"""Tasks that have an expert."""


class MiniwobExpert:
    """Plays one task and keeps its place in the plan; make a new one for every episode."""

    def __init__(self, task: Task) -> None:
        """Raises `MissingError` when the task has no plan."""
        if task.template not in PLANS:
            raise MissingError(f"there is no scripted expert for {task.template!r}; env.pick = 'scripted' draws others")
        self._task = task
        self._plan: Plan | None = None

    def act(self, observation: Observation) -> Action:
        """The next action on this page. Raises `DynawebError` when the plan is over or does not fit the page."""
        page = Page(observation)
        try:
            if self._plan is None:
                self._plan = PLANS[self._task.template](self._task.intent, page)
                return next(self._plan)
            return self._plan.send(page)
        except StopIteration:
            raise DynawebError(f"the plan of task {self._task.id!r} is over, and the page is not done") from None
        except (PlanError, LookupError, ValueError) as error:
            # Whatever a plan trips over, it is the plan that does not fit.
            raise DynawebError(f"the plan of task {self._task.id!r} does not fit: {error}") from None
