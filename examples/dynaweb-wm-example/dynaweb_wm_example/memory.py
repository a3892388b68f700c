"""Looks up real steps. They come from `context.transitions`, a function, and are read on first use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dynaweb.protocols import WorldModelContext
from dynaweb.types import Action, Observation, Prediction, Transition
from dynaweb.web.delta import diff

if TYPE_CHECKING:
    from dynaweb_wm_example import MemoryConfig

Key = tuple[str, str, str, str]


class MemoryWorldModel:
    """Remembers what followed an action, by what it did to which element."""

    def __init__(self, config: MemoryConfig, context: WorldModelContext) -> None:
        self.config = config
        self._transitions = context.transitions
        self._steps: dict[Key, list[Transition]] | None = None

    async def predict(
        self, observation: Observation, action: Action, *, seed: int, history: Sequence[Action] = (), goal: str = ""
    ) -> Prediction:
        """The page that followed the same action on the page most like this one, the earliest of equals."""
        known = self._known().get(_key(action), [])
        found = max(known, key=lambda step: likeness(step.observation, observation), default=None)
        needed = 1.0 if self.config.exact else self.config.overlap
        if found is None or likeness(found.observation, observation) < needed:
            return Prediction(None, error=f"nobody has done this before: {action.kind} {action.target_name!r}")
        page = found.next_observation
        return Prediction(page, diff(observation, page), reasoning="As it was the last time.")

    def _known(self) -> dict[Key, list[Transition]]:
        if self._steps is None:
            self._steps = {}
            for step in self._transitions():
                self._steps.setdefault(_key(step.action), []).append(step)
        return self._steps


def likeness(first: Observation, second: Observation) -> float:
    """Elements that two pages share, as a part of those of both (Jaccard); numbers of elements do not count."""
    one, other = ({(node.role, node.name, node.value) for node in page.nodes} for page in (first, second))
    return len(one & other) / len(one | other) if one | other else 1.0


def _key(action: Action) -> Key:
    return (action.kind, action.target_role, action.target_name, action.text)
