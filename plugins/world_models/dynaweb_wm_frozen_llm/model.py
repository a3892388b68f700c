"""The frozen world model: a language model that was never fitted on this web, asked in words.

The baseline of DynaWeb's comparison (arXiv 2601.22149: trained against frozen gpt-oss-120b). Examples, where asked for,
are real transitions: the most similar ones (retrieval, as in DreamGym, arXiv 2511.03773), or the same ones always.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dynaweb.errors import ConfigError, MissingError
from dynaweb.types import Action, Observation, Prediction, Transition
from dynaweb.worldmodels.attempts import Answer, Ask, LocalModel, attempts
from dynaweb.worldmodels.change import read_change
from dynaweb.worldmodels.pages import read_page
from dynaweb.worldmodels.prompts import SYSTEM, question, recent, with_examples

if TYPE_CHECKING:
    from dynaweb.engines.server import OpenAIEngine
    from dynaweb.protocols import WorldModelContext
    from dynaweb.worldmodels.memory import Retriever
    from dynaweb_wm_frozen_llm import FrozenConfig


class FrozenWorldModel:
    """Asks the engine of `context`, or a server; examples that it shows are the transitions of `context`."""

    def __init__(self, config: FrozenConfig, context: WorldModelContext) -> None:
        self.config = config
        self.temperature = context.temperature
        self._transitions, self._held_out = context.transitions, context.held_out
        self._retriever: Retriever | None = None
        self._server = _server(config, context)
        self._local = None if self._server is not None else _local(config, context)

    async def predict(
        self, observation: Observation, action: Action, *, seed: int, history: Sequence[Action] = (), goal: str = ""
    ) -> Prediction:
        """Dream one step; output that cannot be read is sampled again `retries` times, then returned as an error."""
        shown = recent(history, self.config.history)
        examples = self._examples(observation, action)
        ask = self._ask(observation, action, shown, examples, goal if self.config.goal else "")
        return await attempts(ask, lambda text: self._read(text, observation), retries=self.config.retries, seed=seed)

    def _ask(
        self, page: Observation, action: Action, shown: Sequence[Action], examples: Sequence[Transition], goal: str
    ) -> Ask:
        form = self.config.form
        if self._local is not None and not examples:
            prompts = self._local.format
            plain = prompts.world_model_prompt if form == "delta" else prompts.full_page_prompt
            return self._local.ask(plain(page, action, shown, goal))
        asked = question(page, action, shown, goal=goal)
        user = with_examples(asked, examples, form, history=self.config.history, goal=self.config.goal)
        if self._local is not None:
            # The protocol of prompt formats does not promise `turns`; `_local` has checked for it.
            turns: Any = self._local.format
            return self._local.ask(turns.turns(SYSTEM[form], user))
        return self._ask_server((("system", SYSTEM[form]), ("user", user)))

    def _ask_server(self, messages: tuple[tuple[str, str], ...]) -> Ask:
        from dynaweb.engines.server import ChatRequest, ReplyError

        engine = self._server
        assert engine is not None

        async def sample(seed: int) -> Answer:
            limit = self.config.max_new_tokens
            try:
                reply = await engine.chat(ChatRequest(messages, limit, self.temperature, self.config.top_p, seed))
            except ReplyError as error:
                return Answer("", 0, None, str(error))
            cut = "" if reply.finished else f"the answer did not end within {limit} tokens"
            return Answer(reply.text, reply.new_tokens, reply.logprob, cut)

        return sample

    def _read(self, text: str, before: Observation) -> Prediction:
        return read_change(text, before) if self.config.form == "delta" else read_page(text, before)

    def _examples(self, page: Observation, action: Action) -> list[Transition]:
        if not self.config.shots:
            return []
        if self._retriever is None:
            self._retriever = self._read_examples()
        if self.config.retrieval:
            return self._retriever.nearest(page, action, self.config.shots)
        return self._retriever.first(self.config.shots)

    def _read_examples(self) -> Retriever:
        from dynaweb.worldmodels.memory import Retriever

        found = Retriever(self._stored() if self.config.store else self._transitions())
        if not len(found):
            raise MissingError(
                f"wm.shots = {self.config.shots} needs real transitions for its examples, and there are none outside "
                "of held-out sites; set wm.store to another transition store, or wm.shots = 0"
            )
        return found

    def _stored(self) -> Iterator[Transition]:
        """The transitions of `wm.store`, but for those of sites on which the model is measured."""
        from dynaweb.data.inspect import site_of
        from dynaweb.data.store import existing

        return (one for one in existing(Path(self.config.store)) if site_of(one) not in self._held_out)


def _server(config: FrozenConfig, context: WorldModelContext) -> OpenAIEngine | None:
    if not config.server.model:
        return None
    from dynaweb.engines.server import OpenAIEngine

    engine = OpenAIEngine(config.server)
    context.count(engine)
    return engine


def _local(config: FrozenConfig, context: WorldModelContext) -> LocalModel:
    model = LocalModel("frozen-llm", context, max_new_tokens=config.max_new_tokens, top_p=config.top_p)
    if config.shots and not hasattr(model.format, "turns"):
        raise ConfigError(
            f"wm.shots = {config.shots} needs a chat model: the prompts of this model have no place for examples; set "
            "wm.shots = 0, model.path to a chat model, or wm.server.model"
        )
    return model
