"""The scripted expert: plays a task's plan by the visible words of the page."""

from __future__ import annotations

from dynaweb.errors import DynawebError, MissingError
from dynaweb.types import TARGETED, Action, Node, Observation, Task
from dynaweb.web.actions.rules import TEXTBOXES
from dynaweb_env_sites.goals import Do
from dynaweb_env_sites.tasks import plan_of


class SitesExpert:
    """Plays one task and keeps its place in the plan; make a new one for every episode."""

    def __init__(self, task: Task) -> None:
        """Raises `MissingError` when the task has no plan."""
        self._task = task
        self._plan = plan_of(task)
        self._next = 0
        if not self._plan:
            raise MissingError(f"Task {task.id!r} has no plan, so there is no expert for it.")

    def act(self, observation: Observation) -> Action:
        """The next action on this page.

        Raises `DynawebError` when the plan is over or the element that it names is not on the page.
        """
        if self._next >= len(self._plan):
            raise DynawebError(f"The plan of task {self._task.id!r} is over after {len(self._plan)} steps.")
        step = self._plan[self._next]
        action = self._resolved(step, observation)
        self._next += 1
        return action

    def _resolved(self, step: Do, observation: Observation) -> Action:
        if step.kind not in TARGETED:
            return Action(step.kind, text=step.text, enter=step.enter)
        node = find(step, observation)
        if node is None:
            raise DynawebError(self._not_found(step, observation))
        return Action(step.kind, node.id, step.text, step.enter, target_role=node.role, target_name=node.name)

    def _not_found(self, step: Do, observation: Observation) -> str:
        here = ", ".join(repr(node.name) for node in observation.nodes if _same_role(step.role, node.role))
        below = f" below {step.within!r}" if step.within else ""
        return (
            f"Step {self._next + 1} of task {self._task.id!r} needs the {step.role} {step.name!r}{below}, which "
            f"{observation.url} does not show. Elements of that role: {here or 'none'}."
        )


def find(step: Do, observation: Observation) -> Node | None:
    """The element that a step of a plan means: first match in page order, after `within` if that is given."""
    nodes = iter(observation.nodes)
    if step.within and not any(step.within in node.name for node in nodes):
        return None
    return next((node for node in nodes if _same_role(step.role, node.role) and node.name == step.name), None)


def _same_role(wanted: str, role: str) -> bool:
    return role == wanted or (wanted == "textbox" and role in TEXTBOXES)
