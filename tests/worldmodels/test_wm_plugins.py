"""Full-state and frozen world models, the change in words, examples from real transitions; forms and their readers."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from chat_server import chat_server
from hypothesis import given
from hypothesis import strategies as st
from test_wm_delta import AFTER, BEFORE, CLICK, LABEL, PROMPTS, ScriptedEngine

from dynaweb.config.server import Server
from dynaweb.data.store import TransitionStore
from dynaweb.errors import ConfigError, MissingError
from dynaweb.protocols import TrainableWorldModel, WorldModelContext
from dynaweb.types import Action, Node, Observation, Prediction, Transition
from dynaweb.web.delta import DeltaError, diff
from dynaweb.worldmodels.calibration import last_tokens
from dynaweb.worldmodels.change import change_text, read_change, words_of
from dynaweb.worldmodels.memory import Retriever
from dynaweb.worldmodels.pages import page_answer, page_text, parse_page, read_page
from dynaweb.worldmodels.prompts import SYSTEM, label_question, question, recent, with_examples
from dynaweb.worldmodels.prompts import answer as answer_of
from dynaweb_wm_delta import DeltaConfig
from dynaweb_wm_delta.model import DeltaWorldModel
from dynaweb_wm_frozen_llm import FrozenConfig
from dynaweb_wm_frozen_llm.model import FrozenWorldModel
from dynaweb_wm_full_state import FullStateConfig
from dynaweb_wm_full_state.model import FullStateWorldModel
from tools.tiny_model.samples import page_text as pretrained_page_text

STEP = Transition(BEFORE, CLICK, AFTER)
SAID = replace(STEP, info={"reasoning": "A link opens\nits page.", "sentence": "The scarf is shown.", "done": True})

names = st.text(max_size=12)
nodes = st.builds(
    Node,
    st.just(0),
    st.sampled_from(["link", "heading", "textbox", "text"]),
    names,
    st.none() | names,
    st.sampled_from([(), (("checked", "true"),), (("options", "a|b"),)]),
    st.integers(0, 3),
)
pages = st.builds(
    lambda url, found, title, notice: Observation(
        url, tuple(replace(node, id=i) for i, node in enumerate(found, 1)), title, notice=notice
    ),
    st.sampled_from(["http://shop.localhost/a", "https://x.test/?q=1", "about:blank", "odd url", ""]),
    st.lists(nodes, min_size=1, max_size=6),
    names,
    names,
)


def context(engine: ScriptedEngine | None = None, **fields: Any) -> WorldModelContext:
    return WorldModelContext(engine=engine, format=PROMPTS, **fields)


@given(pages)
def test_a_page_as_text_is_read_back_exactly(page: Observation) -> None:
    assert parse_page(page_text(page), BEFORE) == (page, ())


@given(pages, st.booleans(), st.booleans())
def test_a_page_with_its_end_is_read_back_whatever_stands_around_it(
    page: Observation, done: bool, fenced: bool
) -> None:
    text = page_answer(Transition(BEFORE, CLICK, page, info={"done": done}))
    prediction = read_page(f"```text\n{text}\n```\n" if fenced else f"\n{text}\n", BEFORE)
    assert (prediction.next_observation, prediction.done) == (page, done)
    assert prediction.delta == diff(BEFORE, page)


@given(st.text(alphabet="'[]=+~ \n`abc3\\", max_size=60) | st.text(max_size=40))
def test_any_text_is_a_page_or_an_error(text: str) -> None:
    try:
        page, _ = parse_page(text, BEFORE)
    except DeltaError as error:
        assert error.reason
    else:
        assert [node.id for node in page.nodes] == list(range(1, len(page.nodes) + 1))


@given(st.text(alphabet="'[]=+~#end \n`abc3\\", max_size=60) | st.text(max_size=40))
def test_any_text_is_a_change_or_an_error(text: str) -> None:
    try:
        prediction = read_change(text, BEFORE)
    except DeltaError as error:
        assert error.reason
    else:
        assert prediction.next_observation is not None


def test_the_base_model_was_taught_the_same_page_text() -> None:
    assert pretrained_page_text(AFTER) == page_text(AFTER)
    assert pretrained_page_text(replace(AFTER, notice="Hi")) == page_text(replace(AFTER, notice="Hi"))


def test_a_written_page_is_mended_where_it_can_be_meant_in_one_way_only() -> None:
    text = "```\nshop.localhost/x\n\nlink 'Home' [7]\nbutton 'Go' sparkling checked\nlink 'Open\n```"
    page, repairs = parse_page(text, BEFORE)
    assert [node.name for node in page.nodes] == ["Home", "Go", "Open"]
    assert page.nodes[1].props == (("checked", "true"),)
    assert len(repairs) >= 3
    kept, repairs = parse_page("link 'Home'", BEFORE)
    assert kept.url == BEFORE.url and "address is missing" in repairs[0]
    with pytest.raises(DeltaError, match="no element"):
        parse_page("shop.localhost/x", BEFORE)
    with pytest.raises(DeltaError, match="line 2"):
        parse_page("shop.localhost/x\nwhat is this?", BEFORE)


def test_a_label_holds_the_words_of_the_labeller_and_is_read_back() -> None:
    text = change_text(SAID)
    assert text.split("\n")[0] == "A link opens its page."
    assert text.split("\n")[-2:] == ["# The scarf is shown.", "end"]
    read = read_change(text, BEFORE)
    assert (read.next_observation, read.reasoning, read.done) == (AFTER, "A link opens its page.", True)
    assert read.delta is not None and read.delta.sentence == "The scarf is shown."
    plain = read_change(change_text(STEP), BEFORE)
    assert plain.delta is not None and plain.delta.sentence == plain.reasoning == "Opens 'Velmor Scarf'."
    assert change_text(SAID, edits=False) == "A link opens its page.\n# The scarf is shown.\nend"
    only = replace(STEP, info={"sentence": "A scarf."})
    assert words_of(only).change == "A scarf." and change_text(only).count("A scarf.") == 1


async def test_full_state_writes_the_page_and_never_copies_the_old_one() -> None:
    answer = page_text(AFTER)
    model = FullStateWorldModel(FullStateConfig(), context(ScriptedEngine("what?", answer)))
    assert isinstance(model, TrainableWorldModel)
    prediction = await model.predict(BEFORE, CLICK, seed=1)
    assert (prediction.next_observation, prediction.attempts, prediction.error) == (AFTER, 2, "")
    assert prediction.tokens == sum(len(PROMPTS.world_model_target(text)) for text in ("what?", answer))
    lost = await FullStateWorldModel(FullStateConfig(retries=0), context(ScriptedEngine(""))).predict(
        BEFORE, CLICK, seed=1
    )
    assert lost.next_observation is None and lost.error
    (pair,) = model.examples([SAID])
    assert PROMPTS.decode(pair[1]).strip("\n") == f"{answer}\nend"
    ended = await FullStateWorldModel(FullStateConfig(), context(ScriptedEngine(f"{answer}\nend"))).predict(
        BEFORE, CLICK, seed=1
    )
    assert ended.done and ended.next_observation == AFTER


def test_delta_and_full_state_ask_the_same_question() -> None:
    (delta,) = DeltaWorldModel(DeltaConfig(), context()).examples([STEP])
    (full,) = FullStateWorldModel(FullStateConfig(), context()).examples([STEP])
    assert delta[0].ids[1:] == full[0].ids[1:] and delta[0].ids[0] != full[0].ids[0]


async def test_the_change_in_words_is_rewritten_by_the_model() -> None:
    engine = ScriptedEngine("Opens the scarf.\n# A scarf is shown.\nend", page_text(AFTER))
    model = DeltaWorldModel(DeltaConfig(apply="llm"), context(engine))
    prediction = await model.predict(BEFORE, CLICK, seed=1)
    assert (prediction.next_observation, prediction.reasoning, prediction.done) == (AFTER, "Opens the scarf.", True)
    assert PROMPTS.decode(engine.requests[1].prompt.ids).endswith("\nA scarf is shown.")
    assert prediction.tokens > len(PROMPTS.world_model_target(page_text(AFTER)))
    both = model.examples([SAID])
    assert [PROMPTS.decode(target).strip("\n") for _, target in both] == [
        "A link opens its page.\n# The scarf is shown.\nend",
        page_text(AFTER),
    ]
    paper = DeltaWorldModel(DeltaConfig(apply="llm", learn_apply=False), context())
    assert paper.examples([SAID]) == both[:1]
    bad = DeltaWorldModel(DeltaConfig(apply="llm", retries=0), context(ScriptedEngine("Opens.", "what?")))
    lost = await bad.predict(BEFORE, CLICK, seed=1)
    assert lost.next_observation is None and "no element" in lost.error


async def test_two_halves_of_an_answer_count_as_one_answer() -> None:
    """Tokens, attempts and confidence of a page that was written from words: each half once, failed ones apart."""
    written = ("Opens the scarf.", "what?", page_text(AFTER))
    sizes = [len(PROMPTS.world_model_target(text)) for text in written]
    for answers, attempts in ((("", *written), 3), ((written[0], written[2]), 1)):
        model = DeltaWorldModel(DeltaConfig(apply="llm"), context(ScriptedEngine(*answers)))
        prediction = await model.predict(BEFORE, CLICK, seed=1)
        assert prediction.next_observation == AFTER
        assert (prediction.attempts, prediction.answer_tokens) == (attempts, sizes[0] + sizes[2])
        assert last_tokens(prediction) == sizes[0] + sizes[2] <= prediction.tokens
        assert prediction.logprob == pytest.approx(-0.5)
    retried = DeltaWorldModel(DeltaConfig(), context(ScriptedEngine("no", LABEL)))
    found = await retried.predict(BEFORE, CLICK, seed=1)
    assert last_tokens(found) == len(PROMPTS.world_model_target(LABEL)) != found.tokens // found.attempts
    # A model of somebody else may not tell.
    assert last_tokens(Prediction(AFTER, tokens=9, attempts=3)) == 3


async def test_history_is_an_option() -> None:
    past = tuple(Action("click", 1, target_role="link", target_name=name) for name in ("Home", "Cart"))
    engine = ScriptedEngine(LABEL, LABEL)
    for history in (0, 1):
        model = DeltaWorldModel(DeltaConfig(history=history), context(engine))
        await model.predict(BEFORE, CLICK, seed=1, history=past)
        (pair,) = model.examples([replace(STEP, info={"history": past})])
        assert pair[0] == engine.requests[-1].prompt
    texts = [PROMPTS.decode(request.prompt.ids) for request in engine.requests]
    assert "- click" not in texts[0]
    assert "- click 'Cart'" in texts[1] and "- click 'Home'" not in texts[1]
    assert recent(past, 5) == past and recent(past, 0) == ()


async def test_frozen_on_the_runs_own_model_is_the_zero_shot_question() -> None:
    engine = ScriptedEngine(LABEL)
    prediction = await FrozenWorldModel(FrozenConfig(), context(engine)).predict(BEFORE, CLICK, seed=1)
    assert prediction.next_observation == AFTER
    assert engine.requests[0].prompt == PROMPTS.world_model_prompt(BEFORE, CLICK)
    page = ScriptedEngine(page_text(AFTER))
    found = await FrozenWorldModel(FrozenConfig(form="page"), context(page)).predict(BEFORE, CLICK, seed=1)
    assert found.next_observation == AFTER
    assert page.requests[0].prompt == PROMPTS.full_page_prompt(BEFORE, CLICK)
    with pytest.raises(ConfigError, match="needs a chat model"):
        FrozenWorldModel(FrozenConfig(shots=1), context(engine))


@pytest.mark.parametrize(("form", "answer"), [("delta", f"{LABEL}\nend"), ("page", f"{page_text(AFTER)}\nend")])
async def test_every_form_can_say_that_the_episode_is_over(form: Any, answer: str) -> None:
    model = FrozenWorldModel(FrozenConfig(form=form), context(ScriptedEngine(answer)))
    prediction = await model.predict(BEFORE, CLICK, seed=1)
    assert (prediction.next_observation, prediction.done) == (AFTER, True)
    assert "`end`" in SYSTEM[form] and answer_of(SAID, form).endswith("\nend")
    assert not answer_of(STEP, form).endswith("end")


def other(name: str) -> Transition:
    page = replace(BEFORE, nodes=(*BEFORE.nodes[:3], Node(4, "link", name)))
    return Transition(page, Action("click", 4, target_role="link", target_name=name), AFTER)


async def test_frozen_behind_a_server_shows_the_nearest_real_transitions(tmp_path: Path) -> None:
    pytest.importorskip("openai")
    store = TransitionStore(tmp_path / "real.jsonl.gz")
    store.append([other("Blue Kettle"), other("Velmor Hat"), Transition(BEFORE, Action("goto", text="x"), AFTER)])
    told: list[Any] = []
    with chat_server("nonsense", LABEL) as server:
        config = FrozenConfig(server=Server(model="big", base_url=server.url), shots=1, store=str(store.path))
        model = FrozenWorldModel(config, context(count=told.append))
        prediction = await model.predict(BEFORE, CLICK, seed=1)
    assert (prediction.next_observation, prediction.attempts) == (AFTER, 2)
    assert prediction.logprob is not None
    system, user = (message["content"] for message in server.requests[0]["messages"])
    assert "script" in system
    assert "Velmor Hat" in user and "Blue Kettle" not in user
    assert user.endswith(question(BEFORE, CLICK))
    assert told[0].stats.new_tokens == prediction.tokens
    assert len({request["seed"] for request in server.requests}) == 2


async def test_no_example_is_of_a_site_that_is_asked_about(tmp_path: Path) -> None:
    pytest.importorskip("openai")
    store = TransitionStore(tmp_path / "real.jsonl.gz")
    store.append([replace(other(f"Kettle {site}"), info={"site": site}) for site in "abcd"])
    with chat_server(LABEL) as server:
        config = FrozenConfig(server=Server(model="big", base_url=server.url), shots=4, store=str(store.path))
        await FrozenWorldModel(config, context(held_out={"a", "c"})).predict(BEFORE, CLICK, seed=1)
        user = server.requests[0]["messages"][1]["content"]
        assert [f"Kettle {site}" in user for site in "abcd"] == [False, True, False, True]
        with pytest.raises(MissingError, match="none outside of held-out sites"):
            await FrozenWorldModel(config, context(held_out=set("abcd"))).predict(BEFORE, CLICK, seed=1)


async def test_frozen_says_when_there_is_nothing_to_show(tmp_path: Path) -> None:
    server = Server(model="big", base_url="http://localhost:1/v1")
    with pytest.raises(MissingError, match=r"none.jsonl.gz.*dynaweb collect"):
        gone = FrozenConfig(server=server, shots=1, store=str(tmp_path / "none.jsonl.gz"))
        await FrozenWorldModel(gone, context()).predict(BEFORE, CLICK, seed=1)
    with pytest.raises(MissingError, match="there are none"):
        await FrozenWorldModel(FrozenConfig(server=server, shots=2), context()).predict(BEFORE, CLICK, seed=1)


def test_retrieval_finds_what_was_acted_on_and_does_not_depend_on_chance() -> None:
    items = [other(name) for name in ("Blue Kettle", "Velmor Hat", "Red Kettle", "Velmor Scarf")]
    found = Retriever(items)
    assert found.nearest(BEFORE, CLICK, 2) == [items[1], items[3]]
    assert found.nearest(BEFORE, CLICK, 9)[-1] == items[3] and len(found.nearest(BEFORE, CLICK, 9)) == 4
    assert found.first(2) == items[:2]
    assert Retriever([]).nearest(BEFORE, CLICK, 2) == []
    text = with_examples(question(BEFORE, CLICK), items[:2], "delta")
    assert text.index("EXAMPLE 2") < text.index("NOW") and text.count("ANSWER:") == 2


def test_a_labeller_sees_the_true_next_page() -> None:
    system, user = label_question(STEP)
    assert "CHANGE:" in system
    assert "Add to cart" in user and "http://shop.localhost/product/3" in user


def test_events_of_two_dreams_share_nothing() -> None:
    async def both() -> list[Prediction]:
        model = DeltaWorldModel(DeltaConfig(), context(ScriptedEngine(LABEL, LABEL)))
        return list(await asyncio.gather(*(model.predict(BEFORE, CLICK, seed=seed) for seed in (1, 2))))

    assert [p.next_observation for p in asyncio.run(both())] == [AFTER, AFTER]
