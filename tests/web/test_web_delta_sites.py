"""Deltas of real transitions: the embedded sites played at random, without a browser."""

from __future__ import annotations

import asyncio
import random
from functools import cache
from statistics import median

from dynaweb.types import Action, Observation, Prediction, Transition
from dynaweb.web.delta import apply, describe, diff, parse, to_text
from dynaweb.web.page.text import render
from dynaweb.web.static.session import StaticSession
from dynaweb.worldmodels.fidelity import Probe, grade
from dynaweb_env_sites.server import create_app
from dynaweb_env_sites.world_store import HEADER

EPISODES, STEPS = 60, 10


def choose(page: Observation, chance: random.Random) -> Action:
    nodes = [node for node in page.nodes if node.role not in ("text", "heading", "status")]
    if not nodes or chance.random() < 0.1:
        return Action("go_back")
    node = chance.choice(nodes)
    if node.role == "textbox":
        return Action("type", node.id, chance.choice(["a", "12", "it's"]), chance.random() < 0.3)
    if node.role == "combobox":
        return Action("select", node.id, chance.choice(dict(node.props)["options"].split("|")))
    return Action("click", node.id)


async def explore() -> list[Transition]:
    app = create_app()
    session = StaticSession(app)
    pairs = []
    for episode in range(EPISODES):
        chance = random.Random(episode)
        app.store.put("1", app.store.world(episode, "pretrain"))
        await session.reset(headers={HEADER: "1"})
        await session.goto(f"http://{('shop', 'forum', 'tracker')[episode % 3]}.localhost/")
        page = await session.observe()
        for _ in range(STEPS):
            action = choose(page, chance)
            await session.act(action)
            after = await session.observe()
            pairs.append(Transition(page, action, after))
            page = after
    return pairs


@cache
def transitions() -> tuple[Transition, ...]:
    return tuple(asyncio.run(explore()))


def test_every_transition_is_rebuilt_exactly() -> None:
    assert len(transitions()) == EPISODES * STEPS
    for item in transitions():
        before, after = item.observation, item.next_observation
        script = to_text(diff(before, after))
        predicted = apply(before, parse(script, before, strict=True))
        assert predicted == after
        assert parse(script, before).repairs == ()
        graded = grade(Probe(item), Prediction(predicted))
        assert {value for name, value in graded.items() if name not in ("invalid", "tokens", "next_action")} <= {
            1.0,
            None,
        }


def test_scripts_are_short() -> None:
    same, other = [], []
    for item in transitions():
        before, after = item.observation, item.next_observation
        ratio = len(to_text(diff(before, after))) / len(render(after))
        (same if before.url == after.url else other).append(ratio)
    assert len(same) > 100
    assert len(other) > 100
    assert median(same) < 0.1
    assert median(other) < 0.75
    assert max(same) < 0.6


def test_every_transition_has_a_sentence() -> None:
    sentences = [describe(item.observation, item.action, item.next_observation) for item in transitions()]
    assert all(sentence.endswith(".") and len(sentence) < 200 and "\n" not in sentence for sentence in sentences)
    for item, sentence in zip(transitions(), sentences, strict=True):
        assert (sentence == "Nothing changes.") == diff(item.observation, item.next_observation).same
