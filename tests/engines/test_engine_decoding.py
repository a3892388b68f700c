"""Sessions of the compact Llama forward against the original: with and without lanes, in small and in usual steps."""

from __future__ import annotations

import random
from typing import Any

import engine_kit as kit
import pytest
import torch

from dynaweb.engines.local import decoding, llama
from dynaweb.engines.local.sessions import LlamaRunner, survivors
from dynaweb.engines.local.sharing import MIN_SPARED, Lanes, Plan
from dynaweb.types import Prompt

STEPS = 50
"""More than a cache has room for at first."""


def groups_of(rng: random.Random, sizes: list[int], *, tails: bool) -> list[Prompt]:
    """Prompts that share pages, the same or with tails of their own, shuffled."""
    pages = [kit.tokens(rng, 60, 110) for _ in sizes]
    prompts = [
        Prompt(page + (kit.tokens(rng, 0, 9) if tails else ()))
        for page, size in zip(pages, sizes, strict=True)
        for _ in range(size)
    ]
    rng.shuffle(prompts)
    return prompts


def check(model: Any, session: Any, texts: list[list[int]], live: list[int]) -> None:
    """The session's logits are those of the model after each live text."""
    for at, row in enumerate(live):
        want = model(torch.tensor([texts[row]])).logits[0, -1]
        torch.testing.assert_close(session.logits[at], want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("variant", [{}, {"kv_heads": 2}, {"kv_heads": 1, "layers": 1}], ids=str)
@pytest.mark.parametrize(
    ("sizes", "tails", "laned"),
    [
        ([8, 8], False, True),
        ([8, 8], True, True),
        ([13, 5, 1, 1], True, True),
        ([24, 1], False, True),
        ([1, 1, 1, 1], True, False),
        ([2, 1], True, False),
    ],
)
def test_sessions_equal_the_original_while_rows_leave(
    variant: dict[str, Any],
    sizes: list[int],
    tails: bool,
    laned: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(decoding, "SMALL_ROWS", 12)  # larger batches begin in usual steps
    rng = random.Random(len(sizes))
    model = kit.llama(**variant)
    prompts = groups_of(rng, sizes, tails=tails)
    assert (Plan.of(prompts).lanes() is not None) == laned
    with torch.inference_mode():
        session = LlamaRunner(model, 0).start(prompts, STEPS)
        texts, live = [list(prompt.ids) for prompt in prompts], list(session.order)
        check(model, session, texts, live)
        for step in range(STEPS):
            rows = survivors([len(live) > 2 and rng.random() < 0.06 for _ in live]) or [0]
            if len(rows) < len(live):
                session.keep(rows)
                live = [live[row] for row in rows]
            tokens = [rng.randrange(kit.VOCABULARY) for _ in live]
            session.step(torch.tensor(tokens))
            for row, token in zip(live, tokens, strict=True):
                texts[row].append(token)
            if step in (0, 1, 33, STEPS - 1):
                check(model, session, texts, live)
        assert 0 < len(live) < len(prompts) or len(prompts) < 5


@pytest.mark.parametrize("variant", [{}, {"kv_heads": 2}, {"kv_heads": 1}, {"tied": False}], ids=str)
@pytest.mark.parametrize(
    "lanes", [None, [0, 1, 2, 3, 4, 5], [2, 0, 1, 4, 3, 5], [0, 0, 1, 1, 0, 1], [0, 0, 0, 1, 1, 1]]
)
def test_small_steps_give_the_log_probabilities_of_usual_ones(variant: dict[str, Any], lanes: list[int] | None) -> None:
    model, rows, columns = kit.llama(**variant), 6, 40
    torch.manual_seed(1)
    weights = llama.fuse(model)
    with torch.inference_mode():
        own, common = (decoding.Cache(weights, rows, columns, ragged=columns) for _ in range(2))
        for part in (own.key, own.value, common.key, common.value):
            part.normal_()
        shared = None if lanes is None else decoding.Shared.of(common, lanes, [20 + lane for lane in lanes])
        lengths = torch.tensor([9, 11, 10, 3, 12, 7])
        mask = decoding.hidden(lengths, 12, torch.float32)
        if shared is not None:
            mask = torch.cat([decoding.hidden(shared.length_B, shared.columns, torch.float32), mask], dim=-1)
        steps = decoding.SmallSteps(weights)
        kept = own.key.clone(), own.value.clone()
        for step in range(3):
            token = torch.randint(0, kit.VOCABULARY, (rows,))
            found = torch.log_softmax(steps(token, lengths + 20 + step, own, 12 + step, mask, shared), -1)
            mine = own.key.clone(), own.value.clone()
            own.key.copy_(kept[0]), own.value.copy_(kept[1])
            usual = decoding.decode(weights, token, lengths + 20 + step, own, 12 + step, mask, shared)
            torch.testing.assert_close(found, torch.log_softmax(usual, -1), rtol=0, atol=1e-5)
            kept = own.key.clone(), own.value.clone()
            for one, other in zip(mine, kept, strict=True):
                torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def test_small_steps_do_not_depend_on_the_number_of_threads() -> None:
    weights = llama.fuse(kit.llama())
    threads, found = torch.get_num_threads(), []
    try:
        for count in (1, 2, 4):
            torch.set_num_threads(count)
            torch.manual_seed(0)
            with torch.inference_mode():
                cache = decoding.Cache(weights, 8, 60, ragged=60)
                cache.key.normal_(), cache.value.normal_()
                found.append(decoding.SmallSteps(weights)(torch.arange(8), torch.full((8,), 50), cache, 50))
            assert torch.get_num_threads() == count
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(found[0], other) for other in found[1:])


def test_small_steps_serve_float32_on_a_processor_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = llama.fuse(kit.llama())
    assert decoding.small(weights)
    assert not decoding.small(llama.fuse(kit.llama().to(torch.bfloat16)))
    assert not decoding.small(llama.fuse(kit.llama().to("meta")))
    monkeypatch.setattr(decoding, "SMALL_PARAMETERS", 100)
    assert not decoding.small(weights)


@pytest.mark.parametrize("seed", range(20))
def test_every_row_reads_its_own_beginning_in_a_lane(seed: int) -> None:
    rng = random.Random(seed)
    prompts = groups_of(rng, [rng.randint(1, 20) for _ in range(rng.randint(1, 6))], tails=rng.random() < 0.5)
    plan = Plan.of(prompts)
    for limit in (1, 3, 8, 64):
        lanes = Lanes.of(plan.beginnings, limit)
        held: dict[int, set[tuple[int, ...]]] = {}
        for row, prompt in enumerate(prompts):
            held.setdefault(lanes.lane[row], set()).add(prompt.ids[: lanes.lengths[row]])
        assert sorted(held) == list(range(lanes.count))
        assert all(len(beginnings) == 1 for beginnings in held.values())
        members = [list(lanes.lane.values()).count(lane) for lane in held]
        assert max(members) <= limit
        assert lanes.count == sum(-(-len(rows) // limit) for _, rows in plan.beginnings)
        assert lanes.width == max(lanes.lengths.values())


def test_lanes_are_made_only_where_they_spare_enough() -> None:
    page = tuple(range(90))
    assert Plan.of([Prompt(page)]).lanes() is None
    assert Plan.of([Prompt((one, *page)) for one in range(64)]).lanes() is None
    enough = MIN_SPARED // len(page) + 2
    lanes = Plan.of([Prompt(page)] * enough).lanes()
    assert lanes is not None
    assert lanes.count < enough
