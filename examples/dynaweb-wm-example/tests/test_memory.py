"""The memory: dynaweb's conformance suite, and what it remembers."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from dynaweb_wm_example.memory import likeness

from dynaweb.plugin.registry import Plugins
from dynaweb.protocols import WorldModelContext
from dynaweb.testing import WorldModelSuite
from dynaweb.testing.stand_ins import BUY, HOME, OPEN, PRODUCT, TRANSITIONS
from dynaweb.types import Node


class TestConformance(WorldModelSuite):
    name = "example-memory"
    settings = {"overlap": 0.3}


@pytest.fixture
def context() -> WorldModelContext:
    return WorldModelContext(transitions=lambda: TRANSITIONS)


def test_it_remembers_what_was_done_and_admits_what_was_not(
    dynaweb_plugins: Plugins, context: WorldModelContext
) -> None:
    model = dynaweb_plugins.create("wm", "example-memory", {}, context)
    assert asyncio.run(model.predict(HOME, OPEN, seed=1)).next_observation == PRODUCT
    lost = asyncio.run(model.predict(HOME, BUY, seed=1))
    assert lost.next_observation is None and "nobody has done this before: click 'Buy'" in lost.error


def test_a_page_may_differ_a_little_unless_it_must_be_exact(
    dynaweb_plugins: Plugins, context: WorldModelContext
) -> None:
    changed = replace(HOME, nodes=(*HOME.nodes, Node(5, "text", "3 new items")))
    assert 0.7 < likeness(HOME, changed) < 1
    for settings, found in (({}, True), ({"exact": True}, False)):
        model = dynaweb_plugins.create("wm", "example-memory", settings, context)
        assert (asyncio.run(model.predict(changed, OPEN, seed=1)).next_observation is not None) is found
