"""The full-state world model: page + action -> the whole next page, element by element.

The question is that of the delta world model, the answer the next page without numbers (`dynaweb.worldmodels.pages`),
so that a comparison of the two is about what is predicted and nothing else. A last line `end` means that the episode is
over there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dynaweb.types import Action, Observation, Prediction, Prompt, Transition
from dynaweb.worldmodels.attempts import LocalModel, attempts
from dynaweb.worldmodels.change import goal_of, history_of
from dynaweb.worldmodels.pages import page_answer, read_page
from dynaweb.worldmodels.prompts import recent

if TYPE_CHECKING:
    from dynaweb.protocols import WorldModelContext
    from dynaweb_wm_full_state import FullStateConfig


class FullStateWorldModel:
    """Predicts pages with the engine of `context`; `context.temperature` is the sampling temperature."""

    def __init__(self, config: FullStateConfig, context: WorldModelContext) -> None:
        self.config = config
        self.model = LocalModel("full-state", context, max_new_tokens=config.max_new_tokens, top_p=config.top_p)
        self.format = self.model.format

    async def predict(
        self, observation: Observation, action: Action, *, seed: int, history: Sequence[Action] = (), goal: str = ""
    ) -> Prediction:
        """Dream one step; output that cannot be read is sampled again `retries` times, then returned as an error."""
        shown = recent(history, self.config.history)
        prompt = self.format.full_page_prompt(observation, action, shown, goal if self.config.goal else "")
        return await attempts(
            self.model.ask(prompt), lambda text: read_page(text, observation), retries=self.config.retries, seed=seed
        )

    def examples(self, transitions: Sequence[Transition]) -> list[tuple[Prompt, tuple[int, ...]]]:
        """Supervised pairs (prompt, target ids): page and action, and the true next page."""
        return [self._example(transition) for transition in transitions]

    def _example(self, transition: Transition) -> tuple[Prompt, tuple[int, ...]]:
        shown = recent(history_of(transition), self.config.history)
        goal = goal_of(transition) if self.config.goal else ""
        prompt = self.format.full_page_prompt(transition.observation, transition.action, shown, goal)
        return prompt, self.format.world_model_target(page_answer(transition))
