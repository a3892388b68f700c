"""A world model that remembers: what exploration has seen is not imagined again.

The same action on the same page of the same site leads where it led in the real environment; everything else is asked
of the world model beneath. Sites are told apart by their pages, which have to be equal to the last element: after the
first imagined page nothing is recalled any more, unless an action leads back. What the pages do not show (a cart that
was filled in another episode) is not known to the memory either.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from dynaweb.types import Action, Observation, Prediction, Transition
from dynaweb.worldmodels.change import DONE

if TYPE_CHECKING:
    from dynaweb.protocols import WorldModel


class Recalling:
    """A world model before which a memory of real transitions is asked. The first of several next pages counts."""

    def __init__(self, world_model: WorldModel, seen: Iterable[Transition]) -> None:
        self.world_model = world_model
        self._seen: dict[tuple[Observation, Action], Prediction] = {}
        for one in seen:
            found = Prediction(one.next_observation, done=bool(one.info.get(DONE)), recalled=True)
            self._seen.setdefault((one.observation, _bare(one.action)), found)

    def __len__(self) -> int:
        """Transitions that are known."""
        return len(self._seen)

    async def predict(
        self, observation: Observation, action: Action, *, seed: int, history: Sequence[Action] = (), goal: str = ""
    ) -> Prediction:
        """The recalled page, else the model's prediction."""
        found = self._seen.get((observation, _bare(action)))
        if found is not None:
            return found
        return await self.world_model.predict(observation, action, seed=seed, history=history, goal=goal)


def _bare(action: Action) -> Action:
    """An action without the words for its element, whose number says as much on the same page."""
    return replace(action, target_role="", target_name="")
