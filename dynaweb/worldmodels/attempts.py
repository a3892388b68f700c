"""Sampling an answer until one can be read, and what of it goes into the prediction."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from dynaweb.protocols import Engine, GenerateRequest, WorldModelContext
from dynaweb.runs.seeding import derive
from dynaweb.types import Prediction, Prompt
from dynaweb.web.delta import DeltaError

Read = Callable[[str], Prediction]
"""Makes a prediction of an answer. Raises `DeltaError` for one that cannot be read."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a model wrote: text, number of tokens, their mean natural-log probability (None = unknown).

    `cut` says why the answer is not complete, '' when it is.
    """

    text: str
    tokens: int
    logprob: float | None = None
    cut: str = ""


Ask = Callable[[int], Awaitable[Answer]]
"""Samples one answer with a seed."""


async def attempts(ask: Ask, read: Read, *, retries: int, seed: int) -> Prediction:
    """The first answer that can be read; after `retries` more attempts the error of the last. Tokens add up.

    Output that cannot be read is never an exception and never the old page: `Prediction.error` says what is wrong.
    """
    tokens = 0
    prediction = Prediction(next_observation=None, error="no attempt was made")
    for attempt in range(retries + 1):
        answer = await ask(derive(seed, attempt))
        tokens += answer.tokens
        prediction = replace(
            _read(answer, read),
            tokens=tokens,
            answer_tokens=answer.tokens,
            logprob=answer.logprob,
            attempts=attempt + 1,
        )
        if not prediction.error:
            break
    return prediction


def _read(answer: Answer, read: Read) -> Prediction:
    if answer.cut:
        return Prediction(next_observation=None, error=answer.cut, text=answer.text)
    try:
        return replace(read(answer.text), text=answer.text)
    except DeltaError as error:
        return Prediction(next_observation=None, error=str(error), text=answer.text)


class LocalModel:
    """The engine and the prompt format of a plugin's context, with the settings of its sampling.

    `context.temperature` is the temperature of dreams.
    """

    def __init__(self, name: str, context: WorldModelContext, *, max_new_tokens: int, top_p: float) -> None:
        if context.format is None:
            raise ValueError(f"the {name} world model needs a prompt format; create it through the framework")
        self.name = name
        self.format = context.format
        self._engine = context.engine
        self.temperature = context.temperature
        self.max_new_tokens, self.top_p = max_new_tokens, top_p

    @property
    def engine(self) -> Engine:
        """The engine. Raises `ValueError` where the context brought none: such a model can only make examples."""
        if self._engine is None:
            raise ValueError(f"the {self.name} world model was created without an engine and cannot predict")
        return self._engine

    def ask(self, prompt: Prompt) -> Ask:
        """What samples answers to a prompt."""

        async def sample(seed: int) -> Answer:
            completion = await self.engine.generate(
                GenerateRequest(
                    prompt=prompt,
                    max_new_tokens=self.max_new_tokens,
                    temperature=self.temperature,
                    top_p=self.top_p,
                    seed=seed,
                    stop_ids=self.format.stop_ids,
                )
            )
            cut = "" if completion.finished else f"the answer did not end within {self.max_new_tokens} tokens"
            text = self.format.decode(completion.token_ids).strip("\n")
            count = len(completion.token_ids)
            return Answer(text, count, sum(completion.logprobs) / max(1, count), cut)

        return sample
