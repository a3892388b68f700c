"""The suite for world models."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from dynaweb.hookspecs import Kind
from dynaweb.protocols import TrainableWorldModel, WorldModel, WorldModelContext
from dynaweb.testing.elsewhere import run_elsewhere
from dynaweb.testing.stand_ins import (
    BUY,
    HOME,
    JUNK,
    OPEN,
    PRODUCT,
    TRANSITIONS,
    FakeEngine,
    PromptEngine,
    compact_format,
    page,
)
from dynaweb.testing.suite import SEED, PluginSuite, numbered
from dynaweb.types import Action, Prediction

if TYPE_CHECKING:
    from dynaweb.testing.fixtures import TinyPolicy

QUESTIONS = ((HOME, OPEN), (PRODUCT, BUY), (HOME, OPEN))
ACTIONS = (
    *(Action("click"), Action("type", text="wool"), Action("select", text="red"), Action("hover")),
    Action("click", 99, target_role="link", target_name="no such element"),
    Action("type", 4, "wool", True, target_role="textbox", target_name="Search"),
    Action("press", text="Enter"),
    *(Action("scroll", text="down"), Action("goto", text="http://shop.localhost/cart"), Action("wait")),
    *(Action("go_back"), Action("go_forward"), Action("new_tab"), Action("tab_focus", index=7), Action("close_tab")),
    Action("stop", text="12.50"),
)
"""What a policy may do besides clicking an element that is there; on those without a target, nothing has a name."""
GOALS = ("Buy the Wool Scarf", "Tell the price of the oldest lamp")
COLOURS = ("Red", "Green", "Blue", "Black", "White", "Amber", "Violet", "Teal")


class WorldModelSuite(PluginSuite):
    """Determinism, batches, malformed output, and training examples."""

    kind: ClassVar[Kind] = "wm"

    def context(self, **changes: Any) -> WorldModelContext:
        """An engine with junk as its answers, the tiny model's prompts, and two real transitions."""
        fields = {"engine": FakeEngine(compact_format(), JUNK), "format": compact_format()}
        return WorldModelContext(**{"seed": SEED, "transitions": lambda: TRANSITIONS, **fields, **changes})

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
            prediction = self.run(self.build(self.context(engine=engine)).predict(HOME, OPEN, seed=1))
            assert isinstance(prediction, Prediction)
            if prediction.next_observation is None:
                assert prediction.error
            else:
                assert numbered(prediction.next_observation.nodes)

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
        prediction = self.run(model.predict(PRODUCT, BUY, seed=1, history=(OPEN,), goal="Buy the Wool Scarf"))
        assert isinstance(prediction, Prediction)

    @pytest.mark.parametrize("action", ACTIONS, ids=lambda action: f"{action.kind} {action.target_name}"[:20].strip())
    def test_no_action_is_an_exception(self, action: Action) -> None:
        """Whatever a policy does, there is a page, or the reason why there is none."""
        for engine in (FakeEngine(compact_format(), JUNK), self._engine()):
            model = self.build(self.context(engine=engine))
            for history in ((), (OPEN, action)):
                try:
                    prediction = self.run(model.predict(PRODUCT, action, seed=1, history=history, goal=GOALS[0]))
                except Exception as error:
                    what = f"`predict` raises {type(error).__name__}: {error}; that belongs into Prediction.error"
                    target = repr(action.target_name) if action.target_name else "no element"
                    pytest.fail(f"{action.kind} of {target}: {what}")
                assert isinstance(prediction, Prediction)
                if prediction.next_observation is None:
                    assert prediction.error, f"{action.kind}: there is no page, and `error` does not say why"
                else:
                    assert numbered(prediction.next_observation.nodes), f"{action.kind}: elements are not numbered 1..N"

    def test_a_prediction_depends_on_its_own_question_alone(self) -> None:
        """Not on the goal, the actions or the page of the call before, of this object or of another."""

        def ask(model: Any, goal: str, history: tuple[Action, ...]) -> Prediction:
            prediction: Prediction = self.run(model.predict(HOME, OPEN, seed=1, history=history, goal=goal))
            return prediction

        context = self.context(engine=self._engine())
        for same in (True, False):
            model = self.build(context)
            ask(model, GOALS[0], (OPEN,))
            before = ask(model, GOALS[0], (OPEN,))
            ask(model if same else self.build(context), GOALS[1], (BUY, OPEN))
            after = ask(model, GOALS[0], (OPEN,))
            assert after == before, (
                "one question gets two answers, with a question that has another goal and history between them: does "
                f"something of the former call stay in the object or its class? First {before}, then {after}"
            )

    def test_other_processes_dream_the_same(self) -> None:
        """Strings hash differently in every process, and nothing may hang on that."""
        first, second = run_elsewhere(self, "_dreams")
        different = [one for one, pair in enumerate(zip(first, second, strict=True), 1) if pair[0] != pair[1]]
        assert not different, (
            f"{len(different)} of {len(first)} predictions differ between two processes: do they depend on `hash` of a "
            "text, or on the order of a set? `dynaweb.runs.seeding.derive` makes numbers that are the same everywhere"
        )

    def _dreams(self) -> list[Prediction]:
        model = self.build(self.context(engine=self._engine()))
        dreams: list[Prediction] = []
        for seed, colour in enumerate(COLOURS):
            links = [("link", f"{other} Scarf") for other in sorted(COLOURS, key=lambda other: other == colour)]
            shop = page(f"/{colour}", *links, ("textbox", "Search"), title=colour)
            for action in (
                Action("click", len(links), target_role="link", target_name=f"{colour} Scarf"),
                Action("type", len(links) + 1, colour, True, target_role="textbox", target_name="Search"),
            ):
                work = model.predict(shop, action, seed=seed, history=(OPEN,), goal=f"Buy the {colour} Scarf")
                dreams.append(self.run(work))
        return dreams

    def _engine(self) -> PromptEngine:
        """Says what the model hopes to hear where that is known, so that there are pages; else junk."""
        prompts = compact_format()
        if "trainable" in self.plugin.spec.capabilities:
            pairs = self.build(self.context()).examples(list(TRANSITIONS))
            return PromptEngine(tuple(target for _, target in pairs))
        return PromptEngine(tuple(prompts.world_model_target(text) for text in JUNK if text))

    def test_examples_are_tokens_to_learn_from(self) -> None:
        """Pairs of prompt and target, where the plugin says that it can be trained."""
        if "trainable" not in self.plugin.spec.capabilities:
            pytest.skip("not trainable")
        model = self.build()
        assert isinstance(model, TrainableWorldModel)
        pairs = model.examples(list(TRANSITIONS))
        assert pairs
        for prompt, target in pairs:
            assert prompt and target and all(isinstance(token, int) for token in (*prompt.ids, *target))

    def _on(self, tiny_policy: TinyPolicy) -> Any:
        return self.build(self.context(engine=tiny_policy.engine, format=tiny_policy.format, weights=tiny_policy))
