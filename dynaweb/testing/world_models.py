"""The suite for world models."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from dynaweb.hookspecs import Kind
from dynaweb.protocols import PluginContext, TrainableWorldModel, WorldModel
from dynaweb.testing.stand_ins import BUY, HOME, JUNK, OPEN, PRODUCT, TRANSITIONS, FakeEngine, compact_format
from dynaweb.testing.suite import PluginSuite, numbered
from dynaweb.types import Prediction

if TYPE_CHECKING:
    from dynaweb.testing.fixtures import TinyPolicy

QUESTIONS = ((HOME, OPEN), (PRODUCT, BUY), (HOME, OPEN))


class WorldModelSuite(PluginSuite):
    """Determinism, batches, malformed output, and training examples."""

    kind: ClassVar[Kind] = "wm"

    def context(self, **changes: Any) -> PluginContext:
        """An engine with junk as its answers, the tiny model's prompts, and two real transitions."""
        services = {"temperature": 0.7, "transitions": lambda: list(TRANSITIONS)}
        given = {"engine": FakeEngine(compact_format(), JUNK), "format": compact_format(), "services": services}
        return super().context(**{**given, **changes})

    async def _predict(self, model: WorldModel, seeds: Sequence[int]) -> list[Prediction]:
        pairs = zip(QUESTIONS, seeds, strict=True)
        return list(await asyncio.gather(*(model.predict(page, action, seed=seed) for (page, action), seed in pairs)))

    def test_it_is_a_world_model(self) -> None:
        """It has the methods of the protocol."""
        assert isinstance(self.build(), WorldModel)

    @pytest.mark.parametrize("text", JUNK)
    def test_malformed_output_is_an_error_text_not_an_exception(self, text: str) -> None:
        """Whatever the model writes, there is a page with numbers from 1, or the reason why there is none."""
        for finished in (True, False):
            engine = FakeEngine(compact_format(), (text,), finished=finished)
            found = self.run(self.build(self.context(engine=engine)).predict(HOME, OPEN, seed=1))
            assert isinstance(found, Prediction)
            if found.next_observation is None:
                assert found.error
            else:
                assert numbered(found.next_observation.nodes)

    def test_the_same_seed_dreams_the_same(self, tiny_policy: TinyPolicy) -> None:
        """With a real, if tiny, model behind it."""
        first, second = (self.run(self._predict(self._on(tiny_policy), (1, 2, 1))) for _ in range(2))
        assert first == second
        assert first[0] == first[2]

    def test_a_batch_equals_singles(self, tiny_policy: TinyPolicy) -> None:
        """Predictions do not depend on which others are asked for at the same time."""
        batch = self.run(self._predict(self._on(tiny_policy), (1, 2, 3)))
        model = self._on(tiny_policy)
        singles = [self.run(model.predict(page, act, seed=at)) for at, (page, act) in enumerate(QUESTIONS, 1)]
        assert [one.next_observation for one in batch] == [one.next_observation for one in singles]
        assert [one.error for one in batch] == [one.error for one in singles]

    def test_history_and_goal_may_be_given(self) -> None:
        """Nobody has to use them."""
        model = self.build()
        found = self.run(model.predict(PRODUCT, BUY, seed=1, history=(OPEN,), goal="Buy the Wool Scarf"))
        assert isinstance(found, Prediction)

    def test_examples_are_tokens_to_learn_from(self) -> None:
        """Pairs of prompt and target, where the plugin says that it can be trained."""
        if "trainable" not in self.plugin.spec.capabilities:
            pytest.skip("not trainable")
        model = self.build()
        assert isinstance(model, TrainableWorldModel)
        pairs = model.examples(list(TRANSITIONS))
        assert pairs
        for prompt, target in pairs:
            assert prompt and target and all(isinstance(token, int) for token in (*prompt, *target))

    def _on(self, tiny_policy: TinyPolicy) -> Any:
        services = {"temperature": 0.7, "model": tiny_policy.model, "transitions": lambda: list(TRANSITIONS)}
        return self.build(self.context(engine=tiny_policy.engine, format=tiny_policy.format, services=services))
