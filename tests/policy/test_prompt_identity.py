"""Prompts are told apart by tokens and pictures: two with the same tokens and different pictures are never one."""

from __future__ import annotations

import engine_kit as kit
import pytest
import torch

from dynaweb.data.codec import from_json, read, to_json
from dynaweb.engines.local.engine import TransformersEngine
from dynaweb.engines.local.sessions import GenericRunner
from dynaweb.engines.local.sharing import Plan, common_length
from dynaweb.engines.scheduler import Lockstep
from dynaweb.errors import EngineError
from dynaweb.protocols import GenerateRequest, TokenRow
from dynaweb.trainer.batching import collate, plan, units
from dynaweb.types import Image, Observation, Prompt, Step

IDS = tuple(range(1, 81))
SHOP, CART = (Prompt(IDS, (Image(digit * 64, 1280, 720),)) for digit in "ab")
PLAIN = Prompt(IDS)
PROMPTS = [SHOP, CART, PLAIN, SHOP]


def test_pictures_are_part_of_the_value() -> None:
    assert len({SHOP, CART, PLAIN, Prompt(IDS, SHOP.images)}) == 3
    assert sorted(PROMPTS) == [PLAIN, SHOP, SHOP, CART] and len(SHOP) == len(IDS) and not Prompt()


def test_an_engine_computes_each_of_them() -> None:
    engine = TransformersEngine(kit.llama(), Lockstep())
    engine.choice_batch([(prompt, (1, 2)) for prompt in PROMPTS])
    assert engine.stats.computed_prompt_tokens == 3 * len(IDS)
    engine.generate_batch([GenerateRequest(prompt, 2, seed=1) for prompt in PROMPTS])
    assert (engine.stats.computed_prompt_tokens, engine.stats.new_tokens) == (6 * len(IDS), 3 * 2)
    assert GenericRunner(kit.gpt2(), 0).start(PROMPTS, 1).computed == 3 * len(IDS)


def test_a_plan_shares_no_beginning_of_theirs() -> None:
    assert common_length(SHOP, CART) == common_length(SHOP, PLAIN) == 0 < common_length(SHOP, SHOP)
    found = Plan.of([*PROMPTS, Prompt((*IDS, 7), SHOP.images)])
    assert [rows for _, rows in found.prefixes] == [(0, 3, 4)]
    assert sorted(rows for _, rows in found.whole) == [(1,), (2,)]


def test_a_training_unit_holds_rows_of_one_of_them() -> None:
    found = units([TokenRow(prompt, (5, 6)) for prompt in PROMPTS], range(len(PROMPTS)))
    assert [(unit.prompt, unit.rows) for unit in found] == [(SHOP, (0, 3)), (CART, (1,)), (PLAIN, (2,))]


async def test_who_cannot_see_refuses_them() -> None:
    engine = TransformersEngine(kit.llama(), Lockstep())
    with pytest.raises(EngineError, match="the engine transformers cannot see: it was given a prompt with 1 images"):
        await engine.generate(GenerateRequest(SHOP, 2))
    with pytest.raises(EngineError, match="cannot see"):
        await engine.choice_logprobs(SHOP, (1,))
    rows = [TokenRow(SHOP, (5,))]
    (part,) = plan(units(rows, [0]), 1000)
    with pytest.raises(EngineError, match="the trainer cannot see"):
        collate(rows, part, torch.device("cpu"))


@pytest.mark.parametrize("prompt", [SHOP, PLAIN, Prompt()])
def test_they_are_stored_exactly(prompt: Prompt) -> None:
    step = Step(Observation("http://shop.localhost/", ()), None, prompt=prompt)
    assert read(to_json(step), Step) == step and from_json(to_json(prompt)) == prompt
    if not prompt.images:
        assert to_json(step).get("prompt_ids", []) == list(prompt.ids), "files of version 0.1 have it in this form"
