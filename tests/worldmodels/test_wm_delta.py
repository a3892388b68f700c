"""The delta world model over a scripted engine: what it learns from, what it makes of good and bad output."""

from __future__ import annotations

import pytest

from dynaweb.policy.prompt_formats import CompactFormat
from dynaweb.policy.tokenizer import build_tokenizer
from dynaweb.protocols import Completion, GenerateRequest, WorldModelContext
from dynaweb.types import Action, Node, Observation, Prompt, Transition
from dynaweb.worldmodels.change import change_text
from dynaweb_wm_delta import DeltaConfig
from dynaweb_wm_delta.model import DeltaWorldModel

BEFORE = Observation(
    "http://shop.localhost/",
    (Node(1, "link", "Home"), Node(2, "link", "Cart"), Node(3, "heading", "Shop"), Node(4, "link", "Velmor Scarf")),
)
AFTER = Observation(
    "http://shop.localhost/product/3",
    (
        Node(1, "link", "Home"),
        Node(2, "link", "Cart"),
        Node(3, "heading", "Velmor Scarf"),
        Node(4, "text", "Price: 12,50 €"),
        Node(5, "button", "Add to cart"),
    ),
)
CLICK = Action("click", 4, target_role="link", target_name="Velmor Scarf")
LABEL = change_text(Transition(BEFORE, CLICK, AFTER))
PROMPTS = CompactFormat(build_tokenizer(["Velmor Scarf", "Home", "Cart", "Opens", "Price"] * 4, vocab_size=1000))


class ScriptedEngine:
    """Answers with prepared texts, one after the other."""

    def __init__(self, *answers: str, finished: bool = True) -> None:
        self.answers = list(answers)
        self.finished = finished
        self.requests: list[GenerateRequest] = []

    async def generate(self, request: GenerateRequest) -> Completion:
        self.requests.append(request)
        ids = PROMPTS.world_model_target(self.answers.pop(0))
        return Completion(ids, tuple(-0.5 for _ in ids), self.finished)

    async def choice_logprobs(self, prompt: Prompt, choices: tuple[int, ...]) -> tuple[float, ...]:
        raise AssertionError("a world model does not judge")


def model(engine: ScriptedEngine, **settings: int) -> DeltaWorldModel:
    context = WorldModelContext(engine=engine, format=PROMPTS)
    return DeltaWorldModel(DeltaConfig(**settings), context)


async def test_the_true_change_predicts_the_true_page() -> None:
    engine = ScriptedEngine(LABEL)
    prediction = await model(engine).predict(BEFORE, CLICK, seed=1)
    assert prediction.error == ""
    assert prediction.next_observation == AFTER
    assert prediction.reasoning == "Opens 'Velmor Scarf'."
    assert prediction.logprob == pytest.approx(-0.5)
    assert engine.requests[0].temperature == 0.7


def test_a_target_is_the_text_that_predict_reads() -> None:
    ((prompt, target),) = model(ScriptedEngine()).examples([Transition(BEFORE, CLICK, AFTER)])
    assert prompt == PROMPTS.world_model_prompt(BEFORE, CLICK)
    assert PROMPTS.decode(target).strip("\n") == LABEL
    assert target[-1] == PROMPTS.stop_ids[0]


async def test_bad_output_is_sampled_again_with_another_seed() -> None:
    engine = ScriptedEngine("Opens.\n= [9000]-[2]\n??", LABEL)
    prediction = await model(engine, retries=1).predict(BEFORE, CLICK, seed=1)
    assert prediction.next_observation == AFTER
    assert len({request.seed for request in engine.requests}) == 2


async def test_output_that_stays_bad_is_an_error_and_never_the_old_page() -> None:
    prediction = await model(ScriptedEngine("what?", "who?"), retries=1).predict(BEFORE, CLICK, seed=1)
    assert prediction.next_observation is None
    assert prediction.error


async def test_an_endless_change_is_an_error() -> None:
    engine = ScriptedEngine(LABEL, finished=False)
    prediction = await model(engine, retries=0).predict(BEFORE, CLICK, seed=1)
    assert prediction.next_observation is None
    assert "did not end" in prediction.error
