"""The delta world model: page + action -> one sentence of reasoning and the change -> next page.

DynaWeb (arXiv 2601.22149, section 3) factors the next page as a predicted change and its application to the old page.
With `apply = "patch"` the change is a script in which runs of old elements are kept by number and only new ones are
written out, and the application is exact code (`dynaweb.web.delta.apply`); what the script leaves out is gone. With
`apply = "llm"` the change is a sentence, and the model writes the next page from it, as in the paper.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from dynaweb.runs.seeding import derive
from dynaweb.types import Action, Observation, Prediction, Prompt, Transition
from dynaweb.worldmodels.attempts import LocalModel, attempts
from dynaweb.worldmodels.change import Words, change_text, goal_of, history_of, read_change, split_change, words_of
from dynaweb.worldmodels.pages import page_text, read_page
from dynaweb.worldmodels.prompts import recent

if TYPE_CHECKING:
    from dynaweb.protocols import WorldModelContext
    from dynaweb_wm_delta import DeltaConfig

Pair = tuple[Prompt, tuple[int, ...]]


class DeltaWorldModel:
    """Predicts changes with the engine of `context`; `context.temperature` is the sampling temperature."""

    def __init__(self, config: DeltaConfig, context: WorldModelContext) -> None:
        self.config = config
        self.model = LocalModel("delta", context, max_new_tokens=config.max_new_tokens, top_p=config.top_p)
        self.format = self.model.format

    async def predict(
        self, observation: Observation, action: Action, *, seed: int, history: Sequence[Action] = (), goal: str = ""
    ) -> Prediction:
        """Dream one step; output that cannot be read is sampled again `retries` times, then returned as an error."""
        shown = recent(history, self.config.history)
        goal = goal if self.config.goal else ""
        ask = self.model.ask(self.format.world_model_prompt(observation, action, shown, goal))
        if self.config.apply == "patch":
            return await attempts(
                ask, lambda text: read_change(text, observation), retries=self.config.retries, seed=seed
            )
        said = await attempts(ask, _read_words, retries=self.config.retries, seed=seed)
        if said.error:
            return said
        change = Words(said.reasoning, said.delta.sentence if said.delta is not None else "").change
        prompt = self.format.rewrite_prompt(observation, action, change, shown, goal)
        return await self._rewrite(said, observation, prompt, derive(seed, "apply"))

    def examples(self, transitions: Sequence[Transition]) -> list[Pair]:
        """Supervised pairs (prompt, target ids): page and action, and the true change in words and as a script.

        With `apply = "llm"` the change in words only, and with `learn_apply` a second pair: the page from the words.
        """
        return [pair for transition in transitions for pair in self._examples(transition)]

    def _examples(self, transition: Transition) -> list[Pair]:
        before, action = transition.observation, transition.action
        shown = recent(history_of(transition), self.config.history)
        goal = goal_of(transition) if self.config.goal else ""
        text = change_text(transition, edits=self.config.apply == "patch")
        pairs = [(self.format.world_model_prompt(before, action, shown, goal), self.format.world_model_target(text))]
        if self.config.apply == "llm" and self.config.learn_apply:
            prompt = self.format.rewrite_prompt(before, action, words_of(transition).change, shown, goal)
            pairs.append((prompt, self.format.world_model_target(page_text(transition.next_observation))))
        return pairs

    async def _rewrite(self, said: Prediction, before: Observation, prompt: Prompt, seed: int) -> Prediction:
        """The second half of the paper's factorisation: the page from the change in words."""
        ask = self.model.ask(prompt)
        written = await attempts(ask, lambda text: read_page(text, before), retries=self.config.retries, seed=seed)
        return replace(
            written,
            delta=said.delta,
            reasoning=said.reasoning,
            done=said.done,
            text=f"{said.text}\n{written.text}",
            tokens=said.tokens + written.tokens,
            answer_tokens=said.answer_tokens + written.answer_tokens,
            attempts=said.attempts + written.attempts - 1,
            logprob=_mean_logprob(said, written),
        )


def _read_words(text: str) -> Prediction:
    """Words alone: the page is still to come, so it is left empty here."""
    from dynaweb.types import Delta

    words, _, done = split_change(text)
    return Prediction(None, Delta(sentence=words.change), words.reasoning, done)


def _mean_logprob(*parts: Prediction) -> float | None:
    known = [(part.logprob, part.answer_tokens) for part in parts if part.logprob is not None and part.answer_tokens]
    total = sum(count for _, count in known)
    return sum(logprob * count for logprob, count in known) / total if total else None
