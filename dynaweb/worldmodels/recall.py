"""A world model that remembers: what exploration has seen is not imagined again.

The same action on the same page of the same site leads where it led in the real environment; everything else is asked
of the world model beneath. Sites are told apart by their pages, which have to be equal to the last element (see
`question`): after the first imagined page nothing is recalled any more, unless an action leads back. What the pages do
not show (a cart that was filled in another episode) is not known to the memory either.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from dynaweb import returned
from dynaweb.types import Action, Observation, Prediction, Transition
from dynaweb.worldmodels.change import DONE

if TYPE_CHECKING:
    from dynaweb.protocols import WorldModel


Question = tuple[Observation, Action]


class Recalling:
    """A world model before which a memory of real transitions is asked. The first of several next pages counts."""

    def __init__(self, world_model: WorldModel, seen: Iterable[Transition]) -> None:
        self.world_model = world_model
        self._seen: dict[Question, Prediction] = {}
        for one in seen:
            found = Prediction(one.next_observation, done=bool(one.info.get(DONE)), recalled=True)
            self._seen.setdefault(question(one.observation, one.action), found)

    async def predict(
        self, observation: Observation, action: Action, *, seed: int, history: Sequence[Action] = (), goal: str = ""
    ) -> Prediction:
        """The recalled page, else the model's prediction."""
        found = self._seen.get(question(observation, action))
        if found is not None:
            return found
        asked = await self.world_model.predict(observation, action, seed=seed, history=history, goal=goal)
        return returned.prediction(self.world_model, asked)


def question(page: Observation, action: Action) -> Question:
    """What two steps share when what followed the one follows the other: an action on a page.

    What an earlier action said on the page is not part of it, nor are the words for the action's element, whose number
    says as much on the same page.
    """
    return replace(page, notice=""), replace(action, target_role="", target_name="")
