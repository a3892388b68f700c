"""Words for real transitions: the reasoning and the sentence of change that a world model learns to write.

The edits of a label need no words: they follow from the two pages. The words come from fixed templates, or from a
language model that sees the true next page (DynaWeb, arXiv 2601.22149: gpt-oss-120b). Transitions that code decides
are never asked of a world model: they are passed on without words. Labelling goes batch by batch to a second store in
the same order, so that a killed job goes on where it stopped, and says what it will cost beforehand.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from dynaweb.data.store import TransitionStore
from dynaweb.errors import CheckpointError, ConfigError
from dynaweb.types import Transition
from dynaweb.web.delta import describe
from dynaweb.worldmodels.change import REASONING, SENTENCE
from dynaweb.worldmodels.dynamics import needs_prediction
from dynaweb.worldmodels.prompts import label_question

if TYPE_CHECKING:
    from dynaweb.engines.server import OpenAIEngine

BATCH = 64
"""Transitions that are labelled and written together."""
SAMPLE = 64
"""Transitions that a cost estimate looks at."""
ANSWER_TOKENS = 96
"""Expected length of an answer, for the estimate."""
CHARACTERS_PER_TOKEN = 3.5
"""Of English and page text, for the estimate; servers count with their own tokenizer."""
LIMIT = 256
"""Longest answer in tokens."""
ATTEMPTS = 3

Kind = Literal["model", "template", "passed"]
_LINE = re.compile(r"^[^\w\n]*+(REASONING|CHANGE)[^\w\n]*:\s*(.+)$", re.MULTILINE | re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a labelling job will take: transitions left that need words, prompt and new tokens, and the price."""

    left: int
    prompt_tokens: int
    new_tokens: int
    cost: float

    def __str__(self) -> str:
        return (
            f"{self.left} transitions to label: about {self.prompt_tokens:,} prompt tokens and {self.new_tokens:,} new "
            f"tokens, at the configured prices {self.cost:.2f}"
        )


@dataclass(frozen=True, slots=True)
class Labelled:
    """What was done by this call: transitions labelled, of these `by_template` where the model gave no usable words,
    and `passed` on without words; `total` is the length of the new store."""

    labelled: int
    by_template: int
    passed: int
    total: int


def estimate(source: TransitionStore, target: TransitionStore, engine: OpenAIEngine | None) -> Estimate:
    """Tokens and price of what is left to label, from a sample; nothing for templates."""
    left, sample = 0, list[Transition]()
    for item in source.iterate(len(target)):
        if needs_prediction(item.observation, item.action):
            left += 1
            sample += [item] if len(sample) < SAMPLE else []
    if engine is None or not left:
        return Estimate(left, 0, 0, 0.0)
    from dynaweb.engines.server import cost_of

    characters = sum(len(text) for item in sample for text in label_question(item)) / len(sample)
    prompt, new = round(left * characters / CHARACTERS_PER_TOKEN), left * ANSWER_TOKENS
    return Estimate(left, prompt, new, cost_of(engine.server, prompt, new))


async def label(
    source: TransitionStore,
    target: TransitionStore,
    engine: OpenAIEngine | None = None,
    *,
    on_batch: Callable[[int], None] | None = None,
) -> Labelled:
    """Label what `target` does not hold yet, with a server's model, or with templates.

    `on_batch` is told how many are done. Raises `CheckpointError` when `target` belongs to other data.
    """
    _check(source, target)
    done = by_template = passed = 0
    items = source.iterate(len(target))
    while batch := list(islice(items, BATCH)):
        labelled = await _all(batch, engine)
        target.append(item for item, _ in labelled)
        kinds = Counter(kind for _, kind in labelled)
        done += len(batch) - kinds["passed"]
        by_template += kinds["template"]
        passed += kinds["passed"]
        if on_batch is not None:
            on_batch(len(target))
    return Labelled(done, by_template, passed, len(target))


async def _all(batch: Sequence[Transition], engine: OpenAIEngine | None) -> list[tuple[Transition, Kind]]:
    """A batch at once; the first error ends all requests before it is raised."""
    tasks = [asyncio.ensure_future(_one(item, engine)) for item in batch]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _check(source: TransitionStore, target: TransitionStore) -> None:
    if source.path.resolve() == target.path.resolve():
        raise ConfigError(f"labels go to another file than {source.path}: its records are never changed")
    if len(target) > len(source):
        raise CheckpointError(f"{target.path} holds more transitions than {source.path}: it belongs to other data")
    for index in {0, len(target) - 1} if len(target) else ():
        ours, theirs = target[index], source[index]
        if (ours.observation, ours.action) != (theirs.observation, theirs.action):
            raise CheckpointError(f"{target.path} was not made from {source.path}: transition {index} differs")


async def _one(item: Transition, engine: OpenAIEngine | None) -> tuple[Transition, Kind]:
    """The transition with its words, and where these come from."""
    if not needs_prediction(item.observation, item.action):
        return item, "passed"
    words = await _ask(item, engine) if engine is not None else None
    if words is None or engine is None:
        template = describe(item.observation, item.action, item.next_observation)
        return replace(item, info={**item.info, REASONING: template, SENTENCE: "", "labeller": "template"}), "template"
    return replace(item, info={**item.info, **words, "labeller": engine.server.model}), "model"


async def _ask(item: Transition, engine: OpenAIEngine) -> dict[str, str] | None:
    from dynaweb.engines.server import ChatRequest

    system, user = label_question(item)
    for attempt in range(ATTEMPTS):
        request = ChatRequest(
            (("system", system), ("user", user)), LIMIT, temperature=0.7 if attempt else 0.0, seed=attempt
        )
        words = read_words(await engine.whole_text(request))
        if words is not None:
            return words
    return None


def read_words(text: str) -> dict[str, str] | None:
    """Reasoning and sentence of a labeller's answer, or None when one of them is missing."""
    words = {name.upper(): " ".join(line.split()) for name, line in _LINE.findall(text)}
    if not words.get("REASONING") or not words.get("CHANGE"):
        return None
    return {REASONING: words["REASONING"], SENTENCE: words["CHANGE"]}


def label_file(
    source: Path, target: Path, engine: OpenAIEngine | None, *, on_batch: Callable[[int], None] | None = None
) -> Labelled:
    """`label` for two files, run to its end."""
    return asyncio.run(label(TransitionStore(source), TransitionStore(target), engine, on_batch=on_batch))
