"""The delta world model: page + action -> one sentence of reasoning and a rebuild script -> next page.

DynaWeb (arXiv 2601.22149, section 3) factors the next page as a predicted change and its application to the old page;
here the application is exact code (`dynaweb.web.delta.apply`), and the change is a script in which runs of old elements
are kept by number and only new ones are written out. What the script leaves out is gone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dynaweb.seeding import derive
from dynaweb.types import Action, Observation, Prediction, Transition
from dynaweb.web.delta import DeltaError, apply, describe, diff, parse, to_text

if TYPE_CHECKING:
    from dynaweb.protocols import Completion, PluginContext
    from dynaweb_wm_delta import DeltaConfig


class DeltaWorldModel:
    """Predicts changes with the engine of `context`; `context.services["temperature"]` is the sampling temperature."""

    def __init__(self, config: DeltaConfig, context: PluginContext) -> None:
        if context.format is None:
            raise ValueError("the delta world model needs a prompt format; create it through the framework")
        self.config = config
        self.format = context.format
        self.engine = context.engine
        self.temperature = float(context.services.get("temperature", 0.7))

    async def predict(
        self, observation: Observation, action: Action, *, seed: int, history: Sequence[Action] = ()
    ) -> Prediction:
        """Dream one step; output that cannot be read is sampled again `retries` times, then returned as an error.

        The page and the action say all that this model was fitted on: `history` is not shown to it.
        """
        prompt = self.format.world_model_prompt(observation, action)
        tokens = 0
        prediction = Prediction(next_observation=None, error="no attempt was made")
        for attempt in range(self.config.retries + 1):
            completion = await self._sample(prompt, derive(seed, attempt))
            tokens += len(completion.token_ids)
            prediction = self._read(completion, observation, tokens)
            if not prediction.error:
                break
        return prediction

    def examples(self, transitions: Sequence[Transition]) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        """Supervised pairs (prompt ids, target ids): page and action, and the true change in words and as a script."""
        return [self._example(transition) for transition in transitions]

    def _example(self, transition: Transition) -> tuple[tuple[int, ...], tuple[int, ...]]:
        before, action, after = transition.observation, transition.action, transition.next_observation
        prompt = self.format.world_model_prompt(before, action)
        text = change_text(before, action, after)
        return prompt, self.format.world_model_target(text)

    async def _sample(self, prompt: tuple[int, ...], seed: int) -> Completion:
        from dynaweb.protocols import GenerateRequest

        if self.engine is None:
            raise ValueError("the delta world model was created without an engine and cannot predict")
        request = GenerateRequest(
            prompt_ids=prompt,
            max_new_tokens=self.config.max_new_tokens,
            temperature=self.temperature,
            top_p=self.config.top_p,
            seed=seed,
            stop_ids=self.format.stop_ids,
        )
        return await self.engine.generate(request)

    def _read(self, completion: Completion, before: Observation, tokens: int) -> Prediction:
        text = self.format.decode(completion.token_ids).strip("\n")
        logprob = sum(completion.logprobs) / max(1, len(completion.logprobs))
        sentence, _, script = text.partition("\n")
        if not completion.finished:
            error = f"the change did not end within {self.config.max_new_tokens} tokens"
            return Prediction(next_observation=None, error=error, text=text, tokens=tokens, logprob=logprob)
        try:
            delta = parse(script, before, strict=False)
            after = apply(before, delta)
        except DeltaError as error:
            return Prediction(next_observation=None, error=str(error), text=text, tokens=tokens, logprob=logprob)
        return Prediction(
            next_observation=after, delta=delta, reasoning=sentence, text=text, tokens=tokens, logprob=logprob
        )


def change_text(before: Observation, action: Action, after: Observation) -> str:
    """The true change as the model should write it: one sentence, then the script."""
    delta = diff(before, after)
    return f"{describe(before, action, after)}\n{to_text(delta)}"
